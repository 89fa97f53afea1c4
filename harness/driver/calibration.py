"""Finds out once per run by which requests the scratch directory is written and read fastest.

The runs of one results folder share the sweep that found them, because ceilings of unlike requests
cannot be compared.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.driver import preflight
from harness.driver.jobs import JobRunner
from harness.driver.ledger import Ledger
from harness.driver.units import CALIBRATION_BYTES_AT_MOST, state_bytes
from harness.run.errors import UsageError
from harness.run.manifest import Manifest, differences
from harness.run.plan import PlannedCase
from harness.run.reading import InvalidLine, parse
from harness.run.stored import MANIFEST, RECORDS, StoredRun
from harness.wire.case import CALIBRATE, Job, Storage
from harness.wire.records import CalibrationRecord

_CALIBRATION_BYTES_AT_LEAST = 16 << 20
# The rates of one disk vary by less, even where others use it too.
_UNLIKE_ABOVE = 2.0
_TRIED_AT_MOST = 2  # sweeps of earlier runs, because a trial takes a part of a sweep's time
_LINES_AT_MOST = 16  # that are read to find a sweep


def calibrated(ledger: Ledger, runner: JobRunner, not_direct: str | None) -> Storage:
    """Return the requests as the run has them, or an earlier run beside it, or a new sweep.

    `not_direct` says why the directory takes no direct I/O; None where it does. Raises UsageError
    where the sweep fails.
    """
    record = _stored(ledger)
    if record is None or _is_trial(record):
        # A run that was interrupted after a trial has not judged it.
        size_bytes = _calibration_bytes(ledger.run.plan)
        record = _taken_over(ledger, runner, size_bytes, not_direct)
        record = record or _tried(ledger, runner, size_bytes, not_direct)
    requests = _requests(record)
    if preflight.compresses(runner.scratch):
        # Fewer bytes are read from the device than the files have, and nobody knows how many fewer.
        return replace(requests, counts_device_reads=False)
    return requests


def _requests(record: CalibrationRecord) -> Storage:
    return Storage(
        direct=record.direct,
        write_block_bytes=record.write_block_bytes,
        write_depth=record.write_depth,
        read_block_bytes=record.read_block_bytes,
        read_depth=record.read_depth,
        counts_device_reads=record.counts_device_reads,
    )


def _stored(ledger: Ledger) -> CalibrationRecord | None:
    """Return the newest calibration of the run, because an older one may be only a trial."""
    records = reversed(ledger.run.records)
    return next((record for record in records if isinstance(record, CalibrationRecord)), None)


def _taken_over(
    ledger: Ledger, runner: JobRunner, size_bytes: int, not_direct: str | None
) -> CalibrationRecord | None:
    """Return a sweep of an earlier run beside this one, if the disk is still as fast as in it."""
    if not_direct:
        return None
    earlier = earlier_sweeps(ledger.run, size_bytes)
    for swept, name in itertools.islice(earlier.items(), _TRIED_AT_MOST):
        tried = _tried(ledger, runner, size_bytes, not_direct, taken=_requests(swept))
        unlike = _unlike(swept, tried)
        if not unlike:
            ledger.add(swept)
            ledger.announce(f"ceilings use the same requests as run {name}")
            return swept
        ledger.announce(f"{unlike} as in run {name}, so its requests are not taken over")
    return None


def earlier_sweeps(run: StoredRun, size_bytes: int) -> dict[CalibrationRecord, str]:
    """Return the different sweeps of `size_bytes` beside a run, each with the newest run of it.

    The newest sweep comes first, because the disk may have been another before. Runs count that
    were measured on the same machine and directory.
    """
    found: dict[CalibrationRecord, str] = {}
    for file in sorted(run.folder.parent.glob(f"*/{RECORDS}"), reverse=True):
        sweep = _sweep_in(file)
        if sweep is None or sweep.bytes != size_bytes:
            continue
        if _is_alike(file.with_name(MANIFEST), run.manifest):
            found.setdefault(sweep, file.parent.name)
    return found


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
    return not differences(there, here)


def _is_trial(record: CalibrationRecord) -> bool:
    """Return whether a record only tried the requests of another run, one to write and to read."""
    return record.direct and record.rounds == 0 and len(record.points) <= 2


def _unlike(swept: CalibrationRecord, tried: CalibrationRecord) -> str:
    """Return how the disk differs from an earlier sweep, empty where it does not matter."""
    rates = {(point.operation, point.block_bytes, point.depth): point for point in swept.points}
    for point in tried.points:
        before = rates.get((point.operation, point.block_bytes, point.depth))
        if before is None:
            return f"the {point.operation}s of the sweep are not stored, and may not be as fast"
        times = point.bytes_per_s / before.bytes_per_s
        if not 1 / _UNLIKE_ABOVE <= times <= _UNLIKE_ABOVE:
            return f"raw {point.operation}s are {times:.2g} times as fast here"
    return ""


def _tried(
    ledger: Ledger,
    runner: JobRunner,
    size_bytes: int,
    not_direct: str | None,
    taken: Storage | None = None,
) -> CalibrationRecord:
    """Have a worker sweep the scratch directory, or try requests that were `taken`."""
    doing = "trying the requests of an earlier run" if taken else "calibrating"
    ledger.announce(f"{doing}: how fast this directory takes direct writes and reads")
    job = Job(
        name=runner.name(CALIBRATE, 0),
        role=CALIBRATE,
        process=0,
        scratch=str(runner.scratch),
        storage=taken,
        calibration_bytes=size_bytes,
        not_direct=not_direct,
    )
    before = _stored(ledger)
    ending = runner.run(job, ledger.run.plan[0].case)
    record = _stored(ledger)
    if record is None or record is before:
        reason = ending.reason or f"its worker wrote no valid record; see logs/{job.name}.log"
        raise UsageError(f"the scratch directory could not be calibrated: {reason}")
    return record


def _calibration_bytes(plan: Sequence[PlannedCase]) -> int:
    """Return how much to sweep with: about the largest state, in few sizes.

    Few sizes let runs of like states share a sweep.
    """
    largest_bytes = max(state_bytes(item.case) for item in plan)
    power_of_two = 1 << (largest_bytes - 1).bit_length()
    return min(max(power_of_two, _CALIBRATION_BYTES_AT_LEAST), CALIBRATION_BYTES_AT_MOST)
