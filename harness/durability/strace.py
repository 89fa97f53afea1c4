"""Runs a program under strace, with the system calls that the analysis needs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from harness.durability import blind_spots, contents, replay, window

_WRITE_BYTES_AT_MOST = 16 << 20  # strace keeps a buffer of five times this
_FILTER = "--seccomp-bpf"
_PROBE = "from os import access, F_OK; access('/', F_OK)"
# The probe's call as a log shows it.
_PROBED = '"/", F_OK'


def command(
    log: Path, payload: bool = False, write_bytes_at_most: int = _WRITE_BYTES_AT_MOST
) -> list[str]:
    """Return the argv prefix that runs a program under strace, with its threads and children.

    With `payload`, the log also holds the bytes of every write, so that files can be built from it.
    A write of more than `write_bytes_at_most` shows without its end.

    All of them write to one log. io_uring_setup fails with ENOSYS, as on kernels without it,
    because some event loops (libuv, in PyTorch's TCPStore) open a ring only to wait with, and a log
    cannot tell that from writing. A program that gets no ring works without one, and all of its
    writes show.
    """
    names = [*window.MARK_CALLS, *blind_spots.RING_CALLS, *replay.CALLS]
    if payload:
        names += contents.EXTRA_CALLS
    # The question mark lets strace skip calls that this architecture does not have.
    traced = ",".join(f"?{name}" for name in names)
    # Calls that are not traced then run at full speed.
    filter_in_kernel = [_FILTER] if _has_seccomp_bpf(shutil.which("strace")) else []
    # Descriptors come with their paths, so that nobody has to follow descriptor tables through dup,
    # fork and threads.
    show_paths = ["-y"]
    # So many bytes of each string show. strace never shortens paths.
    shown_bytes = [f"-s{write_bytes_at_most if payload else 0}"]
    return [
        "strace",
        "-f",
        *filter_in_kernel,
        "-qq",
        *show_paths,
        *shown_bytes,
        *("-e", "signal=none"),
        *("-e", f"trace={traced}"),
        *("-e", "inject=io_uring_setup:error=ENOSYS"),
        *("-o", os.fspath(log)),
    ]


def attached(log: Path) -> list[str]:
    """Return the argv of a strace that attaches to the calling process, with payload.

    It serves where another filter of system calls is around the process. That one's answer would
    hide the calls from a strace whose own filter runs in the kernel.
    """
    argv = [word for word in command(log, payload=True) if word != _FILTER]
    return [*argv, "-p", str(os.getpid())]


def available() -> str | None:
    """Return None if strace is installed and may trace on this machine, otherwise the reason."""
    if shutil.which("strace") is None:
        return "strace is not installed"
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch, "log")
        outcome = subprocess.run(
            [*command(log), sys.executable, "-I", "-S", "-c", _PROBE],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        has_seen_probe = log.is_file() and _PROBED in log.read_text(errors="replace")
    if outcome.returncode == 0 and has_seen_probe:
        return None
    messages = outcome.stderr.strip().splitlines()
    reason = messages[-1] if messages else "its log does not show a call of a test program"
    return f"strace cannot trace here: {reason.removeprefix('strace: ')}"


@cache
def _has_seccomp_bpf(strace: str | None) -> bool:
    """Tell whether this strace can leave the filtering to the kernel, as strace 5.3 can."""
    if strace is None:
        return False
    usage = subprocess.run([strace, "-h"], capture_output=True, text=True, check=False)
    return "--seccomp-bpf" in usage.stdout
