# A folder of guest 0 in guest 1, by NFS over RDMA on RoCEv2.
cable || return
echo pfifo_fast >/proc/sys/net/core/default_qdisc
load mlx5_core && load mlx5_ib && load ib_uverbs && load rdma_ucm && load rpcrdma || return 1
roce_between mlx5_0 || return
sizes="0 1 100 1000 4095 4097 70000 300001"

if [ "$me" = 0 ]; then
	load nfsd || return
	mkdir -p /export /var/lib/nfs/v4recovery /var/lib/nfs/rpc_pipefs /proc/fs/nfsd
	mount -t tmpfs tmpfs /export
	mount -t nfsd nfsd /proc/fs/nfsd
	: >/var/lib/nfs/etab
	: >/var/lib/nfs/rmtab
	echo "/export 10.4.0.0/24(rw,fsid=0,no_root_squash,insecure,no_subtree_check,async)" >/etc/exports
	step "exported" exportfs -r
	rpc.mountd -N 2 -N 3
	# A client may not write before the time is over in which those of an earlier start come back: 90 s by default.
	echo 10 >/proc/fs/nfsd/nfsv4leasetime
	echo 10 >/proc/fs/nfsd/nfsv4gracetime
	step "the NFS server" rpc.nfsd -N 3 --rdma=20049 4
	step "where it listens" cat /proc/fs/nfsd/portlist
	expect "it listens on RDMA" "^rdma 20049"
	meet
	take /tmp/sum
	(cd /export && md5sum big small-*) >/tmp/own-sum
	if cmp -s /tmp/sum /tmp/own-sum; then pass "what was written there is here"; else fail "the files differ"; fi
	rpc.nfsd 0
	umount /export
else
	load nfsv4 || return
	mounted() {
		step "$1" mount -t nfs4 -o "addr=10.4.0.1,clientaddr=10.4.0.2,proto=rdma,port=20049,vers=4.2" 10.4.0.1:/ /mnt
	}
	meet
	mkdir -p /mnt
	mounted "mounted"
	grep " /mnt " /proc/mounts >/tmp/step
	expect "over RDMA" "proto=rdma"
	head -c 20000003 /dev/urandom >/tmp/big
	step "a file" cp /tmp/big /mnt/big
	for size in $sizes; do head -c "$size" /tmp/big >"/mnt/small-$size"; done
	sync
	umount /mnt
	# Without what it knows of the files.
	mounted "mounted again"
	if cmp -s /tmp/big /mnt/big; then pass "read back"; else fail "read back"; fi
	for size in $sizes; do
		head -c "$size" /tmp/big | cmp -s - "/mnt/small-$size" || fail "$size bytes read back"
	done
	(cd /mnt && md5sum big small-*) >/tmp/sum
	umount /mnt
	give /tmp/sum
fi
