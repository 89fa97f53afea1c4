"""A run's folder, opened for reading: its plan, its machine and its records.

This module changes nothing in the folder, and the modules that import it for reading do neither.
"""

from __future__ import annotations

import functools
import json
import os
import shlex
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.run.errors import UsageError
from harness.run.manifest import Manifest
from harness.run.plan import PlannedCase, Selection, Settings
from harness.run.reading import Damage, read
from harness.run.validation import validated
from harness.wire.case import Case
from harness.wire.records import Record

RECORDS = "records.jsonl"
PACKED = f"{RECORDS}.gz"
"""The records of a reference run that has many. `gzip records.jsonl` packs them."""
MANIFEST = "manifest.json"
PLAN = "plan.json"
RESULTS = Path(__file__).resolve().parents[2] / "results"
"""The folder in which runs are looked for by their names."""


@dataclass(frozen=True)
class _Goal:
    """The precision that a run was asked for, and the seconds that it may take."""

    precision: float
    budget_s: float


@dataclass(frozen=True)
class _Arm:
    """One side of a comparison, as its user asked for it."""

    asked: tuple[str, ...]
    pins: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    python: str | None = None
    checkout: str | None = None
    commit: str | None = None


@dataclass(frozen=True)
class _PlanFile:
    """The keys of a plan file. Files of earlier versions lack all that has a default."""

    cases: tuple[PlannedCase, ...]
    suite: str = ""
    command: tuple[str, ...] = ()
    directory: str | None = None
    python: tuple[str, ...] = ()
    arms: dict[str, _Arm] = field(default_factory=dict)
    goal: _Goal | dict[str, None] = field(default_factory=dict)
    settings: Settings | None = None
    selection: Selection | None = None


_WITHOUT: dict[str, Any] = {
    "suite": "",
    "command": [],
    "directory": None,
    "python": [],
    "arms": {},
    "goal": {},
}
"""The values of the keys that files of earlier versions lack."""


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
        self._file = records_file(folder)
        self._read()

    def _read(self) -> None:
        try:
            self.records, self.damages = read(self._file)
        except (OSError, EOFError, zlib.error) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise self._unreadable(self._file.name, reason) from error

    @functools.cached_property
    def manifest(self) -> Manifest:
        """Return the machine as it was when measuring began.

        Raises UsageError where the file is missing, cut short, or not one of a manifest.
        """
        text, _ = self._json(MANIFEST)
        try:
            return Manifest.from_json(text)
        except ValueError as error:
            raise self._unreadable(MANIFEST, f"it lacks what a manifest has ({error})") from error

    @property
    def is_packed(self) -> bool:
        """Return whether the records are packed, as those of large reference runs are."""
        return self._file.name == PACKED

    @property
    def begun(self) -> bool:
        """Return whether measuring has begun. Nobody knows the machine of a run in a queue."""
        return (self.folder / MANIFEST).exists()

    def files(self, case: Case) -> Path:
        """Return the folder for files of a case that stay with the run. It may not exist."""
        return self.folder / case.experiment / case.id

    @functools.cached_property
    def plan(self) -> list[PlannedCase]:
        """Return the cases that the run is to measure.

        Raises UsageError where the plan file is missing, cut short, or not one of a plan.
        """
        plan: dict[str, PlannedCase] = {}
        for number, values in enumerate(self.header["cases"]):
            try:
                item = PlannedCase.from_json(values)
            except ValueError as error:
                raise self._unreadable(PLAN, f"cases.{number}: {error}") from error
            if item.case.id in plan:
                raise self._unreadable(PLAN, f"cases.{number}: {item.case.id} stands there twice")
            plan[item.case.id] = item
        if not plan:
            raise self._unreadable(PLAN, "it has no cases")
        return list(plan.values())

    @functools.cached_property
    def selection(self) -> Selection | None:
        """Return the selection that gave the plan, or None for a run that is older than this."""
        stored = self.header.get("selection")
        return Selection.from_json(stored) if stored else None

    @functools.cached_property
    def header(self) -> dict[str, Any]:
        """Return the plan file: suite, command and cases."""
        text, values = self._json(PLAN)
        try:
            validated(_PlanFile, text)
        except ValueError as error:
            raise self._unreadable(PLAN, f"it lacks what a plan has ({error})") from error
        return _WITHOUT | values

    def _json(self, name: str) -> tuple[str, dict[str, Any]]:
        """Return a file of the run, as text and as the JSON object in it.

        Raises UsageError where it is none.
        """
        try:
            text = (self.folder / name).read_text(encoding="utf-8")
            values = json.loads(text)
        except OSError as error:
            raise self._unreadable(name, error.strerror) from error
        except RecursionError as error:
            raise self._unreadable(name, "it is nested too deeply") from error
        except ValueError as error:
            raise self._unreadable(name, f"it is not JSON, or is cut short ({error})") from error
        if not isinstance(values, dict):
            raise self._unreadable(name, "it is not a JSON object")
        return text, values

    def _unreadable(self, name: str, reason: str | None) -> UsageError:
        return UsageError(f"run {self.name} cannot be read: {name}: {reason}")


def run_argument(folder: Path) -> str:
    """Return what commands take for a run: its name where runs are usually, else its folder."""
    is_usual = folder.absolute().parent == RESULTS
    return shlex.quote(folder.name if is_usual else str(folder))


def records_file(folder: Path) -> Path:
    """Return the file of a run's records, which may be packed."""
    packed = folder / PACKED
    return packed if packed.exists() else folder / RECORDS


def folders(results: Path) -> list[Path]:
    """Return the folders of all runs under `results`, with those of reference runs.

    Raises UsageError where a folder cannot be read. Without `results` there are no runs.
    """

    def refuse(error: OSError) -> None:
        raise UsageError(f"cannot read {error.filename}: {error.strerror}") from error

    if not os.path.lexists(results):
        return []
    found: list[Path] = []
    for folder, subfolders, files in os.walk(results, onerror=refuse):
        if RECORDS in files or RECORDS in subfolders or PACKED in files:
            found.append(Path(folder))
            # A run that ends now removes folders of its own.
            subfolders.clear()
    return sorted(found)
