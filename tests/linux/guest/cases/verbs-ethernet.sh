# rdma-core's own tests of verbs and libmlx5 on the first device, whose port is an Ethernet port, and the same on RoCE in software
# (rdma_rxe) in the same guest, to compare with. They need an address, for rdma_cm. Those that do not depend on the kind of the port are run
# by the case verbs.
load mlx5_core && load mlx5_ib && load ib_uverbs && load rdma_ucm || return
roce mlx5_0 10.4.0.1 || return
# Some tests count frames: those of IPv6 that join groups come first.
sleep 5
modules="test_addr. test_atomic. test_cq. test_cq_events. test_cqex. test_flow. test_qp. test_qpex. test_rdmacm. test_rss_traffic. test_srq."
of_mlx5="test_mlx5_devx. test_mlx5_flow. test_mlx5_raw_wqe. test_mlx5_timestamp. test_mlx5_udp_sport."
modules=$(parameter tests "$modules" | tr , ' ')
rdma_core_tests 120 --dev=mlx5_0 $modules $(parameter of_mlx5 "$of_mlx5" | tr , ' ')

# On a card that only it uses, which the module makes.
load dummy && load rdma_rxe || return
ip link set dummy0 address $wire_mac:02
ip link set dummy0 arp on
roce rxe0 10.7.0.1 || return
rdma_core_tests 120 --dev=rxe0 $modules | sed 's/^#> test /#> rxe /'
