"""One job's process: start it, follow what its ranks write, end it when it stands still, say what became of it."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from harness.wire.phases import DONE, Mark, read_mark, records_path

_POLL_S = 0.2
_GRACE_S = 5.0
# for an interpreter that has done its work; threads that a method left behind can hold it for
# minutes
_EXIT_S = 5.0
_SHOWN_CHARACTERS = 300
_SHOWN_RUNS = 4
_KILLED = re.compile(r"process rank (\d+) with PID \d+ on node \S+ exited on signal (\d+)")


@dataclass(frozen=True)
class Standing:
    """Where a rank stood last: the index of its task (-1 for none) and the phase."""

    rank: int
    task: int
    phase: str


@dataclass(frozen=True)
class Ending:
    """How a job ended.

    `reason` is empty when every rank had come to its end; `at` is where the rank that broke stood.
    """

    reason: str
    at: Standing

    @property
    def complete(self) -> bool:
        """Whether every rank did all of its work."""
        return not self.reason


class Follower:
    """Reads each rank's records as they are written."""

    def __init__(self, folder: Path, world: int, on_line: Callable[[int, str], None]) -> None:
        self._folder = folder
        self._world = world
        self._on_line = on_line
        self._offsets = [0] * world

    def poll(self) -> None:
        """Pass on every line that has become complete."""
        for rank in range(self._world):
            with (
                contextlib.suppress(FileNotFoundError),
                records_path(self._folder, rank).open("rb") as file,
            ):
                file.seek(self._offsets[rank])
                content = file.read()
                whole = content[: content.rfind(b"\n") + 1]
                self._offsets[rank] += len(whole)
                for line in whole.decode(errors="replace").splitlines():
                    self._on_line(rank, line)

    def marks(self) -> list[Mark]:
        """Each rank's mark."""
        return [read_mark(self._folder, rank) for rank in range(self._world)]


def run(
    command: Sequence[str],
    environment: dict[str, str],
    log: Path,
    follower: Follower,
    world: int,
    timeout_s: float,
) -> Ending:
    """Run a job to its end. A job whose marks stand still for `timeout_s` seconds is killed."""
    kills_before = _oom_kills()
    seen: set[psutil.Process] = set()
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            hung = _follow(process, environment, follower, timeout_s, seen)
        except BaseException:  # Ctrl-C: nothing may outlive the driver
            kill_tree(process, seen)
            follower.poll()
            raise
        finally:
            _reap(_of_job(environment))
            _clear_shared_memory({process.pid, *(member.pid for member in seen)})
    marks = follower.marks()
    standing = _broken_rank(marks)
    if hung and _all_done(marks):
        return Ending("", standing)
    if hung:
        return Ending(
            f"no progress for {timeout_s:.0f} s, so the process was killed{_side_by_side(marks)}",
            standing,
        )
    if process.returncode == 0 and _all_done(marks):
        return Ending("", standing)
    oom = _oom_kills() > kills_before
    killed = _killed_rank(log)
    if killed is not None and killed[0] < world:
        rank, number = killed
        return Ending(_describe_exit(128 + number, oom), _standing(marks, rank))
    return Ending(_describe_exit(process.returncode, oom) + _last_words(log), standing)


def kill_tree(process: subprocess.Popen[bytes], seen: set[psutil.Process]) -> None:
    """End a job and everything it started, in whatever process groups: first a request, so that mpirun takes its ranks along.

    `seen` it has started before: what a rank that is dead had started is nobody's child any more.
    """
    members = seen | _members(process)
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    for member in members:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait()
    psutil.wait_procs(members, timeout=_GRACE_S)


def _follow(
    process: subprocess.Popen[bytes],
    environment: Mapping[str, str],
    follower: Follower,
    timeout_s: float,
    seen: set[psutil.Process],
) -> bool:
    """Poll until the process ends; returns whether it had to be killed because it stood still.

    Notes in `seen` whom it started.
    """
    marks, moved_at = follower.marks(), time.monotonic()
    members: set[psutil.Process] = set()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_POLL_S)
        follower.poll()
        if process.returncode is not None:
            _reap(seen)
            return False
        before, members = members, _members(process)
        # a dead rank's daemon holds on to the rank's output, and mpirun would wait until that is
        # closed
        if before - members:
            _reap((before - members) | _orphans(environment))
        seen |= members
        if follower.marks() != marks:
            marks, moved_at = follower.marks(), time.monotonic()
        elif time.monotonic() - moved_at > (_EXIT_S if _all_done(marks) else timeout_s):
            kill_tree(process, seen)
            follower.poll()
            return True


def _all_done(marks: list[Mark]) -> bool:
    return all(mark.phase == DONE for mark in marks)


def _members(process: subprocess.Popen[bytes]) -> set[psutil.Process]:
    try:
        return {
            member
            for member in psutil.Process(process.pid).children(recursive=True)
            if _lives(member)
        }
    except psutil.NoSuchProcess:
        return set()


def _lives(process: psutil.Process) -> bool:
    """Whether it still does something; a launcher may be slow to ask what became of a rank that is dead."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _of_job(environment: Mapping[str, str]) -> set[psutil.Process]:
    """Whoever has the job's temporary directory: also a daemon whose parent was killed before anybody had seen the two."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if "TMPDIR" in environment and process.environ().get("TMPDIR") == environment["TMPDIR"]:
                found.add(process)
    return found


def _orphans(environment: Mapping[str, str]) -> set[psutil.Process]:
    """Who of the job has lost its parent, and so has one of this process's ancestors: what a cluster's daemons start has not."""
    ancestors = {1, *(ancestor.pid for ancestor in psutil.Process().parents())}
    found = set()
    for member in _of_job(environment):
        with contextlib.suppress(psutil.NoSuchProcess):
            if member.ppid() in ancestors:
                found.add(member)
    return found


def _reap(members: set[psutil.Process]) -> None:
    """End what a dead job left running: daemons of a method, ranks of a killed mpirun."""
    _, alive = psutil.wait_procs(filter(_lives, members), timeout=0.5)
    for member in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    psutil.wait_procs(alive, timeout=_GRACE_S)


def _clear_shared_memory(processes: set[int]) -> None:
    """Remove segments that PyTorch has named after processes that are no more: one that is killed leaves them."""
    for process in processes:
        for segment in Path("/dev/shm").glob(f"torch_{process}_*"):
            segment.unlink(missing_ok=True)


def _broken_rank(marks: list[Mark]) -> Standing:
    """The rank that broke is the one that came least far: the others wait for it.

    Of several, it is the first.
    """
    return _standing(marks, _hindmost(marks)[0])


def _hindmost(marks: list[Mark]) -> list[int]:
    """The ranks that came least far."""
    come = [(mark.phase == DONE, mark.reached) for mark in marks]
    return [rank for rank, far in enumerate(come) if far == min(come)]


def _standing(marks: list[Mark], rank: int) -> Standing:
    return Standing(rank, marks[rank].task, marks[rank].phase)


def _side_by_side(marks: list[Mark]) -> str:
    """Say where several ranks stood, none behind the others: they may have waited for each other, and nobody knows for whom."""
    hindmost = _hindmost(marks)
    if len(hindmost) == 1:
        return ""
    phases = dict.fromkeys(marks[rank].phase for rank in hindmost)
    places = {phase: [rank for rank in hindmost if marks[rank].phase == phase] for phase in phases}
    return "".join(f"; {_listed(ranks)} stood in {phase}" for phase, ranks in places.items())


def _listed(ranks: list[int]) -> str:
    """Name ranks, neighbours together: "rank 3", "ranks 0 to 3", "ranks 0, 2 to 5"."""
    # neighbours are as far from their places
    numbered = itertools.groupby(enumerate(ranks), lambda pair: pair[1] - pair[0])
    runs = [[rank for _, rank in run] for _, run in numbered]
    shown = [
        str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs[:_SHOWN_RUNS]
    ]
    more = ["others"] * (len(runs) > _SHOWN_RUNS)
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(shown + more)}"


def _describe_exit(code: int, out_of_memory: bool) -> str:
    # a tracer or mpirun reports a signal as 128 + its number
    code = 128 - code if code < 0 else code
    if code == 0:
        return "the process ended before its work was done"
    if code > 128:
        with contextlib.suppress(ValueError):
            name = signal.Signals(code - 128).name
            suffix = " (the kernel's out-of-memory killer was at work)" if out_of_memory else ""
            return f"killed by {name}{suffix}"
    return f"exit status {code}"


def _killed_rank(log: Path) -> tuple[int, int] | None:
    """The rank that mpirun says was ended by a signal, and the signal; the others it has ended itself."""
    found = _KILLED.search(" ".join(log.read_text(errors="replace").split()))
    return (int(found[1]), int(found[2])) if found else None


def _last_words(log: Path) -> str:
    """The last line of the job's output, which usually names the error."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return f": {lines[-1][:_SHOWN_CHARACTERS]}" if lines else ""


def _oom_kills() -> int:
    for line in Path("/proc/vmstat").read_text().splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0
