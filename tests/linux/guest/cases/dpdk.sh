# DPDK's testpmd on the Ethernet port of guest 1, with DPDK's driver of mlx5 over verbs (dv_flow_en=0); guest 0 is Linux with its own
# network interface. At last both are testpmd. The device does not compress completions, which the driver takes for granted.
huge_pages=/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages
# Free memory is in pieces after the start: the kernel puts them together, and does not always find enough at once.
reserved() {
	echo 1 >/proc/sys/vm/compact_memory
	echo 192 >$huge_pages
	[ "$(cat $huge_pages)" = 192 ]
}
wait_for 60 reserved || fail "$(cat $huge_pages) huge pages, not 192"
cable || return
echo pfifo_fast >/proc/sys/net/core/default_qdisc
load mlx5_core && load mlx5_ib && load ib_uverbs || return 1
roce_between mlx5_0 || return
card=$(basename "$(readlink -f /sys/class/infiniband/mlx5_0/device)")
mac() { echo "00:02:c9:00:0$1:00"; }
there=$(mac $((2 - me)))
# It loads no drivers below a folder that anybody may write.
chmod 755 /
mkdir -p /var/run

# testpmd MODE OPTIONS...: starts it, and waits until it forwards. What it says is in /tmp/testpmd.
testpmd() {
	mode=$1
	shift
	rm -f /tmp/enter
	mkfifo /tmp/enter
	# It ends when it reads a line.
	sleep 100000 >/tmp/enter &
	holder=$!
	# One thread for commands and one that polls, both on the only processor.
	dpdk-testpmd --lcores "0@0,1@0" --in-memory --no-telemetry -a "$card,dv_flow_en=0,rxq_cqe_comp_en=0" -- --forward-mode="$mode" --total-num-mbufs=8192 \
		"$@" </tmp/enter >/tmp/testpmd 2>&1 &
	pmd=$!
	if wait_for $limit forwards_or_ended && sleep 2 && ! ended $pmd; then pass "testpmd, $mode"; else
		fail "testpmd, $mode, does not start"
		sed 's/^/#| testpmd: /' /tmp/testpmd
		return 1
	fi
}
# Whether it waits for the line that ends it (read of descriptor 0, or select of one): what it prints comes only at its end.
forwards_or_ended() { grep -qsE "^(0 0x0|23 0x1|270 0x1) " /proc/$pmd/syscall || ended $pmd; }
# stop: ends it; received and sent are what it counts.
stop() {
	# One that has ended reads nothing.
	echo >/tmp/enter &
	entering=$!
	wait $pmd
	pmd_status=$?
	kill $holder $entering 2>/dev/null
	sed 's/^/#| testpmd: /' /tmp/testpmd
	[ $pmd_status -eq 0 ] || fail "testpmd: exit status $pmd_status"
	# It has no folder for the socket of its other processes, of which there are none.
	if grep -viE "mlx5 socket|initialize socket" /tmp/testpmd | grep -qiE "(mlx5|port 0).*(error|fail|cannot|unable)|^Cause:"; then
		fail "testpmd complains"
	fi
	accumulated=$(sed -n '/Accumulated forward statistics/,$p' /tmp/testpmd)
	received=$(echo "$accumulated" | sed -n 's/.*RX-packets: *\([0-9]*\) .*/\1/p' | head -n 1)
	sent=$(echo "$accumulated" | sed -n 's/.*TX-packets: *\([0-9]*\) .*/\1/p' | head -n 1)
}
# at_least NAME NUMBER LEAST
at_least() { if [ "${2:-0}" -ge "$3" ]; then pass "$1: $2"; else fail "$1: ${2:-none}, not $3"; fi; }

# Nothing else is on the wire: no IPv6.
echo 1 >"/proc/sys/net/ipv6/conf/$nic/disable_ipv6"
# The shell would take its own `ip`.
/bin/ip neigh flush dev "$nic"

# It answers ARP and ping, each with the sender's bytes.
if [ "$me" = 1 ]; then
	testpmd icmpecho
	meet
	meet
	stop
	at_least "frames that it got" "$received" 41
	at_least "frames that it sent" "$sent" 41
else
	meet
	for size in 18 1000; do
		step "ping with $size bytes" ping -c 20 -i 0.1 -W 5 -s $size $peer
		expect "ping with $size bytes: all came" "20 packets received"
	done
	/bin/ip neigh show $peer >/tmp/step
	expect "its answer to ARP" "lladdr $there"
	meet
fi

# Datagrams of all sizes there and back, over two queues: each byte is compared.
if [ "$me" = 1 ]; then
	testpmd 5tswap --rxq=2 --txq=2 --rss-udp
	meet
	meet
	stop
	at_least "datagrams that it got" "$received" 164
	at_least "datagrams that it sent" "$sent" 164
	for queue in 0 1; do
		grep -A 1 "Forward Stats for RX Port= 0/Queue= $queue" /tmp/testpmd | grep -qE "RX-packets: *[1-9]" || fail "queue $queue got nothing"
	done
else
	/bin/ip neigh replace $peer lladdr "$there" dev "$nic" nud permanent
	meet
	step "datagrams there and back" python3 -u /udp_echo.py $peer 5001 5002 5003 5004
	expect "datagrams of all ports" "^port 5004: 41 datagrams came back"
	meet
fi

# Both are testpmd: what one sends the other one turns around, so that as many frames are under way all the time.
if [ "$me" = 1 ]; then
	testpmd macswap
	meet
	meet
else
	meet
	testpmd macswap --tx-first --eth-peer="0,$there" --txpkts=400
	sleep 5
	stop
	at_least "frames that came back" "$received" 1000
	meet
fi
[ "$me" = 0 ] || stop
[ "$me" = 0 ] || at_least "frames turned around" "$sent" 1000
meet
ip link set "$nic" down
unload_mlx5
