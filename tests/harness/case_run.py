"""One run of a case: its folder, its processes, and their end in every case."""

import pathlib
import re
import shutil
import tempfile

from guests.errors import Failed
from guests.server import Server


class CaseRun:
    """A case in a folder of its own. Nothing in it is shared with others that run at the same time.

    What a suite adds: `body`, which starts the processes and judges what they print, and `transcript`.
    """

    def __init__(self, case, folder, stop):
        self.case = case
        self.folder = folder
        self.stop = stop
        #: The profile of devices whose case names none; None: the default of the server.
        self.profile = None
        self.servers = []
        #: Everything that was started, in this order; each has a method `stop`.
        self.processes = []
        #: Lines for the user that are no failures.
        self.notes = []
        #: What was measured, by name.
        self.measured = {}
        self.runtime = None

    def body(self):
        """Raises Failed if the case does not pass."""
        raise NotImplementedError

    def transcript(self):
        """Returns what the machines printed."""
        raise NotImplementedError

    def run(self):
        """Raises Failed if the case does not pass, and Interrupted when the user interrupted it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        # Not in the project: a socket's path may be 107 bytes long at most.
        self.runtime = pathlib.Path(tempfile.mkdtemp(prefix="bareverbs-"))
        try:
            self.body()
        finally:
            for process in reversed(self.processes):
                process.stop()
            shutil.rmtree(self.runtime, ignore_errors=True)

    def start(self, process):
        """Starts a machine, which ends with the case."""
        self.processes.append(process)
        return process.start()

    def serve(self, program, name, sockets, options, **more):
        """Starts a server of devices."""
        if self.profile and "--profile" not in options:
            options = ["--profile", self.profile, *options]
        server = Server(program, self.folder, name, sockets, options, **more)
        self.servers.append(server)
        self.processes.append(server)
        server.start()
        return server

    def stop_servers(self):
        """Ends those that still run, and judges what their logs report: mistakes of the drivers, and what these left."""
        for server in self.servers:
            if server.running():
                self._stop_server(server)

    def _stop_server(self, server):
        status = server.stop()
        if status != 0:
            raise Failed(f"the server, asked to end, ended with status {status}")
        lines = server.lines()
        allowed = [re.compile(pattern) for pattern, _ in self.case.allowed_mistakes]
        mistakes = [line for line in lines if ": driver: " in line and not any(pattern.search(line) for pattern in allowed)]
        wrong = [*mistakes, *(line for line in lines if "panicked" in line)]
        if self.case.gives_back:
            wrong += [line for line in lines if re.search(rf"^{self.case.gives_back}: client (gone|lost).*left: ", line)]
        if wrong:
            raise Failed(f"{wrong[0]}{more_than_one(wrong)}")
        left = [path.name for path in server.sockets if path.exists()]
        if left:
            raise Failed(f"the server left {', '.join(left)}")


def more_than_one(found):
    """Returns how many there are after the first one, as the end of a sentence."""
    return f" (and {len(found) - 1} more)" if len(found) > 1 else ""
