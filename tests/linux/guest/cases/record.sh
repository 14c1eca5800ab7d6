# Something of everything, little of each: what the driver and the tools send is recorded by the devices.
host mark probe
load_mlx5 || return

listening() { netstat -ltn 2>/dev/null | grep -q ':18515 '; }

# pair NAME OPTIONS...: one tool against itself, between two devices.
pair() {
	title=$1
	shift
	host mark "$title"
	timeout 60 "$@" -d mlx5_0 >/tmp/server 2>&1 &
	server=$!
	wait_for 10 listening || true
	step "$title" "$@" -d mlx5_1 localhost
	wait $server || fail "$title: the server failed"
}

host mark ibv_devinfo
step "ibv_devinfo" ibv_devinfo -v
pair rc_pingpong ibv_rc_pingpong -m 1024 -n 8
pair rc_pingpong-events ibv_rc_pingpong -m 1024 -n 8 -e
pair uc_pingpong ibv_uc_pingpong -m 1024 -n 8
pair ud_pingpong ibv_ud_pingpong -s 1024 -n 8
pair srq_pingpong ibv_srq_pingpong -m 1024 -n 8 -q 4
pair ib_send_lat ib_send_lat -F -n 5 -s 64 -I 128
pair ib_write_bw ib_write_bw -F -n 5 -s 4096
pair ib_write_lat ib_write_lat -F -n 5 -s 64 -I 128
pair ib_read_bw ib_read_bw -F -n 5 -s 4096
pair ib_atomic_bw-add ib_atomic_bw -F -n 5 -A FETCH_AND_ADD
pair ib_atomic_bw-swap ib_atomic_bw -F -n 5 -A CMP_AND_SWAP
host mark unload
unload_mlx5 && pass "unloaded"
