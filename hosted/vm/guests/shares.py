"""Folders of the host that a guest sees."""

import os
import pathlib

from .errors import SetUpError

# Places in a guest that a folder of the host must not hide.
OF_THE_GUEST = {"/", *(f"/{name}" for name in "bin cases dev etc lib lib64 modules proc run sbin sys tmp user usr var".split())}


def parse(given):
    """Returns the folders of DIR[:PATH] each: (path of the host, path in the guest)."""
    found = []
    for text in given:
        written, _, place = text.partition(":") if not os.path.isdir(text) else (text, "", "")
        folder = pathlib.Path(written).resolve()
        if not folder.is_dir():
            what = "is a file: --program copies it, or share its folder" if folder.exists() else "does not exist"
            raise SetUpError(f"--share {text}: the folder {folder} {what}")
        if not os.access(folder, os.R_OK | os.X_OK):
            raise SetUpError(f"--share {text}: {folder} may not be read by this user")
        place = os.path.normpath(place or str(folder))
        if not place.startswith("/") or "\n" in place:
            raise SetUpError(f"--share {text}: the path in the guest must be absolute: --share {written}:/{place}")
        if place in OF_THE_GUEST:
            raise SetUpError(f"--share {text}: {place} is a folder of the guest's own: choose another place in it, as in --share {written}:/host")
        if place in [other for _, other in found]:
            raise SetUpError(f"--share {text}: {place} is taken by another --share: choose another place, as in --share {written}:/other")
        found.append((folder, place))
    return found


def options(folders):
    """Returns QEMU's options for them."""
    made = []
    for number, (folder, _) in enumerate(folders):
        path = str(folder).replace(",", ",,")
        made += ["-fsdev", f"local,id=share{number},path={path},security_model=none,multidevs=remap"]
        made += ["-device", f"virtio-9p-pci,fsdev=share{number},mount_tag=share{number}"]
    return made
