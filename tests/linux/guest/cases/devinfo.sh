# What ibv_devinfo shows is what the device was configured with.
load_mlx5 || return
step "ibv_devices" ibv_devices
step "ibv_devinfo" ibv_devinfo -v
expect "transport" '^\s*transport:\s+InfiniBand'
expect "firmware version" '^\s*fw_ver:\s+28\.39\.1002'
expect "node GUID" '^\s*node_guid:\s+0002:c900:0000:0100'
expect "vendor" '^\s*vendor_part_id:\s+4129'
expect "port is active" '^\s*state:\s+PORT_ACTIVE \(4\)'
expect "LID" '^\s*port_lid:\s+1$'
expect "MTU" '^\s*active_mtu:\s+4096 \(5\)'
expect "GID 0" 'GID\[ *0\]:\s+fe80::2:c900:0:101|GID\[ *0\]:\s+fe80:0000:0000:0000:0002:c900:0000:0101'
