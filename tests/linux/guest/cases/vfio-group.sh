# The card and another function of its slot, behind a switch without access control, are one IOMMU group: both are VFIO's, or neither
# is used.
load vfio_pci && load vfio_iommu_type1 && load virtio_pci || return
card=0000:03:00.0
neighbour=0000:03:00.1
has() { if [ "$(driver_of "$1")" = "$2" ]; then pass "$1 has '$2'"; else fail "$1 has '$(driver_of "$1")', not '$2'"; fi; }
wait_for 30 test -e "/sys/bus/pci/drivers/virtio-pci/$neighbour"
has $neighbour virtio-pci
if [ "$(readlink -f /sys/bus/pci/devices/$card/iommu_group)" = "$(readlink -f /sys/bus/pci/devices/$neighbour/iommu_group)" ]; then
	pass "one group"
else
	fail "two groups"
fi
modules_for_modprobe
# Bound alone it is of no use yet, and that is said.
step "bind" bareverbs bind $card
expect "what is in the way" "IOMMU group [0-9]+ is not viable: it also has $neighbour, bound to virtio-pci"
has $card vfio-pci
step "devices" bareverbs devices
expect "the group" "IOMMU group [0-9]+ is not viable: it also has $neighbour, bound to virtio-pci"
expect "the remedy" "remedy: sudo bareverbs bind --group $card"
refused "info" 1 "IOMMU group [0-9]+ is not viable" bareverbs info --device $card
has $neighbour virtio-pci
step "bind --group" bareverbs bind --group $card
has $neighbour vfio-pci
step "the main job" bareverbs --device $card -n 20
step "unbind --group" bareverbs unbind --group $card
has $neighbour virtio-pci
