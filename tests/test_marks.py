"""Marks keep a row out of the headline, and remarks inform. Neither makes a row fail."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import records
from compared_runs import compared, cost, item, maker
from derived_rows import ONE, measured_to_the_end
from references import references
from reported import item as named
from reported import measured, store_run

from harness.analysis import summary, tables
from harness.analysis.answer import answer
from harness.analysis.records import RunRecords
from harness.analysis.row import Wanted
from harness.analysis.rows import rows
from harness.analysis.runs import read_run
from harness.experiments.cost.rows import CostRow
from harness.wire.records import IsolatedRecord, Record

MIB = 1 << 20
# A raw transfer of 1 MiB takes 0.1 s, so the fastest one moves 10 MiB a second.
RAW_BYTES_PER_S = 10 * MIB


def row_of(*more: Record, size_varies: bool | None = False, **of_saves: object) -> CostRow:
    """Return the row of two saves and loads, and what else its run holds."""
    found = [*measured_to_the_end(**of_saves), *more]
    (row,) = rows([Wanted(ONE, 2, 1, size_varies=size_varies)], found)
    assert isinstance(row, CostRow)
    assert row.status == "ok"
    return row


@pytest.mark.parametrize(
    ("file_bytes", "changes", "is_marked"),
    [
        (int(1.4 * 0.4 * RAW_BYTES_PER_S), {}, False),
        (int(1.6 * 0.4 * RAW_BYTES_PER_S), {}, True),
        (int(1.6 * 0.4 * RAW_BYTES_PER_S), {"disturbed": True}, False),
        (int(1.6 * 0.4 * RAW_BYTES_PER_S), {"ceilings": records.ceilings(direct=False)}, False),
    ],
    ids=["a little faster", "too fast", "disturbed", "no direct I/O"],
)
def test_a_save_that_no_disk_can_have_taken_is_marked(
    file_bytes: int, changes: dict[str, object], is_marked: bool
) -> None:
    row = row_of(file_bytes=file_bytes, **changes)
    told = [mark for mark in row.marks if mark.startswith("a save wrote its bytes 1.6 times as ")]
    assert bool(told) is is_marked
    assert row.is_clean is not is_marked


@pytest.mark.parametrize(("cache", "is_marked"), [("cold", True), ("warm", False)])
def test_a_cold_load_that_is_faster_than_the_disk_is_marked(cache: str, is_marked: bool) -> None:
    fast = records.load(ONE.id, index=3, file_bytes=int(1.6 * 0.2 * RAW_BYTES_PER_S), cache=cache)
    told = [mark for mark in row_of(fast).marks if mark.startswith("a cold load read its bytes ")]
    assert bool(told) is is_marked


def test_saves_of_unlike_sizes_are_marked_unless_they_may_be() -> None:
    larger = records.save(ONE.id, index=3, file_bytes=1100 + (70 << 10))
    (mark,) = row_of(larger).marks
    assert mark.startswith(
        "its saves stored from 1.1 kB to 72.8 kB of a state that does not change"
    )
    assert row_of(larger, size_varies=True).marks == []
    assert row_of(larger, size_varies=None).marks == []
    a_log = records.save(ONE.id, index=3, file_bytes=1100 + (60 << 10))
    assert row_of(a_log).marks == []


def test_a_load_that_reads_while_it_opens_is_marked() -> None:
    opened = records.opened(ONE.id, read_bytes=5000)
    early = [records.load(ONE.id, index=3 + index, open_read_bytes=80_000) for index in range(3)]
    (mark,) = row_of(opened, *early).marks
    assert mark.startswith("opening it to load reads 80 kB and to save 5 kB")
    few = [records.load(ONE.id, index=3 + index, open_read_bytes=60_000) for index in range(3)]
    assert row_of(opened, *few).marks == []


def test_of_a_guard_the_first_finding_counts_and_a_failed_row_has_none() -> None:
    found = [
        records.finding(ONE.id, guard="volatile", weight="mark", sentence="nothing lasts"),
        records.finding(ONE.id, guard="volatile", weight="mark", sentence="said again"),
        records.finding(ONE.id),
    ]
    row = row_of(*found)
    assert (row.marks, row.remarks) == (["nothing lasts"], ["its files have two names"])
    (failed,) = rows([Wanted(ONE, 2, 1)], [*found, records.failure(ONE.id)])
    assert (failed.marks, failed.remarks) == ([], [])


def test_tables_and_notes_name_what_is_marked() -> None:
    mark = records.finding(ONE.id, weight="mark", sentence="nothing lasts")
    row = row_of(mark)
    assert "buffered (marked)" in tables.to_markdown([row])
    told = summary.notes([row], RunRecords([], {}))
    assert "buffered: marked, so not in the headline: nothing lasts." in told
    assert summary.meaning([row]) == "No method gave a verified checkpoint without a mark here."


def test_the_answer_leaves_marked_rows_out_and_says_what_is_not_power_safe(tmp_path: Path) -> None:
    fast, slow = named("direct"), named("buffered")
    found = [
        *measured(fast.case.id, 0.01),
        *measured(slow.case.id, 0.05),
        records.finding(fast.case.id, weight="mark", sentence="nothing lasts"),
    ]
    run = read_run(store_run(tmp_path, [fast, slow], found))
    assert answer([run.rows])[0].endswith("is durable soonest with buffered in raw (50.0 ms).")
    unsafe = records.syscalls(slow.case.id, durability="never", data_durability="never")
    run = read_run(store_run(tmp_path, [slow], [*measured(slow.case.id, 0.05), unsafe]))
    said = answer([run.rows])[0]
    assert said.endswith("with buffered in raw (50.0 ms, by itself not power-safe).")


def test_a_mark_that_came_counts_as_worse_and_one_that_went_as_a_gain(tmp_path: Path) -> None:
    plan = [item()]
    sound = cost(plan[0])
    marked = [*sound, records.finding(plan[0].case.id, weight="mark", sentence="nothing lasts")]
    make = maker(tmp_path / "results")
    assert compared(make, sound, marked, plan).rows[0].faults == ("is marked now: nothing lasts",)
    assert compared(make, marked, sound, plan).rows[0].gains == ("is not marked any more",)


def test_a_second_mark_counts_as_worse_and_another_number_does_not(tmp_path: Path) -> None:
    plan = [item()]

    def with_marks(*sentences: str) -> list[Record]:
        case = plan[0].case.id
        marks = [
            records.finding(case, guard=f"guard-{number}", weight="mark", sentence=sentence)
            for number, sentence in enumerate(sentences)
        ]
        return [*cost(plan[0]), *marks]

    make = maker(tmp_path / "results")
    one, same = with_marks("nothing lasts"), with_marks("nothing lasts")
    both = with_marks("nothing lasts", "it changed os.fsync")
    assert compared(make, one, same, plan).rows[0].faults == ()
    assert compared(make, one, both, plan).rows[0].faults == ("is marked now: it changed os.fsync",)
    numbers = (with_marks("1.5 times as fast, 3 saves"), with_marks("12 times as fast, 4 saves"))
    assert compared(make, *numbers, plan).rows[0].faults == ()


def test_no_method_of_the_reference_runs_is_marked() -> None:
    """All marked rows are known: of one kill of torchft, the undisturbed run broke."""
    marked = [(run.name, row) for run in references() for row in run.rows if row.marks]
    found = [(name, row.subject, row.marks) for name, row in marked]
    uncompared = "the bits of 1 of 6 kills could not be compared, because the undisturbed run broke"
    assert found == [
        (
            "20261128-190955-recovery-full-pytorch",
            "'torchft heals from a peer'",
            [uncompared],
        )
    ]


def test_what_a_method_beside_others_spoilt_does_not_count() -> None:
    other = replace(ONE, method="other")
    isolated = IsolatedRecord("isolated", other.id, 0, 0, "save", (ONE.id,))
    before = [records.save(ONE.id, index=index, save_ns=10**10) for index in range(2)]
    found = [*before, isolated, *measured_to_the_end()]
    (row,) = rows([Wanted(ONE, 2, 1)], found)
    assert isinstance(row, CostRow)
    assert row.samples == 2
    assert row.stall_s is not None
    assert re.fullmatch(r"0\.2\d*", f"{row.stall_s.value:.3f}")
