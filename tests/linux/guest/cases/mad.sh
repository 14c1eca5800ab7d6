# Management datagrams: the tools of infiniband-diags ask the agents of both ports, and each other.
load_mlx5 && load ib_umad || return

# query NAME PATTERN TOOL OPTIONS...: a tool on the first device, and a line that it must print.
query() {
	query_name=$1
	query_pattern=$2
	query_tool=$3
	shift 3
	step "$query_name" $query_tool -C mlx5_0 "$@" && expect "$query_name: what it says" "$query_pattern"
}

step "ibstat" ibstat mlx5_1 && expect "ibstat: the port" 'Base lid: 2'
query "ibaddr of the own port" 'LID start 0x1 end 0x1' ibaddr
for lid in 1 2; do
	query "smpquery of LID $lid" "^Guid:\.+0x0002c90000000${lid}00" smpquery nodeinfo $lid
done
query "smpquery of PortInfo" '^LinkState:\.+Active' smpquery portinfo 2 1
query "smpquery of the partition table" '0: 0xffff 0x0000' smpquery pkeys 2
query "smpquery of the partition table of a port" '0: 0xffff 0x0000' smpquery pkeys 2 1
query "smpquery of the virtual lanes" '0\|' smpquery sl2vl 2 1
query "smpquery of the GUIDs" '0x0002c90000000201' smpquery guidinfo 2
query "smpquery along a directed route" 'bareverbs simulated device 2' smpquery -D nodedesc 0,1
query "smpquery of the own port along a route of no hops" 'bareverbs simulated device 1' smpquery -D nodedesc 0
step "ibnetdiscover" ibnetdiscover -C mlx5_0
for edge in '"H-0002c90000000200"\[1\] \(2c90000000201\).*lid 1' '"H-0002c90000000100"\[1\] \(2c90000000101\).*lid 2'; do
	expect "ibnetdiscover: a cable" "$edge"
done

# Host to host: its driver, not the device's agent, has this class.
ibping -C mlx5_1 -S >/tmp/server 2>&1 &
server=$!
answered() { ibping -C mlx5_0 -c 1 -L 2 2>/dev/null | grep -q ' 1 received'; }
wait_for 10 answered || fail "ibping: no answer"
query "ibping" '1000 packets transmitted, 1000 received, 0% packet loss' ibping -f -c 1000 -L 2
kill $server

# counted LID COUNTER: what the performance agent of a port has counted.
counted() { perfquery -C mlx5_0 -x "$1" 1 | sed -n "s/^$2:\.*//p"; }
# Each ping is a packet of 72 words there and one back.
[ "$(counted 2 PortRcvPkts)" -ge 1000 ] && [ "$(counted 2 PortXmitData)" -ge 72000 ] || fail "too little was counted"
query "perfquery" '^PortXmitPkts:\.+1[0-9]{3}$' perfquery 2 1
step "perfquery clears" perfquery -C mlx5_0 -R 2 1
query "perfquery after that" '^PortXmitPkts:\.+[0-9]$' perfquery 2 1
query "perfquery of the own port" '^PortRcvPkts:\.+1[0-9]{3}$' perfquery 1 1
