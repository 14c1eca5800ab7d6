# rdma-core's own tests of verbs and libmlx5, on the first device. They need a subnet manager, an address on IP over InfiniBand
# for rdma_cm, and huge pages.
load mlx5_core && load mlx5_ib && load ib_uverbs && load ib_umad && load ib_ipoib && load rdma_ucm || return
opensm >/tmp/opensm.out 2>&1 &
managed "the port"
port_is ACTIVE || sed 's/^/#| opensm: /' /tmp/opensm.out
ip addr add 10.2.0.1/24 dev ib0
ip link set ib0 up
# The interface has a carrier once the port has joined the group of all nodes.
joined() { [ "$(cat /sys/class/net/ib0/carrier 2>/dev/null)" = 1 ]; }
if wait_for $limit joined; then pass "IP over InfiniBand"; else fail "IP over InfiniBand: no carrier"; fi
echo 16 >/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages
# Flow steering is for Ethernet, and EFA is another maker's adapter: 70 tests that take more than a minute to find out that this is
# neither.
rdma_core_tests 120 -test_mlx5_dr. -test_mlx5_flow. -test_flow. -test_efa $(parameter tests | tr , ' ')
