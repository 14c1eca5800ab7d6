"""The cases: which guests, which devices, which script, and what the kernel may warn of."""

import dataclasses
import re

from guests.kernel_log import SUSPECT
from harness import case

# Kernel warnings that are no fault of the device: pattern, reason.
EXPECTED = []


#: What a trace has of a port that comes up as that of a card does: its link trains, then a subnet manager gives it a LID.
PORT_COMES_UP = (
    r" eqe .* PORT_CHANGE INITIALIZED ",
    r" eqe .* PORT_CHANGE LID ",
    r" eqe .* PORT_CHANGE ACTIVE ",
)

#: What kernel 6.1 says of each Ethernet port.
IGNORE_FLOW_LEVEL = (r"firmware level support is missing", "kernel 6.1 would forward to tables of any level (ignore_flow_level)")

#: What the audit reports of the kernel in a case that kills programs.
KILLED_PROCESS = ((r"KeyAfterDestroy", "the kernel deregisters the memory of a killed process before it destroys its queue pair"),)

#: For a case whose drivers give back what they made on every device.
ALL_DEVICES = ".*"


@dataclasses.dataclass(frozen=True)
class Case(case.Case):
    """One line of the result."""

    #: The script in guest/cases, if it is not called as the case is.
    script: str = ""
    suite: str = "trixie"
    #: One for each guest, where they differ.
    suites: tuple = ()
    cpus: int = 2
    memory: int = 1024
    #: Devices, dealt out to the guests in equal parts.
    devices: int = 1
    #: Devices of another server, with Ethernet ports, in the slots behind those of the (only) guest.
    ethernet_devices: int = 0
    #: Two cards of virtio-net in the (only) guest, which QEMU joins by a stream socket.
    joined_cards: bool = False
    #: Empty slots of each guest, for devices that are put in while it runs.
    empty_slots: int = 0
    guests: int = 1
    #: Each guest has a server process of its own, joined by a link.
    linked: bool = False
    serve: tuple = ()
    parameters: tuple = ()
    #: What it may take at most: many times what it needs, for a machine with other work.
    timeout: int = 300
    #: Kernel warnings that the case provokes: pattern, reason.
    expected: tuple = ()
    #: What the wire must be seen to do to packets, in per cent: lost, doubled, passed.
    disorder: tuple = ()
    #: Patterns of lines that the trace of the devices must have, in this order.
    trace: tuple = ()
    #: The drivers are shut down at the end, as on a machine that is turned off. Without it the guest just stops, seconds
    #: earlier.
    shut_down: bool = False
    #: The devices write a trace: what to look at after a failure, and half of their time.
    traced: bool = True
    #: The servers' C library keeps no freed memory for its threads: what their heap has in use is known to a few bytes.
    uncached: bool = False
    #: Python and rdma-core's own tests are in the guest; at least that many of them pass.
    python: bool = False
    tests: int = 0
    #: The guest has an IOMMU.
    iommu: bool = False
    #: The guest reboots amid the case, and its IOMMU remaps interrupts; QEMU must print no error.
    reboots: bool = False
    #: The first card shares its slot and its IOMMU group with another function.
    companion: bool = False
    #: All devices are functions of one slot, as the ports of a card are.
    one_slot: bool = False
    #: Our programs are in the guest (/bin): `bareverbs`, and the examples of VFIO.
    program: bool = False
    #: The last guest is not a Linux but iPXE, with the script `ipxe/NAME.ipxe`; the first one has what that boots, in /www.
    ipxe: bool = False
    #: The last guest has no device. It has a second card of virtio-net on a wire that joins the Ethernet of the devices, `stream` or
    #: `dgram`, and RoCE in software on it. The server of the devices serves Ethernet ports.
    wire: str = ""
    #: Sideway's own tests are in the guest, and RoCE in software.
    sideway: bool = False
    #: UCX, iSCSI's initiator, ibdiagnet and the kernel's protocols of storage are in the guest.
    applications: bool = False
    #: Tools for network interfaces, rdma_rxe and NFS are in the guest; they are in those with a wire too.
    tools: bool = False
    #: Open MPI is in the guest, with Python and its bindings.
    mpi: bool = False
    #: DPDK's testpmd is in the guest.
    dpdk: bool = False

    def has_tools(self):
        """Returns whether its guests have the tools for network interfaces."""
        return self.tools or bool(self.wire)


def complaints(expected, lines):
    """Returns the unexpected kernel warnings of a guest: neither `expected` nor what is expected of every case."""
    explained = [re.compile(pattern) for pattern, _ in [*EXPECTED, *expected]]
    warnings = [line[3:] for line in lines if line.startswith("#! ")]
    return [line for line in warnings if SUSPECT.search(line) and not any(pattern.search(line) for pattern in explained)]


def pingpong(name, summary, tools, **more):
    """Returns a case of the pingpong script between two devices."""
    return Case(
        name, summary, script="pingpong", **{"devices": 2, "parameters": (("tools", tools),), "typical_seconds": 15, **more}
    )


def perftest(name, summary, sets, **more):
    """Returns a case of the perftest script between two devices."""
    given = {"devices": 2, "timeout": 600, "typical_seconds": 25, "parameters": (("set", sets),), **more}
    return Case(name, summary, script="perftest", **given)


def between(name, summary, **more):
    """Returns a case of the pair script: the pingpongs between two guests, each with a device."""
    return Case(name, summary, **{"script": "pair", "devices": 2, "guests": 2, "timeout": 600, "typical_seconds": 45, **more})


def fault(name, summary, kind, expected=r"mlx5_core .*", **more):
    """Returns a case of the fault script, with the kernel warnings that the fault may cause."""
    parameters = (("fault", kind),)
    given = {"devices": 2, "typical_seconds": 15, "expected": ((expected, "the fault itself"),), "parameters": parameters, **more}
    return Case(name, summary, script="fault", **given)


def rdma_core(name, summary, tests, **more):
    """Returns a case of rdma-core's own tests, of which at least `tests` pass."""
    given = {"python": True, "memory": 2048, "typical_seconds": 120, "timeout": 1800, "tests": tests, **more}
    return Case(name, summary, **given)


def own_driver(name, summary, **more):
    """Returns a case of this project's driver in user space, over VFIO behind an IOMMU."""
    return Case(name, summary, **{"devices": 2, "iommu": True, "program": True, **more})


def applied(name, summary, **more):
    """Returns a case of two guests with third-party applications, each with a device."""
    return between(name, summary, **{"applications": True, **more})


def soft_roce(name, summary, **more):
    """Returns a case of the soft-roce script: a guest with a device, and one with rdma_rxe on an ordinary card."""
    given = {"script": "soft-roce", "devices": 1, "cpus": 1, "serve": ("--ethernet",), "typical_seconds": 60, "timeout": 1200, **more}
    return between(name, summary, **given)


def storage(name, summary, **more):
    """Returns a case of the storage script: each guest uses a disk of the other one."""
    given = {"suites": ("trixie", "bookworm"), "serve": ("--managed",), "parameters": (("protocol", name),), "program": True, **more}
    return applied(name, summary, script="storage", **given)


BAD_WIRE = {
    "serve": ("--loss", "1", "--duplicate", "1", "--reorder", "1"),
    "disorder": (("lost", 1), ("doubled", 1), ("passed", 1)),
}

CASES = [
    Case("boot", "the guest without a device: its kernel, tools and modules", devices=0, typical_seconds=6),
    Case(
        "boot-6.1",
        "the same with the kernel and tools of bookworm",
        script="boot",
        suite="bookworm",
        devices=0,
        typical_seconds=6,
        covered_by="boot",
    ),
    Case("driver-only", "the drivers bind to two devices and let go of them", devices=2, gives_back=ALL_DEVICES),
    Case(
        "driver-only-no-pages",
        "the same on a device that asks for no firmware pages",
        script="driver-only",
        serve=("--no-firmware-pages",),
        gives_back=ALL_DEVICES,
        covered_by="driver-only-6.1-no-pages",
    ),
    Case(
        "driver-only-1-cpu",
        "the same with one processor and two vectors",
        script="driver-only",
        cpus=1,
        serve=("--vectors", "2"),
        gives_back=ALL_DEVICES,
        covered_by="driver-only",
    ),
    Case(
        "driver-only-4-cpus",
        "the same with four processors and 256 vectors",
        script="driver-only",
        cpus=4,
        serve=("--vectors", "256"),
        gives_back=ALL_DEVICES,
        covered_by="driver-only",
    ),
    Case(
        "driver-only-6.1",
        "the same with kernel 6.1",
        script="driver-only",
        suite="bookworm",
        devices=2,
        gives_back=ALL_DEVICES,
        covered_by="driver-only-6.1-no-pages",
    ),
    Case(
        "driver-only-6.1-no-pages",
        "the same with kernel 6.1, four processors, few vectors and no firmware pages",
        script="driver-only",
        suite="bookworm",
        cpus=4,
        serve=("--no-firmware-pages", "--vectors", "3"),
        gives_back=ALL_DEVICES,
    ),
    Case("devinfo", "ibv_devinfo -v shows what the device was configured with", shut_down=True),
    Case(
        "devinfo-6.1",
        "the same with kernel 6.1 and its rdma-core",
        script="devinfo",
        suite="bookworm",
        shut_down=True,
        covered_by="devinfo",
    ),
    Case(
        "devinfo-custom-config",
        "the same with every option of the device's identity, port and limits",
        script="custom-config",
        serve=(
            *("--device-id", "0x101b", "--lid", "7", "--sm-lid", "3", "--gid-prefix", "fec0:0000:0000:0001"),
            *("--node-guid", "1122:3344:5566:7700", "--port-guid", "1122:3344:5566:7788", "--system-guid", "1122:3344:5566:0000"),
            *("--width", "2x", "--speed", "edr", "--mtu", "2048", "--no-atomics"),
            *("--limit", "qps=4096", "--limit", "qp-size=1024", "--limit", "cqs=2048", "--limit", "cq-size=65536"),
            *("--limit", "srqs=512", "--limit", "pds=256", "--limit", "reads=4", "--limit", "message=16777216"),
        ),
    ),
    Case(
        "reload",
        "modules loaded and unloaded 20 times, nothing left each time",
        typical_seconds=60,
        timeout=600,
        gives_back=ALL_DEVICES,
        uncached=True,
        covered_by="reload-6.1",
    ),
    Case(
        "reload-6.1",
        "the same five times with kernel 6.1",
        script="reload",
        suite="bookworm",
        parameters=(("times", 5),),
        typical_seconds=20,
        gives_back=ALL_DEVICES,
    ),
    pingpong("rc", "ibv_rc_pingpong between two devices", "rc"),
    pingpong("rc-loopback", "ibv_rc_pingpong within one device", "rc", devices=1),
    pingpong("rc-no-blueflame", "ibv_rc_pingpong without BlueFlame", "rc", serve=("--no-blueflame",)),
    *(
        pingpong(
            profile,
            f"the same with the demands of {card}: pages, slow commands, a link that trains, a late LID",
            "rc",
            serve=("--profile", profile),
            trace=(pages, *PORT_COMES_UP),
            typical_seconds=60,
            covered_by=None if profile == "connectx-4-lx" else "connectx-4-lx",
        )
        # Linux asks for 2^18 queue pairs, twice as many as in the recording: for 24,730 pages and a few.
        for profile, card, pages in (
            ("connectx-4-lx", "a recorded ConnectX-4 Lx", r" QUERY_PAGES OK .*op_mod=0x2 out: num_pages=0x60[0-9a-f]{2}\b"),
            ("connectx-6-vf", "a virtual function of a ConnectX-6", r" QUERY_PAGES OK in: op_mod=0x2$"),
            ("connectx-7", "a ConnectX-7", r" QUERY_PAGES OK .*op_mod=0x2 out: num_pages=0x60[0-9a-f]{2}\b"),
        )
    ),
    pingpong("uc-ud", "ibv_uc_pingpong and ibv_ud_pingpong", "uc,ud", covered_by="two-guests"),
    pingpong("srq", "ibv_srq_pingpong: many queue pairs on a shared receive queue", "srq", covered_by="two-guests"),
    pingpong("xsrq", "ibv_xsrq_pingpong: XRC", "xsrq", covered_by="two-guests"),
    pingpong(
        "pingpongs-6.1",
        "all five pingpongs with kernel 6.1 and its rdma-core",
        "rc,uc,ud,srq,xsrq",
        suite="bookworm",
        typical_seconds=30,
        covered_by="two-processes",
    ),
    pingpong(
        "rc-bad-wire",
        "the pingpongs of RC over a wire that loses, duplicates and reorders 1 % each",
        "rc,srq,xsrq",
        **BAD_WIRE,
        parameters=(("tools", "rc,srq,xsrq"), ("lossy", 1)),
        typical_seconds=40,
        timeout=600,
    ),
    between("two-guests", "all five pingpongs between two guests, each with a device"),
    between(
        "two-processes",
        "three of them between kernel 6.12 and kernel 6.1, with a server process for each guest",
        parameters=(("tools", "rc,ud,xsrq"),),
        suites=("trixie", "bookworm"),
        linked=True,
    ),
    perftest("perf-rc", "perftest over RC: send, write, read, atomics; bandwidth and latency", "rc,swap,srq"),
    perftest("perf-uc-ud", "perftest over UC, UD and XRC", "uc,ud,xrc"),
    perftest(
        "perf-options",
        "perftest: inline sizes, 8 queue pairs, both directions, events",
        "inline,many,both,events",
        typical_seconds=45,
    ),
    perftest("perf-sizes", "perftest: all sizes up to 8 MB", "sizes"),
    perftest(
        "perf-6.1",
        "perftest with kernel 6.1 and its user space",
        "rc,uc,ud,many",
        suite="bookworm",
        typical_seconds=35,
        covered_by="perf-rc",
    ),
    perftest(
        "perf-bad-wire",
        "perftest over RC on a wire that loses, duplicates and reorders 1 % each",
        "rc",
        **BAD_WIRE,
    ),
    between(
        "ethernet",
        "Ethernet ports: ping, TCP and RoCEv2 between kernel 6.12 and kernel 6.1, and what is counted of it",
        script="ethernet",
        suites=("trixie", "bookworm"),
        serve=("--ethernet",),
        tools=True,
        expected=(IGNORE_FLOW_LEVEL,),
        typical_seconds=90,
        timeout=1800,
        gives_back=ALL_DEVICES,
    ),
    between(
        "netdev",
        "Ethernet ports under traffic, kernel 6.12 and 6.1: MTU, VLAN, tcpdump, queues, offloads, link down and up, drivers reloaded",
        suites=("trixie", "bookworm"),
        script="netdev",
        # Without a stock of thousands of keys that the driver must give back when it is unloaded.
        serve=("--ethernet", "--no-umr"),
        tools=True,
        expected=(
            IGNORE_FLOW_LEVEL,
            (r"S-tagged traffic will be dropped", "kernel 6.1 says so of each interface that is in promiscuous mode"),
        ),
        typical_seconds=90,
        timeout=1800,
        gives_back=ALL_DEVICES,
    ),
    between(
        "congestion",
        "RoCEv2 on a slow switch, whose long queues mark packets: the receiver notifies the sender of marks, and of nothing else",
        script="congestion",
        serve=("--ethernet", "--no-umr", "--rate", "200M", "--mark-above", "16k"),
        cpus=1,
    ),
    between(
        "roce",
        "programs that meet by rdma_cm on RoCEv2: rping, ucmatose, udaddy, perftest -R, fi_pingpong",
        script="roce",
        # Without a stock of thousands of keys that the driver must give back when it is unloaded.
        serve=("--ethernet", "--no-umr"),
        tools=True,
        memory=2048,
        typical_seconds=60,
        timeout=1800,
        gives_back=ALL_DEVICES,
    ),
    soft_roce(
        "soft-roce",
        "RoCEv2 between a device and Linux's software (rdma_rxe) on a virtio-net card, by a stream socket",
        wire="stream",
        gives_back=ALL_DEVICES,
        covered_by="soft-roce-bad-wire",
    ),
    soft_roce(
        "soft-roce-bad-wire",
        "the same with kernel 6.1 and datagrams, over a wire that loses, duplicates and reorders 1 % each",
        wire="dgram",
        suites=("trixie", "bookworm"),
        serve=("--ethernet", *BAD_WIRE["serve"]),
        parameters=(("lossy", 1),),
    ),
    Case(
        "sideway",
        "Sideway's own tests, a Rust project of others, on a device and on Linux's software (rdma_rxe) beside it",
        serve=("--ethernet",),
        sideway=True,
        tools=True,
        parameters=(("tests", 68),),
        # What its tests must have made on the device.
        trace=(r" CREATE_QP OK ",),
        typical_seconds=60,
        timeout=600,
        # It needs cmake and libclang, and minutes to be built.
        only_named=True,
    ),
    Case("mad", "infiniband-diags: ibping, smpquery, perfquery, ibnetdiscover", devices=2),
    between(
        "opensm",
        "a subnet manager, IP over InfiniBand and rdma_cm between kernel 6.12 and kernel 6.1",
        script="opensm",
        suites=("trixie", "bookworm"),
        serve=("--managed",),
    ),
    Case(
        "isolation",
        "a device that takes another one's LID on a wire with a subnet manager is refused",
        devices=2,
        serve=("--managed",),
        typical_seconds=20,
    ),
    Case(
        "m-key",
        "ports with an M_Key: opensm configures them, others neither read them nor learn the key",
        devices=2,
        serve=("--managed", "--m-key", "0x1234567890abcdef"),
        typical_seconds=40,
    ),
    Case(
        "reboot",
        "a guest whose IOMMU remaps interrupts reboots, and has its device again",
        iommu=True,
        reboots=True,
        # The last boot ends the machine by turning it off.
        shut_down=True,
        typical_seconds=20,
    ),
    Case(
        "ipxe",
        "iPXE and its driver of ConnectX adapters: a Linux booted over IP over InfiniBand, from another guest",
        devices=2,
        guests=2,
        # Connect-IB. iPXE takes 30 s or more to release other adapters, also cards. It waits for ownership of the gateway in
        # configuration space, which it holds itself (golan_remove, mlx_pci_gw_get_ownership).
        serve=("--managed", "--device-id", "0x1011"),
        ipxe=True,
        allowed_mistakes=(
            (r'ReservedBits { layout: "cmd_hca_cap", offset: 16 }', "iPXE writes log_max_qp in the wrong byte order"),
        ),
        typical_seconds=60,
        timeout=600,
    ),
    Case(
        "ibdiagnet",
        "ibdiagnet and others that look for what is wrong in a subnet find nothing",
        devices=2,
        serve=("--managed",),
        applications=True,
        typical_seconds=30,
    ),
    Case(
        "ibdiagnet-6.1",
        "the same with kernel 6.1",
        script="ibdiagnet",
        suite="bookworm",
        devices=2,
        serve=("--managed",),
        applications=True,
        typical_seconds=30,
        covered_by="ibdiagnet",
    ),
    applied("ucx", "UCX between two guests: RC and UD, by verbs and by its own driver of mlx5", script="ucx"),
    applied(
        "ucx-6.1",
        "the same with kernel 6.1 and the UCX of its suite, which has verbs only",
        script="ucx",
        suite="bookworm",
        parameters=(("transports", "rc_v,ud_v"),),
        covered_by="ucx",
    ),
    applied(
        "ucx-roce",
        "UCX on RoCEv2: RC and UD, by verbs and by its own driver of mlx5",
        script="ucx",
        serve=("--ethernet",),
        cpus=1,
        parameters=(("roce", 1),),
        covered_by="ucx",
    ),
    between(
        "mpi",
        "Open MPI on RoCEv2, over UCX: messages of all sizes, both ways at once, one-sided; each byte checked",
        script="mpi",
        serve=("--ethernet",),
        mpi=True,
        cpus=1,
        memory=2048,
        typical_seconds=90,
        timeout=1800,
    ),
    between(
        "dpdk",
        "DPDK's testpmd on an Ethernet port: it answers ping, returns datagrams of Linux, sends and counts",
        script="dpdk",
        serve=("--ethernet", "--no-umr"),
        dpdk=True,
        allowed_mistakes=((r"ForeignIp", "testpmd's own frames have addresses for measurements, also those that it turns around"),),
        # For the sender of datagrams.
        python=True,
        tools=True,
        cpus=1,
        memory=2048,
        typical_seconds=90,
    ),
    storage(
        "srp",
        "SCSI over RDMA: a disk of kernel 6.12 used by kernel 6.1, and the other way",
        expected=(
            (r"create_qp:.*Create QP type 2 failed", "ib_srpt asks for a longer queue than there is, and halves it until it fits"),
            (r"ib_srp: connection closed", "the disk is given back"),
        ),
        covered_by="iser",
    ),
    storage(
        "iser",
        "iSCSI over RDMA: a disk of kernel 6.12 used by kernel 6.1",
        parameters=(("protocol", "iser"), ("targets", 0)),
        expected=((r"Unable to request_module for ib_isert", "the module is loaded already, and the kernel finds no modprobe"),),
    ),
    storage("nvme", "NVMe over fabrics: a disk of each kernel used by the other one", covered_by="reorder"),
    storage(
        "nvme-roce",
        "the same on RoCEv2",
        serve=("--ethernet",),
        parameters=(("protocol", "nvme"), ("roce", 1)),
        expected=(IGNORE_FLOW_LEVEL,),
        covered_by="reorder",
    ),
    between(
        "nfs",
        "NFS over RDMA on RoCEv2: a folder of one guest used by the other one",
        script="nfs",
        serve=("--ethernet",),
        tools=True,
    ),
    storage(
        "reorder",
        "the same over a wire on which 5 % of the packets are passed by later ones",
        serve=("--managed", "--reorder", "5"),
        parameters=(("protocol", "nvme"),),
        disorder=(("passed", 5),),
    ),
    Case(
        "device-reset",
        "tools killed amid their work, the driver unbound, the card removed and found again, reset, reloaded",
        devices=2,
        allowed_mistakes=((r"UnknownDoorbell", "a tool does not hear that the driver has destroyed its queue pair"),),
        # Without a stock of thousands of keys that the driver must give back each time.
        serve=("--no-umr",),
        # For devlink.
        python=True,
        memory=2048,
        typical_seconds=50,
        timeout=600,
    ),
    fault(
        "fault-status",
        "a command refused by the device: the tool fails, the next one works",
        "status",
        r"ALLOC_PD\(0x800\).*failed, status no resources",
    ),
    fault("fault-link", "the cable pulled and plugged in: the port goes down and comes back", "link", r"^$"),
    fault("fault-health", "the firmware reports a failure: the driver notices, says so and recovers it", "health", waits=True),
    fault("fault-health-6.1", "the same with kernel 6.1", "health", suite="bookworm", waits=True, covered_by="fault-health"),
    fault("fault-frozen", "the health counter stops: the driver notices and says so", "frozen", waits=True),
    fault(
        "fault-killed",
        "the server killed under the guest and restarted: the driver notices, the guest lives and takes the new devices",
        "killed",
        r"mlx5_core |infiniband|pcieport",
        empty_slots=2,
        typical_seconds=80,
        waits=True,
        timeout=600,
    ),
    fault(
        "fault-killed-often",
        "the same ten times under one guest, with one device",
        "killed",
        r"mlx5_core |infiniband|pcieport",
        devices=1,
        empty_slots=10,
        parameters=(("fault", "killed"), ("rounds", 10)),
        timeout=1800,
        only_named=True,
    ),
    fault(
        "fault-removed",
        "a device that answers no more: the driver notices and lets go, the other device goes on",
        "removed",
        typical_seconds=80,
        waits=True,
        timeout=600,
    ),
    fault(
        "fault-timeout",
        "a command that never completes: the driver gives it up after a minute and goes on",
        "timeout",
        r"ALLOC_PD\(0x800\)|alloc_pd",
        typical_seconds=80,
        waits=True,
        timeout=600,
    ),
    Case(
        "reconnect",
        "QEMU killed twice amid a pingpong: the next guest finds fresh devices on the same server",
        devices=2,
        typical_seconds=30,
        timeout=600,
    ),
    # The second device is at the other end of the cable: without it the subnet manager has nothing to configure a port for.
    rdma_core("verbs", "rdma-core's own tests of verbs and libmlx5", 152, devices=2, serve=("--managed",)),
    rdma_core(
        "verbs-6.1",
        "the same with kernel 6.1 and its rdma-core",
        144,
        script="verbs",
        suite="bookworm",
        devices=2,
        serve=("--managed",),
        covered_by="verbs",
    ),
    rdma_core(
        "verbs-ethernet",
        "the tests that depend on the port, on an Ethernet port, and those of verbs again on rdma_rxe in the same guest",
        97,
        serve=("--ethernet",),
        tools=True,
        typical_seconds=200,
    ),
    rdma_core(
        "vfio", "no kernel driver: rdma-core's own in user space, over VFIO behind an IOMMU", 1, iommu=True, typical_seconds=30
    ),
    own_driver("vfio-selftest", "the main job and info on cards behind VFIO", typical_seconds=20),
    own_driver(
        "vfio-selftest-vf",
        "the same on virtual functions",
        script="vfio-selftest",
        serve=("--profile", "connectx-6-vf"),
        parameters=(("part", 0x101C),),
        typical_seconds=30,
        covered_by="vfio-selftest",
    ),
    own_driver(
        "vfio-selftest-connectx-5",
        "the same on cards with the demands of a ConnectX-5: slow commands, a link that trains, a late LID",
        script="vfio-selftest",
        serve=("--profile", "connectx-5"),
        parameters=(("part", 0x1017),),
        typical_seconds=60,
        covered_by="vfio-selftest-connectx-7",
    ),
    own_driver(
        "vfio-selftest-connectx-7",
        "the same on cards with the demands of a ConnectX-7: spare pages, a slow reset, a link that trains, a late LID",
        script="vfio-selftest",
        serve=("--profile", "connectx-7"),
        typical_seconds=40,
    ),
    own_driver(
        "vfio-selftest-6.1",
        "the same with kernel 6.1",
        script="vfio-selftest",
        suite="bookworm",
        typical_seconds=20,
        covered_by="vfio-selftest",
    ),
    own_driver(
        "vfio-examples", "the examples of VFIO: a write to a peer, an event loop, what the IOMMU refuses", typical_seconds=20
    ),
    own_driver(
        "vfio-processes",
        "two processes, each with a card; one is killed again and again, and its card stays usable",
        typical_seconds=40,
    ),
    own_driver(
        "vfio-removal",
        "cards that are unbound, broken or pulled out: in the bring-up, idle, under traffic, in the teardown",
        typical_seconds=330,
        waits=True,
        timeout=900,
    ),
    own_driver(
        "vfio-reset",
        "a card that somebody else resets: in the bring-up, idle, under traffic, in the teardown",
        typical_seconds=80,
        waits=True,
        timeout=600,
    ),
    own_driver(
        "vfio-refused", "what stands in the way of a card behind VFIO: each with its reason and its remedy", typical_seconds=30, timeout=900
    ),
    own_driver(
        "vfio-dual-port",
        "a card with two ports, which are functions of one slot: one for Linux's driver and one for ours, then both for ours",
        one_slot=True,
        typical_seconds=60,
        timeout=900,
    ),
    own_driver("vfio-group", "a card that shares its IOMMU group with another function", devices=1, companion=True),
    own_driver(
        "vfio-recovery",
        "a card whose firmware did not start",
        script="vfio-unusable",
        devices=1,
        serve=("--device-id", "0x0218"),
        parameters=(("says", "whose.firmware.did.not.start"), ("remedy", "mstflint"), ("binds", 0)),
    ),
    own_driver(
        "vfio-one-vector",
        "a card with too few MSI-X vectors",
        script="vfio-unusable",
        devices=1,
        serve=("--vectors", "1"),
        parameters=(("says", "has.1.MSI-X.vectors,.2.are.needed"), ("binds", 1)),
    ),
    own_driver(
        "vfio-iommufd",
        "cards by iommufd and by their groups, on a kernel that is built once with both",
        suite="iommufd",
        timeout=900,
        only_named=True,
    ),
    own_driver("readme", "the book's command lines for a reader with a card", serve=("--no-umr",), typical_seconds=40),
    own_driver("vfio-no-iommu", "a machine without an IOMMU: refused", iommu=False, devices=1),
    Case(
        "vfio-pingpong",
        "bareverbs pingpong on a card behind VFIO with rdma-core's tools on the kernel's, both ways; ports without ib_virt",
        devices=2,
        iommu=True,
        program=True,
        # Both drivers query their port by MAD_IFC.
        serve=("--no-ib-virt",),
        typical_seconds=40,
        # On the profile of a card each end waits for its link.
        timeout=900,
    ),
    own_driver(
        "vfio-rping",
        "bareverbs rping on a card behind VFIO with rping of rdma-core on the kernel's: RoCEv2, rejections, ends that are killed",
        serve=("--ethernet", "--no-umr"),
        typical_seconds=90,
        timeout=900,
    ),
    own_driver(
        "vfio-rping-infiniband",
        "the same over InfiniBand ports with a subnet manager: rdma_cm resolves our address to a path record",
        script="vfio-rping",
        serve=("--managed", "--no-umr"),
        parameters=(("link", "infiniband"),),
        tools=True,
        covered_by="vfio-cm-infiniband",
        typical_seconds=110,
        timeout=900,
    ),
    own_driver(
        "vfio-cm",
        "bareverbs ucmatose and udaddy on a card behind VFIO with those of rdma-core on the kernel's: both ways, rejections, ends that die",
        serve=("--ethernet", "--no-umr"),
        # For private data.
        python=True,
        memory=2048,
        typical_seconds=220,
        allowed_mistakes=KILLED_PROCESS,
        timeout=1200,
    ),
    own_driver(
        "vfio-cm-infiniband",
        "the same over InfiniBand ports with a subnet manager: datagrams are answered by their LID",
        script="vfio-cm",
        serve=("--managed", "--no-umr"),
        parameters=(("link", "infiniband"),),
        tools=True,
        python=True,
        memory=2048,
        typical_seconds=250,
        allowed_mistakes=KILLED_PROCESS,
        timeout=1200,
    ),
    Case(
        "vfio-ethernet",
        "the same on Ethernet ports: RoCEv2 with rdma-core's tools on the kernel's card, both ways",
        devices=2,
        iommu=True,
        program=True,
        serve=("--ethernet", "--no-umr"),
        typical_seconds=60,
        timeout=900,
    ),
    Case(
        "bind",
        "bareverbs devices, bind and unbind: a card goes from mlx5_core to vfio-pci and back",
        devices=2,
        iommu=True,
        program=True,
        # Without a stock of thousands of keys, each in pages of its own that the IOMMU maps one by one.
        serve=("--no-umr",),
        typical_seconds=40,
    ),
    own_driver(
        "bind-network",
        "bareverbs bind on a card whose network interface has an address and routes: refused, and forced",
        devices=1,
        serve=("--ethernet", "--no-umr"),
        tools=True,
        typical_seconds=40,
        timeout=900,
    ),
    own_driver(
        "vfio-perf",
        "our driver over VFIO beside libmlx5 on mlx5_ib: write latency and message rate",
        # Without the kernel driver's stock of keys, which it takes long to give back behind an IOMMU.
        serve=("--no-umr",),
        traced=False,
        timeout=900,
        only_named=True,
    ),
    own_driver(
        "vfio-start",
        "from the start of a process to its first completion: ours, and libmlx5 over VFIO",
        devices=1,
        python=True,
        memory=2048,
        only_named=True,
    ),
    Case(
        "speed",
        "messages a second, latency, processor time; RoCEv2 beside InfiniBand; TCP over mlx5e beside virtio-net",
        devices=2,
        ethernet_devices=2,
        joined_cards=True,
        tools=True,
        memory=2048,
        traced=False,
        typical_seconds=150,
        timeout=1800,
        only_named=True,
    ),
]
