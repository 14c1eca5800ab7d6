# A device that is configured otherwise in all that ibv_devinfo -v shows.
load_mlx5 || return
step "ibv_devinfo" ibv_devinfo -v
expect "node GUID" '^\s*node_guid:\s+1122:3344:5566:7700'
expect "system image GUID" '^\s*sys_image_guid:\s+1122:3344:5566:0000'
expect "device id" '^\s*vendor_part_id:\s+4123'
expect "queue pairs" '^\s*max_qp:\s+4096$'
# 1024 basic blocks of 64 bytes: the kernel counts in requests of the greatest length, four blocks.
expect "length of their queues" '^\s*max_qp_wr:\s+256$'
expect "completion queues" '^\s*max_cq:\s+2048$'
expect "their length" '^\s*max_cqe:\s+65535$'
expect "shared receive queues" '^\s*max_srq:\s+512$'
expect "protection domains" '^\s*max_pd:\s+256$'
expect "reads in flight" '^\s*max_qp_rd_atom:\s+4$'
expect "message size" '^\s*max_msg_sz:\s+0x1000000$'
expect "no atomics" '^\s*atomic_cap:\s+ATOMIC_NONE'
expect "greatest MTU" '^\s*max_mtu:\s+2048 \(4\)'
expect "MTU" '^\s*active_mtu:\s+2048 \(4\)'
expect "LID" '^\s*port_lid:\s+7$'
expect "LID of the subnet manager" '^\s*sm_lid:\s+3$'
expect "width" '^\s*active_width:\s+2X \(16\)'
expect "speed" '^\s*active_speed:\s+25\.0 Gbps \(32\)'
expect "GID 0" 'GID\[ *0\]:\s+fec0:0000:0000:0001:1122:3344:5566:7788|GID\[ *0\]:\s+fec0::1:1122:3344:5566:7788'
