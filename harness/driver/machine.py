"""The machine that a run is measured on. It names no host, because a record may be published."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

import harness
from harness.driver.launch import ROOT
from harness.run.manifest import Manifest

PROC = Path("/proc")
SYS = Path("/sys")
_COMMAND_TIMEOUT_S = 20

# Mount options that name a host, an account or a folder: private, and different on machines that
# are otherwise alike.
_PRIVATE_OPTIONS = frozenset(
    {"addr", "clientaddr", "mountaddr", "username", "domain", "unc", "uid", "gid"}
)


@dataclass(frozen=True)
class Mount:
    """The file system that holds a path, as /proc/self/mountinfo describes it."""

    point: str
    device_number: str  # major:minor
    type: str
    source: str
    options: str  # without those that name hosts, accounts or folders


@dataclass(frozen=True)
class BlockDevice:
    """The disk under a file system; a partition counts as its disk."""

    name: str
    rotational: bool | None
    scheduler: str | None


def capture(scratch: Path) -> Manifest:
    """Return the manifest of this machine for runs that write under `scratch`, which must exist."""
    mount = mount_of(scratch)
    device = block_device(mount)
    model = cpu_model()
    gpus = gpu_names()
    commit, dirty = _git_state()
    return Manifest(
        machine=_machine_id(model, gpus),
        cpu_model=model,
        cpu_governor=_text(SYS / "devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        logical_cores=os.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        hypervisor=hypervisor(),
        free_page_reporting=free_page_reporting(),
        transparent_hugepages=_chosen(_text(SYS / "kernel/mm/transparent_hugepage/enabled")),
        kernel=platform.release(),
        filesystem=mount.type,
        mount_options=mount.options,
        device=device.name if device else None,
        device_rotational=device.rotational if device else None,
        device_scheduler=device.scheduler if device else None,
        gpus=gpus,
        free_bytes=shutil.disk_usage(scratch).free,
        load_average=os.getloadavg()[0],
        driver_python=platform.python_version(),
        ckptbench=harness.__version__,
        commit=commit,
        dirty=dirty,
    )


def mount_of(path: Path) -> Mount:
    """Return the mount that holds `path`. Of mounts on one point, the last is the visible one."""
    real = path.resolve()
    # A mount point may have any bytes in its name.
    lines = (PROC / "self/mountinfo").read_text(errors="surrogateescape").rstrip("\n").split("\n")
    holding = [mount for mount in map(_mount, lines) if real.is_relative_to(mount.point)]
    # In a changed root, no mount point may lie above a path.
    nothing = Mount(point="/", device_number="0:0", type="unknown", source="unknown", options="")
    return max(reversed(holding), key=lambda mount: len(mount.point), default=nothing)


def _mount(line: str) -> Mount:
    """Parse a line of mountinfo, proc_pid_mountinfo(5).

    Its fields are id, parent, major:minor, root, point, options, optional fields, "-", type, source
    and options of the file system.
    """
    before, after = line.split(" - ", 1)
    fields = before.split(" ")
    type_, source, super_options = after.split(" ", 2)
    options = dict.fromkeys([*fields[5].split(","), *super_options.split(",")])
    return Mount(
        _unescaped(fields[4]),
        fields[2],
        type_,
        _unescaped(source),
        ",".join(filter(_public, options)),
    )


def _unescaped(field: str) -> str:
    """Undo mountinfo's octal escapes for space, tab, newline and backslash."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _public(option: str) -> bool:
    key, _, value = option.partition("=")
    return key not in _PRIVATE_OPTIONS and "/" not in value


def block_device(mount: Mount) -> BlockDevice | None:
    """Return the disk under a mount.

    Return None where the kernel shows none, as for tmpfs and network file systems.
    """
    folder = _block_folder(mount)
    if folder is None:
        return None
    rotational = _text(folder / "queue/rotational")
    return BlockDevice(
        name=folder.name,
        rotational=None if rotational is None else rotational == "1",
        scheduler=_chosen(_text(folder / "queue/scheduler")),
    )


def _block_folder(mount: Mount) -> Path | None:
    """Find the disk by its number, else by the name of the mount's source.

    The number is no disk's where the file system has a number of its own, as btrfs has.
    """
    if not mount.source.startswith("/dev/"):
        return None
    by_number = SYS / "dev/block" / mount.device_number
    by_name = SYS / "class/block" / Path(mount.source).name
    for link in (by_number, by_name):
        if link.exists():
            folder = link.resolve()
            return folder.parent if (folder / "partition").exists() else folder
    return None


def cpu_model() -> str:
    """Return the processor's name, or the architecture's where the kernel gives no name."""
    match = re.search(r"^model name\s*:\s*(.+)$", _text(PROC / "cpuinfo") or "", re.MULTILINE)
    return match[1].strip() if match else platform.machine()


def hypervisor() -> bool | None:
    """Return whether this is a virtual machine.

    Return None where the processor has no flag for it, because it is not x86.
    """
    match = re.search(r"^flags\s*:\s*(.+)$", _text(PROC / "cpuinfo") or "", re.MULTILINE)
    return "hypervisor" in match[1].split() if match else None


def free_page_reporting() -> bool:
    """Return whether the kernel tells its host which pages are free, so that it takes them back."""
    return (SYS / "module/page_reporting").exists()


def gpu_names() -> tuple[str, ...]:
    """Return the names of the GPUs that nvidia-smi lists."""
    listed = _output(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"])
    return tuple(line.strip() for line in (listed or "").splitlines() if line.strip())


def _machine_id(model: str, gpus: Sequence[str]) -> str:
    """Return 12 hex digits of the machine-id, the processor and the GPUs.

    A container without a machine-id has the rest alone. Virtual machines of one image may have the
    same machine-id and other GPUs.
    """
    machine_id = _text(Path("/etc/machine-id")) or _text(Path("/var/lib/dbus/machine-id")) or ""
    return hashlib.sha256("\n".join([machine_id, model, *gpus]).encode()).hexdigest()[:12]


def commit_of(checkout: Path) -> str | None:
    """Return the commit of a source tree, or None where it is no checkout of git's."""
    if not (checkout / ".git").exists():
        return None
    return _output(["git", "-C", str(checkout), "rev-parse", "--verify", "HEAD"])


def _git_state() -> tuple[str | None, bool | None]:
    """Return the commit of this source tree, and whether tracked files differ from it.

    Both are None where it is no checkout of git's.
    """
    commit = commit_of(ROOT)
    if commit is None:
        return None, None
    changes = _output(["git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no"])
    return commit, None if changes is None else bool(changes)


def _output(argv: list[str]) -> str | None:
    """Return what a command prints, or None where it is missing, fails or hangs."""
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _chosen(setting: str | None) -> str | None:
    """Return the word in brackets of a kernel setting such as `always [madvise] never`."""
    match = re.search(r"\[([^\]]+)\]", setting or "")
    return match[1] if match else setting
