# Cards on a kernel that has iommufd and VFIO's character devices beside groups: by their groups where these are there and may be
# opened, otherwise by iommufd.
vfio_cards || return
# own_file CARD: its character device.
own_file() { echo "/dev/vfio/devices/$(ls "/sys/bus/pci/devices/$1/vfio-dev")"; }
group=$(basename "$(readlink "/sys/bus/pci/devices/$card0/iommu_group")")

# works NAME INTERFACE FILE: everything on both cards, by this interface.
works() {
	step "$1: what the IOMMU refuses" iommu "$card0"
	expect "$1: the interface" "^opened by $2;"
	expect "$1: the window of MSI is left out" "\(fee00000, feefffff\)"
	expect "$1: the IOMMU refuses a read of the card" "reading where the IOMMU maps nothing: LocProtErr"
	expect "$1: a buffer is taken from the card when it is dropped" "after it was dropped: WrFlushErr, other memory has 0"
	step "$1: info" bareverbs info --device "$card0"
	step "$1: the main job, one card" bareverbs --device "$card0" -n 100
	step "$1: the main job, two cards" bareverbs --device "$card0" --device "$card1" -n 100
	bareverbs --device "$card0" -n 10000000 -s 4096 >/tmp/job 2>&1 &
	job=$!
	if wait_for 60 has_open $job "$3"; then pass "$1: the job has $3"; else fail "$1: the job has not $3"; fi
	refused "$1: a card that another process has" 1 "in use by process $job \(bareverbs\)" bareverbs info --device "$card0"
	sleep 3
	kill -9 $job
	wait $job 2>/dev/null
	step "$1: after a kill" bareverbs --device "$card0" -n 20
}

works "group" Group "/dev/vfio/$group"
# A group that is open by one interface is refused to the other.
bareverbs --device "$card0" -n 10000000 -s 4096 >/tmp/job 2>&1 &
job=$!
wait_for 60 has_open $job "/dev/vfio/$group" || fail "the job does not open its card"
chown user /dev/iommu "$(own_file "$card0")" "$(own_file "$card1")"
refused "by the other interface meanwhile" 1 "IOMMU group $group is in use by" su user -c "bareverbs info --device $card0"
kill -INT $job
wait $job

# Without the file of groups: by iommufd.
rm /dev/vfio/vfio
works "iommufd" Iommufd "$(own_file "$card0")"
# A user: the two files, and a limit of locked memory that holds for all processes of the user.
ulimit -l 1024
refused "the limit of locked memory" 1 "may lock 1048576 bytes of memory \(RLIMIT_MEMLOCK\), and [0-9]+( at least)? are needed" \
	su user -c "bareverbs info --device $card0"
needed=$(sed -n 's/.*ulimit -l \([0-9]*\).*/\1/p' /tmp/step | head -n 1)
ulimit -l $((needed + 8192))
step "a user" su user -c "iommu $card0"
expect "by iommufd" "^opened by Iommufd;"
su user -c "bareverbs --device $card0 -n 10000000 -s 4096" >/tmp/job 2>&1 &
wait_for 60 grep -q "VmPin:.*[1-9][0-9][0-9][0-9] kB" /proc/[0-9]*/status || fail "nothing is pinned"
sleep 2
refused "another process of the user" 1 "may lock [0-9]+ bytes of memory \(RLIMIT_MEMLOCK\)" su user -c "bareverbs info --device $card1"
killall -INT bareverbs
wait
ulimit -l unlimited

# The card goes back to the kernel, which waits for the process.
run_job "$card1"
echo "$card1" >/sys/bus/pci/drivers/vfio-pci/unbind &
wait_for 100 ended $job || fail "unbound: the job does not end"
cp /tmp/job /tmp/step
expect "unbound: the reason" "the kernel wants device $card1 back"
wait
echo "$card1" >/sys/bus/pci/drivers_probe
wait_for 60 test -e "/sys/bus/pci/drivers/vfio-pci/$card1"
step "bound again, it works" bareverbs --device "$card1" -n 20

# Pulled out: every register reads as ones.
run_job "$card0"
host remove 1
if wait_for 100 ended $job; then pass "pulled out: the job ends"; else fail "pulled out: the job does not end"; fi
wait $job
status=$?
cp /tmp/job /tmp/step
expect "pulled out: the reason" "$card0.*the device is gone"
if [ $status -eq 1 ]; then pass "pulled out: with status 1"; else fail "pulled out: exit status $status"; fi
step "the other card" bareverbs --device "$card1" -n 20
