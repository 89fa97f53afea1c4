"""A rank is killed before each of its changes, and what is visible is whole."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import deepfreeze_rank
import pytest
from deepfreeze_states import (
    ROOT,
    equal,
)

from adapters.deepfreeze.errors import CommitFailed
from adapters.deepfreeze.save import Save

pytest_plugins = ["deepfreeze_fixtures"]


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("killed", [0, 1])
def test_whenever_a_rank_is_killed_the_other_ends_and_what_is_visible_is_whole(
    folder: Path, killed: int
) -> None:
    outcomes = []
    for number in itertools.count(1):
        attempt = folder / str(number)
        attempt.mkdir()
        outcome, code = save_beside(attempt, killed, number)
        assert outcome is None or isinstance(outcome, CommitFailed)
        if outcome is None or (attempt / "checkpoint").exists():
            check_loads(attempt / "checkpoint")
        outcomes.append(outcome)
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert len(outcomes) > 6
    assert isinstance(outcomes[0], CommitFailed)
    assert outcomes[-1] is None
    assert [path.name for path in attempt.iterdir()] == ["checkpoint"], "nothing is left beside it"


def check_loads(checkpoint: Path) -> None:
    for rank in (0, 1):
        loaded = deepfreeze_rank.engine(rank).load(checkpoint, deepfreeze_rank.SPECS, {})
        assert equal(loaded, deepfreeze_rank.state(rank))


def save_beside(folder: Path, rank: int, number: int) -> tuple[BaseException | None, int]:
    """Save together with a process that is killed before its change of that number.

    Return what this rank raised, and the other one's exit code.
    """
    command = [sys.executable, deepfreeze_rank.__file__, str(folder), str(rank), str(number)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        state = deepfreeze_rank.state(1 - rank)
        save = deepfreeze_rank.engine(1 - rank).save(state, folder / "checkpoint", 1)
        assert save._lifecycle.wait_until_ended(30), "it waits for ever"
        return error_of(save), other.wait(30)


def error_of(save: Save) -> BaseException | None:
    try:
        save.finished()
    except OSError as error:
        return error
    return None
