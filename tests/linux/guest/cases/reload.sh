# Load and unload again and again: what is left over adds up.
times=$(parameter times 20)
round=0
while [ $round -lt "$times" ]; do
	round=$((round + 1))
	load_mlx5 >/tmp/load 2>&1
	if grep -q '^#> fail' /tmp/load; then
		cat /tmp/load
		fail "round $round"
		return
	fi
	unload_mlx5 || return
	host counts 1
	[ "$host_said" = "nothing left" ] || fail "round $round: $host_said"
done
pass "$times rounds"
