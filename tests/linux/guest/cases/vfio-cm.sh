# `bareverbs ucmatose` and `bareverbs udaddy` on a card behind VFIO, with ucmatose and udaddy of rdma-core on the kernel's card, over
# Ethernet or InfiniBand ports: each is once the server and once the client. Then private data and rejections by each side, and ends that
# are interrupted or killed.
card=0000:01:00.0
rdma_cm_with $card 0000:02:00.0 || return
# ours PROGRAM: our command for it, with $route.
route=""
ours() { echo "bareverbs $1 --device $card $our_end $route"; }
# start_theirs COMMAND...: their server runs from now on, and listens.
start_theirs() {
	start_server "$@"
	wait_for 60 theirs_waits "$1" || fail "$1 does not wait for events"
}
# What waits in rdma_get_cm_event does so behind rdma_listen. The output of these programs comes when they end.
theirs_waits() { grep -qs ucma_get_event /proc/[0-9]*/wchan && pidof "$1" >/dev/null || ended $server; }

# met PROGRAM CONNECTIONS MESSAGES SIZE: each is the server once.
met() {
	met_name="$1${route:+ $route}, $2 of $3 messages of $4 bytes"
	met_options="-c $2 -C $3 -S $4"
	met_all=$(($2 * $3))
	start_server $(ours "$1") $met_options --private-data "welcome"
	wait_for $limit ours_listens
	step "$met_name: our server, their client" "$1" -s 10.4.0.1 $met_options
	expect "$met_name: their client has all" "^test complete$"
	served "$met_name: our server" 0 ": $2, messages of $4 bytes: $met_all sent, $met_all received"
	requests=$(grep -c "request from 10.4.0.2, port" /tmp/server)
	if [ "$requests" -eq "$2" ]; then pass "the address of the client"; else fail "the address of the client: $requests times"; fi
	start_theirs "$1" -b 10.4.0.2 $met_options
	step "$met_name: their server, our client" $(ours "$1") $met_options --private-data "hello" $their_end
	expect "$met_name: our client has all" ": $2, messages of $4 bytes: $met_all sent, $met_all received"
	served "$met_name: their server" 0 "^test complete$"
}
met ucmatose 1 10 100
met ucmatose 4 50 5000
met ucmatose 1 0 100
met udaddy 1 10 100
met udaddy 3 100 1000
if [ "$(parameter link)" = infiniband ]; then
	# Our packets have a global route, and the answers to those of a client one too.
	route="-g 0"
	met ucmatose 1 10 100
	met udaddy 1 10 100
	route=""
fi

# some BYTES: a text that has each part of it once.
some() { seq -s , 1000 1099 | cut -c "1-$1"; }
# theirs_listens: a server of cm_private_data.py does.
theirs_listens() { grep -q "^listening$" /tmp/server || ended $server; }
# exchanged PROGRAM SPACE PORT REQUEST ANSWER REJECTION ROOMS: private data as long as that in a request, an answer and a rejection. Each
# end has exactly the other one's. Linux reports all that the message has room for (ROOMS, the same three), with zeros behind the text.
exchanged() {
	name="$1, private data of $4, $5 and $6 bytes"
	request=$(some "$4")
	answer=$(some "$5")
	rejection=$(some "$6")
	read -r request_room answer_room rejection_room <<-END
		$7
	END
	case $2 in
	tcp) accepted=CONNECT_RESPONSE refusal="REJECTED, status 28" ;;
	udp) accepted=ESTABLISHED refusal="UNREACHABLE, status 2" ;;
	esac
	theirs="python3 /cm_private_data.py"
	start_server $(ours "$1") -C 0 --private-data "$answer"
	wait_for $limit ours_listens
	step "$name: our server, their client" $theirs client "$2" 10.4.0.1 "$3" "$request"
	expect "$name: our answer" "^$accepted, status 0, $answer_room bytes: $answer$"
	served "$name: their request" 0 "^  private data of the client: \"$request\"$"
	start_server $(ours "$1") --reject --private-data "$rejection"
	wait_for $limit ours_listens
	step "$name: our server rejects, their client" $theirs client "$2" 10.4.0.1 "$3" "$request"
	expect "$name: our rejection" "^$refusal, $rejection_room bytes: $rejection$"
	served "$name: their request, rejected" 0 "^  private data of the client: \"$request\"$"

	start_server $theirs accept "$2" 10.4.0.2 "$3" "$answer"
	wait_for $limit theirs_listens
	step "$name: their server, our client" $(ours "$1") -C 0 --private-data "$request" $their_end
	expect "$name: their answer" "^  private data of the server: \"$answer\"$"
	served "$name: our request" 0 "^CONNECT_REQUEST, status 0, $request_room bytes: $request$"
	start_server $theirs reject "$2" 10.4.0.2 "$3" "$rejection"
	wait_for $limit theirs_listens
	refused "$name: their server rejects, our client: their rejection" 1 ", private data \"$rejection\"$" \
		$(ours "$1") -C 0 --private-data "$request" $their_end
	served "$name: our request, rejected" 0 "^CONNECT_REQUEST, status 0, $request_room bytes: $request$"
}
# What IBTA has for the program, less the 36 bytes of a request that are of rdma_cm: of REQ, REP and REJ, then of SIDR_REQ and SIDR_REP.
exchanged ucmatose tcp 7471 56 196 148 "56 196 148"
exchanged udaddy udp 7174 180 136 136 "180 136 136"
exchanged ucmatose tcp 7471 1 2 3 "56 196 148"

# rejected PROGRAM EVENT BY_US NO_SERVICE: what their client says of our rejections, and ours of theirs.
rejected() {
	start_server $(ours "$1") --reject --private-data "not today"
	wait_for $limit ours_listens
	refused "$1: their client, rejected" "$3" "^$1: event: RDMA_CM_EVENT_$2, error: $3$|^cmatose: event: RDMA_CM_EVENT_$2, error: $3$" \
		"$1" -s 10.4.0.1
	served "$1: our server rejects" 0 "^rejected the request of the client$"
	start_server $(ours "$1") --port 7000 --wait $limit
	wait_for $limit ours_listens
	refused "$1: their client, no such service" "$4" "RDMA_CM_EVENT_$2, error: $4$" "$1" -s 10.4.0.1
	kill $server
	served "$1: our server is interrupted" 130 "address 10.4.0.1"
	refused "$1: our client, no such service" 1 "rejected the $5$" $(ours "$1") $their_end
}
# The reasons of a REJ, and the states of a SIDR_REP.
rejected ucmatose REJECTED 28 8 "connection: invalid service ID"
rejected udaddy UNREACHABLE 2 1 "request: service ID not supported"
# A server of one connection that is asked for two rejects the second one.
start_theirs ucmatose -b 10.4.0.2
refused "ucmatose: our client, rejected" 1 "rejected the connection: consumer reject$" $(ours ucmatose) -c 2 $their_end
wait $server
sed 's/^/#| server: /' /tmp/server
if grep -q "failing connection request" /tmp/server; then pass "their server rejects"; else fail "their server does not reject"; fi

# in_time NAME SECONDS STATUS PATTERN COMMAND...: it ends so within that time.
in_time() {
	in_time_name=$1
	in_time_most=$2
	shift 2
	before=$(date +%s)
	refused "$in_time_name" "$@"
	took=$(($(date +%s) - before))
	if [ $took -le "$in_time_most" ]; then pass "$in_time_name: in time"; else fail "$in_time_name: it took $took s"; fi
}
in_time "udaddy: our client, nobody there" 60 1 "the peer does not answer: .* $not_there" \
	bareverbs udaddy --device $card $nobody

# Ends that are killed in the middle of messages that take minutes.
many="-C 4000 -S 1048576"
connected() { grep -q "^  connection 0 connected" "$1"; }
# their_client OPTIONS...: a client of ucmatose that goes on, as process $client; our server is connected to it then.
their_client() {
	ucmatose -s 10.4.0.1 "$@" >/tmp/client 2>&1 &
	client=$!
	wait_for $limit connected /tmp/server || fail "not connected"
	sleep 1
}
# our_client OPTIONS...: the same of ours, which is connected.
our_client() {
	: >/tmp/client
	$(ours ucmatose) "$@" $their_end >/tmp/client 2>&1 &
	client=$!
	wait_for $limit connected /tmp/client || fail "not connected"
	sleep 1
}
# client_ended NAME STATUS PATTERN: as served, of our client.
client_ended() {
	ends "$1" $client
	wait $client
	client_status=$?
	sed 's/^/#| client: /' /tmp/client
	if [ $client_status -eq "$2" ]; then pass "$1: status"; else fail "$1: exit status $client_status"; fi
	if grep -qE "$3" /tmp/client; then pass "$1: it says so"; else fail "$1: no line like '$3'"; fi
}
start_alone $(ours ucmatose) $many
their_client $many
kill -9 $client
ends "our server, its client killed" $server
served "our server, its client killed: why" 1 "connection 0.*: the peer has ended"

start_theirs ucmatose -b 10.4.0.2 $many
our_client $many
kill -9 "$(pidof ucmatose)"
client_ended "our client, its server killed" 1 "connection 0.*: the peer has ended"
wait $server

start_theirs ucmatose -b 10.4.0.2 $many
our_client $many
kill -9 $client
ends "their server, our client killed" $server
served "their server, our client killed: it has given up" 0 "^disconnected$"
# And both go on with others.
met ucmatose 2 10 100

# A client without messages waits for the end of its connection, and our server for another client.
start_alone $(ours ucmatose) -c 2
their_client -C 0
kill $server
ends "their client, our server interrupted" $client
wait $client
client_status=$?
sed 's/^/#| /' /tmp/client
if [ $client_status -eq 0 ] && grep -q "^test complete$" /tmp/client; then
	pass "their client got a DREQ"
else
	fail "their client got no DREQ: exit status $client_status"
fi
served "our server, interrupted" 130 "^  connection 0 connected$"

# Nobody tells of the end of a peer of datagrams: what does not come says so. Ours waits for more than there is.
start_alone $(ours udaddy) -C 100
udaddy -s 10.4.0.1 >/tmp/client 2>&1 &
client=$!
asked() { grep -q "request from 10.4.0.2" /tmp/server; }
wait_for $limit asked || fail "no request"
sleep 1
kill -9 $client
ends "udaddy: our server, its client killed" $server
served "udaddy: our server, its client killed: why" 1 "nothing happened for 30 s: 1 of 1 queue pairs were resolved, 10 of 100 messages"
start_theirs udaddy -b 10.4.0.2 -c 2
: >/tmp/client
$(ours udaddy) $their_end >/tmp/client 2>&1 &
client=$!
resolved() { grep -q "queue pair 0 resolved" /tmp/client; }
wait_for $limit resolved || fail "not resolved"
sleep 1
kill -9 "$(pidof udaddy)"
client_ended "udaddy: our client, its server killed" 1 "nothing happened for 30 s: 1 of 1 queue pairs were resolved, 0 of 10 messages"
wait $server
