# Devices with Ethernet ports in two guests: each has a network interface of mlx5_core, and RoCEv2 to the other one.
cable || return
# The default of Debian, fq_codel, drops packets that wait for the device for 100 ms: fragments of a ping on a busy machine.
echo pfifo_fast >/proc/sys/net/core/default_qdisc
load mlx5_core && load mlx5_ib && load ib_uverbs || return 1

roce_between mlx5_0 || return
step "the interface" ip link show "$nic"
expect "its MAC address" "link/ether 00:02:c9:00:0$((me + 1)):00"
grep -q Ethernet $roce_port/link_layer || fail "link layer $(cat $roce_port/link_layer)"
step "the device" ibv_devinfo -v -d mlx5_0
# The last one in fragments.
for size in 0 56 1400 20000; do
	step "ping with $size bytes" ping -c 5 -W 5 -I "$nic" -s $size $peer
	expect "ping with $size bytes: all came" "5 packets received"
done
# IPv6: the address of the link, whose neighbours are found by multicast.
if [ "$me" = 0 ]; then there=fe80::202:c9ff:fe00:200; else there=fe80::202:c9ff:fe00:100; fi
step "ping by IPv6" ping -c 3 -W 5 "$there%$nic"

# A file over TCP both ways: checksums and segments by the device.
dd if=/dev/urandom of=/tmp/file bs=1024 count=4096 2>/dev/null
here=$(md5sum </tmp/file)
mkfifo /tmp/never
for taker in 0 1; do
	if [ "$me" = $taker ]; then
		# With an input that never ends: nc would tell the other one that it has nothing to say, which would leave.
		timeout $limit nc -l -p 7001 <>/tmp/never >/tmp/came
		take /tmp/sum
		if [ "$(md5sum </tmp/came)" = "$(cat /tmp/sum)" ]; then pass "a file over TCP"; else fail "a file over TCP: $(wc -c </tmp/came) bytes"; fi
	else
		offered() { nc -w $limit $peer 7001 </tmp/file >/dev/null 2>&1; }
		wait_for $limit offered || fail "the other guest does not take the file"
		echo "$here" >/tmp/sum
		give /tmp/sum
	fi
done
if grep -q "^0$" /sys/class/net/"$nic"/statistics/rx_errors; then pass "no errors"; else fail "errors"; fi

for tool in rc uc ud srq xsrq; do
	pingpong_options $tool
	options=$(echo "$options" | sed 's/-m 4096/-m 1024/')
	for size in 1 1024 $([ $tool = ud ] || echo 65536); do
		between "$tool $size bytes" $program $options -d mlx5_0 -g "$index" -n 100 -s $size
	done
done

# counters FILE: everything that the interface and RoCEv2 count, a line each.
counters() {
	{
		ethtool -S "$nic" | sed -n 's/^ *\([a-z0-9_]*\): /\1 /p'
		grep -r . "/sys/class/net/$nic/statistics" | sed 's/.*\//link:/; s/:\([0-9]*\)$/ \1/'
		grep -r . $roce_port/counters | sed 's/.*\//port:/; s/:\([0-9]*\)$/ \1/'
		rdma statistic show link mlx5_0/1 | tr ' ' '\n' | awk '/^[a-z]/ { name = $1 } /^[0-9]/ { print "rdma:" name " " $1 }'
	} >"$1"
}
count() { awk -v name="$2" '$1 == name { print $2 }' "$1"; }
# counted NUMBER NAME...: so much was added to each of these counters between two looks.
counted() {
	counted_number=$1
	shift
	for name in "$@"; do
		[ "$(count /tmp/after "$name")" ] || {
			fail "$name: no such counter"
			continue
		}
		more=$(($(count /tmp/after "$name") - $(count /tmp/before "$name")))
		if [ $more -eq "$counted_number" ]; then pass "$name: $more more"; else fail "$name: $more more, not $counted_number"; fi
	done
}
# watched COMMAND...: it runs between two looks at the counters of both guests.
watched() {
	meet
	counters /tmp/before
	meet
	"$@"
	meet
	counters /tmp/after
	diff /tmp/before /tmp/after | sed -n 's/^>/#| counted: /p'
}
# Nothing else is on the wire: no IPv6, and the neighbours are known.
echo 1 >"/proc/sys/net/ipv6/conf/$nic/disable_ipv6"
# The shell would take its own `ip`.
/bin/ip neigh replace $peer lladdr "00:02:c9:00:0$((2 - me)):00" dev "$nic" nud permanent
# Groups of IPv6 are left with a message.
sleep 2
ping_peer() { [ "$me" = 1 ] || step "ping" ping -c 20 -i 0.1 -W 5 -s 1000 $peer; }
watched ping_peer
# Twenty there and twenty back, by each counter: Linux, the port as the driver sees it, the wire (with check sequences).
counted 20 tx_packets rx_packets link:tx_packets link:rx_packets tx_vport_unicast_packets rx_vport_unicast_packets tx_packets_phy rx_packets_phy
counted $((20 * 1042)) tx_bytes rx_bytes link:tx_bytes link:rx_bytes tx_vport_unicast_bytes rx_vport_unicast_bytes
counted $((20 * 1046)) tx_bytes_phy rx_bytes_phy
counted 0 tx_vport_rdma_unicast_packets rx_vport_rdma_unicast_packets port:port_xmit_packets port:port_rcv_packets link:rx_errors link:tx_errors link:rx_dropped
perf() { between "$*" "$@" -F -d mlx5_0 -x "$index" -m 1024 -u 20 -n 100; }
for verb in write read atomic; do
	watched perf ib_${verb}_bw $([ $verb = atomic ] || echo -s 4096)
	# Guest 0 is asked.
	if [ "$me" = 0 ]; then asked=100; else asked=0; fi
	counted $asked rdma:rx_${verb}_requests
	# None of it is of the interface.
	counted 0 link:tx_packets link:rx_packets tx_vport_unicast_packets rdma:out_of_sequence rdma:local_ack_timeout_err
	if [ $verb = write ] && [ "$me" = 0 ]; then counted 400 rx_vport_rdma_unicast_packets port:port_rcv_packets; fi
	if [ $verb = write ] && [ "$me" = 1 ]; then counted 400 tx_vport_rdma_unicast_packets port:port_xmit_packets; fi
done
echo 0 >"/proc/sys/net/ipv6/conf/$nic/disable_ipv6"

meet
step "down" ip link set "$nic" down
step "another MTU" ip link set "$nic" mtu 9000
step "up again" ip link set "$nic" up
roce_active

# A frame of more than 1500 bytes goes to where the MTU is as large. Where it is not, the port drops it and counts it.
meet
wait_for 20 answers $peer || fail "no answer with the other MTU"
step "ping with 8000 bytes" ping -c 3 -W 5 -I "$nic" -s 8000 $peer
expect "ping with 8000 bytes: all came" "3 packets received"
meet
if [ "$me" = 0 ]; then
	step "the MTU from before" ip link set "$nic" mtu 1500
	wait_for 20 answers $peer || fail "no answer with two MTUs"
fi
meet
if [ "$me" = 1 ]; then
	ping -c 3 -W 1 -I "$nic" -s 4000 $peer >/tmp/step 2>&1
	expect "longer than the MTU of the other guest: none came" " 0 packets received"
fi
meet
if [ "$me" = 0 ]; then
	three_too_long() { [ "$(cat "/sys/class/net/$nic/statistics/rx_length_errors")" = 3 ]; }
	if wait_for 20 three_too_long; then pass "three frames were too long"; else
		fail "frames that were too long: $(cat "/sys/class/net/$nic/statistics/rx_length_errors")"
	fi
fi
unload_mlx5
