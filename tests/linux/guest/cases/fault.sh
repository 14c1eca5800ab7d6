# The device misbehaves under a running kernel.
load_mlx5 || return

# exchange [DEVICE]: whether one small pingpong between the first device and another (the second) succeeds.
exchange() {
	timeout $limit ibv_rc_pingpong -d mlx5_0 -n 10 >/tmp/server 2>&1 &
	server=$!
	wait_for 60 listening_or_ended $server
	timeout $limit ibv_rc_pingpong -d "${1:-mlx5_1}" -n 10 localhost >/tmp/step 2>&1
	exchanged=$?
	# A server whose client failed would wait for it.
	[ $exchanged -eq 0 ] || kill $server
	wait $server
	sed 's/^/#| /' /tmp/step
	return $exchanged
}
works() { if exchange $2; then pass "$1"; else fail "$1"; fi; }
fails() { if exchange; then fail "$1"; else pass "$1"; fi; }
port() { grep -qs "$1" /sys/class/infiniband/mlx5_0/ports/1/state; }
logged() { dmesg | grep -qE "$1"; }
# within SECONDS NAME COMMAND...: it happens.
within() {
	seconds=$1
	name=$2
	shift 2
	if wait_for "$seconds" "$@"; then pass "$name"; else fail "not within $seconds s: $name"; fi
}
show_log() { dmesg | grep -E 'mlx5|pcieport|pciehp|acpiphp' | tail -n 40 | sed 's/^/#| /'; }
# How often the driver reported that a device does not answer, and whether it did since there were $before.
losses() { dmesg | grep -cE 'mlx5_core.*PCI slot is unavailable'; }
more_losses() { [ "$(losses)" -gt "$before" ]; }
# forget ADDRESS: Linux gives a PCI device up, as if it had been pulled out.
forget() {
	start=$(cut -d. -f1 /proc/uptime)
	echo 1 >"/sys/bus/pci/devices/$1/remove" || fail "$1 does not go"
	echo "#| $1 gone after $(($(cut -d. -f1 /proc/uptime) - start)) s"
}
bound() { [ "$(ls -d /sys/bus/pci/drivers/mlx5_core/0000:* 2>/dev/null | wc -l)" -eq "$1" ]; }

case "$(parameter fault)" in
status)
	host refuse 2 0x800 0xf
	fails "a tool without its protection domain fails"
	works "the next one works"
	;;
link)
	works "a pingpong"
	host link 1 down
	within 60 "the port goes down" port DOWN
	host link 1 up
	within 60 "the port is active again" port ACTIVE
	works "a pingpong afterwards"
	;;
health)
	host health 1 0x1 fatal
	within 60 "the driver reports it" logged 'mlx5_core.*(Fatal error|synd)'
	within 120 "the driver recovers the device" logged 'mlx5_core.*(recover|health recovery) succe'
	within 60 "the port is active again" all_ports_active 2
	show_log
	works "a pingpong afterwards"
	;;
frozen)
	host freeze 1
	within 60 "the driver reports it" logged 'mlx5_core.*health compromised'
	host thaw 1
	show_log
	works "a pingpong afterwards"
	;;
killed)
	# QEMU 11.1 cannot take a vfio-user device with MSI-X out (an assertion in its memory regions): the dead ones stay in
	# their slots and Linux forgets them. The restarted server's devices go into others.
	devices=$(parameter devices)
	client=mlx5_$((devices - 1))
	works "a pingpong" $client
	slot=0
	round=0
	while [ $round -lt "$(parameter rounds 1)" ]; do
		round=$((round + 1))
		before=$(losses)
		host kill-server
		within 60 "the driver notices" more_losses
		pass "the guest lives"
		for dead in /sys/bus/pci/drivers/mlx5_core/0000:*; do
			forget "$(basename "$dead")"
		done
		within 60 "the driver has let go" bound 0
		host start-server
		device=0
		while [ $device -lt "$devices" ]; do
			device=$((device + 1))
			slot=$((slot + 1))
			host plug $((devices + slot)) $device
		done
		within 120 "the driver binds to the new devices" bound "$devices"
		within 60 "their ports are active" all_ports_active "$devices"
		show_log
		works "a pingpong afterwards" $client
	done
	;;
removed)
	works "a pingpong"
	host remove 2
	before=0
	within 60 "the driver notices" more_losses
	forget 0000:02:00.0
	within 60 "the driver has let go" bound 1
	show_log
	works "the other device goes on" mlx5_0
	;;
timeout)
	host stick 2 0x800
	limit=200
	fails "a tool without its protection domain fails"
	works "the next one works"
	;;
esac
