# Load and unload again and again: what is left over adds up.
times=$(parameter times 20)
round=0
before=999999999
after=999999999
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
	host memory
	bytes=${host_said%% *}
	[ $round -ge 2 ] && [ $round -le 6 ] && [ "$bytes" -lt $before ] && before=$bytes
	[ $round -gt $((times - 5)) ] && [ "$bytes" -lt $after ] && after=$bytes
done
pass "$times rounds"
# The bytes in use on the server's heap. The minimum of five rounds varies by a few bytes only, so a leak of one allocation a
# round is visible after fourteen rounds.
[ "$times" -ge 20 ] || return
if [ $((after - before)) -le 512 ]; then
	pass "the server's memory: $before bytes in rounds 2 to 6, $after in the last five"
else
	fail "the server's memory grew from $before bytes in rounds 2 to 6 to $after in the last five"
fi
