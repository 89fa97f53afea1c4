"""The reasons why no disk can be logged on a machine, found out by trying."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from harness.durability.blocks import tools
from harness.durability.blocks.disk import logged_disk
from harness.durability.blocks.kinds import FILE_SYSTEMS
from harness.durability.blocks.tools import DiskError

_DEVICES = {
    "/dev/fuse": "FUSE, through which the daemon serves a disk",
    "/dev/loop-control": "loop devices, which make a disk of a file",
}


def available(kind: str) -> str | None:
    """Return None if a file system of this kind can be logged here, otherwise the reason."""
    if os.geteuid() != 0:
        return "only root may mount a file system; run ckptbench as root"
    for device, purpose in _DEVICES.items():
        if not Path(device).exists():
            return f"no {device} here: the kernel or the container lacks {purpose}"
    try:
        tools.find_daemon()
        tools.find(FILE_SYSTEMS[kind].make[0])
        with tempfile.TemporaryDirectory(prefix="ckptbench-disk-") as place:
            return _try(kind, Path(place))
    except (DiskError, OSError) as error:
        return f"no disk with {kind} can be logged here: {error}"


def _try(kind: str, place: Path) -> str | None:
    """Write a file to a logged disk, and look whether its log grows."""
    with logged_disk(kind, place) as disk:
        begin = disk.instant()
        (disk.folder / "file").write_bytes(b"ckptbench")
        disk.sync()
        if disk.instant() > begin:
            return None
    return f"no disk with {kind} can be logged here: its log stays empty"
