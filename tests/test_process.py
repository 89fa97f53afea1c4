"""A job ends with every process that it started, and no other process ends with it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from test_session import processes_in

from harness.driver import descendants, process
from harness.driver.process import Ending, Stopped
from harness.wire.phases import DONE
from harness.worker.output import Output

PR_GET_CHILD_SUBREAPER = 37
Run = Callable[..., Ending]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Return a function that runs a program of Python as a job of one rank."""

    def run(program: str, *arguments: str, timeout_s: float = 30) -> Ending:
        follower = process.Follower(tmp_path, 1, lambda rank, line: None)
        command = [sys.executable, "-c", program, *arguments]
        variables = os.environ | {"TMPDIR": str(tmp_path / "tmp")}
        return process.run(command, variables, tmp_path / "log", follower, 1, timeout_s)

    return run


def adopts_orphans() -> bool:
    """Return whether this process adopts orphans."""
    adopts = ctypes.c_int()
    ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(adopts), 0, 0, 0)
    return bool(adopts.value)


# A grandchild in a session of its own, whose parent is gone before anybody has looked.
STARTS_A_DAEMON = "import subprocess; subprocess.Popen(['sleep', '60'], start_new_session=True)"


def test_a_daemon_that_nobody_has_seen_is_ended(run: Run, tmp_path: Path) -> None:
    began_s = time.monotonic()
    ending = run(STARTS_A_DAEMON)
    assert not ending.complete
    assert processes_in(tmp_path) == []
    assert time.monotonic() - began_s < 30


# The job's first process ends at once. Each process below it leads a session, has a child of its
# own, and has nothing of the job in its environment.
STARTS_DAEMONS_OF_DAEMONS = """
import os, time
first = os.getpid()
for _ in range(3):
    if os.fork():
        if os.getpid() != first:
            time.sleep(60)
        os._exit(0)
    os.setsid()
os.execve("/bin/sleep", ["sleep", "61.25"], {})
"""


def test_daemons_of_daemons_are_ended_and_leave_no_zombies(run: Run) -> None:
    children = psutil.Process().children(recursive=True)
    run(STARTS_DAEMONS_OF_DAEMONS)
    assert psutil.Process().children(recursive=True) == children
    command_lines = [seen.info["cmdline"] for seen in psutil.process_iter(["cmdline"])]
    assert ["sleep", "61.25"] not in command_lines


# As mpirun does, it waits until the output of its rank is closed. The rank's last act is a daemon
# that has inherited it.
RANK = f"import time; time.sleep(3); {STARTS_A_DAEMON}"
LAUNCHER = (
    "import subprocess, sys; "
    "subprocess.run([sys.executable, '-c', sys.argv[1]], stdout=subprocess.PIPE)"
)


def test_a_launcher_does_not_wait_for_the_daemon_of_a_dead_rank(run: Run, tmp_path: Path) -> None:
    began_s = time.monotonic()
    ending = run(LAUNCHER, RANK, timeout_s=50)
    assert ending.reason.startswith("the process ended before its work was done")
    assert processes_in(tmp_path) == []
    assert time.monotonic() - began_s < 40


def test_a_process_of_before_the_job_is_left_alone(run: Run) -> None:
    other = subprocess.Popen(["sleep", "60"], start_new_session=True)
    try:
        run(STARTS_A_DAEMON)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_process_that_another_thread_starts_is_left_alone(run: Run) -> None:
    others: list[subprocess.Popen[bytes]] = []
    thread = threading.Timer(0.5, lambda: others.append(subprocess.Popen(["sleep", "60"])))
    thread.start()
    try:
        run(f"import time; time.sleep(1.5); {STARTS_A_DAEMON}")
        thread.join()
        assert [other.poll() for other in others] == [None]
    finally:
        for other in others:
            other.kill()
            other.wait()


# The daemon is gone before the job has ended, if anybody ends it.
STARTS_A_DAEMON_AND_WAITS = f"""
import sys, time
{STARTS_A_DAEMON}
time.sleep(float(sys.argv[1]))
"""
LOOKS_FOR_ITS_DAEMON = f"""
import os, psutil, sys, time
daemon = {STARTS_A_DAEMON.partition("; ")[2]}
while not os.path.exists(sys.argv[1]):
    time.sleep(0.05)
sys.exit(42 if daemon.poll() is None else 43)
"""


def test_jobs_of_several_threads_end_their_own_daemons_alone(tmp_path: Path) -> None:
    def job(name: str, program: str, *arguments: str) -> Ending:
        folder = tmp_path / name
        folder.mkdir()
        follower = process.Follower(folder, 1, lambda rank, line: None)
        command = [sys.executable, "-c", program, *arguments]
        variables = os.environ | {"TMPDIR": str(folder / "tmp")}
        return process.run(command, variables, folder / "log", follower, 1, 30)

    with ThreadPoolExecutor(2) as threads:
        may_end = tmp_path / "may-end"
        looks = "import subprocess\n" + LOOKS_FOR_ITS_DAEMON
        long = threads.submit(job, "long", looks, str(may_end))
        short = threads.submit(job, "short", STARTS_A_DAEMON_AND_WAITS, "1")
        short.result()
        assert processes_in(tmp_path / "short") == []
        assert processes_in(tmp_path / "long") != []
        may_end.touch()
    assert "42" in long.result().reason
    assert processes_in(tmp_path) == []


def test_a_job_that_must_stop_is_ended(tmp_path: Path) -> None:
    follower = process.Follower(tmp_path, 1, lambda rank, line: None)
    command = [sys.executable, "-c", f"import time; {STARTS_A_DAEMON}; time.sleep(60)"]
    variables = os.environ | {"TMPDIR": str(tmp_path / "tmp")}
    stop = threading.Event()
    threading.Timer(1, stop.set).start()
    began_s = time.monotonic()
    with pytest.raises(Stopped):
        process.run(command, variables, tmp_path / "log", follower, 1, 60, stop=stop)
    assert time.monotonic() - began_s < 30
    assert processes_in(tmp_path) == []


def test_a_daemon_that_no_job_knows_is_ended_with_the_last_job(run: Run) -> None:
    # Popen returns once the daemon has its session. `setsid --fork` may return before.
    program = "import subprocess; subprocess.Popen(['sleep', '61.75'], start_new_session=True)"
    with descendants.adopted() as others:
        subprocess.run([sys.executable, "-c", program], check=True)
        descendants.end_strays(others)
    command_lines = [seen.info["cmdline"] for seen in psutil.process_iter(["cmdline"])]
    assert ["sleep", "61.75"] not in command_lines


def test_what_a_killed_driver_has_left_at_work_is_ended(tmp_path: Path) -> None:
    def daemon_in(folder: str) -> subprocess.Popen[bytes]:
        variables = os.environ | {"TMPDIR": str(tmp_path / folder / "tmp")}
        return subprocess.Popen(["sleep", "61.25"], env=variables, start_new_session=True)

    left, other = daemon_in("run"), daemon_in("run-2")
    try:
        descendants.end_left_in(tmp_path / "run")
        assert not psutil.pid_exists(left.pid)
        assert other.poll() is None
    finally:
        for daemon in (left, other):
            daemon.kill()
            daemon.wait()


def test_a_child_that_has_ended_can_still_be_asked_for_its_status(run: Run) -> None:
    other = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
    run(STARTS_A_DAEMON)
    assert other.wait() == 7


@pytest.mark.parametrize("within_slurm", [True, False])
def test_ranks_that_slurms_daemons_started_end_with_the_job(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, within_slurm: bool
) -> None:
    variables = os.environ | {"TMPDIR": str(tmp_path / "tmp")}
    rank = subprocess.Popen(["sleep", "60"], env=variables, start_new_session=True)
    try:
        if within_slurm:
            monkeypatch.setenv("SLURM_JOB_ID", "17")
        run("pass")
        assert (rank.poll() is not None) == within_slurm
    finally:
        rank.kill()
        rank.wait()


def test_orphans_are_adopted_only_while_a_job_runs(run: Run, tmp_path: Path) -> None:
    run("pass")
    assert not adopts_orphans()
    follower = process.Follower(tmp_path, 1, lambda rank, line: None)
    with pytest.raises(FileNotFoundError):
        process.run(["/no/such/program"], {}, tmp_path / "log", follower, 1, timeout_s=30)
    assert not adopts_orphans()


@pytest.mark.parametrize(
    ("ranks", "rank", "positions"),
    [
        (["save"] * 4, 0, "; ranks 0 to 3 stood in save"),
        (["save,close", "save", "save,close", "save"], 1, "; ranks 1, 3 stood in save"),
        (["save", "load", "load"], 0, "; rank 0 stood in save; ranks 1 to 2 stood in load"),
        (["save,close", "save"], 1, ""),
        ([DONE, "save", DONE], 1, ""),
        (["save", "save,close"] * 6, 0, "; ranks 0, 2, 4, 6, others stood in save"),
    ],
)
def test_ranks_that_hang_at_the_same_place_are_all_named(
    tmp_path: Path, ranks: list[str], rank: int, positions: str
) -> None:
    for number, phases in enumerate(ranks):
        output = Output(tmp_path, number, 0)
        output.task(0)
        for phase in phases.split(","):
            output.enter(phase)
    follower = process.Follower(tmp_path, len(ranks), lambda rank, line: None)
    variables = os.environ | {"TMPDIR": str(tmp_path / "tmp")}
    command = ["sleep", "60"]
    ending = process.run(command, variables, tmp_path / "log", follower, len(ranks), timeout_s=2)
    assert ending.reason == f"no progress for 2 s, so the process was killed{positions}"
    assert (ending.at.rank, ending.at.phase) == (rank, "save")


CRASHES = """
print("the coordinator is gone")
print("[node-1:1898] *** Process received signal ***")
print("[node-1:1898] [ 0] /lib/libc.so.6(+0x3c050)")
print("[node-1:1898] *** End of error message ***")
raise SystemExit(1)
"""
FAILS_FATALLY = """
print("F1128 01:49:23.281812    6277 client.h:80] another task died")
print("*** Check failure stack trace: ***")
print("    @     0x7f929050c93b  std::_Function_handler<>::_M_invoke()")
raise SystemExit(1)
"""


@pytest.mark.parametrize(
    ("program", "message"),
    [(CRASHES, "the coordinator is gone"), (FAILS_FATALLY, "another task died")],
    ids=["before a list of calls", "of a fatal error"],
)
def test_the_reason_of_a_crash_is_its_message_and_not_its_stack(
    run: Run, program: str, message: str
) -> None:
    assert run(program).reason.endswith(f": {message}")
