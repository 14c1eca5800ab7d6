# A card whose network interface carries an address and a route: it is not taken from the kernel's driver, unless that is forced.
# Not load_mlx5: the port is down as long as its interface is.
load mlx5_core && load mlx5_ib && load ib_uverbs || return 1
card=0000:01:00.0
modules_for_modprobe

# has DRIVER WHEN: the card is bound to it.
has() {
	if [ "$(driver_of $card)" = "$1" ]; then pass "$2: $card has $1"; else fail "$2: $card has $(driver_of $card), not $1"; fi
}

interface_of $card || return
step "the card in the list" bareverbs devices $card
expect "its port" "^$card +ConnectX-7 +Ethernet +mlx5_core "
ip link set "$nic" up
ip addr add 10.9.0.1/24 dev "$nic"
ip route add 10.10.0.0/16 via 10.9.0.2 dev "$nic"
refused "an interface with an address and a route" 1 "network interface $nic would lose its address(es)? .*10\.9\.0\.1" bareverbs bind $card
expect "the route" "route.* 10\.10\.0\.0/16"
expect "what takes it all the same" "; --force takes it all the same"
has mlx5_core "refused"
if ip addr show dev "$nic" | grep -q "inet 10\.9\.0\.1/24"; then pass "it has its address"; else fail "it lost its address"; fi
if ip route | grep -q "^10\.10\.0\.0/16 .*dev $nic"; then pass "it has its route"; else fail "it lost its route"; fi
step "what it would lose, in the list" bareverbs devices $card
expect "its remedy" "remedy: .*sudo ip address flush dev $nic, or sudo bareverbs bind --force $card$"
ip route add default via 10.9.0.2 dev "$nic"
refused "the way to everywhere" 1 "default route goes through $nic" bareverbs bind $card
has mlx5_core "refused again"

step "bind by force" bareverbs bind --force $card
expect "the Ethernet port is good" "^    ready: --device $card \(Ethernet port, which is good: .*\)$"
has vfio-pci "forced"
if ip route | grep -q "10\.10\.0\.0"; then fail "a route of an interface that is gone"; else pass "address and routes are gone with it"; fi
step "our driver has it" bareverbs --device $card -n 20
step "unbind" bareverbs unbind $card
has mlx5_core "unbound"
