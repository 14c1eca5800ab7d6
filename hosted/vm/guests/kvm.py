"""Whether KVM can run a guest on this machine."""

import contextlib
import fcntl
import os
import pathlib

from .errors import SetUpError

# Whether this processor translates a guest's addresses itself, by module of KVM. Without it KVM emulates instructions of the guest, is
# slower than QEMU's emulation, and stops at instructions that it does not know.
PAGING = ("/sys/module/kvm_intel/parameters/ept", "/sys/module/kvm_amd/parameters/npt")


def obstacle(paging=PAGING, device="/dev/kvm"):
    """Returns why KVM cannot be used, and a remedy; None if it can."""
    try:
        opened = os.open(device, os.O_RDWR | os.O_CLOEXEC)
        try:
            # KVM_CREATE_VM: some machines have the file and nothing behind it.
            os.close(fcntl.ioctl(opened, 0xAE01, 0))
        finally:
            os.close(opened)
    except OSError as error:
        remedy = {
            FileNotFoundError: "turn virtualisation on in the firmware (or nested virtualisation), and load kvm_intel or kvm_amd",
            PermissionError: "add yourself to the group kvm (sudo usermod -aG kvm $USER), or make the file writable",
        }.get(type(error), "this machine cannot run virtual machines")
        return f"{device}: {error.strerror}; {remedy}"
    for place in paging:
        with contextlib.suppress(OSError):
            if pathlib.Path(place).read_text(encoding="ascii").strip() in ("Y", "1"):
                return None
    return f"{device}: without nested paging ({' or '.join(paging)}) it is slower than emulation, and stops at some instructions"


def accelerator(wanted, found_by=obstacle):
    """Returns `kvm` or `tcg`: of itself KVM if it can be used. Raises SetUpError if KVM is wanted and cannot be used."""
    if wanted == "tcg":
        return wanted
    found = found_by()
    if found is None:
        return "kvm"
    if wanted == "kvm":
        raise SetUpError(f"--accel kvm: {found}; --accel tcg emulates")
    return "tcg"
