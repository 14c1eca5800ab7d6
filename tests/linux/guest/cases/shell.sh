# A shell on the terminal of whoever booted the guest.
load_mlx5 && load ib_umad && load ib_ipoib && load rdma_ucm || return
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
