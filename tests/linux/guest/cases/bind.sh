# The program finds the cards, takes one from the kernel's driver for VFIO, and gives it back: what it says, and what is so.
load_mlx5 || return
card=0000:01:00.0
other=0000:02:00.0
modules_for_modprobe


# has CARD DRIVER: the card is bound to it.
has() {
	if [ "$(driver_of "$1")" = "$2" ]; then pass "$1 has $2"; else fail "$1 has $(driver_of "$1"), not $2"; fi
}

step "the functions, with the kernel's driver" bareverbs devices
expect "the first card" "^$card +ConnectX-7 +InfiniBand +mlx5_core +[0-9]+ .* mlx5_0$"
expect "the second card" "^$other +ConnectX-7 +InfiniBand +mlx5_core +[0-9]+ .* mlx5_1$"
expect "not bound" "^    $card is bound to mlx5_core, not to vfio-pci$"
expect "the command for it" "^      remedy: sudo bareverbs bind $card$"
expect "no module" "^    the kernel module vfio-pci is not loaded$"

refused "no address" 2 "is no PCI address" bareverbs bind mlx5_0
refused "no function" 1 "there is no PCI function 0000:7f:00.0" bareverbs bind 7f:00.0
refused "no mlx5" 1 "0000:00:00.0 is 8086:[0-9a-f]+, which is no ConnectX" bareverbs bind --force 0000:00:00.0

ibv_asyncwatch -d mlx5_0 >/dev/null 2>&1 &
watch=$!
wait_for 60 has_open $watch /dev/infiniband/uverbs0 || fail "ibv_asyncwatch does not open the device"
refused "a card in use" 1 "RDMA device mlx5_0 is in use by process $watch \(ibv_asyncwatch\)" bareverbs bind $card
kill $watch
wait $watch 2>/dev/null
has $card mlx5_core

step "a dry run" bareverbs bind --dry-run $card
expect "the module" "^modprobe vfio-pci "
expect "the probe" "^echo $card > /sys/bus/pci/drivers_probe "
has $card mlx5_core
if [ -d /sys/module/vfio_pci ]; then fail "a dry run loaded a module"; else pass "a dry run loads nothing"; fi

step "bind" bareverbs bind $card
expect "said" "^$card: bound to vfio-pci \(was bound to mlx5_core\), IOMMU group [0-9]+$"
expect "ready" "^    ready: --device $card \(InfiniBand port\)$"
has $card vfio-pci
has $other mlx5_core
step "bind again" bareverbs bind $card
expect "nothing to do" "\(as before\)"
group=$(basename "$(readlink /sys/bus/pci/devices/$card/iommu_group)")
if [ -c "/dev/vfio/$group" ]; then pass "/dev/vfio/$group"; else fail "no /dev/vfio/$group"; fi
step "the other card" ibv_devinfo -d mlx5_1
step "the functions, one with vfio-pci" bareverbs devices

# A user that is not root.
chmod 666 /dev/vfio/vfio
ulimit -l 64
step "devices, as a user" su user -c "bareverbs devices $card"
expect "no access" "^    /dev/vfio/$group may not be opened by this user: it is of user 0, group 0, mode 0600$"
expect "memlock" "^    the process may lock 65536 bytes of memory \(RLIMIT_MEMLOCK\), and [0-9]+ at least are needed for DMA$"
chown user "/dev/vfio/$group"
ulimit -l unlimited
step "devices, as a user that may" su user -c "bareverbs devices $card"
expect "ready for the user" "^    ready: --device $card \(InfiniBand port\)$"
refused "unbind, as a user" 1 "Permission denied.*only root may do this.*nothing was changed" su user -c "bareverbs unbind $card"

sleep 600 9<>"/dev/vfio/$group" &
holder=$!
wait_for 60 has_open $holder "/dev/vfio/$group"
step "devices, one that a process has open" bareverbs devices $card
expect "who has it" "^    IOMMU group $group is in use by process $holder \(sleep\)$"
refused "unbind of a card that a process has open" 1 "is in use by process $holder .*remedy: end process $holder " bareverbs unbind $card
kill $holder
wait $holder 2>/dev/null
has $card vfio-pci

step "unbind" bareverbs unbind $card
expect "said so" "^$card: given back, bound to mlx5_core$"
has $card mlx5_core
if wait_for $limit all_ports_active 2; then pass "both ports active"; else fail "a port is not active"; fi
step "the card is back" ibv_devinfo -d mlx5_0
pair "a pingpong" mlx5_1 ibv_rc_pingpong -c -m 4096 -n 100 -s 65536

# What a dry run prints is what a shell can do.
bareverbs bind --dry-run $card $other >/tmp/plan
step "the commands of a dry run" sh -e /tmp/plan
has $card vfio-pci
has $other vfio-pci
step "unbind both" bareverbs unbind $card $other
has $card mlx5_core
has $other mlx5_core

# The service for a card that is bound at boot: what systemd starts and stops.
unit() { sed -n "s#^$1=/usr/local/bin/##p" /bareverbs-bind@.service | sed "s/%i/$card/"; }
for line in ExecStart ExecStop; do [ -n "$(unit $line)" ] || fail "the service has no $line"; done
step "the service starts" sh -e -c "$(unit ExecStart)"
has $card vfio-pci
step "the service stops" sh -e -c "$(unit ExecStop)"
has $card mlx5_core

# An override that was set before comes back too.
echo nobody >/sys/bus/pci/devices/$card/driver_override
step "bind over another's override" bareverbs bind $card
step "and back" bareverbs unbind $card
has $card mlx5_core
if grep -qx nobody /sys/bus/pci/devices/$card/driver_override; then pass "the override is back"; else fail "the override is lost"; fi
