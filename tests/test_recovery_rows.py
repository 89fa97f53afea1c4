"""The rows of experiment `recovery`: what is marked, because equal bits would prove nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import planned
from records import killed_rank, worker

from harness.analysis.row import Naming, Wanted
from harness.analysis.rows import rows
from harness.analysis.statistics import Estimate
from harness.cli.show import _print_reasons, _print_rows
from harness.docs import recovered as recovered_tables
from harness.docs.row_tables import packages_and_sources, sources, text_table
from harness.experiments.drill.records import DrillRecord
from harness.experiments.drill.rows import DrillRow
from harness.experiments.drill.sentences import meaning as in_words
from harness.experiments.recovery.cells import two_digits
from harness.experiments.recovery.records import KillRecord, RecoveredRecord, SteadyRecord
from harness.experiments.recovery.rows import RecoveryRow
from harness.experiments.recovery.sentences import claims, meaning
from harness.wire.case import Case
from harness.wire.records import FailureRecord, Record

FALLS = (2.4, 2.3, 2.5, 2.2, 2.1, 2.3)
RISES = (2.4, 2.3, 2.5, 2.5, 2.6, 2.4)


def case(way: str, **settings: str) -> Case:
    return replace(
        planned("buffered").case,
        experiment="recovery",
        world=4,
        launcher="mpirun",
        settings={"way": way, **settings},
    )


def measured(
    of: Case, same_as: str = "fewer ranks", loss: Sequence[float] = FALLS, epoch_steps: int = 3
) -> list[Record]:
    """Return the records of a case of one kill."""
    kill, steady, recovered, *_ = killed_rank()
    assert isinstance(kill, KillRecord)
    assert isinstance(steady, SteadyRecord)
    assert isinstance(recovered, RecoveredRecord)
    bits: Any = same_as
    return [
        replace(kill, case=of.id, same_as=bits),
        replace(steady, case=of.id, loss=tuple(loss), epoch_steps=epoch_steps),
        replace(recovered, case=of.id),
    ]


def derived(*found: tuple[Case, list[Record]]) -> list[RecoveryRow]:
    wanted = [Wanted(of, samples=0, processes=1) for of, _ in found]
    records = [record for _, some in found for record in some]
    return [row for row in rows(wanted, records) if isinstance(row, RecoveryRow)]


def test_a_loss_that_falls_over_the_same_examples_is_no_mark() -> None:
    shrink = case("shrink")
    (row,) = derived((shrink, measured(shrink)))
    assert row.marks == []
    assert (row.first_loss, row.last_loss) == pytest.approx((2.4, 2.2))


def test_a_loss_that_does_not_fall_is_marked() -> None:
    shrink = case("shrink")
    (row,) = derived((shrink, measured(shrink, loss=RISES)))
    assert row.marks == [
        "the loss did not fall (from 2.4 to 2.5 over the same examples), so its bits prove nothing"
    ]


def test_the_losses_of_older_runs_are_of_other_examples_and_are_not_compared() -> None:
    shrink = case("shrink")
    (row,) = derived((shrink, measured(shrink, loss=RISES, epoch_steps=0)))
    assert row.marks == []


def test_equal_bits_are_marked_where_the_control_has_such_bits_too() -> None:
    shrink, control = case("shrink"), case("shrink-drop")
    row, of_control = derived(
        (shrink, measured(shrink, "fewer ranks")), (control, measured(control, "all ranks"))
    )
    assert row.marks == [
        "the control that drops batches has the bits of 'all ranks', so equal bits prove nothing"
    ]
    assert of_control.marks == [
        "1 of 1 kills left the bits of all ranks, and 'shrink, drop the lost batches' must leave "
        "nobody's bits"
    ]


def test_equal_bits_stand_where_the_control_differs() -> None:
    shrink, control = case("shrink"), case("shrink-drop")
    row, _ = derived(
        (shrink, measured(shrink, "fewer ranks")), (control, measured(control, "neither"))
    )
    assert (row.marks, row.remarks) == ([], [])


def test_kills_of_different_bits_are_held_against_the_control_too() -> None:
    torchft, control = case("torchft"), case("shrink-drop")
    others = [
        replace(record, number=1, same_as="all ranks")
        for record in measured(torchft)
        if isinstance(record, KillRecord)
    ]
    both = [*measured(torchft, "fewer ranks"), *others]
    row, _ = derived((torchft, both), (control, measured(control, "all ranks")))
    assert row.same_as == "fewer ranks once, all ranks once"
    assert row.marks == [
        "the control that drops batches has the bits of 'all ranks', so equal bits prove nothing"
    ]


def test_equal_bits_without_a_control_have_a_remark() -> None:
    shrink = case("shrink")
    (row,) = derived((shrink, measured(shrink, "fewer ranks")))
    assert row.remarks == [
        "no control that drops batches came back in this run, so equal bits prove little"
    ]


@pytest.mark.parametrize(
    ("way", "mirror", "bits", "right"),
    [
        ("restart", "no", "all ranks", True),
        ("restart", "no", "neither", False),
        ("torchrun", "no", "neither", False),
        ("rollback-file", "no", "all ranks", True),
        ("rollback-file", "no", "neither", False),
        ("rollback-memory", "no", "neither", True),
        ("peer-spare", "no", "all ranks", True),
        ("peer-spare", "no", "fewer ranks", False),
        ("peer-spare", "yes", "neither", False),
        ("shrink", "no", "neither", False),
        ("chainermn", "no", "all ranks", False),
        ("shrink-drop", "no", "neither", True),
        ("torchft", "no", "fewer ranks", True),
    ],
)
def test_a_row_with_other_bits_than_its_way_promises_is_marked(
    way: str, mirror: str, bits: str, right: bool
) -> None:
    struck, control = case(way, mirror=mirror), case("shrink-drop")
    row, *_ = derived((struck, measured(struck, bits)), (control, measured(control, "neither")))
    assert row.verdict == ("back" if right else "wrong bits")
    assert ["1 of 1 kills left" in mark for mark in row.marks] == ([] if right else [True])


def test_the_shortest_way_back_is_not_the_control_and_has_its_bits() -> None:
    shrink, control, restart = case("shrink"), case("shrink-drop"), case("restart")
    found = derived(
        (shrink, measured(shrink, "fewer ranks")),
        (control, measured(control, "neither")),
        (restart, measured(restart, "neither")),
    )
    for row, seconds in zip(found, (0.3, 0.1, 0.2), strict=True):
        row.back = Estimate(seconds, seconds, seconds)
    said = meaning(found, Naming.among(found))
    assert said.startswith("The shortest way back is to shrink: 0.3 s after a kill")
    assert "After 1 of 1 kills, 'restart from buffered' had other bits than it must have." in said
    (trust,) = claims([found]).trust
    assert trust.endswith("came back with the bits that it must have after 2 of 3 kills of a rank")


def test_kills_whose_bits_nobody_knows_are_not_said_to_be_right() -> None:
    """A row with wrong bits counts. Of its other kill, the bits could not be compared."""
    shrink = case("shrink")
    kill, *_ = measured(shrink, "unknown")
    assert isinstance(kill, KillRecord)
    of_unknown = replace(kill, number=1)
    found = derived((shrink, [*measured(shrink, "neither"), of_unknown]))
    (trust,) = claims([found]).trust
    assert trust.endswith("after 0 of 2 kills of a rank")


def test_a_restart_that_is_the_shortest_way_is_not_compared_with_itself() -> None:
    restart = case("restart")
    (row,) = derived((restart, measured(restart, "all ranks")))
    row.back, row.default = Estimate(0.2, 0.2, 0.2), True
    said = meaning([row], Naming.among([row]))
    assert said == "The shortest way back is 'restart from buffered': 0.2 s after a kill."


def test_a_restart_by_another_method_is_compared_with_that_by_the_default() -> None:
    restart = case("restart")
    (row,) = derived((restart, measured(restart, "all ranks")))
    row.back, row.times_faster = Estimate(0.2, 0.2, 0.2), 1.14
    said = meaning([row], Naming.among([row]))
    assert said.endswith("0.2 s after a kill, 1.1 times sooner than by a restart.")


@pytest.mark.parametrize(("ratio", "shown"), [(9.94, "9.9"), (9.97, "10"), (64.3, "64")])
def test_a_ratio_has_two_digits(ratio: float, shown: str) -> None:
    assert two_digits(ratio) == shown


def test_a_row_is_compared_with_the_restart_of_the_same_training() -> None:
    """The first of two restarts has another dropout."""
    restart, shrink = case("restart"), case("shrink")
    other = replace(restart, dropout=0.5)
    kill, *steady = measured(other)
    assert isinstance(kill, KillRecord)
    assert kill.back_ns is not None
    slow = replace(kill, back_ns=10 * kill.back_ns)
    cases = [other, restart, shrink]
    wanted = [Wanted(of, samples=0, processes=1, default=of is not shrink) for of in cases]
    records = [slow, *steady, *measured(restart), *measured(shrink)]
    *_, row = rows(wanted, records)
    assert isinstance(row, RecoveryRow)
    assert row.times_faster == pytest.approx(1.0)


def test_a_way_that_comes_back_with_wrong_bits_alone_has_come_back() -> None:
    restart = case("restart")
    found = derived((restart, measured(restart, "neither")))
    said = meaning(found, Naming.among(found))
    assert said == ("After 1 of 1 kills, 'restart from buffered' had other bits than it must have.")


def test_bits_that_could_not_be_compared_are_not_wrong() -> None:
    restart = case("restart")
    (row,) = derived((restart, measured(restart, "unknown")))
    assert (row.verdict, row.wrong_bits) == ("back", 0)
    assert row.marks == [
        "the bits of 1 of 1 kills could not be compared, because the undisturbed run broke"
    ]
    assert claims([[row]]).trust == []


def test_a_restart_with_cold_files_is_nobodys_baseline() -> None:
    cold, shrink = case("restart", cache="cold"), case("shrink")
    rows_of = derived((cold, measured(cold, "all ranks")), (shrink, measured(shrink)))
    assert [row.times_faster for row in rows_of] == [None, None]


def test_the_restore_is_held_against_that_of_the_default_method() -> None:
    default, other = case("restart"), replace(case("restart"), method="other")
    (baseline,) = derived((default, measured(default, "all ranks")))
    wanted = [
        Wanted(default, samples=0, processes=1, default=True),
        Wanted(other, samples=0, processes=1),
    ]
    quick = [
        replace(record, restore_ns=record.restore_ns // 4)
        if isinstance(record, KillRecord) and record.restore_ns
        else record
        for record in measured(other, "all ranks")
    ]
    first, second = rows(wanted, [*measured(default, "all ranks"), *quick])
    assert isinstance(first, RecoveryRow)
    assert isinstance(second, RecoveryRow)
    assert first.part_ratios is None
    assert second.part_ratios is not None
    assert second.part_ratios["restore"] == pytest.approx(4)
    assert second.part_ratios["back"] == pytest.approx(1)
    assert text_table([first, second])["restore"].tolist()[1].endswith(" (4.0 x)")
    assert baseline.part_ratios is None


def test_a_control_whose_bits_are_not_known_proves_nothing() -> None:
    shrink, control = case("shrink"), case("shrink-drop")
    row, _ = derived(
        (shrink, measured(shrink, "fewer ranks")), (control, measured(control, "unknown"))
    )
    assert row.marks == []
    assert row.remarks == [
        "no control that drops batches came back in this run, so equal bits prove little"
    ]


def test_the_shortest_way_back_is_one_that_always_comes_back() -> None:
    shrink, restart = case("shrink"), case("restart")
    lost = [
        replace(record, number=1, back_ns=None, reason="nobody came")
        for record in measured(shrink)
        if isinstance(record, KillRecord)
    ]
    found = derived((shrink, [*measured(shrink), *lost]), (restart, measured(restart, "all ranks")))
    for row, seconds in zip(found, (0.1, 0.3), strict=True):
        row.back = Estimate(seconds, seconds, seconds)
    said = meaning(found, Naming.among(found))
    assert said.startswith("The shortest way back is 'restart from buffered': 0.3 s after a kill")
    assert "'shrink' did not come back after every kill: nobody came." in said


def test_a_marked_row_is_not_the_shortest_way_back() -> None:
    shrink, restart = case("shrink"), case("restart")
    found = derived(
        (shrink, measured(shrink, loss=RISES)), (restart, measured(restart, "all ranks"))
    )
    for row, seconds in zip(found, (0.1, 0.3), strict=True):
        row.back = Estimate(seconds, seconds, seconds)
    assert "the loss did not fall" in found[0].marks[0]
    said = meaning(found, Naming.among(found))
    assert said.startswith("The shortest way back is 'restart from buffered': 0.3 s after a kill")


def test_a_run_in_which_nobody_was_killed_says_so() -> None:
    failed, refused = case("shrink"), case("restart")
    found = derived(
        (failed, [FailureRecord("failure", failed.id, 0, 0, "failed", "train", "OSError: no")]),
        (refused, [FailureRecord("failure", refused.id, 0, 0, "unsupported", "plan", "no ULFM")]),
    )
    said = meaning(found, Naming.among(found))
    assert said == "No rank was killed. 'shrink' failed: rank 0: OSError: no."


def test_a_way_that_failed_is_told_by_its_name() -> None:
    shrink, restart = case("shrink"), case("restart")
    failure = FailureRecord("failure", restart.id, 0, 0, "failed", "train", "RuntimeError: no")
    found = derived((shrink, measured(shrink)), (restart, [failure]))
    said = meaning(found, Naming.among(found))
    assert "'restart from buffered' failed: rank 0: RuntimeError: no." in said
    assert Naming.among(found).name(found[1]) == "'restart from buffered'"


def drilled(**changes: Any) -> DrillRow:
    of = replace(case("shrink", failure="rank-0"), experiment="drill")
    record = next(each for each in killed_rank() if isinstance(each, DrillRecord))
    (row,) = rows([Wanted(of, samples=0, processes=1)], [replace(record, case=of.id, **changes)])
    assert isinstance(row, DrillRow)
    return row


def test_a_drill_whose_undisturbed_run_broke_is_not_failed() -> None:
    row = drilled(ended=True, back_ns=5, same_as="unknown")
    assert (row.passed, row.verdict) == (None, "unknown")
    assert row.reason == "the undisturbed run broke, so the bits could not be compared"


def test_a_drill_that_was_not_passed_is_not_called_ok(capsys: pytest.CaptureFixture[str]) -> None:
    row = drilled(ended=False, reason="not every rank came to the last step")
    _print_reasons([row])
    assert f": {row.verdict} in the run: not every rank" in " ".join(
        capsys.readouterr().out.split()
    )
    assert (row.status, row.verdict) == ("ok", "failed")


def broken_drill() -> DrillRow:
    of = replace(case("shrink", failure="rank-0"), experiment="drill")
    failure = FailureRecord("failure", of.id, 0, 0, "failed", "train", "RuntimeError: no")
    (row,) = rows([Wanted(of, samples=0, processes=1)], [failure])
    assert isinstance(row, DrillRow)
    return row


def stored_run(name: str, of_run: list[Any], cpu: str = "Xeon") -> Any:
    manifest = SimpleNamespace(
        cpu_model=cpu, logical_cores=2, gpus=[], filesystem="ext4", hypervisor=True
    )
    return SimpleNamespace(
        name=name,
        rows=of_run,
        stored=SimpleNamespace(manifest=manifest),
        records=SimpleNamespace(all=lambda kind: [worker()]),
    )


def test_the_runs_below_a_table_are_named_with_their_machines() -> None:
    machines = {"one": "Xeon", "two": "Opteron", "three": "Xeon"}
    runs = [stored_run(name, [], cpu) for name, cpu in machines.items()]
    assert sources(runs) == (
        "From `one`, `three`, on 2 cores of a Xeon, ext4 on a virtual disk; "
        "`two`, on 2 cores of an Opteron, ext4 on a virtual disk."
    )


def test_the_packages_of_a_run_are_named() -> None:
    (row,) = derived((case("shrink"), measured(case("shrink"))))
    said = packages_and_sources([stored_run("one", [row])])
    assert said.startswith("Packages of raw: numpy 2.4.6. From `one`, on 2 cores")


def test_the_pages_say_that_a_drill_broke(monkeypatch: pytest.MonkeyPatch) -> None:
    """A drill that was not tried has a dash instead."""
    hangs = replace(broken_drill(), way="peer-spare", failure="stopped", reason="")
    run = stored_run("some-run", [broken_drill(), hangs])
    monkeypatch.setattr(recovered_tables, "newest_full_runs", lambda suite: [run])
    heading, _, line, _, *rest = recovered_tables.drills().splitlines()
    cells = dict(zip(heading.split(" | "), line.split(" | "), strict=True))
    assert cells["rank 0 is killed"] == "failed"
    assert cells["a rank hangs |"] == "– |"
    assert "> raw, 4 ranks: 'shrink' where rank 0 is killed: rank 0: RuntimeError: no" in rest


def test_the_page_of_every_way_shows_two_ranks_and_tells_what_failed_on_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    on_four, restart = case("shrink"), case("restart")
    on_two = replace(case("shrink"), world=2)
    failure = FailureRecord("failure", restart.id, 0, 0, "failed", "train", "RuntimeError: no")
    ways = derived((on_four, measured(on_four)), (on_two, measured(on_two)), (restart, [failure]))
    survived = drilled(ended=True, back_ns=5, same_as="fewer ranks", expected="fewer ranks")
    run = stored_run("some-run", [*ways, replace(survived, world=2), survived])
    monkeypatch.setattr(recovered_tables, "newest_full_runs", lambda suite: [run])
    page = recovered_tables.every_way_back()
    assert page.count("| shrink | 1 of 1 |") == 1
    assert "| raw | 2 | shrink | passed" in page
    assert "| raw | 4 | shrink | passed" not in page
    assert "a rank hangs" not in page, "a failure that was not tried needs no column"
    assert (
        "> raw, resnet50 on 4 ranks: restart from buffered failed: rank 0: RuntimeError: no" in page
    )


def test_the_reasons_of_rows_stand_below_their_table() -> None:
    """A kill that did not bring training back has one, and so has a mark."""
    shrink, spare = case("shrink"), case("peer-spare", mirror="yes")
    kill, *others = measured(shrink)
    assert isinstance(kill, KillRecord)
    lost = replace(kill, number=1, back_ns=None, reason="process 0 died")
    found = derived((shrink, [kill, lost, *others]), (spare, measured(spare, "all ranks", RISES)))
    quotes = recovered_tables._why_not([stored_run("some-run", found)])
    assert quotes[0] == "> raw, resnet50 on 4 ranks: shrink, 1 of 2: process 0 died"
    assert quotes[1].startswith(
        "> raw, resnet50 on 4 ranks: a spare takes over, mirrored is marked: the loss did not fall"
    )


def test_the_pages_count_the_kills_and_the_drills_of_the_newest_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A kill with wrong bits, and those of a way that failed, count as not survived."""
    shrink, drop, restart = case("shrink"), case("shrink-drop"), case("restart")
    survived = drilled(ended=True, back_ns=5, same_as="fewer ranks", expected="fewer ranks")
    failure = FailureRecord("failure", restart.id, 0, 0, "failed", "train", "RuntimeError: no")
    ways = derived((shrink, measured(shrink)), (drop, measured(drop)), (restart, [failure]))
    run = stored_run("some-run", [*ways, survived])
    others = stored_run("drills", [survived, broken_drill()])
    stored = {"recovery-full": [run], "drills": [others]}
    monkeypatch.setattr(recovered_tables, "newest_full_runs", lambda suite: stored.get(suite, []))
    said = recovered_tables._survived()
    assert "came back after 1 of 8 kills with the bits that the way promises" in said
    assert "passed 2 of 3 [drills]" in said
    assert "of 'shrink, drop the lost batches' in raw and 'restart from buffered' in raw" in said


def test_a_drill_on_two_ranks_has_a_line_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    on_four = drilled(ended=True, back_ns=5, same_as="fewer ranks", expected="fewer ranks")
    run = stored_run("some-run", [replace(on_four, world=2), on_four])
    monkeypatch.setattr(recovered_tables, "newest_full_runs", lambda suite: [run])
    lines = recovered_tables.drills().splitlines()
    assert [line.split(" | ")[1] for line in lines[2:4]] == ["2", "4"]
    monkeypatch.setattr(recovered_tables, "newest_full_runs", lambda suite: [])
    assert recovered_tables.every_way_back() == "No reference run of this suite is stored yet."


def test_a_drill_in_which_a_rank_raised_counts_as_not_survived() -> None:
    failed = broken_drill()
    passed = drilled(ended=True, back_ns=5, same_as="fewer ranks", expected="fewer ranks")
    said = in_words([passed, failed], Naming.among([passed]))
    assert said.startswith("Training survived 1 of 2 failures.")
    assert "'shrink' failed where rank 0 is killed: rank 0: RuntimeError: no." in said


def test_a_terminal_shows_the_cost_of_a_step_in_a_table_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    spare = case("peer-spare", mirror="yes")
    found = derived((spare, measured(spare, "all ranks")))
    _print_rows("the title", found)
    first, second = capsys.readouterr().out.split("What a step costs without a failure")
    assert "came back" in first
    assert "agreement" not in first
    assert "agreement" in second
    assert "0.06 ms" in second
    # Other forms have one table, because a line is as long as it likes.
    assert {"came back", "agreement"} <= set(text_table(found).columns)


@pytest.mark.parametrize(
    ("cache", "cached", "mark"),
    [
        ("cold", 0.004, None),
        ("cold", None, None),
        ("warm", 1.0, None),
        ("cold", 0.5, "50% of a checkpoint's files were still in the page cache"),
    ],
)
def test_a_cold_restart_that_finds_its_files_in_the_page_cache_is_marked(
    cache: str, cached: float | None, mark: str | None
) -> None:
    restart = case("restart", cache=cache)
    kill, *others = measured(restart, "all ranks")
    assert isinstance(kill, KillRecord)
    (row,) = derived((restart, [replace(kill, cached=cached), *others]))
    assert row.cached == cached
    found = [text for text in row.marks if "page cache" in text]
    assert len(found) == (mark is not None)
    assert (mark or "") in "".join(found)


def test_a_row_says_that_its_files_were_cold() -> None:
    restart = case("restart", cache="cold")
    (row,) = derived((restart, measured(restart, "all ranks")))
    assert row.way_in_words == "restart from buffered, cold files"
