# The pingpongs of ibverbs-utils, between two devices of this guest (or within one).
load_mlx5 || return
mtu=$(parameter mtu 4096)
client=mlx5_1
[ "$(parameter devices 1)" -eq 1 ] && client=mlx5_0

# pingpong NAME TOOL OPTIONS...: server on the first device, client on the last.
pingpong() {
	pair=$1
	shift
	timeout "${limit:-60}" "$@" -d mlx5_0 >/tmp/server 2>&1 &
	server=$!
	wait_for 10 listening || true
	step "$pair" "$@" -d $client localhost
	wait $server
	status=$?
	sed 's/^/#| server: /' /tmp/server
	[ $status -eq 0 ] || fail "$pair, server: exit status $status"
}

listening() { netstat -ltn 2>/dev/null | grep -q ':18515 '; }

for tool in $(parameter tools rc | tr , ' '); do
	program=ibv_${tool}_pingpong
	sizes="1 4096 65536 1048576"
	check=-c
	extra="-m $mtu"
	case $tool in
	ud) sizes="1 1024 2048" extra="" check="" ;;
	srq | xsrq) sizes="1 4096 65536" check="" ;;
	esac
	[ "$(parameter suite trixie)" = bookworm ] && [ $tool = xsrq ] && check=""
	for size in $sizes; do
		iterations=100
		[ $size -gt 100000 ] && iterations=10
		pingpong "$tool $size bytes, polling" $program $extra $check -n $iterations -s $size
		pingpong "$tool $size bytes, events" $program $extra $check -e -n $iterations -s $size
	done
done
