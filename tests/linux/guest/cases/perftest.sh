# perftest between two devices of this guest.
load_mlx5 || return
iterations=$(parameter iterations 50)

# pair NAME OPTIONS...: one tool against itself.
pair() {
	title=$1
	shift
	timeout "${limit:-60}" "$@" -d mlx5_0 -F >/tmp/server 2>&1 &
	server=$!
	wait_for 10 listening || true
	step "$title" "$@" -d mlx5_1 -F localhost
	wait $server
	status=$?
	[ $status -eq 0 ] || {
		sed 's/^/#| server: /' /tmp/server
		fail "$title, server: exit status $status"
	}
}

listening() { netstat -ltn 2>/dev/null | grep -q ':18515 '; }

for verb in send write read atomic; do
	size="-s 65536"
	[ $verb = atomic ] && size=""
	pair "ib_${verb}_bw" ib_${verb}_bw -n $iterations $size
	size="-s 2"
	[ $verb = atomic ] && size=""
	pair "ib_${verb}_lat" ib_${verb}_lat -n $iterations $size
done
pair "ib_write_bw, 8 queue pairs" ib_write_bw -n $iterations -s 4096 -q 8
pair "ib_send_bw, both directions" ib_send_bw -n $iterations -s 4096 -b
pair "ib_write_lat, inline" ib_write_lat -n $iterations -s 64 -I 128
pair "ib_send_bw, events" ib_send_bw -n $iterations -s 4096 -e
