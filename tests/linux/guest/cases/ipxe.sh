# The other guest is iPXE: this one has the subnet manager and what iPXE boots.
load mlx5_core && load mlx5_ib && load ib_uverbs && load ib_umad && load ib_ipoib || return
opensm >/tmp/opensm.out 2>&1 &
port=/sys/class/infiniband/mlx5_0/ports/1
state_is() { grep -q "$1" $port/state; }
if wait_for $limit state_is ACTIVE; then pass "the port: active"; else fail "the port: $(cat $port/state)"; fi
ip addr add 10.2.0.1/24 dev ib0
ip link set ib0 up
# iPXE has four receives: a connection with more packets under way loses some and waits for its timer.
echo 4096 8192 8192 >/proc/sys/net/ipv4/tcp_wmem
httpd -f -vv -h /www >/tmp/httpd.out 2>&1 &
served() { [ "$(grep -c "response:200" /tmp/httpd.out)" -ge 2 ]; }
limit=500
if wait_for $limit served; then pass "kernel and file system served"; else fail "not served"; fi
# Until the last bytes have arrived: the other machine is a Linux then, and turned off.
left() { ! ping -c 3 -W 5 10.2.0.2 >/dev/null 2>&1; }
wait_for $limit left
sed 's/^/#| httpd: /' /tmp/httpd.out
sed 's/^/#| /' /tmp/opensm.out
