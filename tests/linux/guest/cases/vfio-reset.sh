# A function that somebody else resets through sysfs while our driver uses it: in the bring-up, idle, under traffic, in the teardown.
# The job says so soon and ends on its own, the next one finds the card usable, and the other card is not disturbed.
vfio_cards || return

# reset CARD: as an administrator does.
reset() { echo 1 >"/sys/bus/pci/devices/$1/reset" || fail "$1 cannot be reset"; }
# job_says NAME: the job in $job ends soon, with status 1 and the reason.
job_says() {
	if wait_for 30 ended $job; then pass "$1: the job ends"; else fail "$1: the job does not end"; fi
	ended $job || kill -9 $job
	wait $job
	status=$?
	cp /tmp/job /tmp/step
	sed 's/^/#| /' /tmp/job
	expect "$1: the reason" "$card0.*the device was reset from outside"
	if [ $status -eq 1 ]; then pass "$1: with status 1"; else fail "$1: exit status $status"; fi
	step "$1: the next job" bareverbs --device "$card0" -n 20
}

bareverbs --device "$card1" -n 10000000 -s 4096 >/tmp/neighbour 2>&1 &
neighbour=$!

run_job "$card0"
reset "$card0"
job_says "under traffic"

bareverbs perf --device "$card0" --listen >/tmp/job 2>&1 &
job=$!
group=$(basename "$(readlink "/sys/bus/pci/devices/$card0/iommu_group")")
wait_for 60 has_open $job "/dev/vfio/$group" || fail "the server does not open its card"
sleep 3
reset "$card0"
job_says "idle"

# The firmware does not complete INIT_HCA, so that the bring-up is under way for a minute.
host stick 1 0x102
bareverbs --device "$card0" -n 20 >/tmp/job 2>&1 &
job=$!
wait_for 60 has_open $job "/dev/vfio/$group" || fail "the job does not open its card"
sleep 3
reset "$card0"
job_says "in the bring-up"

# Ctrl-C just after a reset that nobody has found yet, so that the teardown finds it.
run_job "$card0"
reset "$card0"
kill -INT $job
if wait_for 20 ended $job; then pass "in the teardown: Ctrl-C ends the job"; else fail "in the teardown: the job does not end"; fi
ended $job || kill -9 $job
wait $job
sed 's/^/#| /' /tmp/job
step "in the teardown: the next job" bareverbs --device "$card0" -n 20

if kill -0 $neighbour; then pass "the other card's job runs"; else fail "the other card's job ended"; fi
kill -INT $neighbour
wait $neighbour
status=$?
sed 's/^/#| neighbour: /' /tmp/neighbour
if [ $status -eq 130 ]; then pass "and ends cleanly"; else fail "the other card's job: exit status $status"; fi
