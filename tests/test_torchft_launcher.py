"""The launcher of torchft's ranks starts a dead one again, and ends all when one fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from adapters.pytorch import torchft_launcher
from adapters.pytorch.torchft_launcher import Ranks

DIES_ONCE = """
import os, pathlib, sys
mark = pathlib.Path(sys.argv[1])
if not mark.exists():
    mark.touch()
    os.kill(os.getpid(), 9)
"""
WAITS = "import time; time.sleep(600)"
FAILS = "raise SystemExit(3)"
DIES = "import os; os.kill(os.getpid(), 9)"


def starting(texts: list[str], folder: Path) -> tuple[Callable[[int], int], list[int]]:
    """Return a function that starts a rank with its text, and the ranks that it has started."""
    started: list[int] = []

    def start(rank: int) -> int:
        started.append(rank)
        argv = [sys.executable, "-c", texts[rank], str(folder / str(rank))]
        return os.spawnv(os.P_NOWAIT, argv[0], argv)

    return start, started


def test_a_rank_that_was_killed_is_started_again(tmp_path: Path) -> None:
    start, started = starting(["", DIES_ONCE, ""], tmp_path)
    assert Ranks(3, start).supervise() == 0
    assert sorted(started) == [0, 1, 1, 2]


def test_a_rank_that_fails_ends_the_others(tmp_path: Path) -> None:
    start, started = starting([WAITS, FAILS], tmp_path)
    begin_s = time.monotonic()
    assert Ranks(2, start).supervise() == 3
    assert time.monotonic() - begin_s < 60
    assert started == [0, 1]


def test_a_rank_that_always_dies_is_given_up(tmp_path: Path) -> None:
    start, started = starting([DIES], tmp_path)
    assert Ranks(1, start).supervise() == 128 + signal.SIGKILL
    assert len(started) == torchft_launcher.STARTS


def test_a_rank_is_told_its_number_and_the_lighthouse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    told = torchft_launcher.variables(1, 4, "localhost", 29510)
    assert (told["RANK"], told["WORLD_SIZE"]) == ("1", "4")
    assert (told["MASTER_ADDR"], told["MASTER_PORT"]) == ("localhost", "29510")
    assert told["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    again = torchft_launcher.variables(1, 4, "localhost", 29510)
    assert again["OMP_NUM_THREADS"] == "3", "the user has the last word"


@pytest.mark.skipif(not Path("/usr/bin/setpriv").exists(), reason="setpriv ties the ranks")
def test_a_rank_ends_with_a_launcher_that_is_killed() -> None:
    command = torchft_launcher.command(["-c", f"print('here', flush=True); {WAITS}"])
    parent = (
        "import os, sys; "
        f"pid = os.spawnv(os.P_NOWAIT, {command[0]!r}, {command!r}); "
        "print(pid, flush=True); os.waitpid(pid, 0)"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as launcher:
        assert launcher.stdout is not None
        words = sorted(launcher.stdout.readline().split() + launcher.stdout.readline().split())
        assert words[1] == b"here", "the rank must be tied before its launcher is killed"
        launcher.kill()
    wait_for_the_end_of(int(words[0]))


def wait_for_the_end_of(pid: int) -> None:
    deadline_s = time.monotonic() + 30
    while is_running(pid):
        assert time.monotonic() < deadline_s, "the rank outlives its launcher"
        time.sleep(0.05)


def is_running(pid: int) -> bool:
    """Return whether a process runs. One whom nobody reaps stays a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
