# Programs that others wrote, between RoCEv2 of two guests: they meet by rdma_cm.
cable || return
# The default of Debian, fq_codel, drops packets that wait for the device for 100 ms.
echo pfifo_fast >/proc/sys/net/core/default_qdisc
load mlx5_core && load mlx5_ib && load ib_uverbs && load rdma_ucm || return 1
roce_between mlx5_0 || return

# met NAME SERVER CLIENT: two commands, each guest once the server, then the other one. PEER in them is the address of the server.
met() {
	for waits in 0 1; do
		met_address=10.4.0.$((waits + 1))
		if [ "$me" = $waits ]; then
			timeout $limit $(echo "$2" | sed "s/PEER/$met_address/") >/tmp/server 2>&1 &
			met_server=$!
			wait_for 60 awaited_or_ended $met_server
			meet
			wait $met_server
			met_status=$?
			sed 's/^/#| server: /' /tmp/server
			if [ $met_status -eq 0 ]; then pass "$1, server"; else fail "$1, server: exit status $met_status"; fi
		else
			# A server counts the clients that fail: one that came too early would take the place of its successor.
			meet
			step "$1" $(echo "$3" | sed "s/PEER/$met_address/")
		fi
		meet
	done
}
# Whether it listens by rdma_cm, or at the port of fi_pingpong (47592).
awaited_or_ended() {
	rdma resource show cm_id | grep -q "state LISTEN" || grep -qs ':B9E8 .* 0A ' /proc/net/tcp /proc/net/tcp6 || ended "$1"
}
met "rping" "rping -s -a PEER -C 50 -S 4000 -V" "rping -c -a PEER -C 50 -S 4000 -V"
met "ucmatose" "ucmatose -b PEER -c 4 -C 20 -S 5000" "ucmatose -s PEER -c 4 -C 20 -S 5000"
met "udaddy" "udaddy -b PEER -c 2 -C 10 -S 1000" "udaddy -s PEER -c 2 -C 10 -S 1000"
for verb in send write read; do
	met "ib_${verb}_bw -R" "ib_${verb}_bw -R -F -d mlx5_0 -n 100 -s 65536" "ib_${verb}_bw -R -F -d mlx5_0 -n 100 -s 65536 PEER"
done
met "ib_write_lat -R" "ib_write_lat -R -F -d mlx5_0 -n 100 -s 8" "ib_write_lat -R -F -d mlx5_0 -n 100 -s 8 PEER"
met "ib_send_bw -R of datagrams" "ib_send_bw -R -c UD -F -d mlx5_0 -n 100 -s 1024" "ib_send_bw -R -c UD -F -d mlx5_0 -n 100 -s 1024 PEER"
for kind in msg rdm; do
	met "fi_pingpong, $kind" "fi_pingpong -p verbs -e $kind -c -I 50 -S 65536" "fi_pingpong -p verbs -e $kind -c -I 50 -S 65536 PEER"
done
meet
ip link set "$nic" down
unload_mlx5
