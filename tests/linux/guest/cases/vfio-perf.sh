# Our driver over VFIO beside libmlx5 on mlx5_ib: the same devices, the same guest, one run. Lines "#= " are what the runner shows.
load_mlx5 || return
card0=0000:01:00.0
card1=0000:02:00.0

# their_latency, their_rate: one run of perftest between the two devices: microseconds (typical), messages a second.
their_latency() {
	run_pair ib_write_lat -F -s 8 -n 5000 >/dev/null
	awk '$1 == 8 && NF >= 8 { print $5 }' /tmp/step
}
their_rate() {
	run_pair ib_write_bw -F -s 8 -n 20000 >/dev/null
	awk '$1 == 8 && NF >= 5 { printf "%.0f\n", $5 * 1e6 }' /tmp/step
}
# our PATTERN OPTIONS...: one run of `bareverbs perf` between two processes, a card each; the number after the pattern in its JSON.
our() {
	pattern=$1
	shift
	timeout $limit bareverbs perf --device $card0 --listen --quiet >/tmp/server 2>&1 &
	our_server=$!
	wait_for 60 listening_or_ended $our_server
	timeout $limit bareverbs perf --device $card1 --connect localhost --json "$@" >/tmp/step 2>&1 || fail "perf $*" >/dev/ttyS1
	wait $our_server || fail "perf, the server" >/dev/ttyS1
	sed -n "s/.*\"$pattern\": \([0-9.]*\).*/\1/p" /tmp/step | head -n 1
}
our_latency() { our median --test write-lat -s 8 -n 5000; }
our_rate() { our messages_per_second --test write-bw -s 8 -n 20000; }

# five COMMAND: does five runs, and prints them.
five() {
	for _ in 1 2 3 4 5; do "$1"; done >/tmp/runs
	echo "#| $1: $(tr '\n' ' ' </tmp/runs)" >/dev/ttyS1
}
# run N: of the last five runs, the N-th from the least on: 3 is the median.
run() { sort -n /tmp/runs | sed -n "$1p"; }

# A warm-up run of each, which is not counted.
pair_client=mlx5_1
their_latency >/dev/null
five their_latency
their_lat=$(run 3) their_lat_most=$(run 5)
five their_rate
their_bw=$(run 3) their_bw_least=$(run 1)
unload_mlx5
vfio_cards || return
our_latency >/dev/null
five our_latency
our_lat=$(run 3)
five our_rate
our_bw=$(run 3)
echo "#= write latency, 8 bytes: $our_lat us; libmlx5 on mlx5_ib $their_lat us"
echo "#= write rate, 8 bytes: $our_bw messages/s; libmlx5 on mlx5_ib $their_bw messages/s"
# not_slower NAME SMALLER GREATER
not_slower() {
	if awk -v a="$2" -v b="$3" 'BEGIN { exit !(a > 0 && b > 0 && a <= b) }'; then pass "$1: not slower"; else fail "$1: slower"; fi
}
# Equal latencies differ by a fifth from run to run here, so our median is held against the worst of their runs.
not_slower "latency" "$our_lat" "$their_lat_most"
not_slower "rate" "$their_bw_least" "$our_bw"
