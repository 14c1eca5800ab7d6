# Two processes, each with a card of its own. One is killed at any moment of its life, and its card is as good as new for the next.
vfio_cards || return
group=$(basename "$(readlink "/sys/bus/pci/devices/$card0/iommu_group")")

# start_job CARD: the main job without end, in the background; its number is in $job.
start_job() {
	bareverbs --device "$1" -n 10000000 -s 4096 >/tmp/job 2>&1 &
	job=$!
}

bareverbs --device "$card1" -n 2000 >/tmp/neighbour 2>&1 &
neighbour=$!
start_job "$card0"
wait_for 60 has_open $job "/dev/vfio/$group" || fail "the job does not open its card"
refused "a card that another process has" 1 "in use by process $job \(bareverbs\)" bareverbs info --device "$card0"
expect "and how to get it" "end process $job"
# From the first moments of the bring-up to the middle of the traffic.
for seconds in 0.1 0.4 1 2 4; do
	sleep $seconds
	kill -9 $job
	wait $job 2>/dev/null
	echo "#| killed after $seconds s"
	if step "the next one finds the card usable" bareverbs info --device "$card0"; then
		expect "the port is up" "state: +PORT_ACTIVE"
	fi
	start_job "$card0"
done
sleep 3
kill -INT $job
wait $job
status=$?
sed 's/^/#| /' /tmp/job
if [ $status -eq 130 ]; then pass "Ctrl-C ends a job cleanly"; else fail "after Ctrl-C: exit status $status"; fi
if grep -q "firmware pages are back" /tmp/job; then pass "it took the card down"; else fail "it left the card as it was"; fi
step "the main job after all that" bareverbs --device "$card0" -n 50
wait $neighbour
status=$?
sed 's/^/#| neighbour: /' /tmp/neighbour
if [ $status -eq 0 ]; then pass "the neighbour was not disturbed"; else fail "the neighbour: exit status $status"; fi
