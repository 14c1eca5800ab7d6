# Two guests with Ethernet ports, behind a switch whose ports are slower than the guests send: it marks what comes to a long queue (ECN).
# The receiver of RoCEv2 answers with notifications, which both devices count.
cable || return
echo pfifo_fast >/proc/sys/net/core/default_qdisc
load mlx5_core && load mlx5_ib && load ib_uverbs || return 1
roce_between mlx5_0 || return

# notified: how many notifications the device of guest 0 has sent, and that of guest 1 received.
notified() {
	echo "$(ask stats 1 | sed 's/.*notifications_sent=//; s/ .*//') $(ask stats 2 | sed 's/.*notifications_received=//; s/ .*//')"
}
# written NAME OPTIONS: guest 1 writes into guest 0; $before and $after are what `notified` says then.
written() {
	meet
	[ "$me" = 1 ] || before=$(notified)
	between "$1" ib_write_bw -F -d mlx5_0 -x "$index" -m 1024 -u 20 -n 100 -s 65536 $2
	meet
	[ "$me" = 1 ] || after=$(notified)
}
written "without marks"
if [ "$me" = 0 ]; then
	if [ "$after" = "$before" ]; then pass "nobody is notified"; else fail "notifications: $before, then $after"; fi
fi
written "with marks" --tclass=106
if [ "$me" = 0 ]; then
	sent=$((${after% *} - ${before% *}))
	received=$((${after#* } - ${before#* }))
	if [ $sent -gt 10 ] && [ $sent = $received ]; then pass "$sent notifications"; else fail "notifications: $before, then $after"; fi
fi
if grep -q "^0$" /sys/class/net/"$nic"/statistics/rx_errors; then pass "no errors"; else fail "errors"; fi
meet
