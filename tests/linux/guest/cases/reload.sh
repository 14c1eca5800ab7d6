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
	for module in ib_uverbs_none mlx5_ib mlx5_core; do
		[ -d "/sys/module/$module" ] || continue
		rmmod "$module" || {
			fail "round $round: rmmod $module"
			return
		}
	done
done
pass "$times rounds"
