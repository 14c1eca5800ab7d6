# No kernel driver on the device: rdma-core's own driver in user space (libmlx5 over VFIO) brings it up and moves data.
vfio_cards || return
if [ -e "/sys/bus/pci/devices/$card0/iommu_group" ]; then pass "an IOMMU group"; else fail "no IOMMU group"; fi
rdma_core_tests 300 "--pci-dev=$card0" "$(parameter tests test_mlx5_vfio)"
