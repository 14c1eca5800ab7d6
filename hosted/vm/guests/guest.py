"""A Debian guest with simulated devices in its slots."""

from . import image, machine
from .processes import TIMEOUT

#: A switch whose slot does not keep its functions apart (no access control services): Linux puts all functions in it into one IOMMU
#: group.
SWITCH = ("-device", "x3130-upstream,id=up,bus=port1", "-device", "xio3130-downstream,id=shared,bus=up,chassis=100")


class Guest(machine.Machine):
    """One virtual machine. Its case's lines come on the second serial port; the kernel has the first one. With a `loader`, a boot
    program, it starts that instead of Linux, and `initrd` is its script."""

    def __init__(
        self,
        trees,
        suite,
        name,
        folder,
        sockets,
        parameters,
        cpus=2,
        memory=1024,
        options=(),
        *,
        initrd,
        iommu=False,
        reboots=False,
        empty_slots=0,
        terminal=False,
        companion=False,
        one_slot=False,
        loader=None,
        accel="tcg",
        background=True,
        inherited=(),
    ):
        tree = trees[suite]
        #: One a slot, counted from 1; those after the last device are empty.
        self.sockets = sockets
        self.companion = companion
        self.one_slot = one_slot
        kernel_line = ["console=ttyS0", "quiet", "panic=-1", "oops=panic", "mitigations=off", "random.trust_cpu=on", "tsc=reliable"]
        # On a busy host the timer may be late just when the kernel checks whether it ticks.
        kernel_line.append("no_timer_check")
        if iommu:
            kernel_line += ["intel_iommu=on"]
            if not reboots:
                # It remaps no interrupts here.
                kernel_line += ["vfio_iommu_type1.allow_unsafe_interrupts=1", "iommufd.allow_unsafe_interrupts=1"]
            remapping = ",intremap=on" if reboots else ""
            options = ("-device", f"intel-iommu,caching-mode=on{remapping}", *options)
        kernel_line += [f"bareverbs.{key}={value}" for key, value in parameters.items()]
        vmlinuz, self.release = image.kernel(tree)
        kernel = ["-kernel", str(vmlinuz), "-initrd", str(initrd), "-append", " ".join(kernel_line)]
        kind = f"q35,accel={accel}"
        if accel == "tcg":
            kind += ",kernel-irqchip=off"
        if loader:
            # Without graphics the BIOS shows its screen on the first serial port.
            kernel = ["-kernel", str(loader), "-initrd", str(initrd)]
            kind += ",graphics=off"
        command = [
            *machine.qemu(trees["qemu"], "x86_64", kind, memory),
            *(() if reboots else ("-no-reboot",)),
            *("-smp", str(cpus)),
            *("-serial", f"file:{folder / f'{name}.console'}"),
            # On a terminal Ctrl-C is for the guest.
            *("-chardev", f"stdio,id=case,signal={'off' if terminal else 'on'}", "-serial", "chardev:case"),
            *kernel,
            *options,
        ]
        for slot in range(1, len(sockets) + empty_slots + 1):
            # An empty slot needs room for the registers of what may come.
            command += machine.root_port(slot, "pref64-reserve=32M")
        if companion:
            command += SWITCH
        for slot in range(1, len(sockets) + 1):
            command += machine.option(self._card(slot, slot))
        if companion:
            # The second function of the card's slot.
            command += ["-device", "virtio-rng-pci,bus=shared,addr=0.1"]
        # Beside the devices' sockets, whose folder is known to have a short path.
        monitor = sockets[0].with_suffix(".monitor") if sockets else None
        super().__init__(name, folder, command, monitor=monitor, background=background, inherited=inherited)
        #: The messages of its kernel.
        self.console = folder / f"{name}.console"
        self._answered = 0

    def _card(self, slot, number):
        place = {"bus": f"port{slot}"}
        if self.companion or self.one_slot:
            place = {"bus": "shared" if self.companion else "port1", "addr": f"0.{slot - 1}", "multifunction": True}
        return machine.card(self.sockets[number - 1], id=f"card{slot}", **place)

    def poll(self, ask):
        """Returns whether it is off. `ask` executes the requests of the case to the host since the last call, and returns the
        answer (None for none)."""
        ended = self.ended.wait(0.02)
        while self._answered < len(self.lines):
            line = self.lines[self._answered]
            self._answered += 1
            if line.startswith("#> host "):
                answer = ask(line.removeprefix("#> host "))
                if answer is not None:
                    self.send(answer)
        if ended:
            self.process.wait(TIMEOUT)
        return ended

    def printed(self, text):
        """Returns whether the case has printed this line."""
        return text in self.lines

    def failures(self):
        """Returns the failures that the case reported."""
        return [line.removeprefix("#> ") for line in self.lines if line.startswith("#> fail")]

    def plug(self, slot, number):
        """Puts the device with this number into an empty slot."""
        self.monitor.execute("device_add", **self._card(slot, number))
