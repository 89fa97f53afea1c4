"""Saves of small real programs and of handwritten logs, judged from their system calls."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path

import pytest

from harness.durability import strace
from harness.durability.recording import Recording
from harness.wire.records import SyscallsRecord

ROOT = Path(__file__).resolve().parents[1]
CASE = "0123456789ab"

PRELUDE = f"""
import mmap, os, sys, threading
from harness.wire import marks

root = sys.argv[1]
mark = lambda instant: marks.mark("{CASE}", instant)
at = lambda *names: os.path.join(root, *names)

def write(path, flush=False, size=1000, flags=0):
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | flags, 0o644)
    os.write(fd, bytes(size))
    if flush:
        os.fsync(fd)
    os.close(fd)

def flush(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
"""

# Lines of a log. The checkpoint's directory is /s, and its file is /s/m.
CREATE = '7 openat(AT_FDCWD</>, "/s/m", O_WRONLY|O_CREAT|O_CLOEXEC, 0666) = 3</s/m>'
WRITE = '7 write(3</s/m>, ""..., 9) = 9'
FSYNC = "7 fsync(3</s/m>) = 0"
FSYNC_ROOT = "7 fsync(4</s>) = 0"
# The end of a log in which everything is flushed before `returned`.
SAFE_END = (FSYNC, FSYNC_ROOT, "returned", "finished")

# What `verdicts` returns for a save that is safe before save returns, and for one that never is.
AT_RETURN = ("at return", "at return")
NEVER = ("never", "never")


def trace(
    tmp_path: Path, save: str, then: str = "", late: str = "", root: Path | None = None
) -> SyscallsRecord:
    """Run a program under strace and judge its save.

    `save` runs between the marks `begin` and `returned`, `then` from there to `finished`, and
    `late` after that. The program's `root` is an empty directory, by default `tmp_path`/scratch.
    Skips the test if strace cannot be used.
    """
    require_strace()
    root = root or tmp_path / "scratch"
    root.mkdir(exist_ok=True)
    parts = [PRELUDE, "mark('begin')", save, "mark('returned')", then, "mark('finished')", late]
    program = "\n".join(textwrap.dedent(part) for part in parts)
    log = tmp_path / "log"
    argv = [*strace.command(log), sys.executable, "-c", program, str(root)]
    subprocess.run(argv, cwd=ROOT, check=True, timeout=60)
    return Recording(log).analyse(CASE, root)


def judge(tmp_path: Path, *lines: str) -> SyscallsRecord:
    """Judge a save from the lines of its log. A line of one word stands for the mark it names."""
    log = tmp_path / "log"
    log.write_text("".join(f"{_with_mark(line)}\n" for line in lines))
    return Recording(log).analyse(CASE, Path("/s"))


def verdicts(record: SyscallsRecord) -> tuple[str, str]:
    """Return the durability of the checkpoint and that of its contents alone."""
    return record.durability, record.data_durability


def require_strace() -> None:
    """Skip the test if strace cannot be used."""
    obstacle = _obstacle()
    if obstacle is not None:
        pytest.skip(obstacle)


@cache
def _obstacle() -> str | None:
    return strace.available()


def _with_mark(line: str) -> str:
    if " " in line:
        return line
    return f'7 access("/ckptbench/mark/{CASE}/{line}", F_OK) = -1 ENOENT (No such file)'
