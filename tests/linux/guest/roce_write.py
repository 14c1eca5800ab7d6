"""The peer of the firmware program `network`: an RDMA WRITE over RoCEv2, agreed upon over UDP.

Arguments: `server`, whom the program writes to, or `client`, which writes to the program; the index of the own GID; the address of the
program. Ends with status 0 if each byte was as it should be.
"""

import socket
import struct
import subprocess
import sys
import time

import pyverbs.enums as e
from pyverbs.addr import AHAttr, GID, GlobalRoute
from pyverbs.cq import CQ
from pyverbs.device import Context
from pyverbs.mr import MR
from pyverbs.pd import PD
from pyverbs.qp import QP, QPAttr, QPCap, QPInitAttr
from pyverbs.wr import SGE, SendWR

# As the program has them.
AREA = 64 << 10
EXCHANGE = 18515
DONE = b"done"
AGAIN = 0.3
INFO = struct.Struct(">IIQI")
TIMEOUT = 60
PSN = 0x123456


def pattern(number):
    """The bytes of a message, which both ends can work out."""
    seed = number * 0x9E3779B9 & 0xFFFFFFFF
    return bytes(((seed ^ at) * 0x85EBCA6B & 0xFFFFFFFF) >> 24 if at % 4096 else 0 for at in range(AREA))


class End:
    """A queue pair, and memory that the peer may write."""

    def __init__(self, index):
        self.index = index
        self.context = Context(name="mlx5_0")
        self.pd = PD(self.context)
        self.cq = CQ(self.context, 16)
        self.memory = MR(self.pd, AREA, e.IBV_ACCESS_LOCAL_WRITE | e.IBV_ACCESS_REMOTE_WRITE)
        cap = QPCap(max_send_wr=4, max_recv_wr=4)
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE
        self.qp = QP(self.pd, QPInitAttr(qp_type=e.IBV_QPT_RC, scq=self.cq, rcq=self.cq, cap=cap, sq_sig_all=1), attr)

    def info(self):
        """What the peer must know."""
        return INFO.pack(self.qp.qp_num, PSN, self.memory.buf, self.memory.rkey)

    def connect(self, address, number, psn):
        """Connects with a queue pair of the peer."""
        high, low = struct.unpack(">HH", socket.inet_aton(address))
        route = GlobalRoute(dgid=GID(f"0000:0000:0000:0000:0000:ffff:{high:04x}:{low:04x}"), sgid_index=self.index)
        route.hop_limit = 64
        attr = QPAttr(port_num=1)
        attr.qp_access_flags = e.IBV_ACCESS_REMOTE_WRITE
        attr.path_mtu = e.IBV_MTU_1024
        attr.dest_qp_num, attr.rq_psn, attr.sq_psn = number, psn, PSN
        attr.max_rd_atomic = attr.max_dest_rd_atomic = 1
        attr.min_rnr_timer, attr.timeout, attr.retry_cnt, attr.rnr_retry = 12, 14, 7, 7
        attr.ah_attr = AHAttr(port_num=1, is_global=1, gr=route)
        # The kernel finds the peer's MAC address by ARP.
        self.qp.to_rts(attr)

    def write(self, place, key):
        """Writes the message into the peer's memory."""
        self.memory.write(pattern(1), AREA)
        request = SendWR(opcode=e.IBV_WR_RDMA_WRITE, num_sge=1, sg=[SGE(self.memory.buf, AREA, self.memory.lkey)])
        request.set_wr_rdma(key, place)
        self.qp.post_send(request)
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            count, completions = self.cq.poll()
            if count:
                if completions[0].status != e.IBV_WC_SUCCESS:
                    sys.exit(f"the WRITE ended with status {completions[0].status}")
                return
        sys.exit("the WRITE does not end")


def serve(end, wire, program):
    """Tells the program where to write, and checks what it has written."""
    connected = False
    wire.settimeout(TIMEOUT)
    while True:
        message, sender = wire.recvfrom(64)
        if sender[0] != program:
            sys.exit(f"a message of {sender[0]}")
        if message == DONE:
            break
        if not connected:
            number, psn, *_ = INFO.unpack(message)
            # It answers as long as it waits for an answer.
            subprocess.run(["ping", "-c", "3", "-W", "5", program], check=True)
            end.connect(program, number, psn)
            connected = True
        wire.sendto(end.info(), sender)
    if end.memory.read(AREA, 0) != pattern(1):
        sys.exit("not what the program should write")
    print(f"{AREA} bytes written by the program, each byte checked")
    wire.sendto(DONE, sender)


def ask(wire, program, message):
    """Sends a message until its answer comes, which is as long."""
    wire.settimeout(AGAIN)
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        wire.sendto(message, (program, EXCHANGE))
        try:
            answer, _ = wire.recvfrom(64)
        except TimeoutError:
            continue
        if len(answer) == len(message):
            return answer
    sys.exit("the program does not answer")


def write(end, wire, program):
    """Asks the program where to write, and writes."""
    number, psn, place, key = INFO.unpack(ask(wire, program, end.info()))
    end.connect(program, number, psn)
    end.write(place, key)
    if ask(wire, program, DONE) != DONE:
        sys.exit("no answer to the last message")
    print(f"{AREA} bytes written")


def main():
    role, index, program = sys.argv[1:]
    end = End(int(index))
    wire = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    if role == "server":
        wire.bind(("0.0.0.0", EXCHANGE))
        print("waiting", flush=True)
        serve(end, wire, program)
    else:
        write(end, wire, program)


main()
