"""Training with checkpoints and without: the blocks that are recorded, and the rows of them."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import records
from conftest import Measure, faulty, planned

from harness.analysis.columns import cell
from harness.analysis.row import Wanted
from harness.analysis.rows import rows
from harness.driver.units import group
from harness.experiments.train.rows import TrainRow
from harness.experiments.train.worker import sum_up_blocks
from harness.run.plan import PlannedCase
from harness.wire.case import Case
from harness.wire.records import Record

CASE = replace(planned().case, experiment="train", every=2)


def timed(item: PlannedCase, every: int = 2) -> PlannedCase:
    return replace(item, case=replace(item.case, experiment="train", every=every))


def row(found: list[Record], case: Case = CASE, samples: int = 1) -> TrainRow:
    (made,) = rows([Wanted(case, samples, 1)], [replace(record, case=case.id) for record in found])
    assert isinstance(made, TrainRow)
    return made


def test_overhead_is_what_a_block_takes_beyond_those_around_it() -> None:
    found = row([records.state(), records.training(), records.verified()])
    assert (found.status, found.samples, found.verified) == ("ok", 1, True)
    assert found.overhead_s is not None
    assert found.overhead_s.value == pytest.approx(0.05)
    assert found.overhead_share is not None
    assert found.overhead_share.value == pytest.approx(0.25)
    values = [
        found.stall_s,
        found.slowdown_s,
        found.back_pressure_s,
        found.unflushed_s,
        found.step_s,
    ]
    assert [value.value for value in values if value] == pytest.approx([0.05, 0.0, 0.0, 0.025, 0.1])
    assert found.stall_copies is not None
    assert found.stall_copies.value == pytest.approx(0.05 / 0.005), "in copies of the state"


def test_steps_that_are_slower_and_waits_are_told_apart() -> None:
    slow = records.training(
        block_ns=700_000_000, finished_ns=(100_000_000, 0), step_ns=(125_000_000,) * 4
    )
    found = row([records.state(), slow, records.verified()])
    values = [found.stall_s, found.slowdown_s, found.back_pressure_s]
    assert [value.value for value in values if value] == pytest.approx([0.05, 0.05, 0.05])
    assert found.overhead_s is not None
    assert found.overhead_s.value == pytest.approx(0.15)


def test_a_block_that_a_rank_has_not_reported_gives_no_number() -> None:
    two = replace(CASE, world=2, launcher="mpirun")
    assert row([records.training(), records.verified()], two).status == "skipped"
    both = [
        records.training(),
        records.training(rank=1, block_ns=600_000_000),
        records.verified(),
        records.verified(rank=1),
    ]
    found = row(both, two)
    assert found.overhead_s is not None
    assert found.overhead_s.value == pytest.approx(0.1), (
        "the longer block, because both stalled equally long"
    )


def test_the_parts_are_of_one_rank_and_add_up() -> None:
    two = replace(CASE, world=2, launcher="mpirun")
    writer = records.training(block_ns=500_000_000)
    waiter = records.training(
        rank=1,
        block_ns=500_000_001,
        save_ns=(0, 0),
        staged_ns=(0, 0),
        step_ns=(125_000_000,) * 4,
        sync_ns=0,
    )
    found = row([writer, waiter, records.verified(), records.verified(rank=1)], two)
    parts = [
        found.overhead_s,
        found.stall_s,
        found.slowdown_s,
        found.back_pressure_s,
        found.unflushed_s,
    ]
    assert [part.value for part in parts if part] == pytest.approx([0.05, 0.05, 0.0, 0.0, 0.025])
    summary = row([sum_up_blocks([writer, waiter]), records.verified(ranks=2)], two)
    assert (summary.overhead_s, summary.stall_s, summary.unflushed_s) == (
        found.overhead_s,
        found.stall_s,
        found.unflushed_s,
    )


@pytest.mark.parametrize(("every", "expected"), [(1, "step"), (4, "4 steps")])
def test_an_interval_of_one_step_is_no_plural(every: int, expected: str) -> None:
    case = timed(planned(), every=every).case
    assert cell(row([], case), "every") == expected


def test_training_may_come_out_faster_with_a_checkpoint() -> None:
    blocks = [
        records.training(index=index, block_ns=(399 + index) * 1_000_000) for index in range(3)
    ]
    found = row([*blocks, records.verified()], samples=3)
    assert found.overhead_s is not None
    assert found.overhead_s.low < 0 < found.overhead_s.high


def test_blocks_alternate_and_the_last_checkpoint_is_verified(measure: Measure) -> None:
    found = measure([timed(planned("buffered")), timed(planned("npz"))])
    assert [row.status for row in found.rows] == ["ok", "ok"], [row.reason for row in found.rows]
    assert [
        (record.checkpoints, len(record.step_ns), len(record.plain_step_ns))
        for record in found.records("training")
    ] == [(2, 4, 8)] * 6
    shares = []
    for record in found.records("training"):
        waits_ns = (
            sum(record.save_ns)
            + sum(record.staged_ns)
            + sum(record.finished_ns)
            + sum(record.step_ns)
        )
        shares.append(waits_ns / record.block_ns)
    assert max(shares) <= 1, "no part is longer than its block"
    # The best block counts, because a busy machine may take any process away between two parts.
    assert max(shares) > 0.9, "the parts make up the block"
    assert len(found.records("load")) == 2, "one load each, which proves what was written"
    assert not list(found.scratch.rglob("*"))


@pytest.mark.slow
def test_ranks_train_and_save_together(measure: Measure) -> None:
    (found,) = measure([timed(planned("buffered", world=2, launcher="mpirun"))]).rows
    assert (found.status, found.verified, found.oversubscribed) == ("ok", True, False), found.reason
    assert isinstance(found, TrainRow)
    assert found.overhead_s is not None
    assert found.stall_s is not None
    assert found.stall_s.value > 0


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("alias", "leaves differ"), ("background-error", "background"), ("raises", "Error")],
)
def test_wrong_bytes_yield_no_overhead(measure: Measure, fault: str, reason: str) -> None:
    found = measure([timed(faulty(fault)), timed(planned("buffered"))])
    bad, good = found.rows
    assert (bad.status, good.status) == ("failed", "ok")
    assert reason in bad.reason
    assert isinstance(bad, TrainRow)
    assert bad.overhead_s is None


def test_a_method_that_needs_a_process_of_its_own_has_one_for_every_interval() -> None:
    plan = [timed(planned(own_process=True), every) for every in (4, 1)] + [
        timed(planned(), every) for every in (4, 1)
    ]
    assert [len(unit.items) for unit in group(plan)] == [1, 1, 2]


def test_a_timed_checkpoint_is_loaded_too(measure: Measure) -> None:
    plan = [timed(planned()), timed(faulty("spoils-previous"))]
    honest, spoiling = measure(plan).rows
    assert (honest.status, honest.reason, honest.verified) == ("ok", "", True)
    assert spoiling.status == "failed"
    # The next save may spoil it before or after its pages were looked at.
    assert re.search("^(ChangedPages: rank-0.bin|EOFError: the file ends)", spoiling.reason)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("hard-link", ""), ("stub", "TooFewBytes: "), ("stray", "StrayFiles: ")],
)
def test_a_timed_checkpoint_is_looked_at(measure: Measure, fault: str, reason: str) -> None:
    (found,) = measure([timed(faulty(fault))]).rows
    assert found.reason.startswith(reason)
    assert found.status == ("failed" if reason else "ok")
    assert len(found.remarks) == (0 if reason else 1)
