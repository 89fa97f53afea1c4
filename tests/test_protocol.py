"""The promises of the measurement protocol. Each has a run that fails if the promise is broken."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import Measure, Measured, planned

from harness.driver import preflight
from harness.run.plan import PlannedCase
from harness.worker import storage
from harness.worker.fence import Fence


def spied(spy: str, **changes: object) -> PlannedCase:
    item = planned("buffered", **changes)
    return replace(item, case=replace(item.case, method=spy, method_path=f"tests.spies:{spy}"))


@pytest.fixture(scope="module")
def run(measure: Measure, scratch: Path) -> Measured:
    """Measure all cases in two processes, on a state that is large enough for ceilings."""
    return measure(
        [
            planned("direct", processes=2, repeats=2),
            spied("Circumstances", processes=2),
            spied("NoCollection", processes=2),
            spied("Durations", processes=2),
            spied("WeightsOnly", covers="weights", processes=2),
            spied("WeightsOnly", covers="full"),
            replace(
                planned("buffered"),
                case=replace(planned("buffered", covers="weights").case, method="understated"),
            ),
        ]
    )


def samples(run: Measured, kind: str, method: str) -> list:
    case = next(item.case.id for item in run.run.plan if item.case.method == method)
    return [record for record in run.records(kind) if record.case == case]


# 1. Its own ceiling


def test_one_sweep_a_run_finds_block_size_and_depth(run: Measured) -> None:
    calibration = run.records("calibration")[-1]
    if calibration.direct:
        assert {point.operation for point in calibration.points} == {"write", "read"}
        assert len({(point.block_bytes, point.depth) for point in calibration.points}) == 9
        best = max(point.bytes_per_s for point in calibration.points if point.operation == "write")
        chosen = next(
            point
            for point in calibration.points
            if (point.operation, point.block_bytes, point.depth)
            == ("write", calibration.write_block_bytes, calibration.write_depth)
        )
        assert chosen.bytes_per_s >= 0.95 * best


@pytest.mark.parametrize("kind", ["save", "load"])
def test_every_sample_stands_between_two_ceilings_of_its_bytes(run: Measured, kind: str) -> None:
    for record in run.records(kind):
        assert record.ceilings.bytes == record.covered_bytes > 0
        assert min(record.ceilings.before_ns, record.ceilings.after_ns) > 0
        assert record.ceilings.before_ns != record.ceilings.after_ns, (
            "two measurements never agree to the nanosecond"
        )


def test_every_save_stands_between_two_copies_of_the_state_in_memory(run: Measured) -> None:
    rates = [
        record.covered_bytes / record.memory_copy_ns
        for record in run.records("save")
        if record.memory_copy_ns
    ]
    assert len(rates) == len(run.records("save"))
    assert 0.05 < statistics.median(rates) < 500, "bytes a nanosecond"
    assert len(set(rates)) > len(rates) // 2, "each save has copies of its own"


def test_a_ceiling_is_taken_like_a_sample_after_memory_has_been_backed() -> None:
    calls: list[tuple[str, int] | tuple[str, int, int]] = []

    def noted(name: str) -> Callable[..., int]:
        return lambda size_bytes, *copies: calls.append((name, size_bytes, *copies)) or len(calls)

    ceiling = SimpleNamespace(write_ns=noted("ceiling"), storage=SimpleNamespace(direct=True))
    fence = Fence(
        SimpleNamespace(
            settle=noted("settled"), ceiling=ceiling, world=SimpleNamespace(maximum=int)
        ),
        "write",
    )
    before_ns = fence.before(100)
    fence.after(100, before_ns)
    assert fence.before(100) == 4, "the ceiling after the last sample serves while it is recent"
    assert calls == [("settled", 100, 0), ("ceiling", 100)] * 2, "direct transfers need no copies"


def test_ceilings_and_samples_alternate(run: Measured) -> None:
    in_order = [record for record in run.records("load") if record.process == 0]
    pairs = [
        (a, b)
        for a, b in zip(in_order, in_order[1:], strict=False)
        if a.covered_bytes == b.covered_bytes
    ]
    shared = sum(a.ceilings.after_ns == b.ceilings.before_ns for a, b in pairs)
    assert shared >= len(pairs) // 2, "a ceiling must stand between two samples and serve both"


def test_a_sample_is_tagged_disturbed_when_its_ceilings_differ_by_more_than_a_tenth(
    run: Measured,
) -> None:
    for record in run.records("save") + run.records("load"):
        mean = 0.5 * (record.ceilings.before_ns + record.ceilings.after_ns)
        assert record.disturbed == (
            abs(record.ceilings.before_ns - record.ceilings.after_ns) > 0.10 * mean
        )


def test_disturbed_samples_are_repeated_within_the_limit_and_all_are_stored(run: Measured) -> None:
    for process in (0, 1):
        for kind in ("save", "load"):
            taken = [
                r for r in samples(run, kind, "direct") if r.process == process and not r.warmup
            ]
            disturbed = sum(record.disturbed for record in taken)
            assert len(taken) == 2 + min(disturbed, 2)


# 2. Loads are real


def test_no_process_loads_what_it_has_saved(run: Measured) -> None:
    workers = {record.job: record.pid for record in run.records("worker")}
    assert len(set(workers.values())) == len(workers), "every job is a process of its own"
    assert run.row("Circumstances").reason == ""


def test_loads_are_cold_and_prove_it(run: Measured, scratch: Path) -> None:
    if preflight.direct_io(scratch):
        pytest.skip("this file system has no device to be cold on")
    for record in samples(run, "load", "direct"):
        assert record.cache == "cold"
        assert record.resident_fraction <= 0.001
        assert record.usage.read_bytes >= 0.99 * record.file_bytes


# 3. Wrong bytes yield no number


def test_a_method_that_restores_less_than_it_declares_fails(run: Measured) -> None:
    row = next(row for row in run.rows if row.method == "WeightsOnly" and row.covers == "full")
    assert row.status == "failed"
    assert "differ from the saved state: optimizer/" in row.reason
    assert row.durable_s is row.load_s is None


def test_a_method_that_restores_more_than_it_declares_fails(run: Measured) -> None:
    assert run.row("understated").status == "failed"
    assert "declares 'weights' but restored more: optimizer/" in run.row("understated").reason


def test_a_method_that_says_what_it_covers_is_measured(run: Measured) -> None:
    row = next(row for row in run.rows if row.method == "WeightsOnly" and row.covers == "weights")
    assert (row.status, row.verified) == ("ok", True)
    assert row.covered_bytes is not None
    assert row.state_bytes is not None
    assert row.covered_bytes < row.state_bytes


def test_a_leaf_that_no_training_moves_is_verified_too(measure: Measure) -> None:
    framework = "tests.spies:StandingLeaf"
    run = measure(
        [
            planned("buffered", framework_path=framework),
            spied("WithoutStandingLeaf", framework_path=framework),
        ]
    )
    assert (run.row("buffered").status, run.row("buffered").verified) == ("ok", True)
    assert run.row("WithoutStandingLeaf").reason.endswith(
        "differ from the saved state: optimizer/momentum/classifier.bias"
    )


# 4. Nothing else in the clock


def test_the_parent_is_empty_and_the_collector_off(run: Measured) -> None:
    assert run.row("Circumstances").reason == ""
    assert run.row("NoCollection").reason == ""


def test_the_disk_was_watched_before_every_sample(run: Measured, scratch: Path) -> None:
    if storage.wait_until_quiet(scratch) is None:
        pytest.skip("this file system has no device that tells what it does")
    assert all(
        record.quiet in (True, False) for record in run.records("save") + run.records("load")
    )


def test_phases_are_told_apart(run: Measured) -> None:
    saves = samples(run, "save", "Durations")
    # The shortest counts, because a busy machine makes any of them longer.
    assert 30e6 <= min(record.save_ns for record in saves) < 59e6
    assert 60e6 <= min(record.staged_ns for record in saves) < 89e6
    assert 90e6 <= min(record.finished_ns for record in saves) < 119e6
    row = run.row("Durations")
    assert row.stall_s is not None
    assert row.durable_s is not None
    assert row.stall_s.value >= 0.090, "stall is save and staged"
    assert row.durable_s.value >= 0.180, "durable is all four"
    assert row.load_s is not None
    assert row.load_s.value >= 0.120
    assert row.open_s is not None
    assert row.open_s.value >= 0.020
    opened = samples(run, "opened", "Durations")
    assert min(record.open_ns for record in opened) < 90e6
    assert [record.process for record in opened] == [0, 1], "once in each process that saves"


def test_memory_backing_is_shown_for_every_sample(run: Measured) -> None:
    for record in run.records("save") + run.records("load"):
        if record.backing.state != "physical":
            assert record.backing.touched_bytes >= record.covered_bytes
            assert record.backing.bytes_per_s > 0
            assert record.backing.state in ("backed", "unknown")


def test_the_harness_own_cost_is_measured_with_an_empty_method(run: Measured) -> None:
    for record in run.records("overhead"):
        assert len(record.empty_save_ns) >= 10
        assert statistics.median(record.empty_save_ns) < 100_000, (
            "an empty method must cost at most 100 microseconds"
        )
        assert 0 < record.harness_peak_bytes <= 256 << 20


# 5. Samples, not averages


def test_raw_samples_are_stored_with_their_process_and_warm_ups_flagged(run: Measured) -> None:
    taken = samples(run, "save", "Durations")
    assert {record.process for record in taken} == {0, 1}
    for process in (0, 1):
        flags = [record.warmup for record in taken if record.process == process]
        assert flags == [True, False, False]
    assert len({(record.process, record.rank, record.index) for record in taken}) == len(taken)


# 6 and 7 are the analysis's: test_statistics.py, and test_session.py for runs that may not be
# pooled.


def test_a_case_that_is_not_to_be_traced_is_not(measure: Measure) -> None:
    found = measure([planned("buffered", traced=False)])
    assert found.records("syscalls") == []
    assert (found.rows[0].status, found.rows[0].durability) == ("ok", "unknown")
