# A shell on the terminal on which the guest was booted.
for module in mlx5_core mlx5_ib ib_uverbs ib_umad ib_ipoib rdma_ucm; do
	load $module || return
done
# Active, or waiting for a subnet manager.
settled() { all_ports_active "$(parameter devices 1)" || grep -qs INIT /sys/class/infiniband/*/ports/1/state; }
wait_for $limit settled || fail "a port is not active"
stty -F /dev/ttyS1 sane
# The device with the greatest number: another than the first, if there is one.
other=mlx5_$(($(parameter devices 1) - 1))
cat >/dev/ttyS1 <<END

Linux $(uname -r) with $(parameter devices 1) simulated ConnectX. Try: ibv_devinfo
     ibv_rc_pingpong -d mlx5_0 & sleep 1; ibv_rc_pingpong -d $other localhost
"exit" turns the machine off.
END
PS1='guest# ' setsid -c sh -i </dev/ttyS1 >/dev/ttyS1 2>&1
poweroff -f
