"""One case being run: its folder, its processes, and their end whatever happens."""

import pathlib
import re
import shutil
import tempfile
import threading

from rig import machine, monitor

from .board import Board, BoardError, card


class Failed(Exception):
    """Why a case did not pass."""


class Interrupted(Exception):
    """Somebody asked for the end."""


class Stop:
    """Whether somebody asked for the end."""

    def __init__(self):
        self.event = threading.Event()

    def check(self):
        """Raises Interrupted if so."""
        if self.event.is_set():
            raise Interrupted


class Trial:
    """A case in a folder of its own. Nothing in it is shared with others that run at the same time."""

    def __init__(self, case, tools, folder, stop):
        self.case = case
        self.tools = tools
        self.folder = folder
        self.stop = stop
        self.processes = []
        self.boards = []
        self.server = None
        self.sockets = []
        self.runtime = None

    def run(self):
        """Raises Failed if the case does not pass, and Interrupted when the end was asked for."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        # Not in the project: a socket's path may be 107 bytes long at most.
        self.runtime = pathlib.Path(tempfile.mkdtemp(prefix="bareverbs-"))
        try:
            self.case.body(self)
            self._leftovers()
        except (machine.MachineError, monitor.MonitorError, BoardError) as error:
            raise Failed(str(error)) from error
        finally:
            for process in reversed(self.processes):
                process.stop()
            shutil.rmtree(self.runtime, ignore_errors=True)

    def serve(self, devices, *options):
        """Starts a server with so many devices."""
        self.sockets = [self.runtime / f"{number}.socket" for number in range(devices)]
        self.server = machine.Server(self.tools.server, self.folder, "device", self.sockets, options, traced=False)
        self.processes.append(self.server)
        self.server.start()

    def boot(self, name, program, device=None, *, on_root_bus=False, options=(), control=False, label=None):
        """Starts a program on a machine, with the device of that number in a slot."""
        given = [*card(self.sockets[device], on_root_bus), *options] if device is not None else list(options)
        path = self.runtime / f"{label or name}.monitor" if control else None
        board = Board(self.tools.trees, self.tools.images, name, program, self.folder, given, label, path)
        self.processes.append(board)
        self.boards.append(board)
        return board.start()

    def _leftovers(self):
        """What a server says at its end of a driver's mistakes, and of what a driver left."""
        if self.server is None or not self.server.running():
            return
        status = self.server.stop()
        if status != 0:
            raise Failed(f"the server, asked to end, ended with status {status}")
        said = self.server.log.read_text(errors="replace").splitlines()
        wrong = [line for line in said if ": driver: " in line or "panicked" in line]
        if self.case.gives_back:
            wrong += [line for line in said if re.search(rf"^{self.case.gives_back}: client (gone|lost).*left: ", line)]
        if wrong:
            raise Failed(f"{wrong[0]}" + (f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""))
