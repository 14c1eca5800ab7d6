# A device with an Ethernet port in guest 0; in guest 1 RoCEv2 in software (rdma_rxe) on a virtio-net card. A wire joins the two.
cable || return
echo pfifo_fast >/proc/sys/net/core/default_qdisc
load ib_uverbs && load rdma_ucm || return 1

if [ "$me" = 0 ]; then
	load mlx5_core && load mlx5_ib || return 1
	device=mlx5_0
else
	load rdma_rxe || return 1
	device=rxe0
fi
roce_between $device || return
step "the device" ibv_devinfo -v -d $device

# rping_between: a connection of rdma_cm between addresses of the wire, checked by the tool.
rping_between() {
	if [ "$me" = "$waits" ]; then
		serve "rping, guest $waits waits" rping -s -a "10.4.0.$((waits + 1))" -C 50 -S 4000 -V
		return
	fi
	# The other one may not wait yet.
	rping_works() { timeout $limit rping -c -a "10.4.0.$((waits + 1))" -C 50 -S 4000 -V >/tmp/step 2>&1; }
	wait_for 60 rping_works || fail "rping: $(tail -n 3 /tmp/step)"
	part
}

# perf TOOL OPTIONS...: one tool of perftest between the guests. Without an answer for half a second a request is repeated.
perf() { between "$*, guest $waits waits" "$@" -F -d $device -x "$index" -m 1024 -u 17; }

if [ ! "$(parameter lossy)" ]; then
	# The last one in fragments.
	for size in 0 56 1400 20000; do
		step "ping with $size bytes" ping -c 5 -W 5 -I "$nic" -s $size $peer
		expect "ping with $size bytes: all came" "5 packets received"
	done
fi
# rdma_rxe offers 128 reads at a time, and the tools ask for as many of the device, which has 16.
reads="-o 16"
# On a bad wire everything behind a lost packet is sent again: no more than a slow machine takes until the next attempt.
large="-s 65536"
[ ! "$(parameter lossy)" ] || large="-s 4096 -t 8"
for waits in 0 1; do
	rping_between
	if [ ! "$(parameter lossy)" ]; then
		for tool in rc uc ud srq; do
			pingpong_options $tool
			options=$(echo "$options" | sed 's/-m 4096/-m 1024/')
			# 16 queue pairs of the shared receive queue at once would send more than the other guest takes in time.
			for size in 1 1024 $([ $tool = ud ] || [ $tool = srq ] || echo 65536); do
				between "$tool $size bytes, guest $waits waits" $program $options -d $device -g "$index" -n 100 -s $size
			done
		done
		between "rc events, guest $waits waits" ibv_rc_pingpong -c -e -m 1024 -d $device -g "$index" -n 100 -s 4096
	fi
	for verb in send write read; do
		perf ib_${verb}_bw -n 100 $large $([ $verb = read ] && echo $reads)
		perf ib_${verb}_lat -n 200 -s 8 $([ $verb = read ] && echo $reads)
	done
	perf ib_atomic_bw -n 100 $reads
	perf ib_atomic_bw -n 100 $reads -A CMP_AND_SWAP
	[ "$(parameter lossy)" ] && continue
	perf ib_send_bw -c UC -n 100 -s 4096
	perf ib_send_bw -c UD -n 100 -s 1024
done
for counter in $roce_port/hw_counters/* "/sys/class/net/$nic/statistics"/*; do
	count=$(cat "$counter")
	[ "$count" = 0 ] || echo "#| $(basename "$counter"): $count"
done
if [ "$(parameter lossy)" ] && [ "$me" = 1 ]; then
	# What this end has seen of the faults of the wire, whatever the other one says.
	for counter in duplicate_request out_of_seq_request rcvd_seq_err; do
		count=$(cat $roce_port/hw_counters/$counter)
		if [ "$count" -gt 0 ]; then pass "$counter: $count"; else fail "$counter: none"; fi
	done
fi
meet
if [ "$me" = 1 ]; then
	step "the software ends" rdma link delete $device
else
	ip link set "$nic" down
	unload_mlx5
fi
