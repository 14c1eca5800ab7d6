# perftest between two devices of this guest. bareverbs.set names what is run.
load_mlx5 || return
iterations=$(parameter iterations 50)

# perf NAME OPTIONS...: one tool against itself.
perf() {
	perf_name=$1
	shift
	pair "$perf_name" mlx5_1 "$@" -F
}

# verbs TRANSPORT VERB...: bandwidth and latency of each.
verbs() {
	transport=$1
	shift
	for verb in "$@"; do
		large="-s 65536" small="-s 2"
		case $transport-$verb in
		*-atomic) large="" small="" ;;
		# A datagram is one packet.
		UD-*) large="-s 2048" ;;
		esac
		perf "ib_${verb}_bw $transport" ib_${verb}_bw -c $transport -n $iterations $large
		perf "ib_${verb}_lat $transport" ib_${verb}_lat -c $transport -n $iterations $small
	done
}

for set in $(parameter set rc | tr , ' '); do
	case $set in
	rc) verbs RC send write read atomic ;;
	uc) verbs UC send write ;;
	ud) verbs UD send ;;
	xrc) verbs XRC send write ;;
	inline)
		# 0, some, and the most that the tool takes: its own limit for latency, libmlx5's for a queue pair.
		for size in 0 64 236; do
			perf "ib_write_lat, $size bytes inline" ib_write_lat -n $iterations -s 64 -I $size
			perf "ib_send_lat, $size bytes inline" ib_send_lat -n $iterations -s 64 -I $size
		done
		perf "ib_write_bw, inline" ib_write_bw -n $iterations -s 236 -I 236
		perf "ib_send_lat UD, inline" ib_send_lat -c UD -n $iterations -s 64 -I 64
		perf "ib_send_lat UC, inline" ib_send_lat -c UC -n $iterations -s 64 -I 64
		;;
	many)
		for verb in send write read atomic; do
			size="-s 4096"
			[ $verb = atomic ] && size=""
			perf "ib_${verb}_bw, 8 queue pairs" ib_${verb}_bw -n $iterations $size -q 8
		done
		perf "ib_write_bw UC, 8 queue pairs" ib_write_bw -c UC -n $iterations -s 4096 -q 8
		perf "ib_send_bw UD, 8 queue pairs" ib_send_bw -c UD -n $iterations -s 1024 -q 8
		;;
	both)
		for verb in send write read atomic; do
			size="-s 4096"
			[ $verb = atomic ] && size=""
			perf "ib_${verb}_bw, both directions" ib_${verb}_bw -n $iterations $size -b
		done
		perf "ib_write_bw, 8 queue pairs, both directions" ib_write_bw -n $iterations -s 4096 -q 8 -b
		perf "ib_send_bw UC, both directions" ib_send_bw -c UC -n $iterations -s 4096 -b
		perf "ib_send_bw UD, both directions" ib_send_bw -c UD -n $iterations -s 1024 -b
		;;
	events)
		# Bandwidth only: the latency tools look once for each event, and so miscount when a queue is armed that is not
		# empty, which makes an event at once. Writing has no events.
		perf "ib_send_bw, events" ib_send_bw -n $iterations -s 4096 -e
		perf "ib_read_bw, events" ib_read_bw -n $iterations -s 4096 -e
		perf "ib_send_bw UC, events" ib_send_bw -c UC -n $iterations -s 4096 -e
		perf "ib_send_bw UD, events" ib_send_bw -c UD -n $iterations -s 1024 -e
		;;
	sizes) perf "ib_write_bw, all sizes" ib_write_bw -n 10 -a ;;
	swap) perf "ib_atomic_bw, compare and swap" ib_atomic_bw -n $iterations -A CMP_AND_SWAP ;;
	srq) perf "ib_send_bw, shared receive queue" ib_send_bw -n $iterations -s 4096 -q 4 --use-srq ;;
	*) fail "no set $set" ;;
	esac
done
