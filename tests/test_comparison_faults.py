"""Comparing runs of struck saves: a verdict that gets worse, or vanishes, is a regression."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from compared_runs import Make, item, maker
from struck_records import KNOWN, damaged, struck, tried
from stubs import command

from harness.experiments.faults.records import UNHANDLED, KilledRecord, PreemptedRecord
from harness.experiments.killed_rank.records import (
    Fate,
    RankKillRecord,
    RankLeftRecord,
    RanksResumedRecord,
    RanksStruckRecord,
)
from harness.wire.records import Record

STRUCK = replace(item(experiment="faults"), processes=1)
RANKS = replace(item(experiment="killed_rank", world=2), processes=1)

KILL = struck("kill", 1, "safe")
ERROR = struck("error", None, "safe", succeeded=False)
DAMAGE = damaged("cut", "refused")
SIGTERM = struck("preemption", None, "safe")
LOST = struck("power loss", 1, "lost")
SAFE = struck("power loss", 2, "safe")
REFUSED = struck("power loss", 2, "refused")
SILENT = struck("power loss", 2, "silent")
ON_EXT4 = struck("power loss on ext4", None, "safe")


def next_save(*, succeeded: bool) -> dict[str, Any]:
    """Return the save after a failed one."""
    return struck("next save", None, "safe", succeeded=succeeded)


def real_kill(difference: str) -> KilledRecord:
    """Return a real kill that left files with a difference from the predicted ones."""
    return KilledRecord(
        kind="killed", case=STRUCK.case.id, **KNOWN, change=1, difference=difference
    )


def preempted(training_ns: int | None, grace_s: int | None) -> PreemptedRecord:
    """Return the times from two SIGTERMs on. None is a time that is longer than the grace."""
    return PreemptedRecord(
        kind="preempted",
        case=STRUCK.case.id,
        **KNOWN,
        training_ns=training_ns,
        saving_ns=1,
        grace_s=grace_s,
    )


def of_ranks(fate: Fate) -> list[Record]:
    """Return the records of one kill of a rank, after which the other one had a fate."""
    known = {"case": RANKS.case.id, **KNOWN}
    hit = {"number": 1, "in_words": "rank 0 killed", "victim": 0, "is_caller": True}
    left = {"number": 1, "verdict": "safe", "got": "step-1", "reason": ""}
    counts = {"changes": 3, "writes": 1, "save_ns": 9, "kills": 1, "not_reached": 0}
    return [
        RankKillRecord(kind="rank-kill", **known, **hit, fate=fate, after_ns=5, said=""),
        RankLeftRecord(kind="rank-left", **known, **left),
        RanksStruckRecord(kind="ranks-struck", **known, **counts),
        RanksResumedRecord(kind="ranks-resumed", **known),
    ]


STATES = [KILL, ERROR, next_save(succeeded=True), DAMAGE, SIGTERM, ON_EXT4]
SOUND = [*tried(STRUCK, STATES), real_kill("")]


def with_states(*states: dict[str, Any], not_seen: str = "") -> list[Record]:
    """Return the records of a run in which these states were tried."""
    return [*tried(STRUCK, list(states), not_seen=not_seen), real_kill("")]


def without(state: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the sound states but for one."""
    return [other for other in STATES if other is not state]


def by_command(make: Make, tmp_path: Path, sides: Sequence[Sequence[Record]]) -> tuple[int, Any]:
    """Compare two runs by the command. Return its exit status and what it says of the row."""
    is_of_ranks = sides[0][0].kind == "rank-kill"
    plan = [RANKS if is_of_ranks else STRUCK]
    base, head = (make(plan, side) for side in sides)
    where = ("--results", str(tmp_path / "results"))
    done = command("compare", base.name, head.name, "--format", "json", *where)
    [row] = json.loads(done.output)["rows"]
    return done.status, row


@pytest.fixture
def make(tmp_path: Path) -> Make:
    return maker(tmp_path / "results")


@pytest.mark.parametrize(
    ("base", "head", "fault"),
    [
        pytest.param(
            SOUND,
            with_states({**KILL, "verdict": "refused"}, *without(KILL)),
            "the verdicts on kills were 'safe' and are 'refused 1 of 1'",
            id="a worse verdict",
        ),
        pytest.param(
            SOUND,
            with_states(*without(KILL), not_seen="the file is mapped"),
            "the verdicts on kills were 'safe' and are not known any more",
            id="kills are not seen",
        ),
        pytest.param(
            SOUND,
            with_states(*without(DAMAGE)),
            "the verdicts on damages were 'refused 1 of 1' and are not known any more",
            id="no damage",
        ),
        pytest.param(
            SOUND,
            with_states(*without(SIGTERM)),
            "the verdicts on SIGTERMs that the script handles were 'safe' and are not known "
            "any more",
            id="no SIGTERM",
        ),
        pytest.param(
            SOUND,
            with_states(*without(ON_EXT4)),
            "the verdicts on power losses on ext4 were 'safe' and are not known any more",
            id="no power cut on a disk",
        ),
        pytest.param(
            SOUND,
            with_states(*without(STATES[2]), next_save(succeeded=False)),
            "next saves that fail were 0 of 1 and are 1 of 1",
            id="a next save fails",
        ),
        pytest.param(
            SOUND,
            tried(STRUCK, STATES),
            "real kills that leave other files than predicted were 0 and are not known any more",
            id="no real kill",
        ),
        pytest.param(
            [*SOUND, preempted(5, grace_s=None)],
            [*SOUND, preempted(None, grace_s=30)],
            "SIGTERMs whose grace was too short were 0 and are 1",
            id="a save that needs longer than the grace, after a run without a limit",
        ),
        pytest.param(
            with_states(LOST, SAFE, REFUSED),
            with_states(LOST, SAFE, SILENT),
            "the verdicts on power losses were 'lost 1, refused 1 of 3' and are 'lost 1, silent 1 "
            "of 3'",
            id="the first silent state beside a lost one",
        ),
        pytest.param(
            with_states(LOST, *[SAFE] * 5),
            with_states(LOST, *[SAFE] * 4, REFUSED),
            "the verdicts on power losses were 'lost 1 of 6' and are 'lost 1, refused 1 of 6'",
            id="more states that are not safe beside a lost one",
        ),
        pytest.param(
            of_ranks("raised"),
            of_ranks("died"),
            "kills after which a rank dies by itself were 0 of 1 and are 1 of 1",
            id="a rank dies by itself",
        ),
        pytest.param(
            of_ranks("raised"),
            of_ranks("hung"),
            "kills after which a rank hangs were 0 of 1 and are 1 of 1",
            id="a rank hangs",
        ),
    ],
)
def test_what_gets_worse_or_vanishes_is_a_regression(
    make: Make, tmp_path: Path, base: list[Record], head: list[Record], fault: str
) -> None:
    status, row = by_command(make, tmp_path, [base, head])
    assert (status, row["faults"]) == (1, [fault])
    status, row = by_command(make, tmp_path, [head, base])
    assert (status, row["faults"]) == (0, [])


UNHANDLED_SIGTERM = {**SIGTERM, "in_words": UNHANDLED}


@pytest.mark.parametrize(
    ("base", "head"),
    [
        pytest.param(
            with_states(*[REFUSED] * 3, *[SAFE] * 17),
            with_states(*[REFUSED] * 4, *[SAFE] * 15),
            id="other places of one kind",
        ),
        pytest.param(
            with_states(SIGTERM, UNHANDLED_SIGTERM),
            with_states(SIGTERM, {**UNHANDLED_SIGTERM, "verdict": "refused"}),
            id="a SIGTERM that nobody handles, which is a race",
        ),
    ],
)
def test_what_chance_decides_is_no_regression(
    make: Make, tmp_path: Path, base: list[Record], head: list[Record]
) -> None:
    status, row = by_command(make, tmp_path, [base, head])
    assert (status, row["faults"]) == (0, [])


def test_a_kill_that_is_not_predicted_is_a_regression_and_a_mark(
    make: Make, tmp_path: Path
) -> None:
    head = [*tried(STRUCK, STATES), real_kill("step-2 is missing")]
    status, row = by_command(make, tmp_path, [SOUND, head])
    assert status == 1
    assert row["faults"] == [
        "real kills that leave other files than predicted were 0 and are 1",
        "is marked now: a save that was killed before change 1 is not as its calls predict: "
        "step-2 is missing",
    ]


@pytest.mark.parametrize("records", [SOUND, of_ranks("hung")], ids=["faults", "killed ranks"])
def test_equal_runs_are_no_regression(make: Make, tmp_path: Path, records: list[Record]) -> None:
    status, row = by_command(make, tmp_path, [records, records])
    assert (status, row["faults"], row["gains"]) == (0, [], [])
