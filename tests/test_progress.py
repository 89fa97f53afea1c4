"""The samples that a run still lacks follow from records that stop anywhere."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import records
from conftest import planned

from harness import experiments
from harness.driver.progress import Progress, samples_wanted
from harness.experiments.cost.records import SaveRecord
from harness.run.plan import PlannedCase
from harness.wire.experiment import Stage
from harness.wire.records import Record


def item(**changes: Any) -> PlannedCase:
    return planned(
        "buffered", **({"samples": 3, "warmups": 1, "repeats": 2, "processes": 2} | changes)
    )


def saves(of: PlannedCase, indices: Iterable[int], **changes: Any) -> list[SaveRecord]:
    return [records.save(of.case.id, index=index, **changes) for index in indices]


def stage(name: str) -> Stage:
    """The stage of that name, whichever experiment has it first."""
    declared = [experiments.experiment(experiment) for experiment in experiments.names()]
    return next(found for each in declared for found in each.stages if found.name == name)


def missing(
    of: PlannedCase, found: Sequence[Record], process: int = 0, direction: str = "save"
) -> tuple[int, int, int]:
    """(samples, repeats, first index) of what is still to be done."""
    task = Progress(found).task(of, process, stage(direction))
    assert task.case == of.case
    assert task.warmups == of.warmups, "a process that starts anew warms up anew"
    return task.samples, task.repeats, task.first_index


def test_without_records_everything_is_missing() -> None:
    assert missing(item(), []) == (3, 2, 0)
    assert not Progress([]).done(item(), 0, stage("save"))


def test_samples_that_are_there_are_not_taken_again() -> None:
    of = item()
    assert missing(of, saves(of, [0, 1])) == (1, 2, 2)
    assert missing(of, saves(of, [0, 1, 2])) == (0, 2, 3)
    assert Progress(saves(of, [0, 1, 2])).done(of, 0, stage("save"))


def test_more_samples_than_were_wanted_are_no_debt() -> None:
    of = item()
    assert missing(of, saves(of, range(5))) == (0, 2, 5)


def test_warmups_are_no_samples_but_use_up_their_number() -> None:
    of = item()
    assert missing(of, saves(of, [0], warmup=True)) == (3, 2, 1)
    assert missing(of, saves(of, [0], warmup=True) + saves(of, [1])) == (2, 2, 2)


def test_a_disturbed_warmup_is_a_warmup() -> None:
    of = item()
    assert missing(of, saves(of, [0], warmup=True, disturbed=True)) == (3, 2, 1)


@pytest.mark.parametrize(
    ("disturbed", "good", "samples", "repeats"),
    [
        (1, 0, 3, 1),  # taken again
        (2, 0, 3, 0),
        (3, 0, 2, 0),  # no repeats are left: it counts
        (5, 0, 0, 0),
        (2, 3, 0, 0),
        (1, 2, 1, 1),
    ],
)
def test_disturbed_samples_use_up_the_repeats_and_then_count(
    disturbed: int, good: int, samples: int, repeats: int
) -> None:
    of = item()
    found = saves(of, range(disturbed), disturbed=True) + saves(
        of, range(disturbed, disturbed + good)
    )
    assert missing(of, found) == (samples, repeats, disturbed + good)


def test_without_repeats_a_disturbed_sample_counts_at_once() -> None:
    of = item(repeats=0)
    assert missing(of, saves(of, [0], disturbed=True)) == (2, 0, 1)


def test_a_sample_that_one_rank_of_two_has_reported_is_taken_again_under_a_new_index() -> None:
    of = item(world=2)
    found = saves(of, [0, 1], rank=0) + saves(of, [0], rank=1)
    assert missing(of, found) == (2, 2, 2)
    assert missing(of, saves(of, [0, 1, 2], rank=1)) == (3, 2, 3)


def test_a_sample_whose_line_was_lost_is_taken_again_and_no_index_is_given_twice() -> None:
    of = item()
    assert missing(of, saves(of, [0, 2])) == (1, 2, 3)


def test_one_rank_that_reports_twice_is_not_two() -> None:
    of = item(world=2)
    assert missing(of, saves(of, [0, 0], rank=0)) == (3, 2, 1)


def test_a_sample_is_a_warmup_or_disturbed_as_soon_as_one_rank_says_so() -> None:
    of = item(world=2)
    warmup = saves(of, [0], rank=0) + saves(of, [0], rank=1, warmup=True)
    disturbed = saves(of, [1], rank=0, disturbed=True) + saves(of, [1], rank=1)
    assert missing(of, warmup) == (3, 2, 1)
    assert missing(of, warmup + disturbed) == (3, 1, 2)


def test_an_incomplete_disturbed_sample_uses_up_no_repeat() -> None:
    of = item(world=2)
    assert missing(of, saves(of, [0], rank=0, disturbed=True)) == (3, 2, 1)


def test_saves_are_no_loads_and_one_process_is_not_the_other() -> None:
    of = item()
    found = [*saves(of, [0, 1, 2]), records.load(of.case.id, process=1)]
    assert missing(of, found, process=0, direction="load") == (3, 2, 0)
    assert missing(of, found, process=1, direction="save") == (3, 2, 0)
    assert missing(of, found, process=1, direction="load") == (2, 2, 1)


def test_one_case_is_not_the_other() -> None:
    of, other = item(), item(dropout=0.2)
    assert missing(other, saves(of, [0, 1, 2])) == (3, 2, 0)


@pytest.mark.parametrize("status", ["failed", "unsupported", "skipped"])
def test_a_case_that_failed_is_done_in_every_process_and_direction(status: str) -> None:
    of, other = item(), item(dropout=0.2)
    progress = Progress([records.failure(of.case.id, status=status, process=1)])
    for process in (0, 1):
        assert progress.done(of, process, stage("save"))
        assert progress.done(of, process, stage("load"))
        assert not progress.done(other, process, stage("save"))


def test_what_takes_no_samples_is_there_or_missing() -> None:
    of = item()
    of = replace(of, case=replace(of.case, experiment="sizes"))
    found = [
        records.repeat(of.case.id, pair="one process"),
        records.repeat(of.case.id, process=1, pair="two processes"),
    ]
    progress = Progress(found)
    assert [
        progress.done(of, process, stage(role))
        for process in (0, 1)
        for role in ("inspect", "repeat")
    ] == [True, False, False, True]
    assert progress.samples_done([of]) == 2
    assert samples_wanted([of]) == 4
    of = replace(of, case=replace(of.case, experiment="parity"), processes=1)
    assert not Progress([]).done(of, 0, stage("train"))
    assert Progress([records.trajectory(of.case.id)]).done(of, 0, stage("train"))


def test_a_traced_case_is_remembered() -> None:
    of = item()
    assert not Progress([]).has("syscalls", of.case.id)
    assert Progress([records.syscalls(of.case.id)]).has("syscalls", of.case.id)


def test_records_may_come_one_by_one_and_in_any_order() -> None:
    of = item(world=2)
    found = (
        saves(of, [0], warmup=True, rank=0)
        + saves(of, [1, 2], rank=0)
        + saves(of, [2, 1, 0], rank=1)
    )
    progress = Progress([])
    for record in reversed(found):
        progress.add(record)
    assert progress.task(of, 0, stage("save")) == Progress(found).task(of, 0, stage("save"))
    assert progress.task(of, 0, stage("save")).samples == 1


def test_steps_count_the_samples_that_are_not_missing() -> None:
    of, other = item(), item(dropout=0.2)
    assert Progress([]).samples_done([of, other]) == 0
    found: list[Record] = [
        *saves(of, [0], warmup=True),
        *saves(of, [1, 2]),
        records.load(of.case.id, process=1),
    ]
    assert Progress(found).samples_done([of, other]) == 3
    assert Progress(saves(of, range(9))).samples_done([of, other]) == 3, "no more than were wanted"
