"""Calibrations of earlier runs, because ceilings of unlike requests cannot be compared.

The runs of one results folder share the sweep that found the fastest requests of a directory.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from harness.run.manifest import Manifest, comparable
from harness.run.reading import InvalidLine, parse
from harness.run.stored import MANIFEST, RECORDS, StoredRun
from harness.wire.records import CalibrationRecord

_LINES_AT_MOST = 16  # that are read to find a sweep


def of_an_earlier_run(run: StoredRun, size_bytes: int) -> tuple[str, CalibrationRecord] | None:
    """Return the first sweep of `size_bytes` beside a run, with the name of the run that has it.

    Runs count that were measured on the same machine and directory. Return None without one.
    """
    for file in sorted(run.folder.parent.glob(f"*/{RECORDS}")):
        sweep = _sweep_in(file)
        if sweep is None or sweep.bytes != size_bytes:
            continue
        if _is_alike(file.with_name(MANIFEST), run.manifest):
            return file.parent.name, sweep
    return None


def _sweep_in(records: Path) -> CalibrationRecord | None:
    """Return the sweep in a run's records, or None where nothing was swept.

    Only the lines of calibrations are parsed. They are near the beginning of a file that may be
    long, and a trial of another run's requests may stand before the sweep.
    """
    try:
        with records.open(encoding="utf-8", errors="replace") as lines:
            beginning = itertools.islice(lines, _LINES_AT_MOST)
            found = [parse(line) for line in beginning if '"kind":"calibration"' in line]
    except (OSError, InvalidLine):
        return None
    sweeps = [each for each in found if isinstance(each, CalibrationRecord)]
    return next((sweep for sweep in sweeps if sweep.direct and sweep.rounds), None)


def _is_alike(manifest: Path, here: Manifest) -> bool:
    try:
        there = Manifest.from_json(manifest.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        # The other run has not begun, or is of another version.
        return False
    return not comparable(there, here)
