"""The machine that a run was measured on, and which runs may be compared."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Self

from harness.run.validation import validated

_MEMORY_TOLERANCE = 0.01  # a kernel reserves a little more or less memory at each boot


@dataclass(frozen=True)
class Manifest:
    """Everything that a run's numbers depend on. None means that this machine does not say."""

    machine: str  # 12 hex digits; the same for every run of one machine
    cpu_model: str
    cpu_governor: str | None
    logical_cores: int
    memory_bytes: int
    hypervisor: bool | None
    # The host takes freed memory back, so that the first touch of it is slow again.
    free_page_reporting: bool
    transparent_hugepages: str | None
    kernel: str
    filesystem: str
    mount_options: str
    device: str | None  # a kernel name such as nvme0n1
    device_rotational: bool | None
    device_scheduler: str | None
    gpus: tuple[str, ...]
    free_bytes: int  # of the scratch directory's file system, when captured
    load_average: float  # over one minute, when captured
    driver_python: str
    ckptbench: str
    commit: str | None
    dirty: bool | None  # whether tracked files differ from the commit

    def to_json(self) -> dict[str, Any]:
        """Return the manifest as values that the json module takes."""
        return asdict(self)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the manifest in a text, of this version or another.

        Raise ValueError with the first thing that is wrong.
        """
        return validated(cls, text)


_COMPARED = (
    "machine",
    "cpu_model",
    "cpu_governor",
    "logical_cores",
    "memory_bytes",
    "hypervisor",
    "free_page_reporting",
    "transparent_hugepages",
    "kernel",
    "filesystem",
    "mount_options",
    "device",
    "device_rotational",
    "device_scheduler",
    "gpus",
)


def differences(a: Manifest, b: Manifest) -> list[str]:
    """Return the names of the fields that make two runs unlike.

    Runs without such a field may be compared or pooled.
    """
    return [name for name in _COMPARED if not _is_alike(name, getattr(a, name), getattr(b, name))]


def same_code(a: Manifest, b: Manifest) -> bool:
    """Return whether two runs are of the same code, as far as both know it."""
    if a.commit is None or b.commit is None:
        return a.ckptbench == b.ckptbench
    return a.commit == b.commit and bool(a.dirty) == bool(b.dirty)


def _is_alike(name: str, a: Any, b: Any) -> bool:
    if name == "memory_bytes":
        return math.isclose(a, b, rel_tol=_MEMORY_TOLERANCE)
    return bool(a == b)
