# `bareverbs pingpong` on a card with an Ethernet port behind VFIO, with the tools of rdma-core on the kernel's card: each is
# once the server and once the client. Our driver answers no ARP, so the kernel has our MAC address as a static neighbour.
load mlx5_core && load mlx5_ib && load ib_uverbs && load vfio_pci && load vfio_iommu_type1 || return
card=0000:01:00.0
theirs_at=0000:02:00.0
to_vfio $card
theirs=$(ls /sys/bus/pci/devices/$theirs_at/infiniband)
roce "$theirs" 192.0.2.2 || return
their_mac=$(cat "/sys/class/net/$nic/address")

step "info" bareverbs info --device $card
expect "an Ethernet port" "link_layer: +Ethernet$"
our_mac=$(sed -n 's/^.*mac: *//p' /tmp/step)
step "their kernel knows our MAC address" arp -i "$nic" -s 192.0.2.1 "$our_mac"

ours_here="-g 5 --address 192.0.2.1 --peer-mac $their_mac"
for transport in rc uc; do
	for more in "-s 1" "-s 4096 -e" "-s 65536 -m 512"; do
		both_ways $transport "$more" "$ours_here" "-g $index"
	done
done
for transport in ud srq; do
	for more in "-s 1" "-s 1024 -e"; do
		both_ways $transport "$more" "$ours_here" "-g $index"
	done
done
for more in "-s 1" "-s 4096 -e"; do
	both_ways_xrc "$more" "$ours_here" "-g $index"
done
expect "our MAC address is printed" "^  local MAC: +$our_mac$"
# Both ends on our card, through the link-local address.
step "both ends on one card" bareverbs pingpong --device $card --device $card -g 0 -c -n 100
refused "no GID index" 1 "port 1 is an Ethernet port.*give -g 0" bareverbs pingpong --device $card --device $card
refused "an empty entry" 1 "GID 3 of port 1 has no entry" bareverbs pingpong --device $card -g 3
# perf speaks with itself alone, so both ends are ours: on one card, then on two in processes of their own, over addresses.
step "perf on one card" bareverbs perf --device $card -g 0 -n 200 -s 1,2000
refused "perf without a GID index" 1 "port 1 is an Ethernet port.*give -g 0" bareverbs perf --device $card
to_vfio $theirs_at
for options in "-n 200 -s 1,2000" "-c ud -n 200" "--use-srq -q 4 -n 200 -s 1,2000" "-c ud --use-srq -e -n 200"; do
	timeout $limit bareverbs perf --device $card --listen --quiet -g 5 --address 192.0.2.1 >/tmp/server 2>&1 &
	our_server=$!
	wait_for 60 listening_or_ended $our_server
	step "perf $options" bareverbs perf --device $theirs_at --connect localhost -g 5 --address 192.0.2.2 $options
	expect "perf $options: every byte" "^ok: [0-9]+ measurements?, data verified$"
	wait $our_server || fail "perf $options, the server: $(cat /tmp/server)"
done
