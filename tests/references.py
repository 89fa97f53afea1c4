"""The reference runs. A process reads each of them once, when a test first asks for it."""

from __future__ import annotations

import functools
from pathlib import Path

from harness.analysis.runs import REFERENCE, ReadRun, read_run
from harness.run.stored import folders


def references(part: str = "") -> list[ReadRun]:
    """Return the runs whose name has this part, oldest first. A test must not change them."""
    found = [folder for folder in folders(REFERENCE) if part in folder.name]
    return [_read(folder) for folder in sorted(found, key=lambda folder: folder.name)]


def reference(ending: str) -> ReadRun:
    """Return the oldest run whose name ends so. A test must not change it."""
    found = [folder for folder in folders(REFERENCE) if folder.name.endswith(ending)]
    return _read(min(found, key=lambda folder: folder.name))


@functools.cache
def _read(folder: Path) -> ReadRun:
    return read_run(folder)
