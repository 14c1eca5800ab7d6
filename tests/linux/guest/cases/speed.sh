# How fast the device is for a guest: lines "#= " are the table that the runner shows. The host's answers to "usage" are the
# seconds since the servers were started, their processor seconds and how often their threads went to sleep.
power_on=$(ask usage | cut -d' ' -f1)
load_mlx5 || return
ibv_devinfo >/tmp/devinfo 2>&1 || fail "ibv_devinfo"
echo "#= from power-on to user space, and to the end of ibv_devinfo: $power_on and $(ask usage | cut -d' ' -f1) s"

# used SECONDS-BEFORE SECONDS-AFTER MESSAGES: processor time of the servers for one message.
used() { awk -v a="$1" -v b="$2" -v n="$3" 'BEGIN { printf "%.1f us of the server", (b - a) * 1e6 / n }'; }

# bandwidth TOOL SIZE MESSAGES [OPTIONS]: the median of three runs.
bandwidth() {
	for run in 1 2 3; do
		before=$(ask usage | cut -d' ' -f2)
		measure "$1" -s "$2" -n "$3" $4 || return
		after=$(ask usage | cut -d' ' -f2)
		awk -v size="$2" -v used="$(used "$before" "$after" "$3")" \
			'$1 == size && NF >= 5 { printf "%.0f messages/s, %.0f MiB/s, %s a message\n", $5 * 1e6, $4, used }' /tmp/measured
	done | sort -n | sed -n "2s/^/#= $1, $2 bytes${4:+, $4}: /p"
}

# latency TOOL SIZE MESSAGES: the median of three runs.
latency() {
	for run in 1 2 3; do
		measure "$1" -s "$2" -n "$3" || return
		awk -v size="$2" '$1 == size && NF >= 8 { printf "%.1f us typical, %.1f us minimum\n", $5, $3 }' /tmp/measured
	done | sort -n | sed -n "2s/^/#= $1, $2 bytes: /p"
}

# measure TOOL OPTIONS...: the tool against itself, on the devices that $one and $other name.
one="-d mlx5_0"
other="-d mlx5_1"
measure() {
	timeout 60 "$@" $one -F >/tmp/server 2>&1 &
	server=$!
	wait_for 60 listening
	timeout 60 "$@" $other -F localhost >/tmp/measured 2>&1 || fail "$*" >/dev/ttyS1
	wait $server || fail "$*, server" >/dev/ttyS1
}

listening() { netstat -ltn 2>/dev/null | grep -q ':18515 '; }

bandwidth ib_write_bw 8 100000
# The same with a doorbell for 16 requests: what a doorbell costs is the difference.
bandwidth ib_write_bw 8 200000 "-l 16"
bandwidth ib_send_bw 8 30000
bandwidth ib_write_bw 65536 5000
bandwidth ib_read_bw 65536 5000
latency ib_write_lat 8 5000
latency ib_send_lat 8 5000
latency ib_read_lat 8 5000

# Drivers loaded but unused: what the kernel's own polling of the device costs.
set -- $(ask usage)
sleep 10
set -- "$@" $(ask usage)
echo "#= idle, drivers loaded: $(awk -v a="$2" -v b="$5" -v s="$1" -v t="$4" 'BEGIN { printf "%.2f %%", (b - a) / (t - s) * 100 }') of a processor, $(($6 - $3)) wakeups in $(awk -v s="$1" -v t="$4" 'BEGIN { printf "%.1f", t - s }') s"

# RoCEv2 on two devices with Ethernet ports. The path MTU is that of InfiniBand then.
echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6
roce mlx5_2 10.4.0.1
near=$nic
on_roce="-d mlx5_2 -x $index"
roce mlx5_3 10.4.0.2
far=$nic
to_roce="-d mlx5_3 -x $index"
ip link set "$near" mtu 9000
ip link set "$far" mtu 9000

# median FILE: of a number on each line.
median() { sort -n "$1" | awk '{ value[NR] = $1 } END { print value[int((NR + 1) / 2)] }'; }

# beside TOOL SIZE MESSAGES COLUMN UNIT: five runs on InfiniBand and on RoCEv2 by turns, and the medians of what the tool prints there.
beside() {
	: >/tmp/infiniband
	: >/tmp/roce
	for run in 1 2 3 4 5; do
		for link in infiniband roce; do
			if [ $link = roce ]; then one=$on_roce other=$to_roce; else one="-d mlx5_0" other="-d mlx5_1"; fi
			measure "$1" -s "$2" -n "$3" || return
			awk -v size="$2" -v column="$4" '$1 == size && NF >= 5 { print $column }' /tmp/measured >>/tmp/$link
		done
	done
	awk -v infiniband="$(median /tmp/infiniband)" -v roce="$(median /tmp/roce)" -v name="$1, $2 bytes" -v unit="$5" \
		'BEGIN { printf "#= %s, InfiniBand and RoCEv2: %s and %s %s, ratio %.2f\n", name, infiniband, roce, unit, roce / infiniband }'
}
beside ib_write_bw 65536 5000 4 MiB/s
beside ib_write_bw 8 100000 5 "million messages/s"
beside ib_write_lat 8 5000 5 us

# TCP between two network namespaces: over the same devices, and over two cards of virtio-net that QEMU joins by a socket.
load virtio_pci && load virtio_net || return
card() { basename "$(dirname "$(grep -l "^$1$" /sys/class/net/*/address)")"; }
here=$(card 52:54:00:00:02:01)
there=$(card 52:54:00:00:02:02)
/bin/ip netns add far
# joined NEAR FAR NUMBER: the two interfaces are 10.NUMBER.0.1 here, and 10.NUMBER.0.2 in the other namespace.
joined() {
	/bin/ip addr flush dev "$1"
	ip link set "$1" mtu 1500 up
	ip addr add "10.$3.0.1/24" dev "$1"
	/bin/ip link set "$2" mtu 1500 netns far
	/bin/ip -n far link set "$2" up
	/bin/ip -n far addr add "10.$3.0.2/24" dev "$2"
	wait_for 20 answers "10.$3.0.2" || fail "no answer from 10.$3.0.2"
}
joined "$near" "$far" 5
joined "$here" "$there" 6
/bin/ip netns exec far iperf3 -s >/tmp/iperf-server 2>&1 &
iperf=$!
sleep 2
: >/tmp/tcp-5
: >/tmp/tcp-6
for run in 1 2 3 4 5; do
	for network in 5 6; do
		for way in "" -R; do
			timeout 60 iperf3 -c 10.$network.0.2 -t 4 -f m $way >/tmp/iperf 2>&1 || fail "iperf3: $(tail -n 1 /tmp/iperf)"
			awk '$NF == "receiver" { print $(NF - 2) }' /tmp/iperf >>/tmp/tcp-$network
		done
	done
done
kill $iperf
awk -v mlx5="$(median /tmp/tcp-5)" -v virtio="$(median /tmp/tcp-6)" \
	'BEGIN { printf "#= TCP by iperf3, mlx5e and virtio-net: %s and %s Mbit/s, ratio %.2f\n", mlx5, virtio, mlx5 / virtio }'
/bin/ip netns del far
pass "measured"
unload_mlx5
