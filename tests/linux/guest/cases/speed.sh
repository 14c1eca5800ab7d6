# How fast the device is for a guest: lines "#= " are the table that the runner shows. The host's answers to "usage" are the
# seconds since the servers were started, their processor seconds and how often their threads went to sleep.
power_on=$(ask usage | cut -d' ' -f1)
load_mlx5 || return
ibv_devinfo >/tmp/devinfo 2>&1 || fail "ibv_devinfo"
echo "#= from power-on to user space: $power_on s; to the end of ibv_devinfo: $(ask usage | cut -d' ' -f1) s"

# used SECONDS-BEFORE SECONDS-AFTER MESSAGES: processor time of the servers for one message.
used() { awk -v a="$1" -v b="$2" -v n="$3" 'BEGIN { printf "%.1f us of the server", (b - a) * 1e6 / n }'; }

# bandwidth TOOL SIZE MESSAGES [OPTIONS]: the median of three runs.
bandwidth() {
	for run in 1 2 3; do
		before=$(ask usage | cut -d' ' -f2)
		measure "$1" -s "$2" -n "$3" $4 || return
		after=$(ask usage | cut -d' ' -f2)
		awk -v size="$2" -v used="$(used "$before" "$after" "$3")" \
			'$1 == size && NF >= 5 { printf "%.0f messages/s, %.0f MiB/s, %s a message\n", $5 * 1e6, $4, used }' /tmp/measured
	done | sort -n | sed -n "2s/^/#= $1, $2 bytes${4:+, $4}: /p"
}

# latency TOOL SIZE MESSAGES: the median of three runs.
latency() {
	for run in 1 2 3; do
		measure "$1" -s "$2" -n "$3" || return
		awk -v size="$2" '$1 == size && NF >= 8 { printf "%.1f us typical, %.1f us minimum\n", $5, $3 }' /tmp/measured
	done | sort -n | sed -n "2s/^/#= $1, $2 bytes: /p"
}

# measure TOOL OPTIONS...: the tool against itself.
measure() {
	timeout 60 "$@" -d mlx5_0 -F >/tmp/server 2>&1 &
	server=$!
	wait_for 60 listening
	timeout 60 "$@" -d mlx5_1 -F localhost >/tmp/measured 2>&1 || fail "$*" >/dev/ttyS1
	wait $server || fail "$*, server" >/dev/ttyS1
}

listening() { netstat -ltn 2>/dev/null | grep -q ':18515 '; }

bandwidth ib_write_bw 8 100000
# The same with a doorbell for 16 requests: what a doorbell costs is the difference.
bandwidth ib_write_bw 8 200000 "-l 16"
bandwidth ib_send_bw 8 30000
bandwidth ib_write_bw 65536 5000
bandwidth ib_read_bw 65536 5000
latency ib_write_lat 8 5000
latency ib_send_lat 8 5000
latency ib_read_lat 8 5000

# Drivers loaded but unused: what the kernel's own polling of the device costs.
set -- $(ask usage)
sleep 10
set -- "$@" $(ask usage)
echo "#= idle, drivers loaded: $(awk -v a="$2" -v b="$5" -v s="$1" -v t="$4" 'BEGIN { printf "%.2f %%", (b - a) / (t - s) * 100 }') of a processor, $(($6 - $3)) wakeups in $(awk -v s="$1" -v t="$4" 'BEGIN { printf "%.1f", t - s }') s"
pass "measured"
unload_mlx5
