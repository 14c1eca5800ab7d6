# UCX's own measurement between two guests: every kind of operation, small and large, over each of the transports that
# bareverbs.transports names. With bareverbs.roce the ports are Ethernet ports.
cable && load rdma_ucm || return
if [ "$(parameter roce)" ]; then
	echo pfifo_fast >/proc/sys/net/core/default_qdisc
	load mlx5_core && load mlx5_ib && load ib_uverbs && roce_between mlx5_0 || return
else
	load_mlx5 || return
fi
# The UCX 1.13 of kernel 6.1's suite is built without DEVX. It aborts when it opens all transports of mlx5, by an assertion on
# the type of a shared receive queue. So each transport under test is requested alone.
for transport in $(parameter transports rc_v,rc_x,ud_v,ud_x | tr , ' '); do
	case $transport in
	*_v) name=${transport%v}verbs ;;
	*_x) name=${transport%x}mlx5 ;;
	esac
	step "what UCX finds of $name" ucx_info -d -t $name
	grep -q "Transport: $name" /tmp/step || fail "UCX finds no $name"
done

cat >/tmp/ucp <<END
tag_8 -t tag_bw -s 8 -n 200 -w 20
tag_1M -t tag_bw -s 1048576 -n 10 -w 2
tag_lists -t tag_bw -s 16,4000,8192,100000 -D iov,iov -n 20 -w 2
tag_64K -t tag_lat -s 65536 -n 20 -w 2
put_8 -t ucp_put_bw -s 8 -n 200 -w 20
put_1M -t ucp_put_bw -s 1048576 -n 10 -w 2
get_8 -t ucp_get -s 8 -n 50 -w 5
get_1M -t ucp_get -s 1048576 -n 10 -w 2
fetch_add -t ucp_fadd -s 8 -n 50 -w 5
am_1M -t ucp_am_bw -s 1048576 -n 10 -w 2
stream -t stream_bw -s 4096 -n 100 -w 10
END
# UCX does atomics itself unless the device has all of them: the device's own, and requests without a copy.
cat >/tmp/uct <<END
atomic_add -t fadd -s 8 -n 50 -w 5
atomic_cas -t cswap -s 8 -n 50 -w 5
write_64K -t put_bw -s 65536 -D zcopy -n 20 -w 2
read_64K -t get -s 65536 -D zcopy -n 20 -w 2
END
# Later ones are programs of MPI too, unless an option makes them none.
alone=
! grep -q MPI_Init /bin/ucx_perftest || alone="-P 0"
# And what they do alone, without a peer, need not be much.
export OMPI_MCA_pml=ob1 OMPI_MCA_btl=self

# There are many tests in each.
limit=400
export UCX_NET_DEVICES=mlx5_0:1 UCX_LOG_LEVEL=info UCX_VFS_ENABLE=n
for transport in $(parameter transports rc_v,rc_x,ud_v,ud_x | tr , ' '); do
	export UCX_TLS=$transport
	case $transport in
	*_v) name=${transport%v}verbs ;;
	*_x) name=${transport%x}mlx5 ;;
	esac
	cp /tmp/ucp /tmp/tests
	# Datagrams have none of those.
	[ "$transport" = "ud_${transport#ud_}" ] || sed "s/$/ -d mlx5_0:1 -x $name/" /tmp/uct >>/tmp/tests
	between "UCX over $transport" ucx_perftest $alone -b /tmp/tests -f
	if grep -E ' (ERROR|FATAL|WARN) ' /tmp/step; then fail "$transport: it complains"; fi
	[ "$me" = 1 ] || continue
	# The rate is the last column.
	while read -r test rest; do
		awk -v test="$test" '$1 == test && NF == 9 && $NF > 0 { found = 1 } END { exit !found }' /tmp/step || fail "$transport, $test: no rate"
	done </tmp/tests
	# What it says of each connection: the operations, and behind each bracket by what.
	used=$(sed -nE 's/.* (cfg#|ep_cfg\[)[0-9]+\]?:? //p' /tmp/step | grep -oE '[a-z0-9_]+/[a-z0-9_:]+' | sort -u)
	[ "$used" = "$name/mlx5_0:1" ] || fail "$transport: it used" $used
done
