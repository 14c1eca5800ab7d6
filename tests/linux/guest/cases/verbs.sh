# rdma-core's own tests of verbs and of libmlx5, on the first device.
load_mlx5 || return
# Some tests want memory in huge pages.
echo 16 >/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages
# Flow steering is for Ethernet: 40 tests that take a minute to find out that the port is none.
rdma_core_tests 120 -test_mlx5_dr. $(parameter tests | tr , ' ')
