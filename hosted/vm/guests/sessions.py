"""Further shells in a guest: a socket of this machine, of which each connection is one of ssh to the guest.

QEMU has a virtio port for each connection, and one over which the guest hears that a connection has come ("open 3") or gone
("close 3"), and says that it is done with one ("ended 3"). In the guest the ssh server of Debian (dropbear) answers, at an address that nothing outside of the guest reaches. It asks for no
password: who may open the socket may do all that the guest can.
"""

import contextlib
import os
import pathlib
import queue
import shlex
import socket
import stat
import sys
import threading

from .errors import SetUpError

#: The package of the ssh server.
PACKAGE = "dropbear-bin"

# Connections at a time; others wait for the end of one.
MOST = 8

# A path of a socket may be as long as this.
LONGEST = 107


def folder():
    """Returns the folder of the sockets, which only this user can open."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    place = pathlib.Path(base) / "bareverbs" if base else pathlib.Path(f"/tmp/bareverbs-{os.getuid()}")
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = place.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise SetUpError(f"{place} is not a folder that only you can open: remove it, or set XDG_RUNTIME_DIR to such a folder")
    return place


def running():
    """Returns the names of the guests that can be connected to."""
    return sorted(path.name for path in folder().iterdir() if _connected(path))


def _connected(path):
    """Returns a connection to a socket; None if nobody listens."""
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        found.connect(str(path))
        return found
    except OSError:
        found.close()
        return None


class Sessions:
    """The shells of one guest, by its name."""

    def __init__(self, name, number, sockets):
        """`sockets` is a folder for those between QEMU and this process, `number` that of the guest."""
        self.path = folder() / name
        if len(str(self.path)) > LONGEST:
            raise SetUpError(f"--name {name}: the path of its socket, {self.path}, is longer than {LONGEST} bytes: choose a shorter name")
        if taken := _connected(self.path):
            taken.close()
            raise SetUpError(f"--name {name}: a guest of this name runs: choose another name")
        self.path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        self._news = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._news.bind(str(sockets / f"{number}.sessions"))
        self._news.listen(1)
        self._ports = [sockets / f"{number}.session{port}" for port in range(MOST)]
        #: Numbers of ports without a connection.
        self._free = queue.SimpleQueue()
        #: Of each port with a connection: set when the guest is done with it.
        self._ended = {}
        self._to_guest = None

    def options(self):
        """Returns QEMU's options for the ports."""
        made = ["-device", "virtio-serial-pci,id=sessions,max_ports=16"]
        made += ["-chardev", f"socket,id=sessions,path={self._news.getsockname()}"]
        made += ["-device", "virtserialport,bus=sessions.0,chardev=sessions,name=sessions"]
        for number, path in enumerate(self._ports):
            made += ["-chardev", f"socket,id=session{number},path={path},server=on,wait=off"]
            made += ["-device", f"virtserialport,bus=sessions.0,chardev=session{number},name=session{number}"]
        return made

    def start(self):
        """Serves connections in the background, once the guest says that it is ready."""
        threading.Thread(target=self._listen_to_guest, daemon=True).start()

    def stop(self):
        """Ends them; the guest is off."""
        self.path.unlink(missing_ok=True)
        self._listener.close()
        self._news.close()

    def _listen_to_guest(self):
        with contextlib.suppress(OSError):
            self._to_guest, _ = self._news.accept()
            with self._to_guest.makefile("r", encoding="ascii", errors="replace") as lines:
                for line in lines:
                    match line.split():
                        case ["ready"]:
                            for number in range(MOST):
                                self._free.put(number)
                            threading.Thread(target=self._accept, daemon=True).start()
                        case ["ended", number] if number.isdigit():
                            if ended := self._ended.get(int(number)):
                                ended.set()

    def _accept(self):
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        """Copies between a client and a port until one of them ends."""
        first = b""
        with contextlib.suppress(OSError):
            first = client.recv(65536)
        if not first:
            # It only looked whether there is a guest: ssh speaks first.
            client.close()
            return
        number = self._free.get()
        port = _connected(self._ports[number])
        if port is None:
            client.close()
            return

        self._ended[number] = ended = threading.Event()
        with client, port:
            with contextlib.suppress(OSError):
                port.sendall(first)
            self._tell(f"open {number}")
            forth = threading.Thread(target=self._copy_forth, args=(client, port, number, ended), daemon=True)
            back = threading.Thread(target=_copy, args=(port, client), daemon=True)
            forth.start()
            back.start()
            # The port stays open until the guest is done with it: a guest that writes to a closed one waits.
            ended.wait()
            with contextlib.suppress(OSError):
                # What it has written is here. Of half an end QEMU would not hear: it reads for an open port alone.
                port.shutdown(socket.SHUT_RDWR)
            back.join()
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_RDWR)
            forth.join()
        self._free.put(number)

    def _copy_forth(self, client, port, number, ended):
        _copy(client, port)
        if not ended.is_set():
            self._tell(f"close {number}")

    def _tell(self, line):
        with contextlib.suppress(OSError):
            self._to_guest.sendall(f"{line}\n".encode())


def _copy(source, target):
    """Copies to the end of `source`, also what `target` does not take any more."""
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            with contextlib.suppress(OSError):
                target.sendall(data)


def connect(path):
    """Copies between this process's standard streams and a socket: the ProxyCommand of ssh."""
    connection = _connected(path)
    if connection is None:
        print(f"no guest at {path}", file=sys.stderr)
        return 1
    forth = threading.Thread(target=_read, args=(connection,), daemon=True)
    forth.start()
    with contextlib.suppress(OSError):
        while data := connection.recv(65536):
            os.write(1, data)
    return 0


def _read(connection):
    with contextlib.suppress(OSError):
        while data := os.read(0, 65536):
            connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)


def shell_command(name, words, main, environment, here):
    """Returns the command line of ssh for a shell, or for a command, in the guest of this name. `main` is the path of vm.py,
    `environment` that of this process and `here` its folder. Raises SetUpError if there is no such guest."""
    path = folder() / name
    found = _connected(path)
    if found is None:
        others = running()
        known = f"running guests: {', '.join(others)}" if others else "bareverbs vm --name NAME starts one"
        raise SetUpError(f"no guest '{name}'; {known}")
    found.close()
    proxy = shlex.join([sys.executable, "-B", main, "--connect", str(path)]).replace("%", "%%")
    options = {
        "ProxyCommand": proxy,
        # The guest is this user's own, and has another key at each boot.
        "StrictHostKeyChecking": "no",
        "UserKnownHostsFile": "/dev/null",
        "LogLevel": "ERROR",
        "BatchMode": "yes",
    }
    command = ["ssh", "-F", "/dev/null", "-l", "root", *(part for key, value in options.items() for part in ("-o", f"{key}={value}")), name]
    return [*command, remote(words, environment, here)] if words else command


def remote(words, environment, here):
    """Returns the line for the guest's shell: one word is a line for it already, several are a program and its arguments. It runs in the
    folder of the same path, if the guest has it, with what cargo and the Rust runtime take from the environment."""
    line = words[0] if len(words) == 1 else shlex.join(words)
    names = [key for key in sorted(environment) if key.startswith(("CARGO_", "RUST_")) and not key.endswith("_RUNNER")]
    kept = [f"{key}={environment[key]}" for key in names]
    program = shlex.join(["env", *kept, "sh", "-c", line])
    # In a session of its own, which ends with the connection: the shell's parent is the server's process for it.
    watch = "while [ -d /proc/$PPID ]; do sleep 1; done; kill -HUP -$job"
    return (
        # The shell gives what it starts in the background an empty input, unless it is another descriptor.
        f"cd {shlex.quote(here)} 2>/dev/null; exec 3<&0; setsid {program} <&3 3<&- & job=$!; exec 3<&-; "
        f"( {watch} ) </dev/null >/dev/null 2>&1 & watch=$!; wait $job; status=$?; kill $watch; exit $status"
    )
