# What an administrator does to a network interface of a device, while it carries traffic: MTU, VLAN, promiscuous mode, queues, rings,
# offloads, link down and up, drivers unloaded. Each time data is compared afterwards.
cable || return
echo pfifo_fast >/proc/sys/net/core/default_qdisc
load mlx5_core && load mlx5_ib && load ib_uverbs && load 8021q || return 1
roce_between mlx5_0 || return
other=00:02:c9:00:0$((2 - me)):00

# file_over ADDRESS NAME: guest 1 sends a file to this address of guest 0, which compares it.
head -c 3000001 /dev/urandom >/tmp/file
mkfifo /tmp/never
file_over() {
	if [ "$me" = 0 ]; then
		# With an input that never ends: nc would tell the other one that it has nothing to say, which would leave.
		timeout $limit nc -l -p 7001 <>/tmp/never >/tmp/came
		take /tmp/sum
		if [ "$(md5sum </tmp/came)" = "$(cat /tmp/sum)" ]; then pass "$2: a file"; else fail "$2: a file of $(wc -c </tmp/came) bytes"; fi
	else
		offered() { nc -w $limit "$file_to" 7001 </tmp/file >/dev/null 2>&1; }
		file_to=$1
		wait_for $limit offered || fail "$2: the other guest does not take the file"
		md5sum </tmp/file >/tmp/sum
		give /tmp/sum
	fi
	meet
}

# load_begins and load_ends NAME [ENDS]: TCP from guest 1 to guest 0, between the two. It goes on, unless it is said that it ends.
load_begins() {
	meet
	if [ "$me" = 0 ]; then
		iperf3 -s -1 >/tmp/iperf-server 2>&1 &
		iperf=$!
	fi
	meet
	sleep 1
	if [ "$me" = 1 ]; then
		iperf3 -c 10.4.0.1 -t 8 >/tmp/iperf 2>&1 &
		iperf=$!
		sleep 2
	fi
	meet
}
load_ends() {
	if [ "$me" = 1 ]; then
		wait $iperf
		iperf_status=$?
		sed 's/^/#| /' /tmp/iperf
	fi
	if [ "$me" = 1 ] && [ ! "$2" ]; then
		if [ $iperf_status -eq 0 ] && grep -q "receiver" /tmp/iperf; then pass "$1: TCP goes on"; else fail "$1: TCP ends, status $iperf_status"; fi
	fi
	meet
	[ "$me" = 1 ] || ended $iperf || kill $iperf
	file_over 10.4.0.1 "$1"
}

# Frames of 9000 bytes, and packets of 4096 of RoCEv2.
step "MTU 9000" ip link set "$nic" mtu 9000
meet
wait_for 20 answers $peer || fail "no answer with MTU 9000"
step "ping with 8900 bytes" ping -c 3 -W 5 -s 8900 $peer
expect "ping with 8900 bytes: all came" " 3 (packets )?received"
roce_active
between "rc with 4096 bytes a packet" ibv_rc_pingpong -c -m 4096 -d mlx5_0 -g "$index" -n 100 -s 65536
file_over 10.4.0.1 "MTU 9000"
step "MTU 1500" ip link set "$nic" mtu 1500

# A VLAN, with RoCEv2 in it.
step "a VLAN" ip link add link "$nic" name vlan5 type vlan id 5
ip addr add "10.6.0.$((me + 1))/24" dev vlan5
ip link set vlan5 up
meet
wait_for 20 answers "10.6.0.$((2 - me))" || fail "no answer in the VLAN"
step "ping in the VLAN" ping -c 3 -W 5 -s 1400 "10.6.0.$((2 - me))"
expect "ping in the VLAN: all came" " 3 (packets )?received"
file_over 10.6.0.1 "VLAN"
plain_index=$index
roce_index "10.6.0.$((me + 1))"
between "rc in the VLAN" ibv_rc_pingpong -c -m 1024 -d mlx5_0 -g "$index" -n 100 -s 4096
index=$plain_index
# One guest only: the other one does not answer to frames without a tag, nor to those of another VLAN.
meet
if [ "$me" = 0 ]; then
	ip link del vlan5
	ip link add link "$nic" name vlan6 type vlan id 6
	ip addr add 10.6.0.1/24 dev vlan6
	ip link set vlan6 up
	ping -c 2 -W 1 10.6.0.2 >/tmp/step 2>&1
	expect "another VLAN: none came" " 0 (packets )?received"
	ip link del vlan6
fi
meet
[ "$me" = 0 ] || ip link del vlan5

# Frames for somebody else: they come in only in promiscuous mode, in which tcpdump puts the interface.
captured() { tcpdump -Z root -r /tmp/capture -nn "icmp[0] == 8 and ether dst $1" 2>/dev/null | grep -c ICMP; }
# What comes behind those has come when they have, and tcpdump, which may wait for a processor, has written it.
came_behind() { [ "$(captured "$(cat /sys/class/net/"$nic"/address)")" = 1 ]; }
for mode in "-p" ""; do
	meet
	if [ "$me" = 1 ]; then
		# There is no user tcpdump in the guest.
		tcpdump -Z root $mode -i "$nic" --immediate-mode -U -w /tmp/capture >/tmp/tcpdump 2>&1 &
		tcpdump=$!
		wait_for 20 grep -q "listening on" /tmp/tcpdump || fail "tcpdump: $(cat /tmp/tcpdump)"
	fi
	meet
	if [ "$me" = 0 ]; then
		/bin/ip neigh replace 10.4.0.77 lladdr 00:02:c9:00:77:00 dev "$nic" nud permanent
		ping -c 5 -i 0.2 -W 1 10.4.0.77 >/dev/null 2>&1
		step "ping" ping -c 1 -W 5 $peer
	fi
	meet
	[ "$me" = 1 ] || continue
	wait_for 20 came_behind || fail "tcpdump $mode: the last frame is not there"
	kill $tcpdump
	wait $tcpdump
	if [ "$mode" ]; then expected=0; else expected=5; fi
	tcpdump -Z root -r /tmp/capture -nn -e 2>&1 | sed 's/^/#| /'
	seen=$(captured 00:02:c9:00:77:00)
	if [ "$seen" = $expected ]; then pass "tcpdump $mode: $seen frames for somebody else"; else fail "tcpdump $mode: $seen frames, not $expected"; fi
done

# Queues, rings and offloads, each changed and changed back under load.
load_begins
step "one queue" ethtool -L "$nic" combined 1
step "two queues" ethtool -L "$nic" combined 2
step "rings of 256" ethtool -G "$nic" rx 256 tx 256
ethtool -g "$nic" >/tmp/step
expect "the rings have 256 entries" "^RX:[[:space:]]+256$"
step "rings of 1024" ethtool -G "$nic" rx 1024 tx 1024
step "no offloads" ethtool -K "$nic" rx off tx off sg off tso off gro off
step "a few offloads" ethtool -K "$nic" rx on tx on sg on
step "all offloads" ethtool -K "$nic" tso on gro on
step "VLAN tags in frames" ethtool -K "$nic" rxvlan off txvlan off
load_ends "changes under load"

# The interface goes down and up; then the cable is pulled and put in.
load_begins
if [ "$me" = 0 ]; then
	step "down" ip link set "$nic" down
	sleep 1
	step "up" ip link set "$nic" up
	wait_for 20 answers $peer || fail "no answer after down and up"
	host link 1 down
	wait_for 20 grep -q 0 "/sys/class/net/$nic/carrier" && pass "no carrier"
	sleep 1
	host link 1 up
	if wait_for 20 grep -q 1 "/sys/class/net/$nic/carrier"; then pass "a carrier"; else fail "no carrier"; fi
	roce_active
fi
load_ends "link down and up"
between "rc after that" ibv_rc_pingpong -c -m 1024 -d mlx5_0 -g "$index" -n 100 -s 4096

# The drivers are unloaded under load, and loaded again.
load_begins
if [ "$me" = 0 ]; then
	unload_mlx5
	load mlx5_core && load mlx5_ib
	roce mlx5_0 10.4.0.1
	wait_for 20 answers $peer || fail "no answer after the drivers were loaded again"
fi
load_ends "drivers loaded again" ends
between "rc with drivers loaded again" ibv_rc_pingpong -c -m 1024 -d mlx5_0 -g "$index" -n 100 -s 4096
meet
unload_mlx5
