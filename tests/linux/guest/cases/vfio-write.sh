# The example of package bareverbs-vfio, one end on each card.
vfio_cards || return
step "write --listen" sh -c "write $card0 --listen >/tmp/listening 2>&1 & sleep 2; write $card1 localhost; wait; cat /tmp/listening"
expect "the peer has what was written" "the peer wrote: Hello over VFIO!"
