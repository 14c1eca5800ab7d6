"""One run of a case: its server, its boards, and the verdict."""

from harness.case_run import CaseRun

from .board import Board, card


class BoardRun(CaseRun):
    """Boards with devices. What they must do is a function of the case."""

    def __init__(self, case, folder, stop, trees, images, initrd, program):
        """`initrd` is the initial file system of a Linux guest, if the case needs one."""
        super().__init__(case, folder, stop)
        self.trees = trees
        self.images = images
        self.initrd = initrd
        self.program = program
        self.boards = []
        self.sockets = []

    @property
    def server(self):
        """Returns the process that serves the devices."""
        return self.servers[0]

    def transcript(self):
        """Returns what the boards printed."""
        return [f"{board.name}: {line}" for board in self.boards for line in board.lines]

    def body(self):
        """Runs the function of the case."""
        self.case.body(self)
        self.stop_servers()
        for board in self.boards:
            name = f"stack of {board.program}, {board.kind}"
            self.measured[name] = max([self.measured.get(name, 0), *board.stack_used()])

    def serve_devices(self, count, *options, traced=False):
        """Starts a server with that many devices."""
        self.sockets = [self.runtime / f"{number}.socket" for number in range(count)]
        self.serve(self.program, "device", self.sockets, options, traced=traced)

    def boot(self, kind, program, device=None, *, on_root_bus=False, options=(), control=False, label=None, **machine_options):
        """Starts a program on a board, with the device of that number in a slot; `control` gives the board a monitor. `moved` and
        `memory` change the machine, `tree` its device tree, `image` is another machine whose program it gets."""
        given = [*card(self.sockets[device], on_root_bus), *options] if device is not None else list(options)
        monitor = self.runtime / f"{label or kind}.monitor" if control else None
        board = Board(self.trees, self.images, kind, program, self.folder, given, name=label, monitor=monitor, **machine_options)
        self.boards.append(board)
        return self.start(board)
