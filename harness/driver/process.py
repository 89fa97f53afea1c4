"""One job's processes, from their start to their end.

The driver starts a job, follows what its ranks write, ends it when it stands still, and says how it
ended.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

import psutil

from harness.driver import descendants, standstill
from harness.driver.descendants import ORPHANS_S, Descendants
from harness.driver.standstill import Standstill
from harness.wire.phases import DONE, Position, read_position, records_path

_POLL_S = 0.2
# An interpreter whose work is done gets this long to end, because threads that a method left behind
# can hold it for minutes.
_EXIT_S = 5.0
_SHOWN_CHARACTERS = 300
_SHOWN_RUNS = 4
# As in `F1128 01:49:23.281812    6277 client.h:80] what is wrong`, which XLA's processes log.
_FATAL = re.compile(r"^F\d{4} [\d:.]+ +\d+ \S+:\d+\] (.+)$", re.MULTILINE)
_CRASH = re.compile(  # what Open MPI prints of a process that crashes: its calls
    r"^\[\S+\] \*\*\* Process received signal \*\*\*$.*?"
    r"^\[\S+\] \*\*\* End of error message \*\*\*$",
    re.MULTILINE | re.DOTALL,
)
_KILLED = re.compile(r"process rank (\d+) with PID \d+ on node \S+ exited on signal (\d+)")


@dataclass(frozen=True)
class Standing:
    """The last position of a rank: the index of its task (-1 for none) and the phase."""

    rank: int
    task: int
    phase: str


@dataclass(frozen=True)
class Ending:
    """The end of a job.

    `reason` is empty when every rank had come to its end. `at` is the position of the rank that
    broke. `ended_ns` is the instant of the monotonic clock at which the first process had ended.
    `killed` names the processes that outlived the job and had to be killed, and `living` holds them
    where they may live on.
    """

    reason: str
    at: Standing
    killed: tuple[str, ...] = ()
    living: tuple[psutil.Process, ...] = ()
    ended_ns: int = 0

    @property
    def complete(self) -> bool:
        """Return whether every rank did all of its work."""
        return not self.reason


class Stopped(Exception):
    """A job was ended because the thread of another one has failed, or was interrupted."""


@dataclass(frozen=True)
class _Patience:
    """The reasons to end a job, or the processes that it has left."""

    timeout_s: float
    lets_orphans_live: bool
    stop: threading.Event


class Follower:
    """A reader of each rank's records while they are written."""

    def __init__(self, folder: Path, world: int, on_line: Callable[[int, str], None]) -> None:
        """Take the folder where `world` ranks write, and a function of a rank and its new line."""
        self.folder = folder
        self._world = world
        self._on_line = on_line
        self._offsets = [0] * world

    def poll(self) -> None:
        """Pass on every line that has become complete."""
        for rank in range(self._world):
            for line in self._new_lines(rank):
                self._on_line(rank, line)

    def positions(self) -> list[Position]:
        """Return each rank's position."""
        return [read_position(self.folder, rank) for rank in range(self._world)]

    def _new_lines(self, rank: int) -> list[str]:
        try:
            with records_path(self.folder, rank).open("rb") as file:
                file.seek(self._offsets[rank])
                content = file.read()
        except FileNotFoundError:
            return []
        complete = content[: content.rfind(b"\n") + 1]
        self._offsets[rank] += len(complete)
        return complete.decode(errors="replace").splitlines()


def run(
    command: Sequence[str],
    environment: dict[str, str],
    log: Path,
    follower: Follower,
    world: int,
    timeout_s: float,
    *,
    lets_orphans_live: bool = False,
    stop: threading.Event | None = None,
    orphans_s: float = ORPHANS_S,
) -> Ending:
    """Run a job to its end. A job whose positions stand still for `timeout_s` seconds is killed.

    Processes that outlive their parent have `orphans_s` seconds to end by themselves. With
    `lets_orphans_live`, those that outlive a job that has done its work are not ended. Once `stop`
    is set, the job is ended, and Stopped is raised.
    """
    kills_before = _oom_kills()
    patience = _Patience(timeout_s, lets_orphans_live, stop or threading.Event())
    with log.open("wb") as output, descendants.adopted() as others:
        start = partial(_start, command, environment, output)
        processes = Descendants(start, environment, others, orphans_s)
        job = processes.job
        try:
            hung = _run_to_its_end(job, processes, follower, patience)
            ended_ns = time.monotonic_ns()
            positions = follower.positions() if hung is None else hung.positions
            is_complete = _all_done(positions) and (hung is not None or job.returncode == 0)
            living = processes.orphans() if lets_orphans_live and is_complete else []
            if not living:
                processes.end_orphans()
        finally:
            processes.clear_up()
    ending = partial(Ending, killed=tuple(processes.killed), ended_ns=ended_ns)
    standing = _broken_rank(positions)
    if is_complete:
        return ending("", standing, living=tuple(living))
    if hung is not None:
        hung.add_to(log)
        reason = f"no progress for {timeout_s:.0f} s, so the process was killed"
        places = [_side_by_side(positions), hung.in_words]
        return ending("; ".join([reason, *filter(None, places)]), standing)
    out_of_memory = _oom_kills() > kills_before
    killed = _killed_rank(log)
    if killed is not None and killed[0] < world:
        rank, number = killed
        reason = _describe_exit(128 + number, out_of_memory)
        return ending(reason, _standing(positions, rank))
    reason = _describe_exit(job.returncode, out_of_memory) + _last_words(log)
    return ending(reason, standing)


def _start(
    command: Sequence[str], environment: dict[str, str], output: BinaryIO
) -> subprocess.Popen[bytes]:
    """Start the first process of a job, which leads a session."""
    return subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def _run_to_its_end(
    job: subprocess.Popen[bytes],
    processes: Descendants,
    follower: Follower,
    patience: _Patience,
) -> Standstill | None:
    """Follow a job to its end. End one that stands still.

    Return where that one stood, or None for one that ended by itself.
    """
    hung = None
    try:
        if not _ends_by_itself(job, processes, follower, patience):
            hung = _end_standstill(processes, follower)
    except BaseException:
        # Nothing may outlive the driver, also when its user presses Ctrl-C.
        processes.end()
        raise
    finally:
        follower.poll()
    return hung


def _end_standstill(processes: Descendants, follower: Follower) -> Standstill:
    """End a job that stands still, and return where it stood."""
    # A call that a question interrupts may return an error, and then the worker goes on.
    positions = follower.positions()
    if _all_done(positions):
        # A process that a method left may hold the output of mpirun, which waits for that.
        processes.end_first()
        return Standstill(positions)
    answers = standstill.ask(follower.folder, processes.temporary)
    processes.end()
    return Standstill(positions, answers)


def _ends_by_itself(
    job: subprocess.Popen[bytes],
    processes: Descendants,
    follower: Follower,
    patience: _Patience,
) -> bool:
    """Return True once the job has ended, or False as soon as it has stood still for too long."""
    positions = follower.positions()
    moved_at_s = time.monotonic()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.wait(_POLL_S)
        if patience.stop.is_set():
            raise Stopped
        follower.poll()
        if job.returncode is not None:
            return True
        if processes.look() and not patience.lets_orphans_live:
            # A daemon of a dead rank holds the rank's output open, and mpirun would wait until
            # that is closed.
            processes.end_orphans()
        positions_now = follower.positions()
        if positions_now != positions:
            positions = positions_now
            moved_at_s = time.monotonic()
        patience_s = _EXIT_S if _all_done(positions) else patience.timeout_s
        if time.monotonic() - moved_at_s > patience_s:
            return False


def _all_done(positions: Iterable[Position]) -> bool:
    return all(position.phase == DONE for position in positions)


def _broken_rank(positions: Sequence[Position]) -> Standing:
    """Return the position of the first rank that came least far, because the others wait for it."""
    return _standing(positions, _hindmost(positions)[0])


def _hindmost(positions: Sequence[Position]) -> list[int]:
    """Return the ranks that came least far."""
    progress = [(position.phase == DONE, position.reached) for position in positions]
    return [rank for rank, reached in enumerate(progress) if reached == min(progress)]


def _standing(positions: Sequence[Position], rank: int) -> Standing:
    return Standing(rank, positions[rank].task, positions[rank].phase)


def _side_by_side(positions: Sequence[Position]) -> str:
    """Return the positions of several ranks that came equally far, else an empty text.

    They may have waited for each other, so none of them alone is to blame.
    """
    hindmost = _hindmost(positions)
    if len(hindmost) == 1:
        return ""
    ranks_by_phase: dict[str, list[int]] = {}
    for rank in hindmost:
        ranks_by_phase.setdefault(positions[rank].phase, []).append(rank)
    stood = [f"{_listed(ranks)} stood in {phase}" for phase, ranks in ranks_by_phase.items()]
    return "; ".join(stood)


def _listed(ranks: list[int]) -> str:
    """Name ranks with neighbours together: "rank 3", "ranks 0 to 3", "ranks 0, 2 to 5"."""
    runs: list[str] = []
    # In a run of neighbours, the difference between rank and position stays the same.
    for _, numbered in itertools.groupby(enumerate(ranks), lambda pair: pair[1] - pair[0]):
        run = [rank for _, rank in numbered]
        runs.append(str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}")
    if len(runs) > _SHOWN_RUNS:
        runs = [*runs[:_SHOWN_RUNS], "others"]
    word = "rank" if len(ranks) == 1 else "ranks"
    return f"{word} {', '.join(runs)}"


def _describe_exit(status: int, out_of_memory: bool) -> str:
    # subprocess gives a signal as a negative number, a tracer or mpirun as 128 + its number.
    code = 128 - status if status < 0 else status
    if code == 0:
        return "the process ended before its work was done"
    if code > 128:
        with contextlib.suppress(ValueError):
            name = signal.Signals(code - 128).name
            suffix = " (the kernel's out-of-memory killer was at work)" if out_of_memory else ""
            return f"killed by {name}{suffix}"
    return f"exit status {code}"


def _killed_rank(log: Path) -> tuple[int, int] | None:
    """Return the rank that a signal ended, and the signal, as mpirun reports them.

    mpirun has ended the other ranks itself.
    """
    # mpirun breaks its message into lines.
    output = " ".join(log.read_text(errors="replace").split())
    match = _KILLED.search(output)
    return (int(match[1]), int(match[2])) if match else None


def _last_words(log: Path) -> str:
    """Return the first fatal error in the job's output, or its last line, which usually names it.

    After that line may come Open MPI's list of what a process called when it crashed.
    """
    output = log.read_text(errors="replace")
    fatal = _FATAL.search(output)
    before_crash = _CRASH.sub("", output).split("\n")
    lines = [line.strip() for line in before_crash if line.strip()]
    last = lines[-1] if lines else ""
    words = fatal[1] if fatal else last
    return f": {words[:_SHOWN_CHARACTERS]}" if words else ""


def _oom_kills() -> int:
    """Return how many processes the kernel has killed since it booted, because memory ran out."""
    for line in Path("/proc/vmstat").read_text().splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0
