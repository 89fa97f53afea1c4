"""A run's folder, opened for reading: its plan, its machine and its records.

This module changes nothing in the folder, and the modules that import it for reading do neither.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from harness.run.manifest import Manifest
from harness.run.plan import PlannedCase, Selection
from harness.run.reading import Damage, read
from harness.wire.records import Record

RECORDS = "records.jsonl"
MANIFEST = "manifest.json"
PLAN = "plan.json"


class StoredRun:
    """A stored run.

    A plan file of a later version opens too. Fields that are unknown here are ignored, and missing
    fields have their defaults.
    """

    records: list[Record]
    damages: list[Damage]

    def __init__(self, folder: Path) -> None:
        """Open the run in `folder`. A line that a power loss cut short becomes a damage."""
        self.folder = folder
        self.name = folder.name
        self._file = folder / RECORDS
        self._read()

    def _read(self) -> None:
        self.records, self.damages = read(self._file)

    @property
    def manifest(self) -> Manifest:
        """Return the machine as it was when measuring began."""
        return Manifest.from_json(json.loads((self.folder / MANIFEST).read_text()))

    @property
    def begun(self) -> bool:
        """Return whether measuring has begun. Nobody knows the machine of a run in a queue."""
        return (self.folder / MANIFEST).exists()

    @functools.cached_property
    def plan(self) -> list[PlannedCase]:
        """Return the cases that the run is to measure."""
        return [PlannedCase.from_json(values) for values in self.header["cases"]]

    @functools.cached_property
    def selection(self) -> Selection | None:
        """Return the selection that gave the plan, or None for a run that is older than this."""
        stored = self.header.get("selection")
        return Selection.from_json(stored) if stored else None

    @functools.cached_property
    def header(self) -> dict[str, Any]:
        """Return the plan file: suite, command and cases."""
        header: dict[str, Any] = json.loads((self.folder / PLAN).read_text())
        return header


def folders(results: Path) -> list[Path]:
    """Return the folders of all runs under `results`, with those of reference runs."""
    return sorted(file.parent for file in results.glob(f"**/{RECORDS}"))
