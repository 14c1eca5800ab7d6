"""Either end of a connection that rdma_cm makes, or of a queue pair that it resolves, with private data.

Arguments: `client`, or `accept` or `reject` of a server; `tcp` for a connection, `udp` for a queue pair of datagrams; address and port of
the server; the text that this end sends. Prints each event, with the bytes of private data that came with it and their text, from which
the zeros at the end are left out. Ends with status 0 if the messages came in their order, whether or not the peer rejected.

No queue pair is made, so that librdmacm leads none through its states: no data is to be sent. The number stands for one.
"""

import ctypes
import socket
import struct
import sys

# Values and structures of rdma/rdma_cma.h.
PORT_SPACES = {"tcp": 0x0106, "udp": 0x0111}
TIMEOUT = 5000
QP_NUM = 0x123456

librdmacm = ctypes.CDLL("librdmacm.so.1", use_errno=True)
librdmacm.rdma_create_event_channel.restype = ctypes.c_void_p
librdmacm.rdma_event_str.restype = ctypes.c_char_p


class ConnParam(ctypes.Structure):
    """struct rdma_conn_param. That of datagrams, rdma_ud_param, has private data and its length in the same place."""

    _fields_ = [
        ("private_data", ctypes.c_void_p),
        ("private_data_len", ctypes.c_uint8),
        ("responder_resources", ctypes.c_uint8),
        ("initiator_depth", ctypes.c_uint8),
        ("flow_control", ctypes.c_uint8),
        ("retry_count", ctypes.c_uint8),
        ("rnr_retry_count", ctypes.c_uint8),
        ("srq", ctypes.c_uint8),
        ("qp_num", ctypes.c_uint32),
    ]


class CmEvent(ctypes.Structure):
    """struct rdma_cm_event, as far as it is the same for both port spaces."""

    _fields_ = [
        ("id", ctypes.c_void_p),
        ("listen_id", ctypes.c_void_p),
        ("event", ctypes.c_int),
        ("status", ctypes.c_int),
        ("conn", ConnParam),
    ]


def call(name, *arguments):
    """Calls a function of librdmacm that returns 0 after a success."""
    if getattr(librdmacm, name)(*arguments) != 0:
        sys.exit(f"{name}: error {ctypes.get_errno()}")


class End:
    """An ID of rdma_cm with the channel of its events."""

    def __init__(self, space, address, port, text):
        self.space = space
        # struct sockaddr_in, whose address family alone is in the order of the machine.
        self.server = struct.pack("=H", socket.AF_INET) + struct.pack(">H4s8x", port, socket.inet_aton(address))
        self.text = text.encode()
        self.channel = ctypes.c_void_p(librdmacm.rdma_create_event_channel())
        if not self.channel:
            sys.exit(f"rdma_create_event_channel: error {ctypes.get_errno()}")
        self.id = ctypes.c_void_p()
        call("rdma_create_id", self.channel, ctypes.byref(self.id), None, PORT_SPACES[space])

    def param(self):
        """What this end connects or accepts with."""
        data = ctypes.cast(ctypes.c_char_p(self.text), ctypes.c_void_p)
        return ctypes.byref(ConnParam(data, len(self.text), 1, 1, 0, 7, 7, 0, QP_NUM))

    def event(self, *expected):
        """Waits for one of these events. Returns its name and its ID."""
        place = ctypes.POINTER(CmEvent)()
        call("rdma_get_cm_event", self.channel, ctypes.byref(place))
        event = place.contents
        name = librdmacm.rdma_event_str(event.event).decode().removeprefix("RDMA_CM_EVENT_")
        length = event.conn.private_data_len
        data = ctypes.string_at(event.conn.private_data, length) if length else b""
        text = data.rstrip(b"\0").decode("ascii", "backslashreplace")
        print(f"{name}, status {event.status}, {length} bytes: {text}", flush=True)
        came_on = ctypes.c_void_p(event.id)
        call("rdma_ack_cm_event", place)
        if name not in expected:
            sys.exit(f"expected {' or '.join(expected)}")
        return name, came_on

    def ask(self):
        """A client, until its connection has ended."""
        call("rdma_resolve_addr", self.id, None, self.server, TIMEOUT)
        self.event("ADDR_RESOLVED")
        call("rdma_resolve_route", self.id, TIMEOUT)
        self.event("ROUTE_RESOLVED")
        call("rdma_connect", self.id, self.param())
        if self.space == "udp":
            # A refusal has no event of its own.
            self.event("ESTABLISHED", "UNREACHABLE")
            return
        if self.event("CONNECT_RESPONSE", "REJECTED")[0] == "CONNECT_RESPONSE":
            call("rdma_establish", self.id)
            self.event("DISCONNECTED")
            call("rdma_disconnect", self.id)

    def answer(self, accepts):
        """A server of one client, whose connection it ends."""
        call("rdma_bind_addr", self.id, self.server)
        call("rdma_listen", self.id, 1)
        print("listening", flush=True)
        _, client = self.event("CONNECT_REQUEST")
        if not accepts:
            call("rdma_reject", client, self.text, len(self.text))
            return
        call("rdma_accept", client, self.param())
        if self.space == "tcp":
            self.event("ESTABLISHED")
            call("rdma_disconnect", client)
            self.event("DISCONNECTED")


def main():
    role, space, address, port, text = sys.argv[1:]
    end = End(space, address, int(port), text)
    if role == "client":
        end.ask()
    else:
        end.answer(role == "accept")


main()
