"""A job's end is the end of everything that it started."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import ROOT
from test_session import processes_in

from harness.driver import process
from harness.wire.phases import DONE

# A grandchild in a session of its own, whose parent is gone before anybody has looked.
STARTS_A_DAEMON = "import subprocess; subprocess.Popen(['sleep', '60'], start_new_session=True)"


def test_a_daemon_that_nobody_has_seen_is_ended(tmp_path: Path) -> None:
    variables = os.environ | {"TMPDIR": str(tmp_path / "tmp")}
    follower = process.Follower(tmp_path, 1, lambda rank, line: None)
    began_s = time.monotonic()
    ending = process.run(
        [sys.executable, "-c", STARTS_A_DAEMON],
        variables,
        tmp_path / "log",
        follower,
        1,
        timeout_s=30,
    )
    assert not ending.complete
    assert processes_in(tmp_path) == []
    assert time.monotonic() - began_s < 30


# As mpirun does, it waits until the output of its rank is closed; the rank's last act is a daemon
# that has inherited it.
RANK = "import subprocess, time; time.sleep(3); subprocess.Popen(['sleep', '60'], start_new_session=True)"
LAUNCHER = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]], stdout=subprocess.PIPE)"


def test_a_launcher_does_not_wait_for_what_a_dead_rank_has_left(tmp_path: Path) -> None:
    variables = os.environ | {"TMPDIR": str(tmp_path / "tmp")}
    follower = process.Follower(tmp_path, 1, lambda rank, line: None)
    began_s = time.monotonic()
    ending = process.run(
        [sys.executable, "-c", LAUNCHER, RANK],
        variables,
        tmp_path / "log",
        follower,
        1,
        timeout_s=50,
    )
    assert ending.reason.startswith("the process ended before its work was done")
    assert processes_in(tmp_path) == []
    assert time.monotonic() - began_s < 40


def test_others_with_another_temporary_directory_are_left_alone(tmp_path: Path) -> None:
    variables = os.environ | {"TMPDIR": str(tmp_path / "tmp")}
    follower = process.Follower(tmp_path, 1, lambda rank, line: None)
    other = subprocess.Popen(["sleep", "60"], env=os.environ | {"TMPDIR": str(tmp_path / "others")})
    try:
        process.run(
            [sys.executable, "-c", "pass"], variables, tmp_path / "log", follower, 1, timeout_s=30
        )
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


STANDS = """
import sys, time
from pathlib import Path
from harness.worker.output import Output

for rank, phases in enumerate(sys.argv[2:]):
    output = Output(Path(sys.argv[1]), rank, 0)
    output.task(0)
    for phase in phases.split(","):
        output.enter(phase)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("ranks", "rank", "said"),
    [
        (["save"] * 4, 0, "; ranks 0 to 3 stood in save"),
        (["save,close", "save", "save,close", "save"], 1, "; ranks 1, 3 stood in save"),
        (["save", "load", "load"], 0, "; rank 0 stood in save; ranks 1 to 2 stood in load"),
        (["save,close", "save"], 1, ""),
        ([DONE, "save", DONE], 1, ""),
        (["save", "save,close"] * 6, 0, "; ranks 0, 2, 4, 6, others stood in save"),
    ],
)
def test_of_ranks_that_hang_side_by_side_none_alone_is_to_blame(
    tmp_path: Path, ranks: list[str], rank: int, said: str
) -> None:
    follower = process.Follower(tmp_path, len(ranks), lambda rank, line: None)
    variables = os.environ | {"TMPDIR": str(tmp_path / "tmp"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", STANDS, str(tmp_path), *ranks]
    ending = process.run(command, variables, tmp_path / "log", follower, len(ranks), timeout_s=2)
    assert ending.reason == f"no progress for 2 s, so the process was killed{said}"
    assert (ending.at.rank, ending.at.phase) == (rank, "save")
