"""The faults of the test double.

A fault is a class in any file of this folder. It derives from `Fault`, says its name in `name`, and
overrides what it does wrong. Nothing else lists it.
"""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path
from typing import ClassVar

from adapters.raw.files import Buffered

NO_FAULT = "none"


class Fault(Buffered):
    """The buffered method, which works. A subclass misbehaves in one way."""

    name: ClassVar[str]

    def write_copy(self, path: Path, copy: bytes | bytearray, local_start: int) -> None:
        """Write this rank's file from a copy of a state's bytes; see `parts_of`."""
        path.mkdir(exist_ok=True)
        rank = self.place.rank
        self.write(self.file(path, rank), self.parts_of(memoryview(copy), local_start, rank))


def faults() -> dict[str, type[Buffered]]:
    """Return the class of every fault by its name, and the working method as "none"."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    by_name: dict[str, type[Buffered]] = {NO_FAULT: Buffered}
    found = Fault.__subclasses__()
    for fault in found:
        if "name" in vars(fault):
            by_name[fault.name] = fault
        # A fault may derive from another one. This list grows while it is read.
        found += fault.__subclasses__()
    return by_name
