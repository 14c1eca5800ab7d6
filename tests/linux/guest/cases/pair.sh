# The pingpongs between two guests: guest 0 waits for guest 1.
load_mlx5 || return
load virtio_pci && load virtio_net
me=$(parameter guest)
wait_for 10 test -d /sys/class/net/eth0 || fail "no Ethernet cable"
ip addr add 10.0.0.$((me + 1))/24 dev eth0
ip link set eth0 up

# exchange NAME TOOL OPTIONS...
exchange() {
	title=$1
	shift
	if [ "$me" = 0 ]; then
		step "$title" "$@"
		return
	fi
	tries=100
	while [ $tries -gt 0 ]; do
		tries=$((tries - 1))
		timeout 60 "$@" 10.0.0.1 >/tmp/step 2>&1 && break
		# The other guest may not be there yet.
		grep -qi "couldn't connect" /tmp/step || tries=0
		sleep 0.3
	done
	sed 's/^/#| /' /tmp/step
	if grep -qE "iters in" /tmp/step; then pass "$title"; else fail "$title"; fi
}

exchange "rc, polling" ibv_rc_pingpong -c -n 100 -s 4096
exchange "rc, events" ibv_rc_pingpong -c -e -n 100 -s 65536
exchange "rc, 1 MB" ibv_rc_pingpong -c -n 10 -s 1048576
exchange "uc" ibv_uc_pingpong -n 100 -s 4096
exchange "ud" ibv_ud_pingpong -n 100 -s 2048
