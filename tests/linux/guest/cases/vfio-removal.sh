# Cards that go away under a running job, in its bring-up, while it idles and in its teardown: requested by the kernel, pulled out, stuck; the
# job says so and ends on its own.
vfio_cards || return

# job_ends NAME PATTERN: on its own, with status 1 and a line like this.
job_ends() {
	# The kernel resets a device that a process leaves, and waits for a minute for one that is not there.
	if wait_for 100 ended $job; then pass "$1: the job ends"; else fail "$1: the job does not end"; fi
	wait $job
	status=$?
	cp /tmp/job /tmp/step
	sed 's/^/#| /' /tmp/job
	expect "$1: the reason" "$2"
	if [ $status -eq 1 ]; then pass "$1: with status 1"; else fail "$1: exit status $status"; fi
}

# The kernel asks for the card: it waits until the process has let go.
run_job "$card0"
echo "$card0" >/sys/bus/pci/drivers/vfio-pci/unbind &
unbinding=$!
job_ends "unbound" "the kernel wants device $card0 back"
wait $unbinding
if [ -e "/sys/bus/pci/drivers/vfio-pci/$card0" ]; then fail "still bound"; else pass "the kernel has it"; fi
echo "$card0" >/sys/bus/pci/drivers_probe
wait_for 60 test -e "/sys/bus/pci/drivers/vfio-pci/$card0"
step "bound again, it works" bareverbs --device "$card0" -n 20

# The firmware stops; a reset recovers it.
run_job "$card1"
host health 2 0x1 fatal
job_ends "broken" "$card1.*(broken|the firmware stopped)"
step "after the kernel's reset it works" bareverbs --device "$card1" -n 20

# The other moments of a job: it starts, idles, or takes its card down.
group=$(basename "$(readlink "/sys/bus/pci/devices/$card0/iommu_group")")
# in_bring_up: a job whose bring-up is under way for a minute, because the firmware does not complete INIT_HCA.
in_bring_up() {
	host stick 1 0x102
	bareverbs --device "$card0" -n 20 >/tmp/job 2>&1 &
	job=$!
	# On a slow machine a card that is pulled earlier never was there: another reason.
	wait_for 60 holds 1 pages || fail "the bring-up gives the card no pages"
	sleep 2
}
# idle: a server without a client.
idle() {
	bareverbs perf --device "$card0" --listen >/tmp/job 2>&1 &
	job=$!
	wait_for 60 has_open $job "/dev/vfio/$group" || fail "the server does not open its card"
	sleep 3
}
# in_teardown: a job that Ctrl-C has ended, and whose firmware does not complete TEARDOWN_HCA.
in_teardown() {
	run_job "$card0"
	host stick 1 0x103
	kill -INT $job
	sleep 1
}
# requested: the kernel asks for the card, and waits.
requested() {
	echo "$card0" >/sys/bus/pci/drivers/vfio-pci/unbind &
	unbinding=$!
}
# given NAME: the kernel got the card, and gives it again.
given() {
	wait $unbinding
	if [ -e "/sys/bus/pci/drivers/vfio-pci/$card0" ]; then fail "$1: still bound"; else pass "$1: the kernel has it"; fi
	echo "$card0" >/sys/bus/pci/drivers_probe
	wait_for 60 test -e "/sys/bus/pci/drivers/vfio-pci/$card0"
	step "$1: bound again, it works" bareverbs --device "$card0" -n 20
}
# pulled: the card is out of its slot long enough to be missed, and comes back as it was: the kernel resets it.
pulled() {
	host remove 1
	sleep 8
	host insert 1
}
# job_was_stopped NAME: the job of in_teardown ends soon; by Ctrl-C, or with what it met then.
job_was_stopped() {
	if wait_for 30 ended $job; then pass "$1: the job ends"; else fail "$1: the job does not end"; fi
	ended $job || kill -9 $job
	wait $job
	status=$?
	sed 's/^/#| /' /tmp/job
	case $status in 1 | 130) pass "$1: with status $status" ;; *) fail "$1: exit status $status" ;; esac
}

in_bring_up
requested
job_ends "unbound in the bring-up" "the kernel wants device $card0 back|$card0.*INIT_HCA.*timed out"
given "unbound in the bring-up"
idle
requested
job_ends "unbound while idle" "the kernel wants device $card0 back"
given "unbound while idle"
in_teardown
requested
job_was_stopped "unbound in the teardown"
given "unbound in the teardown"

in_bring_up
pulled
job_ends "pulled out in the bring-up" "$card0.*the device is gone"
step "pulled out in the bring-up: put back, it works" bareverbs --device "$card0" -n 20
idle
pulled
job_ends "pulled out while idle" "$card0.*the device is gone"
step "pulled out while idle: put back, it works" bareverbs --device "$card0" -n 20
in_teardown
pulled
job_was_stopped "pulled out in the teardown"
step "pulled out in the teardown: put back, it works" bareverbs --device "$card0" -n 20

# Under traffic, without a word, and for ever: every register reads as ones.
run_job "$card0" "$card1"
host remove 1
job_ends "pulled out" "$card0.*the device is gone"
refused "a card that is not there" 1 "$card0 does not answer" bareverbs info --device "$card0"
step "the other card" bareverbs --device "$card1" -n 20
