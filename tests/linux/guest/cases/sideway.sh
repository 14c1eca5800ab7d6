# Sideway's own tests, a Rust project over libibverbs: on the device, then on the kernel's RoCE in software (rdma_rxe) on the same network
# interface. Each test goes through all devices that there are, and passes if there is none: so first there must be one.
load mlx5_core && load mlx5_ib && load ib_uverbs && load rdma_rxe || return 1

interface() { basename "$(ls -d /sys/bus/pci/drivers/mlx5_core/*/net/* 2>/dev/null | head -n 1)"; }
has_interface() { [ "$(interface)" ]; }
wait_for 60 has_interface || fail "no network interface"
nic=$(interface)
ip link set "$nic" up
ip addr add 10.4.0.1/24 dev "$nic"

# alone DEVICE: it is the only device of RDMA, its port is active, and it has the GID of the address.
alone() {
	found=$(ls /sys/class/infiniband 2>/dev/null)
	if [ "$found" != "$1" ]; then
		fail "the devices are '$found', not $1 alone"
		return 1
	fi
	step "$1" ibv_devinfo -d "$1" || return 1
	port=/sys/class/infiniband/$1/ports/1
	if ! wait_for 60 port_is ACTIVE; then
		fail "the port of $1: $(cat $port/state)"
		return 1
	fi
	has_gid() { grep -q ffff:0a04:0001 $port/gids/*; }
	wait_for 60 has_gid || {
		fail "no GID of the address"
		return 1
	}
}

# sideway DEVICE LEAST: all programs of the tests on it, of which at least LEAST tests pass and none fails.
sideway() {
	alone "$1" || return
	passed=0
	failed=0
	for program in /bin/sideway-*; do
		timeout $limit "$program" >/tmp/step 2>&1
		step_status=$?
		sed 's/^/#| /' /tmp/step
		result=$(sed -n 's/^test result: .* \([0-9]*\) passed; \([0-9]*\) failed;.*/\1 \2/p' /tmp/step)
		result=${result:-0 0}
		passed=$((passed + ${result% *}))
		failed=$((failed + ${result#* }))
		[ $step_status = 0 ] || fail "$(basename "$program") on $1: exit status $step_status"
	done
	echo "#= Sideway's tests on $1: $passed passed, $failed failed"
	if [ $passed -ge "$2" ]; then pass "$passed tests on $1"; else fail "$passed tests passed on $1, $2 at least should"; fi
}

sideway mlx5_0 "$(parameter tests)"
# The interface stays, and becomes the other device's.
rmmod mlx5_ib || fail "rmmod mlx5_ib"
step "RoCE in software" rdma link add rxe0 type rxe netdev "$nic" && sideway rxe0 "$(parameter tests)"
