"""The faults of a wire, from the devices' trace: a line for each packet that was sent and one for each that came."""

import collections
import dataclasses
import re

# Seconds, device, direction, and what the packet says of itself; LRH has the addresses of both ends.
LINE = re.compile(r"\S+ (?P<device>\S+) (?P<direction>sent|received) +(?P<packet>LRH (?:.*?)(?P<ends>DLID=\S+ SLID=\S+) .*)")


@dataclasses.dataclass(frozen=True)
class Disorder:
    """The number of packets that each fault hit."""

    sent: int
    lost: int
    doubled: int
    #: They came after one that the same port had sent later to the same one.
    passed: int

    def __str__(self):
        return f"{self.sent} packets sent, {self.lost} lost, {self.doubled} doubled, {self.passed} passed by a later one"


def disorder(trace):
    """Returns the faults in a trace file, which all devices of the wire write."""
    sent = collections.Counter()
    received = collections.Counter()
    place = {}
    number = passed = 0
    latest = collections.defaultdict(int)
    with open(trace, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            # Most lines are about other things.
            found = LINE.match(line) if " LRH " in line else None
            if not found:
                continue
            packet, ends = found["packet"], found["ends"]
            if found["direction"] == "sent":
                number += 1
                sent[packet] += 1
                # A retransmission is identical to the first packet. The next one received is taken for the last one sent, so
                # that a retransmission never counts as reordered.
                place[packet] = number
                continue
            received[packet] += 1
            at = place.pop(packet, None)
            # The second of two that are the same may come later without that another one has passed the first.
            if at is not None:
                passed += at < latest[ends]
                latest[ends] = max(latest[ends], at)
    lost = sum((sent - received).values())
    doubled = sum((received - sent).values())
    return Disorder(number, lost, doubled, passed)
