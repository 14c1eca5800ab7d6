# The main job and info of `bareverbs` on cards that it owns through VFIO: one card looped back, and from one to the other.
vfio_cards || return
step "info" bareverbs info --device "$card0"
expect "the part of the card" "vendor_part_id: +$(parameter part 4129)"
step "the main job, one card" bareverbs --device "$card0" -n 100
step "the main job, two cards" bareverbs --device "$card0" --device "$card1" -n 100
