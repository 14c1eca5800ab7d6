# Two processes of Open MPI, one in each guest, over UCX on RoCEv2. The launcher in guest 0 starts its daemon in the other one by nc.
cable || return
echo pfifo_fast >/proc/sys/net/core/default_qdisc
load mlx5_core && load mlx5_ib && load ib_uverbs && load rdma_ucm || return 1
roce_between mlx5_0 || return
printf '127.0.0.1 localhost\n10.0.0.1 guest0\n10.0.0.2 guest1\n' >>/etc/hosts
hostname guest$me
mkdir -p /root /var/tmp
# Each start of Python takes long, and the clock of a guest on a busy machine runs too fast.
limit=900

# The daemon asks for the launcher's program too, though it starts nothing.
cat >/bin/remote <<'END'
#!/bin/sh
# remote HOST COMMAND: has another guest run it.
host=$1
shift
tries=300
until printf '%s\n' "$*" | nc "$host" 7002; do
	tries=$((tries - 1))
	[ $tries -gt 0 ] || exit 1
	sleep 0.2
done
END
chmod +x /bin/remote

if [ "$me" = 1 ]; then
	# Each command line that comes is run. The last one is only a word.
	while :; do
		asked=$(nc -l -p 7002 </dev/null)
		[ "$asked" != enough ] || break
		sh -c "$asked" 2>&1 | while read -r line; do echo "#| daemon: $line"; done &
	done
else
	export PYTHONPATH=/lib/python3/dist-packages UCX_NET_DEVICES=mlx5_0:1 UCX_LOG_LEVEL=info UCX_VFS_ENABLE=n
	for transport in rc_v rc_x ud_v ud_x; do
		case $transport in
		*_v) name=${transport%v}verbs ;;
		*_x) name=${transport%x}mlx5 ;;
		esac
		export UCX_TLS=$transport
		# On SIGTERM the launcher waits for its daemons, so that it must be killed.
		step "MPI over $transport" timeout -s KILL $limit mpirun --allow-run-as-root --host guest0,guest1 -n 2 --map-by node --bind-to none \
			--prtemca plm_ssh_agent /bin/remote --prtemca prte_if_include eth0 --leave-session-attached \
			--mca pml ucx --mca osc ucx -x PYTHONPATH -x UCX_NET_DEVICES -x UCX_TLS -x UCX_LOG_LEVEL -x UCX_VFS_ENABLE \
			python3 /mpi_messages.py
		expect "$transport: each byte checked" "^rank 0: [0-9]+ bytes came, each byte checked$"
		expect "$transport: each byte checked there" "^rank 1: [0-9]+ bytes came, each byte checked$"
		used=$(sed -nE 's/.* (cfg#|ep_cfg\[)[0-9]+\]?:? //p' /tmp/step | grep -oE '[a-z0-9_]+/[a-z0-9_:]+' | sort -u)
		[ "$used" = "$name/mlx5_0:1" ] || fail "$transport: it used" $used
	done
	/bin/remote guest1 enough
fi
