# No kernel driver on the device: rdma-core's own driver in user space (libmlx5 over VFIO) brings it up and moves data.
load vfio_pci && load vfio_iommu_type1 || return
address=$(basename "$(grep -lx 0x15b3 /sys/bus/pci/devices/*/vendor | head -n 1 | xargs dirname)")
echo vfio-pci >"/sys/bus/pci/devices/$address/driver_override"
echo "$address" >/sys/bus/pci/drivers_probe
if wait_for 60 test -e "/sys/bus/pci/drivers/vfio-pci/$address"; then pass "$address bound to vfio-pci"; else fail "not bound"; fi
if [ -e "/sys/bus/pci/devices/$address/iommu_group" ]; then pass "an IOMMU group"; else fail "no IOMMU group"; fi
rdma_core_tests 300 "--pci-dev=$address" "$(parameter tests test_mlx5_vfio)"
