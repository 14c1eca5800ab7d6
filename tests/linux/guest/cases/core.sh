# mlx5_core alone: binds to every device, and lets go of it.
load mlx5_core && pass "module loaded"
wanted=$(parameter devices 1)
bound=$(ls -d /sys/bus/pci/drivers/mlx5_core/0000:* 2>/dev/null | wc -l)
if [ "$bound" -eq "$wanted" ]; then pass "$bound device(s) bound"; else fail "$bound of $wanted devices bound"; fi
if rmmod mlx5_core; then pass "module unloaded"; fi
