"""Cases of several ranks: loads by another number of them, one record for many, the writers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import records
from conftest import Measure, faulty, planned

from harness.analysis.row import Wanted
from harness.analysis.rows import rows
from harness.experiments.cost.rows import CostRow
from harness.experiments.cost.worker import sum_up_saves
from harness.experiments.reshard.rows import ReshardRow
from harness.experiments.resume.rows import ResumeRow
from harness.run.plan import PlannedCase
from harness.run.store import Settings
from harness.wire.records import Backing, CacheState, FileEntry
from harness.worker.loading import sum_up_loads

pytestmark = pytest.mark.slow

HUNG_S = 20  # longer than two ranks need to start beside other tests

CACHES: tuple[CacheState, ...] = ("cold", "warm", "cold")
TWO = replace(planned().case, world=2, launcher="mpirun")


def resharded(item: PlannedCase, load_world: int, **changes: object) -> PlannedCase:
    case = replace(
        item.case, experiment="reshard", world=2, launcher="mpirun", load_world=load_world
    )
    return replace(item, case=case, samples=1, warmups=0, **changes)


def test_a_case_that_cannot_be_measured_gets_its_row_at_once(measure: Measure) -> None:
    found = measure(
        [resharded(planned("buffered"), 1, unsupported="for two ranks alone"), planned("buffered")]
    )
    bad, good = found.rows
    assert (bad.status, bad.reason, good.status) == ("unsupported", "for two ranks alone", "ok")


def test_memory_is_as_certain_as_on_the_rank_with_the_least_evidence() -> None:
    unknown = Backing("unknown", touched_bytes=0, bytes_per_s=0.0, tries=3)
    saves = [records.save(), records.save(rank=1, backing=unknown)]
    assert sum_up_saves(saves).backing == unknown
    assert sum_up_saves(saves[::-1]).backing == unknown


def test_one_record_speaks_for_all_ranks() -> None:
    saves = [
        records.save(rank=rank, finished_ns=100_000_000 * (1 + rank), disturbed=rank == 1)
        for rank in range(5)
    ]
    record = sum_up_saves(saves)
    assert (record.rank, record.finished_ns, record.disturbed) == (0, 500_000_000, True), (
        "the times of the slowest rank"
    )
    assert record.spread is not None
    assert (record.spread.ranks, record.spread.duration_ns.slowest_rank) == (5, 4)
    assert record.spread.duration_ns.percentiles[0] == 300_000_000
    assert record.spread.duration_ns.percentiles[-1] == 700_000_000
    many = tuple(FileEntry(str(number), number) for number in range(100))
    sharded = sum_up_saves([records.save(files=many), records.save(rank=1)])
    assert (len(sharded.files), sharded.files[0].bytes, sharded.file_count) == (16, 99, 100), (
        "the largest files, and the number of all"
    )
    loaded = sum_up_loads(
        [
            records.load(rank=rank, load_ns=1000 - rank, cache=cache)
            for rank, cache in enumerate(CACHES)
        ]
    )
    assert (loaded.load_ns, loaded.cache) == (1000, "warm"), "one rank's load was not cold"


def test_the_one_record_has_the_worst_of_any_rank() -> None:
    busy = replace(records.USAGE, peak_rss_bytes=1 << 40)
    stalls_long = records.save(save_ns=900_000_000, finished_ns=0)
    ends_last = records.save(rank=1, finished_ns=2_000_000_000, usage=busy, device_extra_bytes=7)
    record = sum_up_saves([stalls_long, ends_last])
    assert (record.save_ns, record.staged_ns) == (900_000_000, stalls_long.staged_ns)
    durable_ns = ends_last.save_ns + ends_last.staged_ns + ends_last.finished_ns
    assert record.save_ns + record.staged_ns + record.finished_ns == durable_ns
    assert (record.usage.peak_rss_bytes, record.device_extra_bytes) == (1 << 40, 7)


def test_values_that_are_added_up_are_those_of_one_rank() -> None:
    first = replace(records.USAGE, cpu_user_ns=20, cpu_system_ns=1, peak_rss_bytes=9)
    second = replace(records.USAGE, cpu_user_ns=1, cpu_system_ns=18, children_peak_bytes=8)
    record = sum_up_saves([records.save(usage=first), records.save(rank=1, usage=second)])
    assert (record.usage.cpu_user_ns, record.usage.cpu_system_ns) == (20, 1)


def test_a_table_reads_the_one_record_as_all_ranks() -> None:
    case = replace(TWO, world=5)
    copies_ns = (10_000_000, 20_000_000, 50_000_000, 40_000_000, 900_000_000)
    saves = [
        records.save(
            case.id, rank=rank, finished_ns=100_000_000 * (1 + rank), memory_copy_ns=copy_ns
        )
        for rank, copy_ns in enumerate(copies_ns)
    ]
    loads = [records.load(case.id, rank=rank) for rank in range(5)]
    verified = [records.verified(case.id, rank=rank) for rank in range(5)]
    (every,) = rows([Wanted(case, 1, 1)], [*saves, *loads, *verified])
    (summary,) = rows([Wanted(case, 1, 1)], [sum_up_saves(saves), sum_up_loads(loads), *verified])
    assert isinstance(every, CostRow)
    assert isinstance(summary, CostRow)
    assert every.durable_s == summary.durable_s
    assert every.stall_copies == summary.stall_copies
    assert every.stall_copies is not None
    assert every.stall_copies.value == pytest.approx(0.2 / 0.04), (
        "the median over the ranks, so one disturbed copy does not count"
    )
    assert every.straggler == pytest.approx(summary.straggler) == pytest.approx(0.7 / 0.5)
    assert (every.writers, summary.writers) == (5, None), (
        "only the ranks' own records say how many ranks wrote"
    )


def test_who_wrote_the_bytes_is_told() -> None:
    idle = replace(records.USAGE, written_bytes=4096)
    pair = [records.save(TWO.id), records.save(TWO.id, rank=1, usage=idle, save_ns=0, staged_ns=0)]
    loads = [records.load(TWO.id), records.load(TWO.id, rank=1)]
    (row,) = rows([Wanted(TWO, 1, 1)], [*pair, *loads])
    assert isinstance(row, CostRow)
    assert row.writers == 1
    assert row.largest_share == pytest.approx(1.0, abs=0.01)
    assert row.straggler == pytest.approx(0.3 / 0.2)


def test_ranks_write_one_record_where_there_are_many(measure: Measure) -> None:
    found = measure(
        [planned("buffered", world=2, launcher="mpirun")], settings=Settings(summary_above=1)
    )
    saves = found.records("save")
    assert saves
    assert all(record.rank == 0 and record.spread and record.spread.ranks == 2 for record in saves)
    assert {getattr(record, "rank", 0) for record in found.run.records} == {0}, (
        "the other ranks write nothing"
    )
    assert {record.ranks for record in found.records("verified")} == {2}
    assert found.rows[0].verified
    assert found.rows[0].status == "ok"


@pytest.mark.parametrize("summary_above", [1, 64])
def test_opening_takes_as_long_as_on_its_slowest_rank(measure: Measure, summary_above: int) -> None:
    item = planned("buffered", world=2, launcher="mpirun")
    late = replace(
        item.case, method="LastRankOpensLate", method_path="tests.spies:LastRankOpensLate"
    )
    found = measure([replace(item, case=late)], settings=Settings(summary_above=summary_above))
    opened = found.records("opened")
    assert [record.rank for record in sorted(opened, key=lambda record: record.rank)] == (
        [0] if summary_above == 1 else [0, 1]
    )
    assert len({record.open_ns for record in opened}) == 1
    assert 0.300 <= found.row("LastRankOpensLate").open_s.value < 1.0


def test_many_ranks_resume_and_the_one_that_diverged_is_named(measure: Measure) -> None:
    one_loses_it, good = (
        faulty("no-rng", world=2, launcher="mpirun"),
        planned("buffered", world=2, launcher="mpirun"),
    )
    on_one = replace(one_loses_it.case, options=one_loses_it.case.options | {"on_rank": 1})
    cases = [replace(case, experiment="resume") for case in (on_one, good.case)]
    plan = [replace(good, case=case, samples=1, warmups=0) for case in cases]
    found = measure([*plan, resharded(planned("npz"), 4)], settings=Settings(summary_above=1))
    bad, whole, reloaded = found.rows
    assert isinstance(bad, ResumeRow)
    assert (bad.status, bad.bitwise, bad.restored, bad.diverged_rank, bad.first_roles) == (
        "ok",
        False,
        False,
        1,
        ["rng"],
    )
    assert isinstance(whole, ResumeRow)
    assert (whole.bitwise, whole.repeatable, reloaded.status) == (True, True, "ok")
    kinds = ("straight", "interrupt", "reshard")
    spoken = {
        kind: [(record.rank, record.ranks) for record in found.records(kind)] for kind in kinds
    }
    assert spoken == {"straight": [(0, 2)] * 2, "interrupt": [(0, 2)] * 2, "reshard": [(0, 4)]}
    assert sorted((record.rank, record.ranks) for record in found.records("resume")) == [
        (0, 2),
        (0, 2),
        (1, 1),
    ]


def test_eight_ranks_save_and_load(measure: Measure) -> None:
    found = measure([planned("buffered", world=8, launcher="mpirun", samples=1, warmups=0)])
    assert (found.rows[0].status, found.rows[0].verified) == ("ok", True), found.rows[0].reason
    for kind in ("save", "load"):
        assert [
            record.rank for record in sorted(found.records(kind), key=lambda record: record.rank)
        ] == list(range(8))


def test_a_systems_own_mpi_starts_the_ranks_and_is_theirs(
    measure: Measure, own_mpirun: Path
) -> None:
    """If the ranks loaded another library than their mpirun's, each would be a world of its own."""
    found = measure(
        [planned("buffered", world=2, launcher="mpirun")], settings=Settings(mpirun=str(own_mpirun))
    )
    assert (found.rows[0].status, found.rows[0].verified) == ("ok", True), found.rows[0].reason
    assert own_mpirun.with_name("started").exists()


def test_a_checkpoint_of_two_ranks_is_whole_for_one_and_for_four(measure: Measure) -> None:
    found = measure(
        [
            resharded(planned("npz"), 1),
            resharded(planned("npz"), 4),
            resharded(planned("buffered"), 1),
        ]
    )
    one, four, layout = found.rows
    assert (one.status, four.status) == ("ok", "ok"), (one.reason, four.reason)
    assert isinstance(one, ReshardRow)
    assert isinstance(four, ReshardRow)
    assert one.replicated_leaves == four.replicated_leaves
    assert layout.status == "failed", "its files are laid out for two ranks"


@pytest.mark.parametrize("experiment", ["cost", "resume", "train", "reshard"])
@pytest.mark.parametrize(
    ("fault", "said"),
    [("raises", "Error"), ("killed", "SIGKILL"), ("hangs", f"no progress for {HUNG_S} s")],
)
def test_the_rank_that_breaks_is_the_one_that_is_named(
    measure: Measure, fault: str, said: str, experiment: str
) -> None:
    item = faulty(fault, world=2, launcher="mpirun")
    special = {"train": {"every": 4}, "reshard": {"load_world": 1}}.get(experiment, {})
    case = replace(
        item.case, experiment=experiment, options=item.case.options | {"on_rank": 1}, **special
    )
    (row,) = measure(
        [replace(item, case=case, samples=1, warmups=0)],
        timeout_s=HUNG_S if fault == "hangs" else 60,
    ).rows
    assert (row.status, row.phase) == ("failed", "save")
    assert row.reason.startswith("rank 1: "), row.reason
    assert said in row.reason
