# `bareverbs pingpong` on a card behind VFIO, with the tools of rdma-core on the kernel's card: each is once the server and
# once the client. Then both ends are ours, on one card.
load_mlx5 && load vfio_pci && load vfio_iommu_type1 || return
card=0000:01:00.0
to_vfio $card
# The card that is left, by the place that it has.
theirs=$(ls /sys/bus/pci/devices/0000:02:00.0/infiniband)

for transport in rc uc; do
	for more in "-s 1" "-s 4096 -e" "-s 65536 -g 0 -m 4096"; do
		both_ways $transport "$more"
	done
	step "$transport: both ends on one card" bareverbs pingpong --transport $transport --device $card --device $card -c -n 100
	step "$transport: with events" bareverbs pingpong --transport $transport --device $card --device $card -e -c -n 100
done
# XRC, one queue pair for each direction.
for more in "-s 1" "-s 4096 -e" "-s 65536 -g 0 -m 4096"; do
	both_ways_xrc "$more"
done
step "xrc: both ends on one card" bareverbs pingpong --transport xrc --device $card --device $card -c -n 100
# Datagrams, and queue pairs with a shared receive queue, whose default number is 16 at both ends.
for transport in ud srq; do
	for more in "-s 1" "-s 1024 -e" "-s 4096 -g 0"; do
		both_ways $transport "$more"
	done
	step "$transport: both ends on one card" bareverbs pingpong --transport $transport --device $card --device $card -c -n 100
done
