# The network interfaces of two Ethernet ports, little of everything: what the driver sends is recorded by the devices.
host mark probe
load mlx5_core || return
net_of() { ls -d /sys/bus/pci/drivers/mlx5_core/*/net/* 2>/dev/null | sed -n "$1s/.*\///p"; }
has_both() { [ "$(net_of 2)" ]; }
wait_for 60 has_both || fail "no network interfaces"
near=$(net_of 1)
far=$(net_of 2)

host mark up
/bin/ip netns add far
/bin/ip link set "$far" netns far
/bin/ip -n far link set "$far" up
/bin/ip -n far addr add 10.5.0.2/24 dev "$far"
ip link set "$near" up
ip addr add 10.5.0.1/24 dev "$near"
wait_for 20 ping -c 1 -W 2 10.5.0.2 >/dev/null || fail "no answer"

host mark ping
step "ping" ping -c 3 -s 1000 10.5.0.2
host mark tcp
/bin/ip netns exec far iperf3 -s -1 >/tmp/iperf-server 2>&1 &
sleep 2
step "TCP" iperf3 -c 10.5.0.2 -n 1M
host mark inlined
# Headers in the WQE, and a tag in front of them.
load 8021q && /bin/ip link add link "$near" name tagged type vlan id 7 && ip link set tagged up
ping -c 2 -W 1 -I tagged 10.5.0.2 >/dev/null
host mark queues
step "channels" ethtool -L "$near" combined 1
host mark unload
/bin/ip link del tagged
ip link set "$near" down
/bin/ip netns del far
unload_mlx5 && pass "unloaded"
