"""The programs of the system that make, attach and mount a disk. Most of them need root."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

QEMU = "CKPTBENCH_QEMU"
"""The environment variable with the folder of qemu-storage-daemon.

It is the folder of the program, or one into which Debian's packages were unpacked.
"""

_DAEMON = "qemu-storage-daemon"
_TIMEOUT_S = 60.0
_UNMOUNTED_AFTER_S = 10.0
_SYSTEM_FOLDERS = ("/usr/sbin", "/sbin")  # are not on everybody's path


class DiskError(Exception):
    """A disk that cannot be made, attached or mounted."""


@dataclass(frozen=True)
class Daemon:
    """The program qemu-storage-daemon, and the environment that it needs."""

    program: Path
    environment: dict[str, str]


def find(name: str) -> Path:
    """Return the path of a program. Raises DiskError where there is none."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *_SYSTEM_FOLDERS])
    program = shutil.which(name, path=path)
    if program is None:
        raise DiskError(f"no program {name} on the path; install it (docs/faults-on-disks.md)")
    return Path(program)


def find_daemon() -> Daemon:
    """Return qemu-storage-daemon from the folder in CKPTBENCH_QEMU, or from the path.

    Raises DiskError where there is none.
    """
    named = os.environ.get(QEMU)
    if not named:
        return Daemon(find(_DAEMON), dict(os.environ))
    folder = Path(named).absolute()
    for program in (folder / _DAEMON, folder / "usr/bin" / _DAEMON):
        if program.exists():
            return Daemon(program, _with_libraries(folder))
    raise DiskError(f"no {_DAEMON} in {folder}, which {QEMU} names; correct or unset {QEMU}")


def _with_libraries(folder: Path) -> dict[str, str]:
    """Return this environment, in which the libraries of unpacked packages are found too."""
    libraries = [*folder.glob("lib/*-linux-gnu"), *folder.glob("usr/lib/*-linux-gnu")]
    known = os.environ.get("LD_LIBRARY_PATH")
    paths = [*map(str, libraries), *([known] if known else [])]
    return os.environ | ({"LD_LIBRARY_PATH": os.pathsep.join(paths)} if paths else {})


def run(*argv: str | Path) -> str:
    """Run a program, and return what it prints. Raises DiskError with its message if it fails."""
    name, *arguments = map(str, argv)
    command = [str(find(name)), *arguments]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DiskError(f"{name} cannot be run: {error}") from error
    if done.returncode:
        raise DiskError(f"{name} failed: {_first_line(done.stderr or done.stdout)}")
    return done.stdout


def _first_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[0] if lines else "it said nothing"


def attach(image: Path) -> Path:
    """Attach a file to a free loop device, and return the device. Raises DiskError."""
    return Path(run("losetup", "--find", "--show", image).strip())


def detach(image: Path) -> None:
    """Detach every loop device of a file. There may be none. Raises DiskError."""
    listed = run("losetup", "--noheadings", "--output", "NAME", "--associated", image)
    for device in listed.split():
        run("losetup", "--detach", device)


def mount(device: Path, folder: Path, kind: str, options: str) -> None:
    """Mount a device. Raises DiskError."""
    run("mount", "-t", kind, "-o", options, device, folder)


def unmount(folder: Path) -> None:
    """Unmount a folder if anything is mounted there.

    A mount that stays in use for long goes as soon as nobody uses it. Raises DiskError then.
    """
    deadline_s = time.monotonic() + _UNMOUNTED_AFTER_S
    while os.path.ismount(folder):
        try:
            run("umount", folder)
        except DiskError:
            if time.monotonic() > deadline_s:
                run("umount", "--lazy", folder)
                raise
            time.sleep(0.05)


def end(process: subprocess.Popen[bytes], after_s: float) -> None:
    """Ask a process to end, and kill it if it does not."""
    process.terminate()
    try:
        process.wait(after_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
