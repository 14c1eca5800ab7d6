# rdma-core's own tests of verbs and of libmlx5, on the first device.
load_mlx5 || return
# Some tests want memory in huge pages.
echo 16 >/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages
rdma_core_tests 120 $(parameter tests | tr , ' ')
