"""One case being run: its servers and guests, what the guests ask of the host, and the judgement."""

import pathlib
import re
import shutil
import tempfile
import time

from . import cases, image, machine, monitor, verbs, wire

HERE = pathlib.Path(__file__).resolve().parent.parent


class Failed(Exception):
    """Why a case did not pass."""


class Interrupted(Exception):
    """Somebody asked for the end."""


class Trial:
    """A case in a folder of its own. Nothing in it is shared with others that run at the same time."""

    def __init__(self, case, trees, program, folder):
        self.case = case
        self.trees = trees
        self.program = program
        self.folder = folder
        self.servers = []
        self.guests = []
        #: Guests that were killed on purpose.
        self.past = []
        self.runtime = None
        self.sockets = []
        #: What the case said that it starts, and when (seconds since the start of the server).
        self.starts = []

    def run(self, stop):
        """Raises Failed if the case does not pass, and Interrupted when `stop` (an event) is set before its end."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        # Not in the project: a socket's path may be 107 bytes long at most.
        self.runtime = pathlib.Path(tempfile.mkdtemp(prefix="bareverbs-"))
        try:
            self._run(stop)
        except (machine.MachineError, monitor.MonitorError) as error:
            raise Failed(str(error)) from error
        finally:
            for process in [*self.guests, *self.servers]:
                process.stop()
            shutil.rmtree(self.runtime, ignore_errors=True)

    def _run(self, stop):
        case = self.case
        self.sockets = [self.runtime / f"{number}.socket" for number in range(case.devices)]
        self.servers = self._servers()
        self.guests = [self._guest(number) for number in range(case.guests)]
        for server in self.servers:
            server.start()
        for guest in self.guests:
            guest.start()
        deadline = time.monotonic() + case.seconds
        ended = set()
        while len(ended) < case.guests and time.monotonic() < deadline:
            if stop.is_set():
                raise Interrupted
            for number in set(range(case.guests)) - ended:
                if self.guests[number].poll(lambda command, number=number: self._obey(number, command)):
                    ended.add(number)
        for guest in self.past:
            self._no_failures(guest)
        for number, guest in enumerate(self.guests):
            self._judge(guest, number in ended)
        for server in self.servers:
            self._leftovers(server)
        if self.starts:
            self._first_completions()
        if case.disorder:
            self._judge_wire()

    def _judge_wire(self):
        """Every misfortune that the case ordered met about as many packets as ordered."""
        seen = wire.disorder(self.servers[0].trace)
        self.guests[0].lines.append(f"#= the wire: {seen}")
        for name, per_cent in self.case.disorder:
            count = getattr(seen, name)
            # A packet is passed only if another one follows soon.
            if count < seen.sent * per_cent / 100 / 4:
                raise Failed(f"of {seen.sent} packets {count} {'were' if count != 1 else 'was'} {name}, {per_cent} % should be")

    def _first_completions(self):
        """How long after each start that the case told of a device wrote its first completion."""
        trace = self.servers[0].trace.read_text(errors="replace").splitlines()
        completions = [float(line.split()[0]) for line in trace if line.split()[2:3] == ["cqe"]]
        for name, began in self.starts:
            first = min((at for at in completions if at > began), default=None)
            if first is None:
                raise Failed(f"no completion after the start of {name}")
            self.guests[0].lines.append(f"#= {name}: first completion {first - began:.2f} s after its start")

    def _servers(self):
        case = self.case
        if not case.devices:
            return []
        if not case.linked:
            return [self._server("device", self.sockets, case.serve)]
        link = ["--link", str(self.runtime / "link")]
        return [
            self._server(f"device{number}", [path], [*case.serve, *link, "--lid", str(number + 1)])
            for number, path in enumerate(self.sockets)
        ]

    def _server(self, name, sockets, options):
        return machine.Server(self.program, self.folder, name, sockets, options, self.case.traced, self.case.uncached)

    def _guest(self, number, boot=1):
        case = self.case
        share = case.devices // case.guests
        parameters = {
            "case": case.script or case.name,
            "devices": share,
            "guest": number,
            "boot": boot,
            "shut-down": int(case.shut_down),
            **dict(case.parameters),
        }
        options = ()
        if case.guests > 1 and not case.ipxe:
            # An Ethernet cable between them: the tools exchange their addresses over it.
            end = "on" if number == 0 else "off"
            cable = f"stream,id=cable,server={end},addr.type=unix,addr.path={self.runtime / 'cable'}"
            if number:
                cable += ",reconnect-ms=200"
            options = ("-netdev", cable, "-device", f"virtio-net-pci,netdev=cable,mac=52:54:00:00:00:0{number + 1}")
        name = "guest" if case.guests == 1 else f"guest{number}"
        if boot > 1:
            name += f"-boot{boot}"
        mine = self.sockets[number * share : (number + 1) * share]
        suite = case.suites[number] if case.suites else case.suite
        ipxe = initrd = None
        if case.ipxe:
            script = HERE / "ipxe" / f"{case.name}.ipxe"
            if number == case.guests - 1:
                ipxe = script
            else:
                tree = self.trees[suite]
                initrd = image.for_ipxe(tree, image.path(tree, case.python, case.program), script, self.folder)
        return machine.Guest(
            self.trees,
            suite,
            name,
            self.folder,
            mine,
            parameters,
            case.cpus,
            case.memory,
            options,
            with_python=case.python,
            iommu=case.iommu,
            spares=case.spares,
            with_program=case.program,
            with_applications=case.applications,
            companion=case.companion,
            initrd=initrd,
            ipxe=ipxe,
        )

    def _obey(self, number, command):
        """What a case asks of the host. Returns its answer."""
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
            case ["usage"]:
                return server.usage()
            case _:
                return server.tell(command)

    def _kill_server(self):
        """SIGKILL, with the guests stopped for that moment. QEMU 11.1 ends itself (an assertion: its reader of headers
        reports one error twice) when the connection is reset, which is how a socket with unread bytes is closed. Nothing
        is under way while the guests stand still, so it sees an end of file."""
        for guest in self.guests:
            guest.hold()
        self.servers[0].settle()
        self.servers[0].kill()
        for guest in self.guests:
            guest.go_on()

    def _power_cut(self, number):
        """QEMU killed, and another guest started on the same devices. There is nobody left to answer."""
        guest = self.guests[number]
        guest.kill()
        self.past.append(guest)
        self.guests[number] = self._guest(number, boot=len(self.past) + 1)
        self.guests[number].start()

    @staticmethod
    def _no_failures(guest):
        failures = [line[3:] for line in guest.lines if line.startswith("#> fail")]
        if failures:
            raise Failed("; ".join(failures))

    def _judge(self, guest, ended):
        self._no_failures(guest)
        if not ended:
            raise Failed(f"no end after {self.case.seconds} s; the last of {guest.name}: {guest.last_word()}")
        if not guest.said("#> done"):
            raise Failed(f"{guest.name} stopped early: {guest.last_word()}")
        if self.case.tests:
            self._judge_tests(guest)
        complaints = cases.complaints(self.case, guest.lines)
        if complaints:
            raise Failed(f"kernel: {complaints[0]}" + (f" (and {len(complaints) - 1} more)" if len(complaints) > 1 else ""))
        for server in self.servers:
            if not server.running():
                raise Failed(f"the server ended with status {server.process.returncode}")

    def _judge_tests(self, guest):
        outcome = verbs.judge(self.case.suite, guest.lines)
        guest.lines.append(f"#= rdma-core's tests: {outcome.passed} passed, {outcome.skipped} skipped for a listed reason")
        if outcome.wrong:
            more = f" (and {len(outcome.wrong) - 1} more)" if len(outcome.wrong) > 1 else ""
            raise Failed(f"{outcome.wrong[0]}{more}")
        if outcome.passed < self.case.tests:
            raise Failed(f"{outcome.passed} tests passed, {self.case.tests} at least should")

    def _leftovers(self, server):
        status = server.stop()
        if status != 0:
            raise Failed(f"the server, asked to end, ended with status {status}")
        said = server.log.read_text(errors="replace").splitlines()
        forgiven = [re.compile(pattern) for pattern, _ in self.case.forgiven]
        mistakes = [line for line in said if ": driver: " in line and not any(pattern.search(line) for pattern in forgiven)]
        wrong = [*mistakes, *(line for line in said if "panicked" in line)]
        if wrong:
            raise Failed(f"{wrong[0]}" + (f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""))
        # A guest that unloads its drivers has given everything back; one that is turned off need not.
        held = [line for line in said if ": client gone, left: " in line]
        if self.case.gives_back and held:
            raise Failed(held[0])
        left = [path.name for path in server.sockets if path.exists()]
        if left:
            raise Failed(f"the server left {', '.join(left)}")
