# No device: the guest itself, its modules and tools.
if load mlx5_ib && load ib_uverbs; then pass "modules fit the kernel"; fi
step "tools start" ibv_devices
