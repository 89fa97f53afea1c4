"""Strikes chosen system calls of a program: they fail, are cut short, or kill it before they act.

The gate runs a command under a seccomp filter with user notification (seccomp_unotify(2)). Calls
that may change files wait until the gate answers. The program itself orders strikes
(`harness.wire.strikes`). All threads and children of the program count together, in the order in
which the gate receives their calls. These things pass uncounted:

- stores into shared mappings, and reads and writes of an io_uring or of Linux AIO
- calls that the gate does not know, such as chmod, setxattr, splice and close_range
- calls of programs for another architecture, such as 32-bit ones

A call of another thread that the gate has let through may still be at work when a kill strikes.
Before Linux 5.19, a call counts twice if a signal interrupts it while the gate answers.

A close that fails has closed the file all the same, as on Linux. Only the number of the descriptor
stays in use, and leads to /dev/null. Before Linux 5.9, the file itself stays open.

The gate lasts as long as anything that the command has started. If somebody kills the gate itself,
every filtered call fails with ENOSYS. The gate needs Linux 5.8 and libseccomp 2.5.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from harness.wire.strikes import Strike, spelled

_TIMEOUT_S = 30.0
# It shows that the gate hears orders, reads memory and borrows descriptors.
_PROBE = """
import os, sys
is_heard = os.access(sys.argv[1], os.F_OK)
written = os.write(os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT), sys.argv[3].encode())
sys.exit(0 if is_heard and written == len(sys.argv[3]) // 2 else "a strike had no effect")
"""


def command(root: Path, report: Path) -> list[str]:
    """Return the argv prefix that runs a program under the gate.

    Calls about files at or below `root` count. The gate reports in the file `report`. It exits with
    the program's status, or 128 + N after signal N. It exits with 125 if it cannot go on, 126 if
    the program cannot be started, and 127 if there is no such program.
    """
    return [
        *(sys.executable, "-m", __name__),
        *("--root", os.fspath(root)),
        *("--report", os.fspath(report)),
        "--",
    ]


def available() -> str | None:
    """Return None if the gate can strike a program on this machine, otherwise the reason."""
    order = spelled(Strike("write", 1, "short"))
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "file")
        gate = command(Path(scratch), Path(scratch, "report"))
        probe = [sys.executable, "-I", "-S", "-c", _PROBE, order, os.fspath(file), "ckptbench!"]
        try:
            outcome = subprocess.run(
                [*gate, *probe],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"the gate cannot strike here: a test program stood still for {_TIMEOUT_S:g} s"
    if outcome.returncode == 0:
        return None
    messages = outcome.stderr.strip().splitlines()
    reason = messages[-1] if messages else f"a test program ended with {outcome.returncode}"
    return f"the gate cannot strike here: {reason.removeprefix('gate: ')}"
