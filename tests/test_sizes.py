"""The sizes experiment: the content of files and their repetition, in real worker processes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import records
from conftest import Measure, Measured, faulty, planned

from adapters.base import Entry
from harness.analysis import summary, tables
from harness.analysis.row import Wanted
from harness.analysis.rows import rows
from harness.experiments.sizes import worker as inspect
from harness.experiments.sizes.causes import IDENTIFIER, TIME_STAMP
from harness.experiments.sizes.rows import HASH_ORDER, SizesRow
from harness.run.plan import PlannedCase
from harness.wire.records import Record
from workloads import Role


def looked_at(item: PlannedCase) -> PlannedCase:
    return replace(item, case=replace(item.case, experiment="sizes"), processes=2)


FAULTS = (
    "changes-state",
    "changes-and-raises",
    "time-stamp",
    "identifier",
    "hash-order",
    "overstated-entries",
)


@pytest.fixture(scope="module")
def run(measure: Measure) -> Measured:
    cases = [planned("npz"), planned("buffered"), *(faulty(fault) for fault in FAULTS)]
    return measure([looked_at(item) for item in cases])


def row_of(run: Measured, name: str) -> SizesRow:
    found = run.row(name if name in ("npz", "buffered") else f"double[fault={name}]")
    assert isinstance(found, SizesRow)
    return found


def test_a_format_that_tells_is_taken_apart_by_role(run: Measured) -> None:
    row = row_of(run, "npz")
    assert row.status == "ok"
    assert row.file_bytes is not None
    assert row.weights_bytes is not None
    assert row.optimizer_bytes is not None
    assert row.weights_bytes == pytest.approx(row.optimizer_bytes, rel=0.1), (
        "momentum is as large as the weights"
    )
    assert row.other_bytes is not None
    assert (
        row.metadata_bytes
        == row.file_bytes - row.weights_bytes - row.optimizer_bytes - row.other_bytes
    )
    assert 0 < row.metadata_bytes < 0.05 * row.file_bytes


def test_a_format_that_does_not_tell_has_its_size_alone(run: Measured) -> None:
    row = row_of(run, "buffered")
    assert (row.status, row.weights_bytes, row.metadata_bytes) == ("ok", None, None)
    assert row.files == 1
    assert row.file_bytes == pytest.approx(row.state_bytes, rel=0.02)


def test_the_payload_is_described_fresh_and_trained(run: Measured) -> None:
    row = row_of(run, "buffered")
    assert row.weights_deflated_fresh is not None
    assert row.optimizer_deflated_fresh is not None
    assert row.optimizer_deflated_fresh < 0.01, "slots start at zero"
    steps = {record.steps for record in run.records("payload")}
    assert steps == {0, inspect.TRAINED_STEPS}


def test_what_reached_the_device_is_counted_where_it_tells(run: Measured) -> None:
    row = row_of(run, "buffered")
    if row.device_written_bytes is None:
        pytest.skip("the scratch directory's device does not tell")
    assert row.device_written_bytes >= row.file_bytes


def test_the_same_state_gives_the_same_files(run: Measured) -> None:
    for name in ("npz", "buffered"):
        row = row_of(run, name)
        assert (
            row.same_in_one_process,
            row.same_in_two_processes,
            row.same_with_fixed_hashing,
        ) == (True, True, True)
        assert row.causes == row.places == []


@pytest.mark.parametrize(
    ("fault", "cause"), [("time-stamp", [TIME_STAMP]), ("identifier", ["file names", IDENTIFIER])]
)
def test_what_changes_from_save_to_save_is_found_and_named(
    run: Measured, fault: str, cause: list[str]
) -> None:
    row = row_of(run, fault)
    assert row.status == "ok"
    assert (row.same_in_one_process, row.same_in_two_processes) == (False, False)
    assert row.causes == cause
    assert any(place.startswith("note.json [") for place in row.places)


def test_an_order_of_hashes_shows_by_fixing_them(run: Measured) -> None:
    row = row_of(run, "hash-order")
    assert (row.same_in_one_process, row.same_in_two_processes, row.same_with_fixed_hashing) == (
        True,
        False,
        True,
    )
    assert row.causes == [HASH_ORDER]


def test_a_renamed_file_is_counted(run: Measured) -> None:
    case = next(item.case.id for item in run.run.plan if "identifier" in item.case.method)
    assert {record.renamed for record in run.records("repeat") if record.case == case} == {1}


def test_entries_beyond_the_file_fail_the_row(run: Measured) -> None:
    row = row_of(run, "overstated-entries")
    assert (row.status, row.phase) == ("failed", "inspect")
    assert "WrongEntries: the entries of rank-0.bin come to" in row.reason


def test_a_save_that_changes_the_state_costs_its_own_row_alone(run: Measured) -> None:
    row = row_of(run, "changes-state")
    assert (row.status, row.reason.partition(":")[0]) == ("failed", "StateChanged")
    assert "weights/stem.convolution.weight" in row.reason


def test_nobody_is_blamed_for_the_change_of_a_save_that_raised(run: Measured) -> None:
    assert row_of(run, "changes-and-raises").reason.startswith("RuntimeError")
    assert row_of(run, "time-stamp").status == "ok"


def test_an_entry_of_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(10))
    with pytest.raises(inspect.WrongEntries, match="files that are not there: elsewhere"):
        inspect.contents(tmp_path, [Entry("elsewhere", "a", Role.WEIGHT, 1, 1)])
    [file] = inspect.contents(
        tmp_path, [Entry("data", "a", Role.WEIGHT, 4, 8), Entry("data", "b", None, 2, 2)]
    )
    assert (file.entries, file.stored_by_role, file.raw_by_role) == (
        2,
        {"weight": 4},
        {"weight": 8},
    )


@pytest.mark.slow
def test_an_interrupted_look_is_taken_again_from_its_beginning(measure: Measure) -> None:
    """The kept checkpoint went with the first attempt, and the second process needs one."""
    item = looked_at(planned("npz"))
    begun = [records.inventory(item.case.id), records.repeat(item.case.id, pair="one process")]
    measured = measure([item], before=begun)
    [row] = measured.rows
    assert isinstance(row, SizesRow)
    assert (row.status, row.same_in_two_processes) == ("ok", True)
    assert (
        len([r for r in measured.records("repeat") if (r.process, r.pair) == (0, "one process")])
        == 2
    )


# Rows from made-up records


def made(*found: Record) -> SizesRow:
    item = looked_at(planned())
    [row] = rows(
        [Wanted(item.case, 1, 2)], [replace(record, case=item.case.id) for record in found]
    )
    assert isinstance(row, SizesRow)
    return row


REPEATS = [
    records.repeat(process=process, pair=pair, hashing=hashing)
    for process, hashing in ((0, "random"), (1, "fixed"))
    for pair in ("one process", "two processes")
]


def test_a_line_says_what_a_reader_looks_for() -> None:
    row = made(
        records.payload(),
        records.inventory(steps=0, file_bytes=1000),
        records.inventory(),
        records.syscalls(),
        *REPEATS,
    )
    [line] = tables.table([row]).to_dict("records")
    assert line == {
        "method": "buffered",
        "bytes": "1.089",
        "fresh": "0.990",
        "weights": "0.594",
        "optimizer": "0.396",
        "rest": "100 B",
        "files": "2",
        "writes": "4 of 300 B",
        "to device": "1.364",
        "same files": "yes, yes",
    }
    assert summary.meaning([row]).startswith(
        "Deflate leaves 0.900 of the trained weights (fresh: –; with a byte shuffle: 0.800)"
    )
    assert summary.meaning([row]).endswith("Every method writes the same files for the same state.")


def test_what_reached_the_device_is_that_of_the_state_whose_files_are_counted() -> None:
    # slots of zeros compress to nothing
    fresh = records.inventory(steps=0, file_bytes=100, device_written_bytes=120)
    row = made(records.payload(), fresh, records.inventory(device_written_bytes=1500), *REPEATS)
    assert (row.file_bytes, row.device_written_bytes) == (1100, 1500)


def test_a_row_is_whole_only_with_every_comparison() -> None:
    row = made(records.payload(), records.inventory(), *REPEATS[:-1])
    assert (row.status, row.reason) == (
        "skipped",
        "not looked at to the end: the run was interrupted",
    )


def test_a_sentence_names_what_differs_and_why() -> None:
    causes = ("checksum of what differs", "time stamp")
    different = [
        replace(record, identical=False, differences=(records.difference(causes=causes),))
        for record in REPEATS
    ]
    row = made(records.payload(), records.inventory(), *different)
    assert row.causes == ["time stamp"], "the checksum follows from it"
    assert "gives other files with buffered (time stamp)." in summary.meaning([row])
    assert tables.table([row])["same files"].tolist() == ["no, no"]


def test_of_several_frameworks_it_is_said_whose_files_and_weights_are_meant() -> None:
    different = [
        replace(record, identical=False, differences=(records.difference(),)) for record in REPEATS
    ]
    row = made(records.payload(), records.inventory(), *different)
    said = summary.meaning([row, replace(row, framework="jax")])
    assert said.startswith("Deflate leaves 0.900 of raw's trained weights ")
    assert "gives other files with raw buffered (time stamp) and jax buffered (time stamp)." in said


def test_two_records_of_one_comparison_do_not_stand_for_another() -> None:
    row = made(records.inventory(), REPEATS[0], *REPEATS[:-1])
    assert row.status == "skipped"


def test_the_first_range_of_a_difference_is_named() -> None:
    different = records.difference(
        range_count=3, ranges=((10, 17), (30, 31)), causes=("time stamp",)
    )
    row = made(
        records.inventory(),
        *REPEATS[:3],
        replace(REPEATS[3], identical=False, differences=(different,)),
    )
    assert row.places == ["index [10, 17) and 2 more: time stamp"]
