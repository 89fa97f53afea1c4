"""A job's end is the end of everything that it started."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from test_session import processes_in

from harness.driver import process

# A grandchild in a session of its own, whose parent is gone before anybody has looked.
STARTS_A_DAEMON = "import subprocess; subprocess.Popen(['sleep', '60'], start_new_session=True)"


def test_a_daemon_that_nobody_has_seen_is_ended(tmp_path: Path) -> None:
    variables = os.environ | {"TMPDIR": str(tmp_path / "tmp")}
    follower = process.Follower(tmp_path, 1, lambda rank, line: None)
    began_s = time.monotonic()
    ending = process.run([sys.executable, "-c", STARTS_A_DAEMON], variables, tmp_path / "log", follower, 1, timeout_s=30)
    assert not ending.complete
    assert processes_in(tmp_path) == []
    assert time.monotonic() - began_s < 30


def test_others_with_another_temporary_directory_are_left_alone(tmp_path: Path) -> None:
    variables = os.environ | {"TMPDIR": str(tmp_path / "tmp")}
    follower = process.Follower(tmp_path, 1, lambda rank, line: None)
    other = subprocess.Popen(["sleep", "60"], env=os.environ | {"TMPDIR": str(tmp_path / "others")})
    try:
        process.run([sys.executable, "-c", "pass"], variables, tmp_path / "log", follower, 1, timeout_s=30)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
