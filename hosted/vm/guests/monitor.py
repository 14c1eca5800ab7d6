"""QEMU's monitor (QMP), which acts on a guest from outside: stops it, removes a card, or inserts one."""

import json
import socket
import time

from .errors import Failed
from .processes import TIMEOUT


class Monitor:
    """A connection to the monitor of one QEMU process."""

    def __init__(self, path):
        self.path = path
        self._socket = None
        self._unread = b""

    def execute(self, command, **arguments):
        """Executes a command and returns QEMU's result; raises Failed if it refuses."""
        if self._socket is None:
            self._connect()
        return self._execute(command, arguments)

    def close(self):
        """Ends the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self):
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self._socket.connect(str(self.path))
                break
            except OSError as error:
                self._socket.close()
                self._socket = None
                if time.monotonic() > deadline:
                    raise Failed(f"no monitor: {error}") from error
                time.sleep(0.05)
        if self._message(deadline) is None:
            raise Failed("the monitor does not greet")
        self._execute("qmp_capabilities", {})

    def _execute(self, command, arguments):
        order = {"execute": command, "arguments": arguments}
        try:
            self._socket.sendall(json.dumps(order).encode() + b"\n")
        except OSError as error:
            raise Failed(f"{command}: {error}") from error
        deadline = time.monotonic() + TIMEOUT
        while True:
            message = self._message(deadline)
            if message is None:
                raise Failed(f"{command}: no answer")
            if "error" in message:
                raise Failed(f"{command}: {message['error'].get('desc', message['error'])}")
            if "return" in message:
                return message["return"]

    def _message(self, deadline):
        """Returns the next message; None at the deadline or when QEMU has ended."""
        while b"\n" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            self._socket.settimeout(left)
            try:
                more = self._socket.recv(65536)
            except OSError:
                return None
            if not more:
                return None
            self._unread += more
        line, self._unread = self._unread.split(b"\n", 1)
        return json.loads(line)
