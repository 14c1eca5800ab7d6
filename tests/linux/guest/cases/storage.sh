# Block storage over RDMA. Each guest in turn exports a disk to the other one, which writes and reads it with many sizes at a
# time, and creates a file system on it. The contents are then compared at both ends. bareverbs.protocol is the protocol (srp,
# iser or nvme); bareverbs.targets names the guests that export a disk. With bareverbs.roce the ports are Ethernet ports.
load mlx5_core && load mlx5_ib && load ib_uverbs && load ib_umad && load ib_ipoib && load rdma_ucm && cable || return
load ext4 && load sd_mod && load crc32c_generic || return
mkdir -p /etc/target /sys/kernel/config
if [ "$(parameter roce)" ]; then
	roce_between mlx5_0 || return
	own=10.4.0.$((me + 1))
else
	[ "$me" = 1 ] || opensm >/tmp/opensm.out 2>&1 &
	managed "the port"
	own=10.2.0.$((me + 1))
fi
protocol=$(parameter protocol)
# All that is done to a disk is one wait of the other guest.
limit=400
megabytes=24
bytes=$((megabytes * 1048576))
: >/tmp/sum
name=iqn.2001-04.com.example:disk

# A name that the initiator needs is in /tmp/where.
export_disk() {
	truncate -s $bytes /tmp/disk
	load target_core_file && load nvmet_rdma && mount -t configfs config /sys/kernel/config || return 1
	export_$protocol
}

backstore() {
	targets=/sys/kernel/config/target
	disk=$targets/core/fileio_0/disk
	mkdir -p $disk && echo fd_dev_name=/tmp/disk,fd_dev_size=$bytes >$disk/control && echo 1 >$disk/enable
}

export_srp() {
	load ib_srpt && backstore || return 1
	group=$targets/srpt/$(cat /tmp/own)/$(cat /tmp/own)
	mkdir -p $group/lun/lun_0 && ln -s $disk $group/lun/lun_0/disk || return 1
	# It serves those only whom it knows, by the GUID of their port.
	known=$group/acls/$(cat /tmp/peer)
	mkdir -p $known/lun_0 && ln -s $group/lun/lun_0 $known/lun_0/disk && echo 1 >$group/enable || return 1
	# As the target names itself.
	guid=$(tr -d : </sys/class/infiniband/mlx5_0/node_guid)
	echo "id_ext=$guid,ioc_guid=$guid,dgid=$(tr -d : <$port/gids/0),pkey=ffff,service_id=$guid" >/tmp/where
}

export_iser() {
	load iscsi_target_mod && load ib_isert && backstore || return 1
	group=$targets/iscsi/$name/tpgt_1
	mkdir -p $group/lun/lun_0 $group/np/$own:3260 && ln -s $disk $group/lun/lun_0/disk || return 1
	for setting in authentication=0 demo_mode_write_protect=0 generate_node_acls=1; do
		echo ${setting#*=} >$group/attrib/${setting%=*} || return 1
	done
	echo 1 >$group/np/$own:3260/iser && echo 1 >$group/enable || return 1
	echo "$own:3260" >/tmp/where
}

export_nvme() {
	subsystem=/sys/kernel/config/nvmet/subsystems/$name
	entry=/sys/kernel/config/nvmet/ports/1
	mkdir $subsystem && echo 1 >$subsystem/attr_allow_any_host && mkdir $subsystem/namespaces/1 $entry || return 1
	# Of a file it would offer blocks of 4096 bytes only.
	load loop && losetup /dev/loop0 /tmp/disk && echo /dev/loop0 >$subsystem/namespaces/1/device_path || return 1
	echo 1 >$subsystem/namespaces/1/enable && echo rdma >$entry/addr_trtype && echo ipv4 >$entry/addr_adrfam || return 1
	echo $own >$entry/addr_traddr && echo 4420 >$entry/addr_trsvcid || return 1
	ln -s $subsystem $entry/subsystems/disk || return 1
	echo "transport=rdma,traddr=$own,trsvcid=4420,nqn=$name" >/tmp/where
}

import_srp() {
	load ib_srp && cat /tmp/where >/sys/class/infiniband_srp/srp-mlx5_0-1/add_target || return 1
	device=/dev/sda
}

import_iser() {
	load ib_iser || return 1
	mkdir -p /etc/iscsi /run/lock/iscsi
	echo "InitiatorName=iqn.2001-04.com.example:guest$me" >/etc/iscsi/initiatorname.iscsi
	touch /etc/iscsi/iscsid.conf
	iscsid -f >/tmp/iscsid 2>&1 &
	record="iscsiadm -m node -T $name -p $(cat /tmp/where)"
	wait_for 30 $record -I iser -o new >/tmp/iscsiadm 2>&1 && timeout 60 $record -l >>/tmp/iscsiadm 2>&1
	imported=$?
	sed 's/^/#| /' /tmp/iscsid /tmp/iscsiadm
	device=/dev/sda
	return $imported
}

import_nvme() {
	load nvme_rdma && wait_for 10 test -e /dev/nvme-fabrics || return 1
	# The default of 5 s is for idle machines. A guest that shares its processors with others is late with what it sends every 2.5 s;
	# then the kernel complains of it, or the target gives the controller up.
	# Another process writes: a signal to this one, whose children end, would break the connection off in the middle.
	echo "$(cat /tmp/where),keep_alive_tmo=60" | tee /dev/nvme-fabrics >/dev/null || return 1
	device=/dev/nvme0n1
}

release_srp() { for path in /sys/class/srp_remote_ports/*; do echo 1 >$path/delete; done; }
release_iser() { $record -u >/dev/null; }
release_nvme() { echo 1 >/sys/class/nvme/nvme0/delete_controller; }

# pieces INPUT OUTPUT IFLAGS OFLAGS: copies a region of the disk for each size, all at the same time, each in pieces of its size.
pieces() {
	region=0
	for size in $sizes; do
		region=$((region + 1))
		at=$((region * (2097152 + 512)))
		count=$((1048576 / size))
		[ $count -lt 256 ] || count=256
		dd if=$1 of=$2 bs=$size count=$count skip=$at seek=$at conv=notrunc iflag=skip_bytes$3 oflag=seek_bytes$4 2>/tmp/dd.$region &
		writers="$writers $!"
	done
	for writer in $writers; do
		wait $writer || fail "$1 to $2: $(cat /tmp/dd.*)"
	done
	writers=
}

# requests FIELD: how many requests of a kind the disk has completed: 1 for reads, 5 for writes.
# Older kernels count those of NVMe at the path to the disk alone.
requests() {
	for disk in /sys/block/nvme0c*n1 /sys/block/${device#/dev/}; do
		[ -e $disk/stat ] && awk "{ print \$$1 }" $disk/stat && return
	done
}

same() { if cmp -s $2 $3; then pass "$1"; else fail "$1: $(cmp $2 $3 2>&1)"; fi; }

# What would lose its way with the card, as the program says it. Management datagrams and IPoIB are no such use.
in_use() {
	step "what uses the card" bareverbs devices
	case $protocol in
	srp | iser) expect "the host of the disk" "SCSI host host[0-9]+ reaches its disks through it \([a-z_]+\)$" ;;
	esac
	case $protocol in
	srp) module=ib_srp ;;
	*) module=[a-z_]+ ;;
	esac
	expect "the queue pairs" "RDMA device mlx5_0 has [0-9]+ queue pairs of the kernel's module $module$"
	if grep -qE "module (ib_core|ib_ipoib|mlx5_ib)$" /tmp/step; then fail "the kernel's own queue pairs are named"; fi
}

use_disk() {
	wait_for 60 test -b $device || return 1
	in_use
	[ "$(blockdev --getsize64 $device)" -eq $bytes ] || fail "the disk has $(blockdev --getsize64 $device) bytes"
	head -c $bytes /dev/urandom >/tmp/expected
	dd if=/tmp/expected of=$device bs=1M oflag=direct 2>/tmp/dd.0 || fail "writing: $(cat /tmp/dd.0)"

	# Everywhere something new, and what is read is read in other sizes than it was written in.
	head -c $bytes /dev/urandom >/tmp/pattern
	sizes="512 1536 4096 9728 20480 65536 66048 262144 524288 1048576"
	pieces /tmp/pattern /tmp/expected
	before=$(requests 5)
	pieces /tmp/pattern $device "" ,direct
	written=$(($(requests 5) - before))
	cp /tmp/pattern /tmp/back
	sizes="1048576 524288 262144 66048 65536 20480 9728 4096 1536 512"
	before=$(requests 1)
	pieces $device /tmp/back ,direct
	read=$(($(requests 1) - before))
	# No cache made them larger: that many are the small pieces alone.
	if [ $written -gt 900 ] && [ $read -gt 900 ]; then
		pass "$written requests that write, $read that read"
	else
		fail "only $written requests that write and $read that read"
	fi
	pieces /tmp/expected /tmp/pattern
	same "the pieces" /tmp/back /tmp/pattern
	dd if=$device of=/tmp/back bs=1M iflag=direct 2>/tmp/dd.0 || fail "reading: $(cat /tmp/dd.0)"
	same "the whole disk" /tmp/back /tmp/expected

	# Blocks that are smaller than a page lie scattered in memory.
	mkdir -p /mnt
	mke2fs -b 1024 $device >/tmp/mke2fs 2>&1 && mount -t ext2 $device /mnt || fail "no file system: $(cat /tmp/mke2fs)"
	for round in 1 2; do
		for size in 1 511 1023 1025 3000 4097 10000 65537 200001 1000001; do
			for copy in 1 2 3; do
				head -c $((size * copy)) /tmp/pattern >/mnt/$round-$size-$copy
			done
		done
		sync
		# The next ones fill the holes.
		[ $round = 2 ] || rm /mnt/1-*-2
	done
	(cd /mnt && md5sum [12]-*) >/tmp/sums
	umount /mnt && mount -t ext2 $device /mnt || fail "the file system does not come back"
	if (cd /mnt && md5sum -c -s /tmp/sums); then pass "$(wc -l </tmp/sums) files"; else fail "files differ"; fi
	umount /mnt
	dd if=$device bs=1M iflag=direct 2>/dev/null | md5sum >/tmp/sum
	release_$protocol
}

[ "$(parameter roce)" ] || ipoib
# The GUIDs of both ports.
cut -d: -f5-8 $port/gids/0 >/tmp/own
if [ "$me" = 0 ]; then take /tmp/peer && give /tmp/own; else give /tmp/own && take /tmp/peer; fi
for target in $(parameter targets 0,1 | tr , " "); do
	if [ "$me" = $target ]; then
		if export_disk; then pass "the disk is offered"; else fail "the disk is not offered"; fi
		give /tmp/where
		take /tmp/sum
		md5sum </tmp/disk >/tmp/own-sum
		same "what was written there is here" /tmp/sum /tmp/own-sum
	else
		take /tmp/where
		if import_$protocol && use_disk; then pass "the disk was used"; else fail "no disk"; fi
		give /tmp/sum
	fi
done
