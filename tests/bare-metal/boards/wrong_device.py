"""A vfio-user device that is no ConnectX in one way or another: a driver must refuse it.

It answers as much of the protocol as QEMU's client needs (vfio-user, version 0.0): configuration space, one BAR, no
interrupts. Vendor, device and class are those of a ConnectX; BAR0 has a size and one value for every register. The function cannot
be reset alone; after a reset by the bridge above it may ask for time. Its sizes of packets are not the default until then, as if a BIOS had
set them.
"""

import os
import socket
import struct
import threading
import time

# Commands of the protocol.
VERSION, DMA_MAP, DMA_UNMAP, GET_INFO, REGION_INFO, _, IRQ_INFO, SET_IRQS, READ, WRITE = range(1, 11)
RESET, WRITE_MULTI = 13, 15
HEADER = struct.Struct("<HHIII")
REPLY, NO_REPLY, ERROR = 1, 0x10, 0x20
CONFIG_REGION = 7
BARS = 6
# The device control register of PCI Express: its place, its default, and as a BIOS sets it for payloads of 256 bytes and reads of 1,024.
DEVICE_CONTROL, CONTROL_DEFAULT, CONTROL_SET = 0x48, 0x2810, 0x3830
# Max_Payload_Size and Max_Read_Request_Size.
SIZES = 0x70E0


class WrongDevice:
    """Serves one client on a socket, in a thread."""

    def __init__(self, path, bar_size, register, vendor=0x15B3, busy=0):
        """`busy` is for how many seconds after a reset it asks to be read again."""
        self.bar_size = bar_size
        self.busy = busy
        #: Resets so far, and when it is ready after the last one.
        self.resets = 0
        self._ready = 0.0
        self.register = register
        self.config = bytearray(4096)
        struct.pack_into("<HHHHI", self.config, 0, vendor, 0x1021, 0, 0x10, 0x02070000)
        self.config[0x34] = 0x40
        # PCI Express endpoint, version 2; no further capability.
        struct.pack_into("<HH", self.config, 0x40, 0x0010, 0x0002)
        self._set_control(CONTROL_DEFAULT)
        self._size_bar(0xFFFFFFFF, 0)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(1)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def stop(self):
        """Takes no further client."""
        self._listener.close()

    def has_sizes_of_bios(self):
        """Whether payloads and reads are as long as before the reset."""
        return (struct.unpack_from("<H", self.config, DEVICE_CONTROL)[0] ^ CONTROL_SET) & SIZES == 0

    def _set_control(self, value):
        struct.pack_into("<H", self.config, DEVICE_CONTROL, value & 0x7FFF)

    def _size_bar(self, low, high):
        """Writes BAR0 (64-bit, prefetchable): bits below the size stay as they are."""
        mask = ~(self.bar_size - 1)
        struct.pack_into("<II", self.config, 0x10, low & mask & 0xFFFFFFF0 | 0xC, high)

    def _serve(self):
        try:
            self._answer_client()
        except OSError:
            # QEMU is gone, or no client connected.
            return

    def _answer_client(self):
        client, _ = self._listener.accept()
        with client:
            while True:
                message = self._receive(client, HEADER.size)
                if not message:
                    return
                number, command, size, flags, _ = HEADER.unpack(message)
                body = self._receive(client, size - HEADER.size) if size > HEADER.size else b""
                answer, error = self._answer(command, body)
                if not flags & NO_REPLY:
                    flags = REPLY | (ERROR if error else 0)
                    client.sendall(HEADER.pack(number, command, HEADER.size + len(answer), flags, error) + answer)

    @staticmethod
    def _receive(client, count):
        received = b""
        while len(received) < count:
            # Memory comes with descriptors, which this device has no use for.
            more, descriptors, _, _ = socket.recv_fds(client, count - len(received), 16)
            for descriptor in descriptors:
                os.close(descriptor)
            if not more:
                return b""
            received += more
        return received

    def _answer(self, command, body):
        if command == VERSION:
            return struct.pack("<HH", 0, 0) + b'{"capabilities":{"max_msg_fds":16}}\0', 0
        if command == GET_INFO:
            return struct.pack("<IIII", 16, 3, 9, 5), 0
        if command == REGION_INFO:
            index = struct.unpack_from("<I", body, 8)[0]
            size = {0: self.bar_size, CONFIG_REGION: len(self.config)}.get(index, 0)
            return struct.pack("<IIIIQQ", 32, 3 if size else 0, index, 0, size, 0), 0
        if command == IRQ_INFO:
            index = struct.unpack_from("<I", body, 8)[0]
            return struct.pack("<IIII", 16, 0, index, 0), 0
        if command in (READ, WRITE):
            offset, region, count = struct.unpack_from("<QII", body)
            place = struct.pack("<QII", offset, region, count)
            if command == READ:
                return place + self._read(region, offset, count), 0
            self._write(region, offset, body[16 : 16 + count])
            return place, 0
        if command == RESET:
            self.resets += 1
            self._ready = time.monotonic() + self.busy
            # The first is that of power-on, before a BIOS runs.
            self._set_control(CONTROL_SET if self.resets == 1 else CONTROL_DEFAULT)
        if command in (DMA_MAP, DMA_UNMAP, SET_IRQS, RESET):
            return (body if command == DMA_UNMAP else b""), 0
        return b"", 95

    def _read(self, region, offset, count):
        if region == CONFIG_REGION:
            if offset == 0 and time.monotonic() < self._ready:
                # What a root complex makes of Request Retry Status.
                return b"\x01\x00\xff\xff"[:count]
            return bytes(self.config[offset : offset + count]).ljust(count, b"\0")
        return struct.pack(">I", self.register)[:count].ljust(count, b"\0") if region < BARS else bytes(count)

    def _write(self, region, offset, data):
        if region != CONFIG_REGION:
            return
        if 0x10 <= offset < 0x18:
            bar = bytearray(self.config[0x10:0x18])
            bar[offset - 0x10 : offset - 0x10 + len(data)] = data
            self._size_bar(*struct.unpack("<II", bar))
        elif offset == DEVICE_CONTROL and len(data) >= 2 and time.monotonic() >= self._ready:
            self._set_control(struct.unpack_from("<H", data)[0])
        elif offset in (4, 5) or 0x3C <= offset < 0x40:
            self.config[offset : offset + len(data)] = data
