# The pingpongs between two guests: guest 0 waits for guest 1.
load_mlx5 || return
load virtio_pci && load virtio_net
me=$(parameter guest)
wait_for 60 test -d /sys/class/net/eth0 || fail "no Ethernet cable"
ip addr add 10.0.0.$((me + 1))/24 dev eth0
ip link set eth0 up

# between NAME TOOL OPTIONS...
between() {
	title=$1
	shift
	if [ "$me" = 0 ]; then
		step "$title" "$@"
		return
	fi
	tries=300
	while [ $tries -gt 0 ]; do
		tries=$((tries - 1))
		timeout $limit "$@" 10.0.0.1 >/tmp/step 2>&1
		step_status=$?
		# The other guest may not be there yet.
		grep -qi "couldn't connect" /tmp/step || break
		sleep 0.3
	done
	sed 's/^/#| /' /tmp/step
	if [ $step_status -eq 0 ]; then pass "$title"; else fail "$title: exit status $step_status"; fi
}

for tool in $(parameter tools rc,uc,ud,srq,xsrq | tr , ' '); do
	pingpong_options $tool
	for size in $sizes; do
		iterations=$(pingpong_iterations $tool $size)
		between "$tool $size bytes, polling" $program $options $iterations -s $size
		between "$tool $size bytes, events" $program $options -e $iterations -s $size
	done
	[ $tool = rc ] || continue
	# Both guests are there now, and stay for the other tools: a datagram to whoever is at the other end of the cable.
	load ib_umad
	step "the neighbour's name" smpquery -C mlx5_0 -D nodedesc 0,1 && expect "it is the other one's" "device $((2 - me))\$"
done
