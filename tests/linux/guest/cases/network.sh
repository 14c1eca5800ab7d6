# Linux on the same Ethernet as the firmware program `network`, which is the client (bareverbs.program) or the server. The server gives the
# client its address by DHCP, and pings it; the client writes into its memory over RoCEv2. For tests/bare-metal/run.
load mlx5_core && load mlx5_ib && load ib_uverbs || return
program=$(parameter program)
server=192.0.2.1
client=192.0.2.50
export PYTHONPATH=/lib/python3/dist-packages

if [ "$program" = client ]; then
	roce mlx5_0 $server || return
	cat >/tmp/udhcpd.conf <<-END
		start $client
		end $client
		interface $nic
		max_leases 1
		lease_file /tmp/leases
		pidfile /tmp/udhcpd.pid
		option subnet 255.255.255.0
		option lease 3600
	END
	: >/tmp/leases
	udhcpd -f /tmp/udhcpd.conf >/tmp/dhcp 2>&1 &
	timeout $limit python3 -u /roce_write.py server "$index" $client >/tmp/step 2>&1 &
	peer=$!
	wait_for 60 grep -q "^waiting" /tmp/step || fail "the server does not start"
	host start client
	wait $peer
	status=$?
	sed 's/^/#| /' /tmp/step
	sed 's/^/#| dhcp: /' /tmp/dhcp
	if [ $status = 0 ]; then pass "the program has written"; else fail "the server: exit status $status"; fi
	expect "the program answers ping" "^3 packets transmitted, 3 packets received"
	grep -q "ACK to $client" /tmp/dhcp || fail "no lease was given"
	expected_mac=$host_said
	ip neigh show $client >/tmp/step
	expect "the program answers ARP" "lladdr $expected_mac"
else
	interface_of "$(basename "$(readlink -f /sys/class/infiniband/mlx5_0/device)")" || return
	ip link set "$nic" up
	host start server
	# What asks for an address is called with it.
	cat >/tmp/bound <<-END
		#!/bin/sh
		[ "\$1" != bound ] || echo "\$ip \$subnet \$serverid" >/tmp/lease
	END
	chmod +x /tmp/bound
	step "an address by DHCP" udhcpc -i "$nic" -s /tmp/bound -n -q -t 20
	cp /tmp/lease /tmp/step
	expect "what the program gave" "^$client 255.255.255.0 $server\$"
	roce mlx5_0 $client || return
	# The program pings this address before it answers, and this kernel answers.
	step "a WRITE to the program" python3 /roce_write.py client "$index" $server
	ip neigh show $server >/tmp/step
	expect "the program answers ARP" "lladdr $host_said"
fi
host end
[ "$host_said" = done ] || fail "the program: $host_said"
