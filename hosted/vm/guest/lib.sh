# What every script of a guest may use. Lines for the host begin with "#>", "#|" (output of a step) or "#!" (kernel warnings).

say() { echo "#> $*"; }
pass() { say "ok $*"; }
fail() { say "fail $*"; }

# host COMMAND...: has the host do something to the devices (`bareverbs sim serve --control`, or stop-server and
# start-server) and waits until it is done.
host() {
	say "host $*"
	read -r host_said </dev/ttyS1
	echo "#| host: $host_said"
}

# ask COMMAND...: the same for a command whose answer is what matters.
ask() {
	say "host $*" >/dev/ttyS1
	read -r host_said </dev/ttyS1
	echo "$host_said"
}

# Value of bareverbs.NAME on the kernel command line, or the second argument.
parameter() {
	for word in $(cat /proc/cmdline); do
		case "$word" in "bareverbs.$1="*) echo "${word#*=}" && return ;; esac
	done
	echo "$2"
}

# Seconds that a tool may take: many times what it needs, for a machine with other work.
limit=120

# Loads a module and what it needs.
load() {
	while read -r module; do
		[ -d "/sys/module/$module" ] && continue
		if ! insmod "/modules/$module.ko"; then
			fail "insmod $module"
			return 1
		fi
	done <"/modules/$1.order"
}

# wait_for SECONDS COMMAND...: until the command succeeds.
wait_for() {
	left=$(($1 * 10))
	shift
	while ! "$@"; do
		left=$((left - 1))
		[ $left -le 0 ] && return 1
		sleep 0.1
	done
}

all_ports_active() {
	active=0
	for state in /sys/class/infiniband/*/ports/1/state; do
		grep -qs ACTIVE "$state" && active=$((active + 1))
	done
	[ $active -ge "$1" ]
}

# ended PROCESS: whether it has, waited for or not.
ended() { ! kill -0 "$1" 2>/dev/null || grep -q "State:.Z" "/proc/$1/status"; }
