# The drivers alone: mlx5_core binds to every device, mlx5_ib makes a port of it, and both let go.
load mlx5_core && pass "mlx5_core loaded"
wanted=$(parameter devices 1)
bound=$(ls -d /sys/bus/pci/drivers/mlx5_core/0000:* 2>/dev/null | wc -l)
if [ "$bound" -eq "$wanted" ]; then pass "$bound device(s) bound"; else fail "$bound of $wanted devices bound"; fi
load_mlx5 || return
ports=$(ls -d /sys/class/infiniband/*/ports/1 | wc -l)
if [ "$ports" -eq "$wanted" ]; then pass "$ports port(s)"; else fail "$ports ports of $wanted devices"; fi
grep mlx5 /proc/interrupts | sed 's/^/#| /'
unload_mlx5 && pass "unloaded"
