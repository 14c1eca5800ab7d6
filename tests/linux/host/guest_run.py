"""One run of a case: its servers and guests, the guests' requests to the host, and the verdict."""

import collections
import gzip
import re
import shutil
import socket
import time

from guests import shares
from guests.errors import Failed
from guests.guest import Guest
from harness.build import PROJECT
from harness.case_run import CaseRun, more_than_one

from . import cases, image, rdma_core, wire


#: The card of the last guest on the wire of a case, which its script looks for.
LAN_MAC = "52:54:00:00:01:02"

#: How many of a kernel's complaints a failed case shows, and how many lines before the first one.
MOST_COMPLAINTS, MOST_BEFORE = 12, 6


def kernel_lines(guest, complaints):
    """Returns the complaints of a guest's kernel for the user, after what it said before the first one: lines of any level."""
    stamp = re.search(r"\[ *[\d.]+\]", complaints[0])
    printed = guest.console.read_text(encoding="utf-8", errors="replace").splitlines()
    first = next((at for at, line in enumerate(printed) if stamp and line.startswith(stamp[0])), 0)
    lines = [*printed[max(first - MOST_BEFORE, 0) : first], *complaints[:MOST_COMPLAINTS]]
    return [f"{guest.name}: {line}" for line in lines]


class GuestRun(CaseRun):
    """Guests with devices. The case runs in the guests; its requests to the host are executed here."""

    def __init__(self, case, folder, stop, trees, images, program, keep_traces, profiles=None):
        """`images` has the path of each suite's initial file system for this case. The programs in the guest have counters if there
        is a folder for their `profiles`."""
        super().__init__(case, folder, stop)
        self.trees = trees
        self.images = images
        self.program = program
        self.keep_traces = keep_traces
        self.profiles = profiles
        self.guests = []
        #: How often each guest asked which boot this is.
        self.boots = collections.Counter()
        #: Guests that were killed on purpose.
        self.past = []
        self.sockets = []
        #: What the case said that it starts, and when (seconds since the start of the server).
        self.starts = []
        #: Both ends of the socket between two cards of the guest.
        self.joined = ()

    def transcript(self):
        """Returns what the guests printed on their second serial lines."""
        return [line for guest in self.guests for line in guest.lines]

    def run(self):
        """Takes notes of a failed case too; the traces of a passed one are compressed."""
        try:
            super().run()
        finally:
            self.notes[:0] = [line.removeprefix("#= ") for line in self.transcript() if line.startswith("#= ")]
        if not self.keep_traces:
            self._compress()

    def body(self):
        """Boots the guests and waits for their end."""
        case = self.case
        self.sockets = [self.runtime / f"{number}.socket" for number in range(case.devices + case.ethernet_devices)]
        self._start_servers()
        self.guests = [self._guest(number) for number in range(case.guests)]
        for guest in self.guests:
            self.start(guest)
        deadline = time.monotonic() + case.timeout
        ended = set()
        while len(ended) < case.guests and time.monotonic() < deadline:
            self.stop.check()
            for number in set(range(case.guests)) - ended:
                if self.guests[number].poll(lambda command, number=number: self._obey(number, command)):
                    ended.add(number)
        for guest in self.past:
            self._no_failures(guest)
        for number, guest in enumerate(self.guests):
            self._judge(guest, number in ended)
        self.stop_servers()
        if self.starts:
            self._first_completions()
        if case.disorder:
            self._judge_wire()
        if case.trace:
            self._judge_trace()

    def _compress(self):
        """Makes the traces small: some have a hundred megabytes."""
        for trace in self.folder.glob("*.trace"):
            with open(trace, "rb") as plain, gzip.open(f"{trace}.gz", "wb", compresslevel=1) as packed:
                shutil.copyfileobj(plain, packed, 1 << 20)
            trace.unlink()

    def _judge_wire(self):
        """Checks that every wire fault of the case hit about as many packets as requested."""
        seen = wire.disorder(self.servers[0].trace)
        self.notes.append(f"the wire: {seen}")
        for name, per_cent in self.case.disorder:
            count = getattr(seen, name)
            # A packet is passed only if another one follows soon.
            if count < seen.sent * per_cent / 100 / 4:
                raise Failed(f"of {seen.sent} packets {count} {'were' if count != 1 else 'was'} {name}, {per_cent} % should be")

    def _judge_trace(self):
        """Checks that the devices' trace has the lines of the case, in their order."""
        with open(self.servers[0].trace, encoding="utf-8", errors="replace") as lines:
            for pattern in self.case.trace:
                if not any(re.search(pattern, line) for line in lines):
                    raise Failed(f"the trace has no line like {pattern!r} after those before it")

    def _first_completions(self):
        """Returns the time from each start that the case announced to the first completion of a device."""
        trace = self.servers[0].trace.read_text(errors="replace").splitlines()
        completions = [float(line.split()[0]) for line in trace if line.split()[2:3] == ["cqe"]]
        for name, began in self.starts:
            first = min((at for at in completions if at > began), default=None)
            if first is None:
                raise Failed(f"no completion after the start of {name}")
            self.notes.append(f"{name}: first completion {first - began:.2f} s after its start")

    def _start_servers(self):
        case = self.case
        if not case.linked:
            if case.devices:
                self._serve("device", self.sockets[: case.devices], (*case.serve, *self._join()))
            if case.ethernet_devices:
                # With names that the control line does not mistake for those of the others.
                first = str(case.devices + 1)
                self._serve("ethernet", self.sockets[case.devices :], (*case.serve, "--ethernet", "--lid", first))
            return
        link = ["--link", str(self.runtime / "link")]
        for number, path in enumerate(self.sockets):
            self._serve(f"device{number}", [path], [*case.serve, *link, "--lid", str(number + 1)])

    def _join(self):
        """Returns the server's option for the wire of the last guest."""
        match self.case.wire:
            case "stream":
                return ["--join", f"stream:unix:{self.runtime / 'lan'},server=on"]
            case "dgram":
                return ["--join", f"dgram:unix:{self.runtime / 'lan'},{self.runtime / 'lan-guest'}"]
        return []

    def _wire(self):
        """Returns QEMU's options for the card at the other end of that wire."""
        far = {
            "stream": f"stream,id=lan,addr.type=unix,addr.path={self.runtime / 'lan'},reconnect-ms=200",
            "dgram": f"dgram,id=lan,local.type=unix,local.path={self.runtime / 'lan-guest'},"
            f"remote.type=unix,remote.path={self.runtime / 'lan'}",
        }
        return ("-netdev", far[self.case.wire], "-device", f"virtio-net-pci,netdev=lan,mac={LAN_MAC}")

    def _joined_cards(self):
        """Returns QEMU's options for two cards and the sockets between them. QEMU opens both ends: the one that it accepts from a
        listening socket would block, and QEMU wait for itself."""
        ends = [f"stream,id={name},addr.type=fd,addr.str={end.fileno()}" for name, end in zip(("left", "right"), self.joined)]
        cards = (f"virtio-net-pci,netdev={name},mac=52:54:00:00:02:0{at}" for at, name in enumerate(("left", "right"), 1))
        return (*(word for end in ends for word in ("-netdev", end)), *(word for card in cards for word in ("-device", card)))

    def _serve(self, name, sockets, options):
        self.serve(self.program, name, sockets, options, traced=self.case.traced, uncached=self.case.uncached)

    def _guest(self, number, boot=1):
        case = self.case
        has_wire = bool(case.wire) and number == case.guests - 1
        share = 0 if has_wire else case.devices // (case.guests - bool(case.wire))
        parameters = {
            "case": case.script or case.name,
            "devices": share,
            "guest": number,
            "boot": boot,
            "shut-down": int(case.shut_down),
            **dict(case.parameters),
        }
        options = ()
        if self.profiles:
            parameters |= {"case": "profiled", "profiled": parameters["case"]}
            options += tuple(shares.options([(self.profiles, None)]))
        if case.guests > 1 and not case.ipxe:
            # An Ethernet cable between them: the tools exchange their addresses over it.
            end = "on" if number == 0 else "off"
            cable = f"stream,id=cable,server={end},addr.type=unix,addr.path={self.runtime / 'cable'}"
            if number:
                cable += ",reconnect-ms=200"
            options += ("-netdev", cable, "-device", f"virtio-net-pci,netdev=cable,mac=52:54:00:00:00:0{number + 1}")
        if has_wire:
            options += self._wire()
        if case.joined_cards:
            self.joined = socket.socketpair()
            options += self._joined_cards()
        name = "guest" if case.guests == 1 else f"guest{number}"
        if boot > 1:
            name += f"-boot{boot}"
        mine = self.sockets[number * share : (number + 1) * share]
        if case.ethernet_devices:
            mine = self.sockets
        suite = case.suites[number] if case.suites else case.suite
        initrd = self.images[suite]
        loader = None
        if case.ipxe:
            script = PROJECT / "tests/linux/ipxe" / f"{case.name}.ipxe"
            if number == case.guests - 1:
                loader, initrd = self.trees["ipxe"].root / "usr/lib/ipxe/ipxe.lkrn", script
            else:
                initrd = image.for_ipxe(self.trees[suite], initrd, script, self.folder)
        return Guest(
            self.trees,
            suite,
            name,
            self.folder,
            mine,
            parameters,
            case.cpus,
            case.memory,
            options,
            initrd=initrd,
            iommu=case.iommu,
            reboots=case.reboots,
            empty_slots=case.empty_slots,
            companion=case.companion,
            one_slot=case.one_slot,
            loader=loader,
            inherited=[end.fileno() for end in self.joined],
        )

    def _obey(self, number, command):
        """Executes a request of a case to the host; returns the answer."""
        if not self.servers:
            raise Failed("the case has no devices")
        server, guest = self.servers[0], self.guests[number]
        match command.split():
            case ["kill-server"]:
                self._kill_server()
                return "killed"
            case ["start-server"]:
                server.start()
                return "started"
            case ["plug", slot, device]:
                guest.plug(int(slot), int(device))
                return "plugged"
            case ["starts", *words]:
                self.starts.append((" ".join(words), time.monotonic() - server.started))
                return "noted"
            case ["power-cut"]:
                return self._power_cut(number)
            case ["boot-number"]:
                self.boots[number] += 1
                return str(self.boots[number])
            case ["usage"]:
                return server.usage()
            case _:
                return server.control(command)

    def _kill_server(self):
        """Sends SIGKILL, with the guests stopped for that moment. QEMU 11.1 ends itself (an assertion: its reader of headers
        reports one error twice) when the connection is reset, which is how a socket with unread bytes is closed. Nothing
        is under way while the guests stand still, so it sees an end of file."""
        for guest in self.guests:
            guest.hold()
        self.servers[0].settle()
        self.servers[0].kill()
        for guest in self.guests:
            guest.resume()

    def _power_cut(self, number):
        """Kills QEMU, and starts another guest on the same devices. No request remains to be answered."""
        guest = self.guests[number]
        guest.stop()
        self.past.append(guest)
        self.guests[number] = self._guest(number, boot=len(self.past) + 1)
        self.start(self.guests[number])

    @staticmethod
    def _no_failures(guest):
        failures = guest.failures()
        if failures:
            raise Failed("; ".join(failures))

    def _judge(self, guest, ended):
        self._no_failures(guest)
        if not ended:
            raise Failed(f"no end after {self.case.timeout} s; the last of {guest.name}: {guest.last_words()}")
        if not guest.printed("#> done"):
            raise Failed(f"{guest.name} stopped early: {guest.last_words()}")
        if self.case.tests:
            self._judge_tests(guest)
        complaints = cases.complaints(self.case.expected, guest.lines)
        if complaints:
            self.notes += kernel_lines(guest, complaints)
            raise Failed(f"kernel: {complaints[0]}{more_than_one(complaints)}")
        errors = guest.errors()
        if self.case.reboots and errors:
            raise Failed(f"QEMU: {errors[0]}{more_than_one(errors)}")
        for server in self.servers:
            if not server.running():
                raise Failed(f"the server ended with status {server.process.returncode}")

    def _judge_tests(self, guest):
        port = "Ethernet" if "--ethernet" in self.case.serve else "InfiniBand"
        outcome = rdma_core.judge(self.case.suite, port, guest.lines)
        self.notes += [*outcome.lines(), *rdma_core.beside(guest.lines)]
        if outcome.wrong:
            raise Failed(f"{outcome.wrong[0]}{more_than_one(outcome.wrong)}")
        if outcome.passed < self.case.tests:
            raise Failed(f"{outcome.passed} tests passed, {self.case.tests} at least should")
