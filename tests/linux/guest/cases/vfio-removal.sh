# Cards that go away under a running job: requested by the kernel, pulled out, stuck; the job says so and ends on its own.
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

# Pulled out without a word: every register reads as ones.
run_job "$card0" "$card1"
host remove 1
job_ends "pulled out" "$card0.*the device is gone"
refused "a card that is not there" 1 "$card0 does not answer" bareverbs info --device "$card0"
step "the other card" bareverbs --device "$card1" -n 20
