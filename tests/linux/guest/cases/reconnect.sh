# The client of the devices dies in the middle of its work, and another one comes: the server goes on without a restart.
load_mlx5 || return
boot=$(parameter boot 1)
ended() { ! kill -0 $client 2>/dev/null; }
if [ "$boot" -lt "$(parameter boots 3)" ]; then
	# Longer than this guest lives.
	ibv_rc_pingpong -d mlx5_0 -n 10000000 -s 65536 >/tmp/server 2>&1 &
	wait_for 60 listening || fail "no server"
	ibv_rc_pingpong -d mlx5_1 -n 10000000 -s 65536 localhost >/tmp/step 2>&1 &
	client=$!
	sleep 2
	if ended; then
		sed 's/^/#| /' /tmp/step
		fail "the pingpong ended"
	fi
	host power-cut
fi
pair "rc, after $((boot - 1)) clients that died" mlx5_1 ibv_rc_pingpong -c -m 4096 -n 100 -s 65536
pair "ud, likewise" mlx5_1 ibv_ud_pingpong -n 100 -s 2048
unload_mlx5 || return
for lid in 1 2; do
	host counts $lid
	[ "$host_said" = "nothing left" ] || fail "LID $lid: $host_said"
done
