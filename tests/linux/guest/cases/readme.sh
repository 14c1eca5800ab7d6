# The command lines of docs/src/vfio.md, one by one, as a reader with a card types them.
load_mlx5 || return
modules_for_modprobe
# The user is root here, and there is no sudo.
sudo() { "$@"; }
# prlimit --pid $$ --memlock=BYTES:BYTES, which busybox has not.
prlimit() {
	limit_bytes=${3#--memlock=}
	[ "$1 $2" = "--pid $$" ] && ulimit -l $((${limit_bytes%:*} / 1024))
}
ulimit -l 8192
export USER=root
cd /tmp || return
[ -s /readme-lines ] || fail "the section has no lines"
while read -r line; do
	case $line in '#'* | '') continue ;; esac
	echo "#| \$ $line"
	eval "$line" >/tmp/step 2>&1
	status=$?
	sed 's/^/#| /' /tmp/step
	if [ $status -eq 0 ]; then pass "$line"; else fail "$line: exit status $status"; fi
	case $line in
	*"bareverbs bind 0000"*) [ -e "/sys/bus/pci/drivers/vfio-pci/0000:01:00.0" ] || fail "not bound" ;;
	"bareverbs --device"*) expect "every byte verified" "^ok: .* every byte verified" ;;
	"bareverbs pingpong"*) expect "a rate" "1000 iters in .* usec/iter" ;;
	*"--svg"*) grep -q "</svg>" plot.svg || fail "no plot" ;;
	esac
done </readme-lines
if [ -e "/sys/bus/pci/drivers/mlx5_core/0000:01:00.0" ]; then pass "the kernel's driver has it again"; else fail "not given back"; fi
