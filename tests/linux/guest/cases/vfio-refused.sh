# What stands in the way of a job on a card, each with its reason and its remedy; the card and the machine stay as they are.
load_mlx5 || return
card=0000:01:00.0
other=0000:02:00.0

refused "VFIO is not loaded" 1 "the kernel module vfio-pci is not loaded" bareverbs info --device $card
expect "the remedy" "sudo modprobe vfio-pci"
load vfio_pci && load vfio_iommu_type1
refused "the kernel's driver has it" 1 "$card is bound to mlx5_core, not to vfio-pci" bareverbs info --device $card
expect "the remedy" "sudo bareverbs bind $card"
refused "the doctor, of both cards" 1 "2 of 2 functions cannot be used" bareverbs doctor
expect "a line with the remedy" "^    $card is bound to mlx5_core, not to vfio-pci; remedy: sudo bareverbs bind $card$"
if [ "$(driver_of $card)" = mlx5_core ]; then pass "it still has it"; else fail "the kernel's driver lost it"; fi
unload_mlx5
refused "no driver has it" 1 "bound to no driver" bareverbs info --device $card
refused "no such function" 1 "there is no PCI function 0000:7f:00.0" bareverbs info --device 7f:00.0
expect "where to look" "bareverbs devices"
refused "no address" 2 "PCI address" bareverbs info --device mlx5_0
refused "no mlx5" 1 "which is no ConnectX" bareverbs info --device 00:00.0

vfio_cards || return
group=$(basename "$(readlink /sys/bus/pci/devices/$card/iommu_group)")
# Up to the gateway's registers, which the kernel's driver leaves as it used them and a reset clears.
configuration() { head -c 176 /sys/bus/pci/devices/$card/config | hexdump -C; }
configuration >/tmp/before

# A user that may not, and then one that may: nothing but these files and the limit of locked memory.
refused "the file of VFIO" 1 "/dev/vfio/vfio may not be opened by this user|/dev/vfio/$group may not" su user -c "bareverbs info --device $card"
expect "the remedy" "chown \\\$USER /dev/vfio/"
chmod 666 /dev/vfio/vfio
refused "the file of the group" 1 "/dev/vfio/$group may not be opened by this user" su user -c "bareverbs info --device $card"
chown user "/dev/vfio/$group"
ulimit -l 1024
refused "the limit of locked memory" 1 "may lock 1048576 bytes of memory \(RLIMIT_MEMLOCK\), and [0-9]+ at least are needed" \
	su user -c "bareverbs info --device $card"
expect "the remedy" "ulimit -l [0-9]+"
needed=$(sed -n 's/.*ulimit -l \([0-9]*\).*/\1/p' /tmp/step | head -n 1)
ulimit -l $((needed + 8192))
step "a user with these files and that limit" su user -c "bareverbs --device $card -n 20"
ulimit -l unlimited

# The limit of mappings may be changed while the module is loaded, and holds for cards that are opened after it.
limit_file=/sys/module/vfio_iommu_type1/parameters/dma_entry_limit
echo 2 >$limit_file
refused "the limit of mappings" 1 "the kernel allows 2 mappings of memory for this device" bareverbs --device $card -n 20
expect "the remedy" "$limit_file"
# The second mapping is for the firmware.
echo 1 >$limit_file
refused "the doctor, at the limit of mappings" 1 "2 of 2 functions cannot be used" bareverbs doctor
expect "the remedy in its line" "^    .*the kernel allows 1 mappings of memory for this device; remedy: .*$limit_file"
echo 65535 >$limit_file
step "the doctor, which brings both cards up" bareverbs doctor
expect "the port" "^    port 1: active, 4X, .* LID [0-9]+, subnet manager at LID [0-9]+$"
expect "ready" "^    ready: --device $card$"
step "with the limit as it was" bareverbs --device $card -n 20

refused "a transport that the driver has not" 2 "dc" bareverbs pingpong --device $card --transport dc

configuration >/tmp/after
if diff /tmp/before /tmp/after >/tmp/step; then
	pass "its configuration space is as before"
else
	sed 's/^/#| /' /tmp/step
	fail "its configuration space has changed"
fi
step "the other card, all along" bareverbs info --device $other
