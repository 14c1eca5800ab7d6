# A card with two ports: two functions of one slot, each with an IOMMU group of its own. Linux's driver has one and ours the
# other; then two processes of ours have one each.
load_mlx5 && load vfio_pci && load vfio_iommu_type1 || return
first=0000:01:00.0
second=0000:01:00.1
group_of() { basename "$(readlink "/sys/bus/pci/devices/$1/iommu_group")"; }
if [ "$(group_of $first)" != "$(group_of $second)" ]; then pass "two groups"; else fail "one group: $(group_of $first)"; fi

to_vfio $second
theirs=$(ls /sys/bus/pci/devices/$first/infiniband)
step "info" bareverbs info --device $second
expect "one port of a function" "phys_port_cnt: +1$"
for size in 1 65536; do
	tool="ibv_rc_pingpong -d $theirs -c -n 100 -s $size"
	ours="bareverbs pingpong --device $second -c -n 100 -s $size"
	with_tool "$size: our server on the second function, their client on the first" "$ours" "$tool localhost"
	with_tool "$size: their server, our client" "$tool" "$ours localhost"
done

to_vfio $first
for size in 1 65536; do
	server="bareverbs pingpong --device $first -c -n 100 -s $size"
	with_tool "$size: two processes of ours" "$server" "bareverbs pingpong --device $second -c -n 100 -s $size localhost"
done
# Each is brought up and taken down while the other one moves data.
bareverbs --device $first -n 400 >/tmp/neighbour 2>&1 &
neighbour=$!
for _ in 1 2; do step "the other function meanwhile" bareverbs --device $second -n 20; done
wait $neighbour
status=$?
sed 's/^/#| neighbour: /' /tmp/neighbour
if [ $status -eq 0 ]; then pass "the neighbour was not disturbed"; else fail "the neighbour: exit status $status"; fi
