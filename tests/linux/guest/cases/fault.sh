# The device misbehaves under a running kernel.
load_mlx5 || return

# One small pingpong between the two devices.
exchange() {
	timeout "${limit:-30}" ibv_rc_pingpong -d mlx5_0 -n 10 >/tmp/server 2>&1 &
	server=$!
	wait_for 10 listening || true
	timeout "${limit:-30}" ibv_rc_pingpong -d mlx5_1 -n 10 localhost >/tmp/step 2>&1
	exchanged=$?
	# A server whose client failed would wait for it.
	[ $exchanged -eq 0 ] || kill $server
	wait $server
	sed 's/^/#| /' /tmp/step
	return $exchanged
}
listening() { netstat -ltn 2>/dev/null | grep -q ':18515 '; }
port() { grep -q "$1" /sys/class/infiniband/mlx5_0/ports/1/state; }
recovered() { logged 'mlx5_core.*(recover|health recovery) succe' && port ACTIVE 2>/dev/null; }
logged() { dmesg | grep -qE "$1"; }

case "$(parameter fault)" in
status)
	host refuse 2 0x800 0xf
	if exchange; then fail "a tool without its protection domain went on"; else pass "the tool failed"; fi
	if exchange; then pass "the next one works"; else fail "the next one failed too"; fi
	;;
link)
	host link 1 down
	if wait_for 10 port DOWN; then pass "the port is down"; else fail "the port is not down"; fi
	host link 1 up
	if wait_for 10 port ACTIVE; then pass "the port is active again"; else fail "the port is not active"; fi
	;;
health)
	host health 1 0x1 fatal
	if wait_for 20 logged 'mlx5_core.*(Fatal error|synd)'; then pass "the driver reports it"; else fail "the driver says nothing"; fi
	if wait_for 60 recovered; then pass "the driver recovers the device"; else fail "the device is not recovered"; fi
	dmesg | grep mlx5_core | tail -n 30 | sed 's/^/#| /'
	;;
frozen)
	host freeze 1
	if wait_for 30 logged 'mlx5_core.*health compromised'; then pass "the driver reports it"; else fail "the driver says nothing"; fi
	host thaw 1
	dmesg | grep mlx5_core | tail -n 30 | sed 's/^/#| /'
	;;
removed)
	host kill-server
	if wait_for 30 logged 'mlx5_core.*(Fatal error|PCI|health|device)'; then pass "the driver notices"; else fail "the driver says nothing"; fi
	sleep 5
	dmesg | grep mlx5_core | tail -n 30 | sed 's/^/#| /'
	host start-server
	pass "the guest lives"
	;;
timeout)
	host stick 2 0x800
	limit=90
	if exchange; then fail "a tool without its protection domain went on"; else pass "the tool failed"; fi
	if exchange; then pass "the next one works"; else fail "the next one failed too"; fi
	;;
esac
