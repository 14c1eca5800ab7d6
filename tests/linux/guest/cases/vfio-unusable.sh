# A card that cannot be used: refused with the reason that the case names, and nothing is left behind.
vfio_cards || return
says=$(parameter says)
refused "info" 1 "$says" bareverbs info --device "$card0"
[ -z "$(parameter remedy)" ] || expect "what to do" "$(parameter remedy)"
refused "the main job" 1 "$says" bareverbs --device "$card0"
refused "perf" 1 "$says" bareverbs perf --device "$card0"
refused "pingpong" 1 "$says" bareverbs pingpong --device "$card0" --wait 1
if [ "$(parameter binds)" = 0 ]; then
	step "devices" bareverbs devices
	expect "devices says so" "$says"
	echo "$card0" >/sys/bus/pci/drivers/vfio-pci/unbind
	refused "bind" 1 "$says" bareverbs bind "$card0"
fi
