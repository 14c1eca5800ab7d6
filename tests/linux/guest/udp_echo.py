"""Sends datagrams of all sizes to a station that returns them, from some ports, and compares each byte that comes back.

Arguments: the address, then the ports that they come from.
"""

import random
import socket
import sys

#: UDP port of echoes (RFC 862), and the longest payload with an MTU of 1500.
ECHO = 7
LONGEST = 1472
#: Times that one is sent: it may be lost.
ATTEMPTS = 5


def echoed(wire, address, data):
    """Whether a datagram comes back."""
    for _ in range(ATTEMPTS):
        wire.sendto(data, (address, ECHO))
        try:
            while True:
                answer, sender = wire.recvfrom(2048)
                if sender != (address, ECHO):
                    sys.exit(f"a datagram of {sender}")
                if answer == data:
                    return True
                # A late answer to an earlier one has another length.
                if len(answer) == len(data):
                    sys.exit(f"{len(data)} bytes came back as others")
        except TimeoutError:
            continue
    return False


def main():
    address, *ports = sys.argv[1:]
    for port in map(int, ports):
        bytes_of = random.Random(port).randbytes
        wire = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        wire.bind(("0.0.0.0", port))
        wire.settimeout(3)
        count = 0
        for size in [*range(1, LONGEST, 37), LONGEST]:
            if not echoed(wire, address, bytes_of(size)):
                sys.exit(f"{size} bytes of port {port} do not come back")
            count += 1
        print(f"port {port}: {count} datagrams came back, each byte compared")


main()
