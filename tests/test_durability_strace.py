"""Running strace, and the marks that it shows."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from traced_saves import CASE, require_strace

from harness.durability import strace
from harness.wire import marks

# 425 is the number of io_uring_setup on every architecture.
ASK_FOR_A_RING = """
import ctypes, errno
library = ctypes.CDLL(None, use_errno=True)
library.syscall(425, 8, bytes(120))
assert ctypes.get_errno() == errno.ENOSYS
"""


def test_rings_are_refused(tmp_path: Path) -> None:
    require_strace()
    argv = [*strace.command(tmp_path / "log"), sys.executable, "-c", ASK_FOR_A_RING]
    subprocess.run(argv, check=True, timeout=60)


def test_absence_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert strace.available() == "strace is not installed"


def test_a_strace_that_may_not_trace_has_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "strace"
    program.write_text(
        "#!/bin/sh\necho 'strace: ptrace(PTRACE_TRACEME): not permitted' >&2\nexit 1\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    reason = "strace cannot trace here: ptrace(PTRACE_TRACEME): not permitted"
    assert strace.available() == reason


def test_a_strace_that_sees_nothing_has_a_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = tmp_path / "strace"
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    reason = "strace cannot trace here: its log does not show a call of a test program"
    assert strace.available() == reason


def test_marks_read_back() -> None:
    assert marks.parse(f"/ckptbench/mark/{CASE}/staged") == (CASE, "staged")
    assert marks.parse(f"/ckptbench/mark/{CASE}/else") is None
    assert marks.parse("/etc/passwd") is None
    assert marks.parse("/ckptbench/mark/staged") is None
