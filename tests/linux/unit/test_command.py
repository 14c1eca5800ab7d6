"""A command's exit status and what is said of its end, from what guests say; and the choice of KVM."""

import io
import pathlib
import tempfile
import unittest

from guests import command, kvm
from guests.errors import Interrupted, SetUpError
from guests.progress import Progress
from guests.stop import Stop


class Guest:
    """One that says these lines and is off."""

    def __init__(self, lines, errors=()):
        self.lines, self.said, self.sent = list(lines), list(errors), []
        self.console = pathlib.Path("/nowhere")

    def start(self):
        pass

    def stop(self):
        pass

    def poll(self, asked):
        if "#> host start" in self.lines:
            asked("start")
        return True

    def errors(self):
        return self.said

    def failures(self):
        return [line.removeprefix("#> ") for line in self.lines if line.startswith("#> fail")]

    def printed(self, text):
        return text in self.lines

    def send(self, line):
        self.sent.append(line)


def silent():
    """What a user sees, for nobody."""
    return Progress("test", io.StringIO())


class Command(unittest.TestCase):
    def jobs(self, *guests):
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        jobs = [command.Job(number, len(guests), pathlib.Path(held.name), lambda _, guest=guest: guest, 300) for number, guest in enumerate(guests)]
        for job in jobs:
            self.addCleanup(job.stop)
        return jobs

    def run_jobs(self, *guests):
        jobs = self.jobs(*guests)
        return command.run(jobs, 3, Stop(), silent()), [line for job in jobs for line in job.outcome(3)]

    def test_the_status_is_that_of_the_command(self):
        self.assertEqual(self.run_jobs(Guest(["#> host start", "#> status 0"])), (0, []))
        self.assertEqual(self.run_jobs(Guest(["#> host start", "#> status 7"])), (7, ["the guest: exit status 7"]))
        status, said = self.run_jobs(Guest(["#> host start", "#> status 139"]))
        self.assertEqual((status, said), (139, ["the guest: exit status 139 (128 + 11: SIGSEGV)"]))

    def test_the_end_of_its_time_is_said(self):
        status, said = self.run_jobs(Guest(["#> host start", "#> timed out"]))
        self.assertEqual((status, said), (124, ["the guest: the command was ended after 3 s (--timeout)"]))

    def test_a_guest_that_ends_first_is_an_error(self):
        status, said = self.run_jobs(Guest(["#> fail insmod mlx5_core"]))
        self.assertEqual((status, said), (125, ["the guest ended before the command did; insmod mlx5_core"]))

    def test_a_guest_that_is_not_ready_in_time_is_named_with_its_processor_time(self):
        guest = Guest([])
        guest.poll = lambda _: False
        guest.processor_seconds = lambda: 13.2
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        job = command.Job(0, 1, pathlib.Path(held.name), lambda _: guest, 0)
        self.addCleanup(job.stop)
        self.assertEqual(command.run([job], 3, Stop(), silent()), 125)
        self.assertIn("within 0 s, in which it had 13 s of a processor", job.outcome(3)[0])
        self.assertIn("--boot-timeout", job.outcome(3)[0])

    def test_a_job_that_never_began_ends_in_silence(self):
        # As when the server refuses an option.
        self.jobs(Guest([]))[0].stop()

    def test_of_two_guests_the_first_failure_counts(self):
        status, said = self.run_jobs(Guest(["#> host start", "#> status 0"]), Guest(["#> host start", "#> status 5"]))
        self.assertEqual((status, said), (5, ["guest 1: exit status 5"]))

    def test_kernel_messages_of_programs_are_shown(self):
        lines = ["#> host start", "#> status 0", "#! <6>[    1.5] x[7]: segfault at 0 ip 0", "#! <4>[    1.6] of no interest"]
        self.assertEqual(self.run_jobs(Guest(lines))[1], ["kernel of the guest: x[7]: segfault at 0 ip 0"])

    def test_a_command_that_is_not_there_is_said_with_the_remedy(self):
        status, said = self.run_jobs(Guest(["#> host start", "#> status 127"]))
        self.assertEqual(status, 127)
        self.assertIn("--share shows a folder", said[0])

    def test_a_slow_boot_is_said_once(self):
        out = io.StringIO()
        booting = command.Booting(Progress("test", out), 2)
        booting.look()
        self.assertEqual(out.getvalue(), "")
        booting._at = 0
        booting.look()
        booting.look()
        self.assertEqual(out.getvalue(), "test: booting 2 guests\n")

    def test_an_interrupt_ends_it(self):
        stop = Stop()
        stop.event.set()
        with self.assertRaises(Interrupted):
            command.run(self.jobs(Guest([])), 3, stop, silent())


class Accelerator(unittest.TestCase):
    def test_kvm_is_taken_where_it_can_be_used(self):
        self.assertEqual(kvm.accelerator(None, lambda: None), "kvm")
        self.assertEqual(kvm.accelerator(None, lambda: "nothing there"), "tcg")
        self.assertEqual(kvm.accelerator("tcg", lambda: None), "tcg")
        with self.assertRaisesRegex(SetUpError, "nothing there; --accel tcg emulates"):
            kvm.accelerator("kvm", lambda: "nothing there")

    def test_a_device_that_is_no_kvm_is_an_obstacle(self):
        self.assertIn("load kvm_intel or kvm_amd", kvm.obstacle(device="/dev/no-such-device"))
        self.assertIn("cannot run virtual machines", kvm.obstacle(device="/dev/null"))


if __name__ == "__main__":
    unittest.main()
