# Tools are killed in the middle of their work, the driver is taken from under them, and the card is removed, found again, reset
# and reloaded. Each time nothing may be left of what was before, and the next pingpong succeeds.
load_mlx5 || return
second=0000:02:00.0
driver=/sys/bus/pci/drivers/mlx5_core

works() { pair "$1" mlx5_1 ibv_rc_pingpong -c -m 4096 -n 100 -s 65536; }

# What the devices have besides pages and keys, of which the driver keeps stocks.
objects() {
	for lid in 1 2; do
		ask counts $lid | sed -E 's/, [0-9]+ (pages|memory keys)//g'
	done
}

# begin COMMAND...: a tool against itself, which would run for minutes: $server and $client.
begin() {
	"$@" -d mlx5_0 >/tmp/server 2>&1 &
	server=$!
	wait_for 60 listening_or_ended $server
	"$@" -d mlx5_1 localhost >/tmp/step 2>&1 &
	client=$!
	sleep 1
	kill -0 $server && kill -0 $client && return
	sed 's/^/#| /' /tmp/server /tmp/step
	fail "$1 ended on its own"
}

# end_both: killed, without a chance to clean up.
end_both() {
	kill -9 $client $server
	wait $client $server
} 2>/dev/null

# killed NAME COMMAND...: a tool killed in the middle of its work leaves nothing.
killed() {
	killed_name=$1
	shift
	begin "$@"
	end_both
	objects >/tmp/after
	if cmp -s /tmp/before /tmp/after; then
		pass "$killed_name killed"
	else
		sed 's/^/#| /' /tmp/before /tmp/after
		fail "$killed_name killed: something is left"
	fi
}

# taken NAME COMMAND...: the driver lets the second card go while a tool works on it.
taken() {
	taken_name=$1
	shift
	begin ibv_rc_pingpong -n 10000000 -s 65536
	if "$@"; then pass "$taken_name"; else fail "$taken_name"; fi
	left=$(ask counts 2)
	[ "$left" = "nothing left" ] || fail "$taken_name: $left"
	end_both
}

# back NAME: the driver has both cards, and they work.
back() {
	wait_for $limit all_ports_active 2 || fail "$1: a port is not active"
	works "a pingpong after $1"
}

unbind() { echo $second >$driver/unbind; }
bind() { echo $second >$driver/bind; }
remove() { echo 1 >/sys/bus/pci/devices/$second/remove; }

works "a pingpong"
objects >/tmp/before
killed ibv_rc_pingpong ibv_rc_pingpong -n 10000000 -s 65536
killed ibv_ud_pingpong ibv_ud_pingpong -n 10000000 -s 1024
killed ibv_srq_pingpong ibv_srq_pingpong -n 10000000 -s 65536
killed "ib_write_bw, 8 queue pairs" ib_write_bw -q 8 -b -D 600 -F
killed "ib_read_bw, 8 queue pairs" ib_read_bw -q 8 -b -D 600 -F
killed "ib_send_bw, events" ib_send_bw -e -n 1000000 -F
works "a pingpong after all of them"

taken "unbound under a tool" unbind
bind || fail "bind"
back "binding"

taken "removed under a tool" remove
echo 1 >/sys/bus/pci/rescan
back "finding it again"

unbind && echo flr >/sys/bus/pci/devices/$second/reset_method && echo 1 >/sys/bus/pci/devices/$second/reset && bind ||
	fail "reset of the function"
back "a reset of the function"

step "devlink dev reload" devlink dev reload pci/$second
back "reloading"
