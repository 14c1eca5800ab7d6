# Load and unload again and again: what is left over adds up.
times=$(parameter times 20)
round=0
before=999999
after=999999
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
	[ $round -ge 2 ] && [ $round -le 6 ] && [ "$host_said" -lt $before ] && before=$host_said
	[ $round -gt $((times - 5)) ] && [ "$host_said" -lt $after ] && after=$host_said
done
pass "$times rounds"
# A burst of messages leaves the allocator with memory that it gives back later: the least of five rounds tells what is in
# use. A round makes some 4000 keys and 18000 pages, so that what is lost once a round would be far more than the slack
# after fourteen of them: 512 kB are 37 kB a round.
[ "$times" -ge 20 ] || return
if [ $((after - before)) -le 512 ]; then
	pass "the server's memory: $before kB in rounds 2 to 6, $after kB in the last five"
else
	fail "the server's memory grew from $before kB in rounds 2 to 6 to $after kB in the last five"
fi
