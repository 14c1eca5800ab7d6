# How long a process takes from its start to its first completion: ours, and libmlx5 over VFIO (in rdma-core's test, and what of it
# is Python's start is shown too).
vfio_cards || return
for _ in 1 2 3; do
	host starts "bareverbs, the main job"
	step "ours" bareverbs --device "$card0" -n 1 -s 8
done
step "Python's own start" sh -c "time env PYTHONPATH=/lib/python3/dist-packages python3 -c 'import pyverbs.providers.mlx5.mlx5_vfio'"
for _ in 1 2 3; do
	host starts "libmlx5 over VFIO, in Python"
	rdma_core_tests 300 "--pci-dev=$card0" test_mlx5vfio_rc_qp_send_imm_traffic
done
