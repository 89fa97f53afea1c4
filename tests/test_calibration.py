"""Runs of one results folder share the sweep for their ceilings, where they are alike."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import records
from conftest import Measure, planned

from harness.driver import calibration, machine
from harness.run import store
from harness.run.errors import UsageError
from harness.wire.records import CalibrationRecord, to_line

SIZE_BYTES = 16 << 20
SWEEP = next(record for record in records.one_of_each() if isinstance(record, CalibrationRecord))
SWEEP = replace(SWEEP, bytes=SIZE_BYTES, rounds=7)

Make = Callable[..., store.Run]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a function that makes a run in the results folder, with sweeps.

    A run that has begun has the manifest of this machine, with changes.
    """

    def made(*sweeps: CalibrationRecord, begun: bool = True, **changes: object) -> store.Run:
        here = replace(machine.capture(tmp_path), **changes) if begun else None
        run = store.create(tmp_path / "results", "test", ["pytest"], [planned()], here)
        for sweep in sweeps:
            run.append(sweep)
        run.close()
        return run

    return made


def test_the_newest_sweep_of_alike_runs_comes_first(make: Make) -> None:
    """A disk that was slow for the first run may be fast for good by now."""
    make(replace(SWEEP, bytes=2 * SIZE_BYTES))
    slow, fast = replace(SWEEP, write_depth=4), replace(SWEEP, write_depth=1)
    first, second, third = make(slow), make(fast), make(fast)
    found = calibration.earlier_sweeps(make(), SIZE_BYTES)
    assert list(found.items()) == [(fast, third.name), (slow, first.name)]
    assert second.name < third.name


@pytest.mark.parametrize(
    "unlike",
    [
        lambda make: make(replace(SWEEP, bytes=2 * SIZE_BYTES)),
        lambda make: make(replace(SWEEP, rounds=0)),
        lambda make: make(replace(SWEEP, direct=False, reason="no direct I/O there")),
        lambda make: make(SWEEP, begun=False),
        lambda make: make(SWEEP, kernel="another one"),
        lambda make: make(),
        lambda make: (make(SWEEP).folder / "manifest.json").write_text("{"),
        lambda make: (make(SWEEP).folder / "records.jsonl").write_text('{"kind":"calibration"'),
    ],
    ids=[
        "size",
        "best of few tries",
        "page cache",
        "not begun",
        "kernel",
        "no sweep",
        "damaged manifest",
        "damaged record",
    ],
)
def test_no_sweep_of_an_unlike_run_is_taken(make: Make, unlike: Callable[[Make], object]) -> None:
    unlike(make)
    assert calibration.earlier_sweeps(make(), SIZE_BYTES) == {}


def test_the_second_run_of_a_folder_does_not_sweep(
    measure: Measure, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Others use the disk too, so that it may be another within seconds.
    monkeypatch.setattr(calibration, "_UNLIKE_ABOVE", 1000.0)
    first, second = (
        measure([planned("buffered", samples=1, warmups=0)], results=tmp_path) for _ in range(2)
    )
    if not first.records("calibration")[0].direct:
        pytest.skip("the directory takes no direct I/O, so that nothing is swept")
    trial, taken = second.records("calibration")
    assert [taken] == first.records("calibration")
    assert trial.rounds == 0
    assert any("calibrating" in message for message in first.messages)
    assert not any("calibrating" in message for message in second.messages)
    assert f"ceilings use the same requests as run {first.run.name}" in second.messages


@pytest.mark.parametrize("times", [0.01, 100])
def test_a_sweep_of_a_disk_that_was_another_is_not_taken(
    measure: Measure, tmp_path: Path, times: float
) -> None:
    plan = [planned("buffered", samples=1, warmups=0)]
    first = measure(plan, results=tmp_path)
    if not first.records("calibration")[0].direct:
        pytest.skip("the directory takes no direct I/O, so that nothing is swept")
    file = first.run.folder / "records.jsonl"
    swept = first.records("calibration")[0]
    points = [replace(point, bytes_per_s=times * point.bytes_per_s) for point in swept.points]
    changed = to_line(replace(swept, points=tuple(points)))
    file.write_text(file.read_text().replace(to_line(swept), changed))
    second = measure(plan, results=tmp_path)
    said = [text for text in second.messages if "so its requests are not taken over" in text]
    assert re.fullmatch(
        rf"raw writes are \S+ times as fast here as in run {first.run.name}, so .*", said[0]
    )
    assert second.records("calibration")[-1].rounds == swept.rounds
    # The next run tries the newer sweep first, and takes it unless the disk changes again.
    third = measure(plan, results=tmp_path)
    assert f"ceilings use the same requests as run {second.run.name}" in third.messages or any(
        f"as in run {second.run.name}, so its requests are not taken over" in text
        for text in third.messages
    )


def test_a_sweep_without_a_record_names_the_log() -> None:
    run: Any = SimpleNamespace(plan=[planned()], records=[])
    ledger: Any = SimpleNamespace(run=run, announce=lambda text: None)
    runner: Any = SimpleNamespace(
        scratch=Path("scratch"),
        name=lambda *_: "001-calibrate-0",
        run=lambda *_: SimpleNamespace(reason=""),
    )
    with pytest.raises(UsageError, match=r"no valid record; see logs/001-calibrate-0\.log"):
        calibration._tried(ledger, runner, SIZE_BYTES, None)


def test_a_trial_that_nobody_judged_is_no_calibration(measure: Measure, tmp_path: Path) -> None:
    plan = [planned("buffered", samples=1, warmups=0)]
    (swept,) = measure(plan, results=tmp_path / "swept").records("calibration")
    if not swept.direct:
        pytest.skip("the directory takes no direct I/O, so that nothing is swept")
    # The driver of this run ended just after the trial.
    trial = replace(swept, rounds=0, points=swept.points[:2], write_depth=99)
    found = measure(plan, results=tmp_path / "interrupted", before=[trial])
    assert found.records("calibration")[0] == trial
    assert found.records("calibration")[-1].rounds == swept.rounds
