# `bareverbs rping` on a card behind VFIO, with rping of rdma-core on the kernel's card, over Ethernet or InfiniBand ports: each is once
# the server and once the client. Then one that rejects, one that nobody listens to, and ends that are interrupted or
# killed in the middle of their rounds.
card=0000:01:00.0
rdma_cm_with $card 0000:02:00.0 || return
ours="bareverbs rping --device $card $our_end"

for size in 64 60000; do
	start_server $ours -S 65536 --private-data "welcome"
	wait_for $limit ours_listens
	step "$size bytes: our server, their client" rping -c -a 10.4.0.1 -C 50 -S $size -V
	served "$size bytes: our server" 0 "^50 rounds: read and written back$"
	if grep -q "request from 10.4.0.2, port" /tmp/server; then pass "the address of the client"; else fail "no address of the client"; fi
	start_server rping -s -a 10.4.0.2 -C 50 -S $size -V
	sleep 1
	step "$size bytes: their server, our client" $ours -C 50 -S $size --private-data "hello" $their_end
	expect "$size bytes: all came back" "^50 rounds: read, written back and compared$"
	served "$size bytes: their server" 0 "server DISCONNECT EVENT"
done

start_server $ours --reject --private-data "not today"
wait_for $limit ours_listens
refused "their client, rejected" 255 "RDMA_CM_EVENT_REJECTED, error 28" rping -c -a 10.4.0.1 -C 1
served "our server rejects" 0 "^rejected the request of the client$"
start_server $ours --port 7000 --wait $limit
wait_for $limit ours_listens
refused "their client, no such service" 255 "RDMA_CM_EVENT_REJECTED, error 8" rping -c -a 10.4.0.1 -C 1
kill $server
served "our server is interrupted" 130 "address 10.4.0.1"
refused "our client, no such service" 1 "rejected the connection: invalid service ID" $ours $their_end

if [ "$(parameter link)" = infiniband ]; then
	# The LID leads to their port, which has another GID; and their interface has another subnet.
	start_server rping -s -a 10.4.0.2 -C 1 -V
	sleep 1
	refused "our client, another GID" 1 "rejected the connection: primary remote port GID rejected$" \
		$ours --peer-gid fe80::9 --peer-lid "$(cat $port/lid)" 10.4.0.2
	refused "our client of another subnet" 1 "rejected the connection: consumer reject$" \
		bareverbs rping --device $card --address 10.5.0.1 $their_end
	kill $server
	wait $server
fi

before=$(date +%s)
refused "our client, nobody there" 1 "the peer does not answer: .* $not_there" \
	bareverbs rping --device $card $nobody
took=$(($(date +%s) - before))
if [ $took -le 60 ]; then pass "our client, nobody there: it ends"; else fail "our client, nobody there: it ends after $took s"; fi

# Ends that are interrupted or killed in the middle of their rounds. endless: a client of rping that goes on, as process $client.
endless() {
	rping -c -a 10.4.0.1 -C 100000000 >/tmp/client 2>&1 &
	client=$!
	if wait_for $limit connected; then pass "$1: connected"; else fail "$1: not connected"; fi
	sleep 1
}
connected() { grep -q "^  connected" /tmp/server; }

start_alone $ours
endless "our server, its client killed"
kill -9 $client
ends "our server, its client killed" $server
sed 's/^/#| server: /' /tmp/server
if grep -qE "^[0-9]+ rounds: |the connection ended in round|: a request failed" /tmp/server; then
	pass "our server, its client killed: it says so"
else
	fail "our server, its client killed: it does not say so"
fi

start_alone $ours
endless "their client, our server interrupted"
kill $server
ends "their client, our server interrupted" $client
sed 's/^/#| /' /tmp/client
if grep -q "client DISCONNECT EVENT" /tmp/client; then pass "their client got a DREQ"; else fail "their client got no DREQ"; fi
served "our server, interrupted in its rounds" 130 "^  connected$"

# A client of rping that waits for a message does not notice that a silent peer is gone: nothing of its own is unacknowledged.
# The next server has to do with what the kernel still says about the old connection.
start_alone $ours
endless "our server killed"
kill -9 $server
wait $server
start_alone $ours
kill -9 $client
step "our server killed: the next one takes a client" rping -c -a 10.4.0.1 -C 50 -V
served "our server killed: the next one" 0 "^50 rounds: read and written back$"
