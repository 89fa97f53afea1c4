"""A run's folder, to read: its plan, its machine and its records.

Neither this nor what imports it changes anything there.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from harness.run.manifest import Manifest
from harness.run.plan import PlannedCase, Selection
from harness.run.reading import Damage, read
from harness.wire.case import Case
from harness.wire.records import Record

RECORDS = "records.jsonl"
MANIFEST = "manifest.json"
PLAN = "plan.json"


class StoredRun:
    """A stored run."""

    records: list[Record]
    damages: list[Damage]

    def __init__(self, folder: Path) -> None:
        """Open the run in `folder`; what a power loss left half written stays, as a line of its own that reading reports."""
        self.folder = folder
        self.name = folder.name
        self._file = folder / RECORDS
        self._read()

    def _read(self) -> None:
        self.records, self.damages = read(self._file)

    @property
    def manifest(self) -> Manifest:
        """The machine as it was when measuring began."""
        return Manifest.from_json(json.loads((self.folder / MANIFEST).read_text()))

    @property
    def begun(self) -> bool:
        """Whether measuring has begun: until then, where a queue stands before it, nobody knows the machine."""
        return (self.folder / MANIFEST).exists()

    @functools.cached_property
    def plan(self) -> list[PlannedCase]:
        """What the run is to measure."""
        fields = (
            {name: value for name, value in item.items() if name != "id"}
            for item in self.header["cases"]
        )
        return [PlannedCase(**(item | {"case": Case(**item["case"])})) for item in fields]

    @functools.cached_property
    def selection(self) -> Selection | None:
        """What the run was asked for; None for one of before that was kept."""
        found = self.header.get("selection")
        return Selection.from_json(found) if found else None

    @functools.cached_property
    def header(self) -> dict[str, Any]:
        """The plan file: suite, command and cases."""
        header: dict[str, Any] = json.loads((self.folder / PLAN).read_text())
        return header


def folders(results: Path) -> list[Path]:
    """The folders of all runs under `results`, reference runs too."""
    return sorted(file.parent for file in results.glob(f"**/{RECORDS}"))
