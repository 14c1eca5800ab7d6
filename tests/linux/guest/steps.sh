# What the cases of tests/linux may use besides lib.sh.

# unload: the drivers, so that nothing is left on the devices.
unload_mlx5() {
	for module in mlx5_ib mlx5_core; do
		[ -d "/sys/module/$module" ] || continue
		rmmod $module || {
			fail "rmmod $module"
			return 1
		}
	done
}

# step NAME COMMAND...: runs it with its output kept, at most $limit seconds, and says how it ended.
step() {
	step_name=$1
	shift
	timeout $limit "$@" >/tmp/step 2>&1
	step_status=$?
	sed 's/^/#| /' /tmp/step
	if [ $step_status -eq 0 ]; then pass "$step_name"; else fail "$step_name: exit status $step_status"; fi
	return $step_status
}

# pair NAME DEVICE TOOL OPTIONS...: a tool against itself, the server on the first device and the client on DEVICE.
pair() {
	pair_name=$1
	pair_client=$2
	shift 2
	pair_runs=1
	run_pair "$@"
	while left_early && [ $pair_runs -lt 6 ]; do
		echo "#| again, one end left while the other still repeated a lost packet: $pair_name"
		pair_runs=$((pair_runs + 1))
		run_pair "$@"
	done
	if [ $client_status -eq 0 ]; then pass "$pair_name"; else fail "$pair_name: exit status $client_status"; fi
	[ $server_status -eq 0 ] || fail "$pair_name, server: exit status $server_status"
	[ $((client_status + server_status)) -eq 0 ]
}

# run_pair TOOL OPTIONS...: one run of both ends: $client_status and $server_status, and what they said in /tmp/step and
# /tmp/server.
run_pair() {
	timeout $limit "$@" -d mlx5_0 >/tmp/server 2>&1 &
	pair_server=$!
	wait_for 60 listening_or_ended $pair_server
	timeout $limit "$@" -d "$pair_client" localhost >/tmp/step 2>&1
	client_status=$?
	# A server whose client failed would wait for it.
	[ $client_status -eq 0 ] || [ "$(parameter lossy)" ] || kill $pair_server 2>/dev/null
	wait $pair_server
	server_status=$?
	sed 's/^/#| /' /tmp/step
	sed 's/^/#| server: /' /tmp/server
}

# Returns whether the last run of a pair failed because of a defect of the pingpong tools on a wire that loses packets.
# A tool exits as soon as it has counted its messages, and then nothing answers the retransmissions of the other one. So
# one end succeeded, and the other reports that a request of its own (2) was not answered.
left_early() {
	[ "$(parameter lossy)" ] || return 1
	case $client_status-$server_status in
	0-1) unanswered=/tmp/server ;;
	1-0) unanswered=/tmp/step ;;
	*) return 1 ;;
	esac
	grep -q '^Failed status transport retry counter exceeded (12) for wr_id 2$' $unanswered
}

# Whether a tool waits for its client (its number of a port in the kernel's list of listening sockets).
listening() { grep -qs ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6; }

# listening_or_ended PROCESS: a server that could not start will never listen.
listening_or_ended() { listening || ! kill -0 "$1" 2>/dev/null; }

# pingpong_options TOOL: $program, $options and $sizes for one of rc, uc, ud, srq, xsrq.
pingpong_options() {
	program=ibv_${1}_pingpong
	sizes="1 4096 65536 1048576"
	options="-m $(parameter mtu 4096) -c"
	case $1 in
	# A datagram is one packet.
	ud) sizes="1 1024 4096" options="-c" ;;
	# Does not check what came.
	xsrq) options="-m $(parameter mtu 4096)" ;;
	esac
}

# pingpong_iterations TOOL SIZE: the option that says how often.
pingpong_iterations() {
	case $1-$2 in
	xsrq-*) echo "-n 20" ;;
	*-1048576) echo "-n 10" ;;
	*) echo "-n 100" ;;
	esac
}

# with_tool NAME SERVER CLIENT [PATTERN]: two commands of a pingpong with 100 messages of $size bytes each way, run by words. PATTERN is a
# line of the client.
with_tool() {
	timeout $limit $2 >/tmp/server 2>&1 &
	server=$!
	wait_for 60 listening_or_ended $server
	step "$1" $3 || kill $server 2>/dev/null
	expect "$1: result" "${4-^$((size * 200)) bytes in .* = .* Mbit/sec$}"
	wait $server
	server_status=$?
	sed 's/^/#| server: /' /tmp/server
	if [ $server_status -eq 0 ]; then pass "$1, server"; else fail "$1, server: exit status $server_status"; fi
	if grep -q "invalid data" /tmp/server; then fail "$1: invalid data"; fi
}

# both_ways TRANSPORT OPTIONS [OURS [THEIRS]]: `bareverbs pingpong` on $card with the tool of rdma-core on $theirs, each once the server.
# OPTIONS, which begin with the size, are of both; OURS and THEIRS of one.
both_ways() {
	size=$(echo "$2" | cut -d ' ' -f 2)
	ours="bareverbs pingpong --transport $1 --device $card ${3-} -c -n 100 $2"
	tool="ibv_${1}_pingpong -d $theirs ${4-} -c -n 100 $2"
	with_tool "$1 $2: our server, their client" "$ours" "$tool localhost"
	with_tool "$1 $2: their server, our client" "$tool" "$ours localhost"
}

# both_ways_xrc OPTIONS [OURS [THEIRS]]: the same with `ibv_xsrq_pingpong`, whose options are others: it checks no message, and answers with
# what came, so that our server, which begins, checks.
both_ways_xrc() {
	size=$(echo "$1" | cut -d ' ' -f 2)
	ours="bareverbs pingpong --transport xrc --device $card ${2-} -c -n 100 $1"
	tool="ibv_xsrq_pingpong -d $theirs ${3-} -n 100 $1"
	# Their client says no more than that.
	with_tool "xrc $1: our server, their client" "$ours" "$tool localhost" "^success$"
	with_tool "xrc $1: their server, our client" "$tool" "$ours localhost"
}

# expect NAME PATTERN: the output of the last step has a line like this (extended regular expression).
expect() {
	if grep -qE "$2" /tmp/step; then pass "$1"; else fail "$1: no line like '$2'"; fi
}

# refused NAME STATUS PATTERN COMMAND...: it fails with this exit status and says a line like the pattern.
refused() {
	refused_name=$1
	refused_status=$2
	refused_pattern=$3
	shift 3
	timeout $limit "$@" >/tmp/step 2>&1
	step_status=$?
	sed 's/^/#| /' /tmp/step
	if [ $step_status -eq "$refused_status" ]; then pass "$refused_name"; else fail "$refused_name: exit status $step_status"; fi
	expect "$refused_name: why" "$refused_pattern"
}

# start_server COMMAND...: it runs from now on, as process $server, and what it says is in /tmp/server.
start_server() {
	: >/tmp/server
	timeout $limit "$@" >/tmp/server 2>&1 &
	server=$!
}

# start_alone COMMAND...: the same of our program at 10.4.0.1, as process $server itself, which a signal hits. It listens.
start_alone() {
	: >/tmp/server
	"$@" --wait $limit >/tmp/server 2>&1 &
	server=$!
	wait_for $limit ours_listens
}
ours_listens() { grep -q "address 10.4.0.1" /tmp/server || ended $server; }

# served NAME STATUS PATTERN: the server ends so, and has said a line like this.
served() {
	wait $server
	server_status=$?
	sed 's/^/#| server: /' /tmp/server
	if [ $server_status -eq "$2" ]; then pass "$1"; else fail "$1: exit status $server_status"; fi
	if grep -qE "$3" /tmp/server; then pass "$1: it says so"; else fail "$1: no line like '$3'"; fi
}

# ends NAME PROCESS: it ends by itself.
ends() {
	if wait_for $limit ended "$2"; then pass "$1"; else fail "$1: it goes on"; fi
	kill -9 "$2" 2>/dev/null
}

# has_open PROCESS FILE: whether it has the file open.
has_open() { ls -l "/proc/$1/fd" 2>/dev/null | grep -q -- "-> $2$"; }

# The driver of every device, and the device files of its verbs.
load_mlx5() {
	load mlx5_core && load mlx5_ib && load ib_uverbs || return 1
	devices=$(parameter devices 1)
	if wait_for $limit all_ports_active "$devices"; then pass "$devices port(s) active"; else fail "a port is not active"; fi
}

# The Ethernet cable between two guests: 10.0.0.1 is guest 0, 10.0.0.2 is guest 1. $me is the number of this one.
cable() {
	me=$(parameter guest)
	load virtio_pci && load virtio_net || return 1
	if ! wait_for 60 test -d /sys/class/net/eth0; then
		fail "no Ethernet cable"
		return 1
	fi
	ip addr add 10.0.0.$((me + 1))/24 dev eth0
	ip link set eth0 up
}

# between NAME COMMAND...: guest 0 (or $waits) runs it and waits for the other one, which runs it with the address of that one. Both come
# back once both have ended: after a failure the next step begins with both.
between() {
	title=$1
	shift
	if [ "$me" = "${waits:-0}" ]; then
		serve "$title" "$@"
		return
	fi
	tries=300
	while [ $tries -gt 0 ]; do
		tries=$((tries - 1))
		timeout $limit "$@" 10.0.0.$((${waits:-0} + 1)) >/tmp/step 2>&1
		step_status=$?
		# The other guest may not be there yet.
		grep -qiE "couldn't connect|connection refused|no route to host" /tmp/step || break
		sleep 0.3
	done
	sed 's/^/#| /' /tmp/step
	if [ $step_status -eq 0 ]; then pass "$title"; else fail "$title: exit status $step_status"; fi
	part
	return $step_status
}

# serve NAME COMMAND...: a server for a client of the other guest, which calls `part` at its end. One whose client has failed may wait
# for ever.
serve() {
	title=$1
	shift
	timeout $limit "$@" >/tmp/step 2>&1 &
	serving=$!
	part
	wait_for 30 ended $serving || kill $serving 2>/dev/null
	wait $serving
	step_status=$?
	sed 's/^/#| /' /tmp/step
	if [ $step_status -eq 0 ]; then pass "$title"; else fail "$title: exit status $step_status"; fi
	return $step_status
}

# part: until the client of a step has ended, however long its tries take.
part() { (limit=$((2 * limit + 100)) && meet); }

# give FILE and take FILE: what one guest reads is in the other one's file, once both are there.
give() {
	sent() { nc -w $limit 10.0.0.$((2 - me)) 7000 <"$given" >/dev/null 2>&1; }
	given=$1
	wait_for $limit sent || fail "the other guest does not take"
}
take() { timeout $limit nc -l -p 7000 </dev/null >"$1" || fail "the other guest gives nothing"; }

# meet: until both guests are here.
meet() { if [ "$me" = 0 ]; then take /tmp/met; else give /dev/null; fi; }

# managed NAME: the port has been configured by a subnet manager.
managed() {
	if wait_for $limit port_is ACTIVE; then pass "$1: active"; else fail "$1: $(cat $port/state)"; fi
	grep -qE '^0x[12]$' $port/lid || fail "$1: LID $(cat $port/lid)"
}
port=/sys/class/infiniband/mlx5_0/ports/1
port_is() { grep -q "$1" $port/state; }

# ipoib: IP over InfiniBand, 10.2.0.1 for guest 0 and 10.2.0.2 for guest 1 ($peer is the other one).
ipoib() {
	peer=10.2.0.$((2 - me))
	ip addr add 10.2.0.$((me + 1))/24 dev ib0
	ip link set ib0 up
	# There is a way once the peer has its address, and both have joined the group of all nodes.
	wait_for $limit reached || fail "no way to $peer"
}
reached() { ping -c 1 -W 2 $peer >/dev/null 2>&1; }

# rdma_core_tests SECONDS [OPTION|PART]...: rdma-core's own tests whose names have one of the parts (all without any).
rdma_core_tests() {
	PYTHONPATH=/lib/python3/dist-packages python3 /rdma_core_tests.py "$@" 2>/tmp/errors
	tests_status=$?
	tail -n 40 /tmp/errors | sed 's/^/#| /'
	if [ $tests_status -eq 0 ]; then pass "all were run"; else fail "the tests ended early: status $tests_status"; fi
}

# holds DEVICE WHAT: the device with this LID has some of that, by the words of its counts.
holds() {
	ask counts "$1" | grep -q "$2"
}

# run_job CARD...: the main job without end on these cards, in the background, until data moves.
run_job() {
	job_cards=""
	for card in "$@"; do job_cards="$job_cards --device $card"; done
	# shellcheck disable=SC2086
	bareverbs $job_cards -n 10000000 -s 4096 >/tmp/job 2>&1 &
	job=$!
	case $1 in "$card0") job_device=1 ;; *) job_device=2 ;; esac
	# A card may take its time until its port is active.
	wait_for 90 holds $job_device "queue pairs" || fail "the job creates no queue pairs"
	sleep 2
	if kill -0 $job; then pass "the job runs"; else fail "the job ended before anything happened"; fi
}

# driver_of CARD: the driver that it is bound to.
driver_of() { basename "$(readlink "/sys/bus/pci/devices/$1/driver")" 2>/dev/null; }

# modules_for_modprobe: puts the modules where modprobe looks.
modules_for_modprobe() {
	mkdir -p "/lib/modules/$(uname -r)"
	cp /modules/*.ko "/lib/modules/$(uname -r)"
	depmod
}

# to_vfio CARD: hands a card to vfio-pci, also from Linux's driver.
to_vfio() {
	echo vfio-pci >"/sys/bus/pci/devices/$1/driver_override"
	if [ -e "/sys/bus/pci/devices/$1/driver" ]; then echo "$1" >"/sys/bus/pci/devices/$1/driver/unbind"; fi
	echo "$1" >/sys/bus/pci/drivers_probe
	if wait_for 60 test -e "/sys/bus/pci/drivers/vfio-pci/$1"; then pass "$1 bound to vfio-pci"; else fail "$1 not bound"; fi
}

# interface_of CARD: waits for its network interface, whose name is $nic then.
has_interface() { [ "$(ls "/sys/bus/pci/devices/$1/net" 2>/dev/null)" ]; }
interface_of() {
	wait_for 60 has_interface "$1" || {
		fail "no network interface"
		return 1
	}
	nic=$(ls "/sys/bus/pci/devices/$1/net")
}

# roce DEVICE ADDRESS: the network interface of a device is up and has this address; its name is $nic. RoCEv2 is on it: $roce_port has the
# state of the port, $index is the index of the address among its GIDs. DEVICE rxe0 is made on the card that a wire leads to.
roce() {
	case $1 in
	rxe*)
		wait_for 20 grep -q "^$wire_mac" /sys/class/net/*/address || fail "no card on the wire"
		nic=$(basename "$(dirname "$(grep -l "^$wire_mac" /sys/class/net/*/address)")")
		;;
	*) interface_of "$(basename "$(readlink -f "/sys/class/infiniband/$1/device")")" || return 1 ;;
	esac
	step "$nic up" ip link set "$nic" up
	ip addr add "$2/24" dev "$nic"
	case $1 in rxe*) step "the software" rdma link add "$1" type rxe netdev "$nic" ;; esac
	roce_port=/sys/class/infiniband/$1/ports/1
	roce_active
	roce_index "$2"
}
# rdma_cm_with OURS THEIRS: of two cards the first, 10.4.0.1, is for our driver, and programs of rdma_cm use the second, 10.4.0.2. Options of
# our programs: $our_end of each, $their_end of a client behind them, $nobody of a client whose server is not there; it says $not_there.
# With bareverbs.link=infiniband the ports are InfiniBand ports, with opensm as their manager.
rdma_cm_with() {
	load mlx5_core && load mlx5_ib && load ib_uverbs && load rdma_ucm && load vfio_pci && load vfio_iommu_type1 || return
	to_vfio "$1"
	if [ "$(parameter link)" = infiniband ]; then
		in_subnet_with "$@"
	else
		on_ethernet_with "$@"
	fi
}
on_ethernet_with() {
	roce "$(ls "/sys/bus/pci/devices/$2/infiniband")" 10.4.0.2 || return
	our_end="--address 10.4.0.1 --peer-mac 00:02:c9:00:02:00"
	their_end=10.4.0.2
	nobody="--address 10.4.0.1 --peer-mac 02:00:00:00:00:09 10.4.0.9"
	not_there="10.4.0.1 with 00:02:c9:00:01:00"
	# Our end answers no ARP.
	step "an entry for our end" arp -i "$nic" -s 10.4.0.1 00:02:c9:00:01:00
}
in_subnet_with() {
	load ib_umad && load ib_ipoib || return
	interface_of "$2" || return
	# Our port has to be found anew each time that one of our programs begins.
	opensm -s 2 >/tmp/opensm.out 2>&1 &
	port=/sys/class/infiniband/$(ls "/sys/bus/pci/devices/$2/infiniband")/ports/1
	# A manager leaves a port alone that has nobody at the other end of its cable.
	our_end="--address 10.4.0.1"
	start_alone bareverbs rping --device "$1" $our_end
	managed "their port"
	ip addr add 10.4.0.2/24 dev "$nic"
	step "$nic up" ip link set "$nic" up
	their_end="--peer-lid $(cat $port/lid) --peer-gid $(cat $port/gids/0) 10.4.0.2"
	nobody="--address 10.4.0.1 --peer-lid 9 --peer-gid fe80::9 10.4.0.9"
	not_there="at LID 9 with GID fe80::9"
	# Our end answers no ARP; it says what to write.
	hardware=$(sed -n 's/.*, hardware address //p' /tmp/server)
	step "an entry for our end" /bin/ip neigh replace 10.4.0.1 lladdr "$hardware" dev "$nic" nud permanent
	kill $server
	served "our end is found" 130 "LID [12], GID fe80::2:c900:0:101, hardware address 00:00:00:00:fe:80:00:00:00:00:00:00:00:02:c9:00:00:00:01:01$"
}
# The card of virtio-net at the other end of a wire.
wire_mac=52:54:00:00:01
roce_active() {
	if wait_for $limit grep -q ACTIVE "$roce_port/state"; then pass "the port is active"; else fail "the port: $(cat "$roce_port/state")"; fi
}

# roce_index ADDRESS: $index is the index of its GID of RoCEv2.
roce_index() {
	roce_gid=$(echo "$1" | awk -F. '{ printf "ffff:%02x%02x:%02x%02x", $1, $2, $3, $4 }')
	if ! wait_for 60 has_gid; then
		fail "no GID of $1"
		return 1
	fi
	index=$(gid_index)
}
has_gid() { [ "$(gid_index)" ]; }
gid_index() {
	for gid in "$roce_port"/gids/*; do
		grep -q "$roce_gid" "$gid" && grep -qs "RoCE v2" "$roce_port/gid_attrs/types/$(basename "$gid")" || continue
		basename "$gid"
		return
	done
}

# roce_between DEVICE: the same on the wire between two guests, with 10.4.0.1 in guest 0 and 10.4.0.2 in guest 1; $peer is the other one.
roce_between() {
	roce "$1" "10.4.0.$((me + 1))" || return 1
	peer=10.4.0.$((2 - me))
	meet
	wait_for 60 answers $peer || fail "no answer"
}
answers() { ping -c 1 -W 2 "$@" >/tmp/step 2>&1; }

# Hands every card to vfio-pci; their addresses are $card0, $card1 and so on.
vfio_cards() {
	load vfio_pci && load vfio_iommu_type1 || return 1
	cards=0
	for vendor in /sys/bus/pci/devices/*/vendor; do
		grep -qx 0x15b3 "$vendor" || continue
		vfio_card=$(basename "$(dirname "$vendor")")
		to_vfio "$vfio_card"
		eval "card$cards=$vfio_card"
		cards=$((cards + 1))
	done
}
