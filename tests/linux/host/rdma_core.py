"""The expected results of rdma-core's own tests: every test passes, or is skipped for a reason that is listed here."""

import collections
import dataclasses
import re

# Reasons of skipped tests (as the test says them), and why they are no gap that a user of this device would mind.
SKIPPED = [
    (r"cuda|renderD128", "no graphics processor in the guest"),
    (r"ODP|additional access flags 64 ", "on-demand paging is not offered"),
    (r"MEMIC atomic", "memory on the device does no atomics of its own"),
    (r"DC QP|DCI caps", "the dynamically connected transport is not offered"),
    (r"Tag matching", "tag matching is not offered"),
    (r"Crypto login|Create Mkey is not supported", "neither encryption nor signatures are offered"),
    (r"VAR allocation|UAR allocation \(with flag=0\)|Packet pacing|schedul", "neither virtio emulation nor pacing is offered"),
    (r"LAG affinity", "one port"),
    (r"OOO feature", "packets arrive in order"),
    (r"CQE 128B (padding|compression)", "completions are 64 bytes long"),
    (r"SRQ resize", "no mlx5 device can"),
    (r"additional access flags 258|Extended QP is not supported", "neither FLUSH nor ATOMIC WRITE is offered"),
    (r"PCI device must be passed", "the case has the kernel's driver on the device"),
    (r"All gid indices populated", "unused GIDs have the subnet's prefix, as on cards"),
    (r"general HCA CAPs 2", "the second page of capabilities is not offered"),
]

# Those of each kind of port.
OF_PORT = {
    "InfiniBand": [
        (r"(on|is|over) (Ethernet|InfiniBand)|Ethernet link layer|RoCE|No supported port is up", "the port is InfiniBand"),
        (r"NIC flow table", "flow tables are for Ethernet"),
        (r"Alloc reserved QP number", "only for RoCE"),
    ],
    "Ethernet": [
        (r"InfiniBand|IB link|SMI", "the port is Ethernet"),
        (r"NIC flow table does not support reformat", "rules of flow tables change no packets"),
        (r"UDP sport is not supported", "a connected queue pair keeps its UDP source port"),
    ],
}

# Tests, by suite and name, whose skip or failure is their own doing.
KNOWN = [
    ("", r"test_mlx5_dma_memcpy\.|test_mkey_sig_pipelining", r"Create Mlx5DV QP", "neither memcpy nor signatures are offered"),
    ("", r"_dc_external_qp", r"SkipTest occurred", "the dynamically connected transport is not offered"),
    ("", r"test_timestamp_real_time_", r"Create Extended CQ", "time stamps are of the free-running clock"),
    ("", r"test_mlx5vfio_async_event", r"unpack requires", "reads 8 bytes of an event and takes them for 64"),
    ("bookworm", r"test_odp_dc_traffic", r"Failed to register a MR", "registers on-demand memory without asking whether it may"),
]

LINE = re.compile(r"#> (?P<on>test|rxe) (?P<word>ok|skip|fail) (?P<name>\S+?)(?:: (?P<reason>.*))? \([0-9.]+ s\)$")


@dataclasses.dataclass
class Outcome:
    """The numbers of passed, skipped and failed tests, and the unexpected ones."""

    passed: int = 0
    #: How many were skipped, by reason.
    skipped: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    wrong: tuple = ()

    def lines(self):
        """Returns the outcome for the user."""
        yield f"rdma-core's tests: {self.passed} passed, {self.skipped.total()} skipped"
        for reason, count in self.skipped.most_common():
            yield f"{count:5} skipped: {reason}"


def judge(suite, port, lines):
    """Reads the lines that the guest's runner wrote of the tests on the device."""
    outcome = Outcome()
    for word, name, reason in _tests(lines, "test"):
        if word == "ok":
            outcome.passed += 1
        elif why := _known(suite, name, reason) or word == "skip" and _explained(port, reason):
            outcome.skipped[why] += 1
        else:
            outcome.wrong += (f"{name}: {word}: {reason}",)
    return outcome


def beside(lines):
    """Yields, for the user, how the tests ended that were run on rdma_rxe too, on both; nothing without such."""
    on_rxe = {name: word for word, name, _ in _tests(lines, "rxe")}
    on_device = {name: word for word, name, _ in _tests(lines, "test") if name in on_rxe}
    if not on_rxe:
        return
    for who, words in (("the device", on_device), ("rdma_rxe", on_rxe)):
        count = collections.Counter(words.values())
        yield f"{len(words)} tests of verbs on {who}: {count['ok']} passed, {count['skip']} skipped, {count['fail']} failed"
    only = sorted(name for name, word in on_rxe.items() if word == "ok" and on_device.get(name) != "ok")
    yield f"passed by rdma_rxe alone: {', '.join(only) or 'none'}"


def _tests(lines, on):
    for found in filter(None, map(LINE.match, lines)):
        if found["on"] == on:
            yield found["word"], found["name"], found["reason"] or ""


def _explained(port, reason):
    return next((why for pattern, why in [*SKIPPED, *OF_PORT[port]] if re.search(pattern, reason)), None)


def _known(suite, name, reason):
    matches = (
        why
        for where, names, pattern, why in KNOWN
        if suite.startswith(where) and re.search(names, name) and re.search(pattern, reason)
    )
    return next(matches, None)
