"""A run's folder, opened for reading: its plan, its machine and its records.

This module changes nothing in the folder, and the modules that import it for reading do neither.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from harness.run.errors import UsageError
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
        try:
            self.records, self.damages = read(self._file)
        except OSError as error:
            raise self._unreadable(RECORDS, error.strerror) from error

    @functools.cached_property
    def manifest(self) -> Manifest:
        """Return the machine as it was when measuring began.

        Raises UsageError where the file is missing, cut short, or not one of a manifest.
        """
        try:
            return Manifest.from_json(self._json(MANIFEST))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise self._unreadable(MANIFEST, f"it lacks what a manifest has ({error})") from error

    @property
    def begun(self) -> bool:
        """Return whether measuring has begun. Nobody knows the machine of a run in a queue."""
        return (self.folder / MANIFEST).exists()

    @functools.cached_property
    def plan(self) -> list[PlannedCase]:
        """Return the cases that the run is to measure.

        Raises UsageError where the plan file is missing, cut short, or not one of a plan.
        """
        try:
            return [PlannedCase.from_json(values) for values in self.header["cases"]]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise self._unreadable(PLAN, f"it lacks what a plan has ({error})") from error

    @functools.cached_property
    def selection(self) -> Selection | None:
        """Return the selection that gave the plan, or None for a run that is older than this."""
        stored = self.header.get("selection")
        return Selection.from_json(stored) if stored else None

    @functools.cached_property
    def header(self) -> dict[str, Any]:
        """Return the plan file: suite, command and cases."""
        return self._json(PLAN)

    def _json(self, name: str) -> dict[str, Any]:
        """Return a file of the run that holds one JSON object. Raises UsageError otherwise."""
        try:
            values = json.loads((self.folder / name).read_text(encoding="utf-8"))
        except OSError as error:
            raise self._unreadable(name, error.strerror) from error
        except ValueError as error:
            raise self._unreadable(name, f"it is not JSON, or is cut short ({error})") from error
        if not isinstance(values, dict):
            raise self._unreadable(name, "it is not a JSON object")
        return values

    def _unreadable(self, name: str, reason: str | None) -> UsageError:
        return UsageError(f"run {self.name} cannot be read: {name}: {reason}")


def folders(results: Path) -> list[Path]:
    """Return the folders of all runs under `results`, with those of reference runs."""
    return sorted(file.parent for file in results.glob(f"**/{RECORDS}"))
