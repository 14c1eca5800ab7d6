# A subnet manager: guest 0 runs opensm, which finds both ports and configures them; then IP over InfiniBand, and connections by
# IP address (rdma_cm).
load mlx5_core && load mlx5_ib && load ib_uverbs && load ib_umad && load ib_ipoib && load rdma_ucm || return
me=$(parameter guest)

if [ "$me" = 0 ]; then
	# Its link trains first.
	if wait_for 10 port_is INIT && [ "$(cat $port/lid)" = 0xffff ]; then pass "the port waits for a manager"; else fail "the port does not wait"; fi
	opensm >/tmp/opensm.out 2>&1 &
	manager=$!
fi
managed "the port"
step "sminfo" sminfo -C mlx5_0 && expect "who the manager is" 'sm lid [12] sm guid 0x2c90000000101.*SMINFO_MASTER'

ipoib
# talk NAME: guest 0 is served, guest 1 asks; when it ends, both are there.
talk() {
	if [ "$me" = 0 ]; then
		step "rping, $1" rping -s -a 10.2.0.1 -C 200 -S 60000 -V
	else
		# Until guest 0 listens.
		rping_works() { timeout $limit rping -c -a 10.2.0.1 -C 200 -S 60000 -V >/tmp/step 2>&1; }
		if wait_for 30 rping_works; then pass "rping, $1"; else fail "rping, $1"; fi
		sed 's/^/#| /' /tmp/step
	fi
}
talk "the first time"
step "ping" ping -c 20 -i 0.1 $peer && expect "all of them" '20 packets transmitted, 20 packets received'
step "ping in many datagrams" ping -c 10 -i 0.1 -s 60000 $peer && expect "all of them" '10 packets transmitted, 10 packets received'
talk "after that"

# The manager notices what changes.
if [ "$me" = 1 ]; then
	host link 2 down
	if wait_for 60 port_is DOWN; then pass "the cable is out"; else fail "the cable is out: $(cat $port/state)"; fi
	host link 2 up
	managed "with the cable in again"
	wait_for $limit reached || fail "no way to $peer any more"
fi
talk "with the cable in again"
if [ "$me" = 0 ]; then
	kill -0 $manager || fail "opensm ended"
	sed 's/^/#| /' /tmp/opensm.out
fi
