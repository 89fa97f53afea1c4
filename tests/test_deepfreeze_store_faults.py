"""The DeepFreeze store after a kill or a disk error at any system call of a save."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest
from deepfreeze_stores import Digests, names, restored, run_disturbed

pytest_plugins = ["deepfreeze_fixtures"]
pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")

# The calls that change the disk, counted in each thread by itself, and the steps that may be left
# after a kill there.
KILLED_AT = {
    "pwrite64": [1],
    "ftruncate": [1],
    "fsync": [1, 2],
    "rename": [1],
    "unlinkat": [2],
    "rmdir": [2],
}


@pytest.mark.parametrize(("call", "outcome"), KILLED_AT.items())
def test_a_whole_checkpoint_is_there_whenever_the_process_is_killed(
    call: str, outcome: list[int], first_store: Path, folder: Path, expected: list[Digests]
) -> None:
    steps = []
    for number in itertools.count(1):
        attempt = shutil.copytree(first_store, folder / str(number))
        was_killed = run_disturbed(attempt, call, "signal=KILL", number).returncode != 0
        level, step, restored_digests = restored(attempt)
        assert (level, restored_digests) == ("directory", expected[step])
        assert all(name.startswith("step-") for name in names(attempt)), (
            "what was left unfinished is removed"
        )
        # No thread makes so many of these calls.
        if not was_killed:
            break
        steps.append(step)
    assert sorted(set(steps)) == outcome
    assert step == 2


@pytest.mark.parametrize("call", KILLED_AT)
def test_a_disk_error_is_raised_and_no_checkpoint_is_lost(
    call: str, first_store: Path, folder: Path, expected: list[Digests]
) -> None:
    for number in itertools.count(1):
        attempt = shutil.copytree(first_store, folder / str(number))
        outcome = run_disturbed(attempt, call, "error=ENOSPC", number)
        assert (outcome.returncode, outcome.stderr) == (0, "")
        # No thread makes so many of these calls.
        if not outcome.stdout:
            break
        assert outcome.stdout == "raised No space left on device\n"
        if call in ("pwrite64", "ftruncate"):
            assert names(attempt) == ["step-0000000001"], "nothing unfinished is left"
        _, step, restored_digests = restored(attempt)
        assert restored_digests == expected[step]
    assert number > 1
    assert restored(attempt) == ("directory", 2, expected[2])
