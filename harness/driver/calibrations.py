"""How a directory takes direct I/O is found out once: ceilings of other requests are of other speeds, and compare nothing."""

from __future__ import annotations

import json
from pathlib import Path

from harness.run.manifest import Manifest, comparable
from harness.run.reading import InvalidLine, parse
from harness.run.stored import MANIFEST, RECORDS, StoredRun
from harness.wire.records import CalibrationRecord


def of_an_earlier_run(run: StoredRun, size_bytes: int) -> tuple[str, CalibrationRecord] | None:
    """Return the first sweep of so many bytes among a run's neighbours that were measured alike, and that neighbour's name."""
    for file in sorted(run.folder.parent.glob(f"*/{RECORDS}")):
        found = _sweep_in(file)
        if (
            found is not None
            and found.bytes == size_bytes
            and _is_alike(file.with_name(MANIFEST), run.manifest)
        ):
            return file.parent.name, found
    return None


def _sweep_in(records: Path) -> CalibrationRecord | None:
    """Return a run's sweep, which stands near the beginning of its records; None where nothing was swept."""
    try:
        with records.open(errors="replace") as lines:
            line = next((line for line in lines if '"kind":"calibration"' in line), "")
        found = parse(line)
    except (OSError, InvalidLine):
        return None
    return found if isinstance(found, CalibrationRecord) and found.direct and found.rounds else None


def _is_alike(manifest: Path, here: Manifest) -> bool:
    try:
        return not comparable(Manifest.from_json(json.loads(manifest.read_text())), here)
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
    ):  # of a run that has not begun, or of another version
        return False
