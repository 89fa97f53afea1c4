"""A disk with a real file system, whose block writes are logged while a program writes to it."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.durability.blocks import image, log, tools
from harness.durability.blocks.kinds import FILE_SYSTEMS, FileSystem
from harness.durability.blocks.tools import DiskError

FOLDER = "checkpoints"
"""The folder on the disk that a program uses. Some file systems make folders beside it."""

# The kernel may round the second after which a commit is due up to the next one.
_COMMITTED_AFTER_S = 3.0
_LOG_BYTES = 1 << 40  # nothing of it takes room before it is written
_STARTED_AFTER_S = 10.0
_ENDED_AFTER_S = 10.0


@dataclass(frozen=True)
class LoggedDisk:
    """A disk that is mounted, or was.

    A program writes to `folder`. `base` is an image of the disk before the first entry of `log`.
    """

    file_system: FileSystem
    folder: Path
    base: Path
    log: Path

    def instant(self) -> int:
        """Return how many entries the log has now. Nothing is flushed for that."""
        return log.count(self.log)

    def writes_between(self, begin: int, end: int) -> int:
        """Return how many block writes there are between two instants."""
        between = list(log.entries(self.log))[begin:end]
        return sum(entry.is_write for entry in between)

    def sync(self) -> None:
        """Make the file system write all that it has, and flush it. Raises DiskError."""
        tools.run("sync", "--file-system", self.folder)


def let_commit(folder: Path) -> None:
    """Wait until the file system of a disk's folder has made names safe that nobody flushed.

    ext4 and btrfs do so by themselves. xfs would take half a minute, unless another program flushes
    a file of its own, as this function does.
    """
    time.sleep(_COMMITTED_AFTER_S)
    with (folder.parent / "other").open("wb") as other:
        os.fsync(other.fileno())


@contextmanager
def logged_disk(kind: str, place: Path, room_bytes: int = 0) -> Iterator[LoggedDisk]:
    """Make a disk with room for so many bytes of files, and mount it until the block ends.

    `place` is a folder for its images, which stay when the block ends. Raises DiskError where that
    is impossible, and KeyError for an unknown kind.
    """
    file_system = FILE_SYSTEMS[kind]
    size_bytes = max(file_system.least_bytes, room_bytes + file_system.own_bytes)
    base, mounted = place / "base.img", place / "mounted"
    place.mkdir(parents=True, exist_ok=True)
    mounted.mkdir(exist_ok=True)
    image.create(base, size_bytes)
    tools.run(*file_system.make, base)
    with ExitStack() as closing:
        logged = _export(place, base, closing)
        # Each callback comes before its command, because a Ctrl-C may come in the middle of that.
        closing.callback(tools.detach, logged)
        device = tools.attach(logged)
        closing.callback(tools.unmount, mounted)
        tools.mount(device, mounted, kind, file_system.options)
        folder = mounted / FOLDER
        folder.mkdir()
        yield LoggedDisk(file_system, folder, base, place / "log.img")


def _export(place: Path, base: Path, closing: ExitStack) -> Path:
    """Have a daemon serve a copy of an image as a file whose writes are logged. Return that file.

    Raises DiskError where the daemon does not start.
    """
    disk, record, exported = place / "disk.img", place / "log.img", place / "exported.img"
    image.copy(base, disk)
    image.create(record, _LOG_BYTES)
    exported.touch()
    closing.callback(tools.unmount, exported)
    is_ready, messages = place / "daemon.pid", place / "daemon.log"
    is_ready.unlink(missing_ok=True)
    daemon = tools.find_daemon()
    argv = [str(daemon.program), *_arguments(disk, record, exported, is_ready)]
    with messages.open("wb") as output:
        # A Ctrl-C is for this process alone, which then unmounts before it ends the daemon.
        process = subprocess.Popen(
            argv,
            env=daemon.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    closing.callback(tools.end, process, _ENDED_AFTER_S)
    deadline_s = time.monotonic() + _STARTED_AFTER_S
    while not (is_ready.exists() and os.path.ismount(exported)):
        if process.poll() is not None or time.monotonic() > deadline_s:
            said = messages.read_text(errors="replace").strip() or "it said nothing"
            raise DiskError(f"{daemon.program} did not start: {said.splitlines()[-1]}")
        time.sleep(0.01)
    return exported


def _arguments(disk: Path, record: Path, exported: Path, pid_file: Path) -> list[str]:
    """Return what tells the daemon to serve a disk with a log of its writes."""
    # A comma ends a value, and two stand for one.
    names = [str(path.absolute()).replace(",", ",,") for path in (disk, record, exported)]
    return [
        *("--blockdev", f"driver=file,node-name=disk,filename={names[0]}"),
        *("--blockdev", f"driver=file,node-name=record,filename={names[1]}"),
        "--blockdev",
        "driver=blklogwrites,node-name=logged,file=disk,log=record,log-super-update-interval=1",
        "--export",
        f"type=fuse,id=exported,node-name=logged,mountpoint={names[2]},writable=on",
        *("--pidfile", str(pid_file.absolute())),
    ]
