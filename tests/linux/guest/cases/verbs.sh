# rdma-core's own tests of verbs and of libmlx5, on the first device.
load_mlx5 || return
# Some tests want memory in huge pages.
echo 16 >/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages
# Flow steering is for Ethernet, and two more are for another maker's adapters: 70 tests that take more than a minute to find out
# that this is neither.
rdma_core_tests 120 -test_mlx5_dr. -test_mlx5_flow. -test_flow. -test_efa $(parameter tests | tr , ' ')
