# The pingpongs between two guests: guest 0 waits for guest 1.
load_mlx5 || return
cable || return

for tool in $(parameter tools rc,uc,ud,srq,xsrq | tr , ' '); do
	pingpong_options $tool
	for size in $sizes; do
		iterations=$(pingpong_iterations $tool $size)
		between "$tool $size bytes, polling" $program $options $iterations -s $size
		between "$tool $size bytes, events" $program $options -e $iterations -s $size
	done
	[ $tool = rc ] || continue
	# Both guests are there now, and stay for the other tools: a datagram to the other end of the cable.
	load ib_umad
	step "the neighbour's name" smpquery -C mlx5_0 -D nodedesc 0,1 && expect "it is the other one's" "device $((2 - me))\$"
done
