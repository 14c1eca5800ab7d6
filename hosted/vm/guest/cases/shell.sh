# A shell on the terminal on which the guest was booted, or the command of a user (/user/command), with what the options of
# `bareverbs vm` ask for.
me=$(parameter guest 0)
guests=$(parameter guests 1)
hostname "guest$me"
for link in "fd fd" "stdin fd/0" "stdout fd/1" "stderr fd/2"; do
	[ -e "/dev/${link% *}" ] || ln -s "/proc/self/${link#* }" "/dev/${link% *}"
done
# This machine's, and those of the cable.
printf '127.0.0.1 localhost\n10.0.0.1 guest0\n10.0.0.2 guest1\n' >/etc/hosts
[ "$guests" = 2 ] || printf '127.0.0.1 localhost\n127.0.0.1 guest0\n' >/etc/hosts

# Folders, outputs and networks are its devices.
load virtio_pci || return

# Folders of the host: one a line, mark and place.
share() {
	mkdir -p "$2" && mount -t 9p -o trans=virtio,version=9p2000.L,msize=524288,cache=mmap "$1" "$2" || fail "the folder $2 cannot be mounted"
}
folder=/tmp
if [ -s /user/shares ]; then
	load 9pnet_virtio && load 9p || return
	while read -r mark place; do
		share "$mark" "$place" || return
		[ "$folder" != /tmp ] || folder=$place
	done </user/shares
fi

# The cable between two guests is the first network interface, the way out the one behind it.
interfaces=0
interface_up() {
	if ! wait_for 60 test -d "/sys/class/net/eth$interfaces"; then
		fail "no network interface for $1"
		return 1
	fi
	ip addr add "$1" dev "eth$interfaces"
	ip link set "eth$interfaces" up
	interfaces=$((interfaces + 1))
}
if [ "$guests" = 2 ] || [ "$(parameter network 0)" = 1 ]; then
	load virtio_net || return
	if [ "$guests" = 2 ]; then interface_up "10.0.0.$((me + 1))/24" || return; fi
	if [ "$(parameter network 0)" = 1 ]; then
		interface_up 10.0.2.15/24 || return
		ip route add default via 10.0.2.2
		echo nameserver 10.0.2.3 >/etc/resolv.conf
	fi
fi

# An address of IPv6 is used at once, and with it its GID: nobody else here has it.
echo 0 2>/dev/null >/proc/sys/net/ipv6/conf/default/accept_dad
# Two cards of one guest reach each other.
echo 1 >/proc/sys/net/ipv4/conf/all/accept_local
for module in mlx5_core mlx5_ib ib_uverbs ib_umad ib_ipoib rdma_ucm $(cat /user/modules); do
	load "$module" || return
done
# An Ethernet port is active once its interface is up. Device 0 has 10.4.0.1 in the first guest and 10.4.0.2 in the second one,
# device 1 has 10.4.1.1 and 10.4.1.2, and so on.
number=0
while [ $number -lt "$(parameter devices 1)" ]; do
	card=/sys/class/infiniband/mlx5_$number
	number=$((number + 1))
	grep -qs Ethernet $card/ports/1/link_layer || continue
	interface=$(basename "$(ls -d $card/device/net/* 2>/dev/null | head -n 1)")
	ip addr add "10.4.$((number - 1)).$((me + 1))/24" dev "$interface"
	ip link set "$interface" up
	export BAREVERBS_RDMA_ADDRESS="10.4.0.$((me + 1))"
	[ "$guests" = 1 ] || export BAREVERBS_RDMA_PEER="10.4.0.$((2 - me))"
done
# Active, or waiting for a subnet manager.
settled() { all_ports_active "$(parameter devices 1)" || grep -qs INIT /sys/class/infiniband/*/ports/1/state; }
wait_for $limit settled || fail "a port is not active"

if [ "$(parameter sessions 0)" = 1 ]; then
	. /sessions.sh
	start_sessions || return
fi

export BAREVERBS_GUEST="$me"
[ "$guests" = 1 ] || export BAREVERBS_PEER="10.0.0.$((2 - me))"
cd "$folder" || return

if [ -f /user/command ]; then
	load virtio_console || return
	# They and their names come some time after the driver.
	output_ports() {
		for port in /sys/class/virtio-ports/*; do
			case $(cat "$port/name" 2>/dev/null) in
			stdout) out=/dev/$(basename "$port") ;;
			stderr) err=/dev/$(basename "$port") ;;
			esac
		done
		[ -c "$out" ] && [ -c "$err" ]
	}
	if ! wait_for 60 output_ports; then
		fail "no ports for the output of the command"
		return
	fi
	# Not the ports themselves: only one program at a time can open them, and many open /dev/stderr.
	mkfifo /run/stdout /run/stderr
	cat /run/stdout >"$out" &
	copies=$!
	cat /run/stderr >"$err" &
	copies="$copies $!"
	ask start >/dev/null
	# In a session of its own, which is ended as a whole.
	setsid sh -c "$(cat /user/command)" </dev/null >/run/stdout 2>/run/stderr &
	job=$!
	seconds=$(parameter timeout 0)
	if [ "$seconds" != 0 ]; then
		{
			sleep "$seconds"
			echo >/run/timed-out
			kill -TERM -$job
			sleep 5
			kill -KILL -$job
		} 2>/dev/null &
		watch=$!
	fi
	wait $job
	status=$?
	[ "$seconds" = 0 ] || kill $watch 2>/dev/null
	# What it left in the background may hold the pipes open.
	copied() { for copy in $copies; do ended "$copy" || return 1; done; }
	wait_for 2 copied || { kill -KILL -$job 2>/dev/null && wait_for 1 copied; }
	if [ -f /run/timed-out ]; then say "timed out"; else say "status $status"; fi
	# The last words of a program that the kernel ended are no warnings to it.
	dmesg | grep -E 'segfault at|traps: |Initramfs unpacking failed' | sed 's/^/#! /'
	return
fi

stty -F /dev/ttyS1 sane
# The device with the greatest number: another than the first, if there is one.
other=mlx5_$(($(parameter devices 1) - 1))
cat >/dev/ttyS1 <<END

Linux $(uname -r) with $(parameter devices 1) simulated ConnectX. Try: ibv_devinfo
     ibv_rc_pingpong -d mlx5_0 & sleep 1; ibv_rc_pingpong -d $other localhost
"exit" turns the machine off.
END
PS1='guest# ' setsid -c sh -i </dev/ttyS1 >/dev/ttyS1 2>&1
# Nothing more for the terminal: the guest is off at once, without its drivers.
echo b >/proc/sysrq-trigger
