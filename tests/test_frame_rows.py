"""Rows derive from the records that count, over all ranks and processes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import records
from derived_rows import MS, ONE, TWO, case, measured_to_the_end, row, saves_of, value

from harness.analysis.records import RunRecords
from harness.analysis.row import Wanted
from harness.analysis.rows import rows
from harness.experiments.cost.rows import CostRow as Row
from harness.experiments.cost.samples import SAVES
from harness.wire.records import Backing, Record, Usage


def test_a_case_measured_to_the_end_is_a_row_with_everything() -> None:
    found = row(ONE, measured_to_the_end(), default=True)
    assert (found.status, found.reason, found.phase, found.verified, found.default) == (
        "ok",
        "",
        "",
        True,
        True,
    )
    assert (found.framework, found.method, found.workload, found.world) == (
        "raw",
        "buffered",
        "resnet50",
        1,
    )
    assert (found.samples, found.load_samples, found.processes, found.disturbed) == (2, 2, 1, 0)
    assert (found.state_bytes, found.covered_bytes, found.file_bytes, found.files) == (
        1000,
        1000,
        1100,
        2,
    )
    assert value(found.stall_s) == pytest.approx(0.2), "save and staged"
    assert value(found.stall_copies) == pytest.approx(0.2 / 0.005)
    assert value(found.finished_s) == pytest.approx(0.3)
    assert value(found.durable_s) == pytest.approx(0.4), "all four phases"
    assert value(found.load_s) == pytest.approx(0.2)
    assert (found.load_cache, found.backing, found.ceiling_direct) == ("cold", "backed", True)
    assert (found.durability, found.writes, found.fsyncs, found.renames) == ("at return", 4, 2, 1)
    assert (found.memory_copy_s, found.device_copy_s) == (0.005, None)
    assert found.peak_memory_bytes == 8 << 20


def test_opening_takes_as_long_as_in_the_middle_process_when_that_was_last_begun() -> None:
    taken_ns = [(0, 900 * MS), (0, 30 * MS), (1, 90 * MS), (2, 1 * MS)]
    opened = [records.opened(ONE.id, process=process, open_ns=ns) for process, ns in taken_ns]
    assert value(row(ONE, [*measured_to_the_end(), *opened]).open_s) == pytest.approx(0.030)


def test_a_run_that_did_not_say_how_long_opening_took_has_none() -> None:
    found = [record for record in measured_to_the_end() if record.kind != "opened"]
    assert row(ONE, found).open_s is None


def test_a_stall_is_held_against_the_copies_beside_it() -> None:
    copies = [10 * MS, 40 * MS, 50 * MS]
    found = [
        replace(record, memory_copy_ns=copies[record.index]) if record.kind == "save" else record
        for record in [records.state(ONE.id), *saves_of([20, 60, 50])]
    ]
    assert value(row(ONE, found).stall_copies) == pytest.approx(1.5), "the middle of 2, 1.5 and 1"


def test_a_stall_without_a_measured_copy_is_no_multiple_of_one() -> None:
    found = row(ONE, [found for found in measured_to_the_end() if found.kind != "state"])
    assert (found.stall_copies, found.memory_copy_s) == (None, None)
    assert value(found.stall_s) == pytest.approx(0.2)


def test_rows_stand_in_the_order_of_the_plan() -> None:
    others = [case(dropout=rate) for rate in (0.3, 0.2, 0.1)]
    found = rows(
        [Wanted(of, 2, 1) for of in others],
        [r for of in reversed(others) for r in measured_to_the_end(of)],
    )
    assert [one.status for one in found] == ["ok"] * 3
    assert rows([], []) == []


# Several ranks


def two_ranks(**of_rank_1: Any) -> list[Record]:
    return [records.save(TWO.id), records.save(TWO.id, rank=1, **of_rank_1)]


def test_a_sample_of_two_ranks_takes_the_last_ones_time_and_then_the_flush() -> None:
    found = row(TWO, two_ranks(save_ns=500 * MS, staged_ns=0, finished_ns=0, sync_ns=0), samples=1)
    assert found.samples == 1
    assert value(found.stall_s) == pytest.approx(0.5), "rank 1 blocked longer"
    assert value(found.finished_s) == pytest.approx(0.5), "rank 0 had finished by 0.3"
    assert value(found.durable_s) == pytest.approx(0.6), "rank 0 flushed for both, after both"


def test_no_ranks_time_is_added_to_anothers() -> None:
    found = row(TWO, two_ranks(save_ns=0, staged_ns=0, finished_ns=250 * MS), samples=1)
    assert value(found.stall_s) == pytest.approx(0.2)
    assert value(found.finished_s) == pytest.approx(0.3)


def test_the_last_rank_to_load_gives_the_time_and_the_worst_cache() -> None:
    loads = [
        records.load(TWO.id, load_ns=100 * MS),
        records.load(TWO.id, rank=1, load_ns=300 * MS, cache="warm"),
    ]
    found = row(TWO, [*two_ranks(), *loads], samples=1)
    assert (found.load_samples, found.load_cache) == (1, "warm")
    assert value(found.load_s) == pytest.approx(0.3)


def test_what_disturbs_one_rank_disturbs_the_sample() -> None:
    found = row(TWO, two_ranks(disturbed=True, backing=Backing("unknown", 0, 0.0, 3)), samples=1)
    assert (found.disturbed, found.backing) == (1, "unknown")


def test_a_ceiling_that_one_rank_took_through_the_page_cache_is_not_direct() -> None:
    assert (
        row(TWO, two_ranks(ceilings=records.ceilings(direct=False)), samples=1).ceiling_direct
        is False
    )


def test_the_hungriest_rank_gives_the_peak_with_its_children() -> None:
    hungry = Usage(0, 20, 30, 0, 0, 0, 0, 0)
    assert row(TWO, two_ranks(usage=hungry), samples=1).peak_memory_bytes == 8 << 20
    assert (
        row(TWO, two_ranks(usage=Usage(0, 8 << 20, 30, 0, 0, 0, 0, 0)), samples=1).peak_memory_bytes
        == (8 << 20) + 30
    )


def test_a_sample_that_lacks_a_rank_is_left_out() -> None:
    slow = records.save(TWO.id, rank=0, index=1, save_ns=9000 * MS)
    found = row(TWO, [*two_ranks(), slow], samples=1)
    assert found.samples == 1
    assert value(found.durable_s) == pytest.approx(0.4)


def test_one_rank_that_reports_twice_makes_no_sample() -> None:
    found = row(TWO, [records.save(TWO.id), records.save(TWO.id)])
    assert (found.status, found.samples, found.durable_s) == ("skipped", 0, None)


def test_a_case_whose_samples_all_lack_a_rank_has_no_number() -> None:
    found = row(TWO, [records.save(TWO.id), records.load(TWO.id), records.verified(TWO.id)])
    assert (found.status, found.durable_s, found.load_s) == ("skipped", None, None)


def test_it_takes_every_ranks_word_to_be_verified() -> None:
    loads = [records.load(TWO.id), records.load(TWO.id, rank=1)]
    one = [*two_ranks(), *loads, records.verified(TWO.id), records.verified(TWO.id)]
    assert not row(TWO, one, samples=1).verified
    assert row(TWO, [*one, records.verified(TWO.id, rank=1)], samples=1).verified


def test_it_takes_every_process_to_be_verified() -> None:
    one = measured_to_the_end()
    assert not row(ONE, one, processes=2).verified
    assert row(ONE, [*one, records.verified(ONE.id, process=1)], processes=2).verified


def test_records_of_cases_outside_the_plan_are_left_alone() -> None:
    found = RunRecords([*measured_to_the_end(), records.save("ffffffffffff")], {ONE.id: 1})
    assert set(found.samples(SAVES, Row)["case"]) == {ONE.id}


# Which samples count


def test_warmups_never_count() -> None:
    warm = saves_of([100, 110])
    warmups = saves_of([9000, 9000, 9000], first=2, warmup=True)
    found = row(
        ONE,
        [
            *warmups,
            *warm,
            records.load(ONE.id),
            records.load(ONE.id, index=1, load_ns=1, warmup=True),
        ],
    )
    assert (found.samples, found.load_samples) == (2, 1)
    assert value(found.durable_s) == pytest.approx(0.105)
    assert value(found.load_s) == pytest.approx(0.2)


def test_warmups_alone_are_no_measurement() -> None:
    found = row(ONE, [*saves_of([100], warmup=True), records.load(ONE.id, warmup=True)])
    assert (found.status, found.samples, found.durable_s, found.load_s) == (
        "skipped",
        0,
        None,
        None,
    )


def test_undisturbed_samples_are_preferred() -> None:
    found = row(
        ONE, [*saves_of([100, 110, 120]), *saves_of([900] * 4, first=3, disturbed=True)], samples=6
    )
    assert (found.samples, found.disturbed, found.used_disturbed) == (3, 4, 0)
    assert value(found.durable_s) == pytest.approx(0.110)


def test_all_samples_count_where_fewer_than_half_of_those_wanted_are_undisturbed() -> None:
    found = row(
        ONE, [*saves_of([100, 110]), *saves_of([900] * 4, first=2, disturbed=True)], samples=6
    )
    assert (found.samples, found.disturbed, found.used_disturbed) == (6, 4, 4)
    assert value(found.durable_s) == pytest.approx(0.9)


def test_a_disturbed_warmup_is_not_counted_as_disturbed() -> None:
    found = row(
        ONE, [*saves_of([100]), *saves_of([100], first=1, warmup=True, disturbed=True)], samples=1
    )
    assert (found.samples, found.disturbed) == (1, 0)


def test_loads_are_chosen_by_their_own_disturbance() -> None:
    disturbed = [records.load(ONE.id, index=index, disturbed=True, load_ns=MS) for index in (2, 3)]
    found = row(
        ONE,
        [*saves_of([100, 110]), records.load(ONE.id), records.load(ONE.id, index=1), *disturbed],
    )
    assert (found.samples, found.load_samples, value(found.load_s)) == (2, 2, 0.2)


def test_a_process_without_undisturbed_samples_is_not_left_out() -> None:
    """Else the interval would lack the spread between processes."""
    found = row(
        ONE,
        [
            *saves_of([100, 102]),
            *saves_of([900], first=2, disturbed=True),
            *saves_of([110], process=1),
            *saves_of([1], process=2, disturbed=True),
        ],
        samples=4,
    )
    # That of 900 ms does not count, because its process has others.
    assert (found.samples, found.processes, found.used_disturbed) == (4, 3, 1)
    assert value(found.durable_s) == pytest.approx(0.101)
