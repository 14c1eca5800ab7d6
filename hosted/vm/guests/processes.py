"""Start and end of processes."""

import os
import signal
import subprocess

# Timeout in seconds for what takes no time on an idle machine.
TIMEOUT = 60

# A virtual machine computes all the time (its processors are emulated) and must not keep its devices waiting for a processor: Linux
# would take them for dead. Where every session has a share of its own, what counts is the priority of the session.
LOW_PRIORITY = ("sh", "-c", 'echo 10 2>/dev/null >/proc/self/autogroup; exec nice -n 10 "$@"', "sh")


def processor_seconds(pid):
    """Returns the processor time of a process; 0 if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rsplit(")", 1)[1].split()
    except OSError:
        return 0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def interrupt(process):
    """Interrupts a process, as Ctrl-C does; returns its exit status."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            kill(process)
    return process.returncode


def kill(process):
    """Ends a process without a chance to clean up."""
    if process.poll() is None:
        process.kill()
    process.wait(TIMEOUT)


def last_lines(path):
    """Returns the lines of a log, without white space around them; none if there is no such file."""
    return path.read_text(errors="replace").strip().splitlines() if path.exists() else []
