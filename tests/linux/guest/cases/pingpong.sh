# The pingpongs of ibverbs-utils, between two devices of this guest (or within one).
load_mlx5 || return
client=mlx5_1
[ "$(parameter devices 1)" -eq 1 ] && client=mlx5_0

for tool in $(parameter tools rc | tr , ' '); do
	pingpong_options $tool
	for size in $sizes; do
		iterations=$(pingpong_iterations $tool $size)
		pair "$tool $size bytes, polling" $client $program $options $iterations -s $size
		pair "$tool $size bytes, events" $client $program $options -e $iterations -s $size
	done
done
