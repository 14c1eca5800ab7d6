# On a wire with a subnet manager, the first device tries to take the LID of the second one by a Set of its own PortInfo, as root of
# its guest could. The Set is refused, and messages between the two still arrive.
load mlx5_core && load mlx5_ib && load ib_uverbs && load ib_umad || return
opensm >/tmp/opensm.out 2>&1 &
manager=$!
if wait_for $limit all_ports_active 2; then pass "2 ports active"; else fail "a port is not active"; fi
# It would put right what the first device does.
kill $manager
wait $manager

lid() { echo $(($(cat "/sys/class/infiniband/mlx5_$1/ports/1/lid"))); }
own=$(lid 0)
victim=$(lid 1)
[ "$own" -ne "$victim" ] || fail "two ports have LID $own"
step "ibportstate of the own port" ibportstate -C mlx5_0 -D 0 1 query && expect "the own LID" "^Lid:\.+$own\$"
timeout $limit ibportstate -C mlx5_0 -D 0 1 lid "$victim" >/tmp/step 2>&1
sed 's/^/#| /' /tmp/step
step "ibportstate after that" ibportstate -C mlx5_0 -D 0 1 query && expect "the own LID is as before" "^Lid:\.+$own\$"
if [ "$(lid 0)" -eq "$own" ]; then pass "the driver has the own LID"; else fail "the driver has LID $(lid 0)"; fi

pair "messages between the two" mlx5_1 ibv_rc_pingpong -c -m 4096 -n 100 -s 65536
