"""All processes of one job, also those whose parent has died.

A daemon of a method, or a rank of a killed mpirun, outlives its parent. Linux then gives it to the
nearest ancestor that adopts orphans (PR_SET_CHILD_SUBREAPER, prctl(2)), else to init, where nobody
can tell any more which job it came from. While a job runs, this process adopts, so that everything
that the job started stays below this process. Only Slurm's daemons start processes elsewhere.

Several jobs may run at once, each in a thread of its own. Then an orphan belongs to the job whose
temporary folder is in its environment. One without such a folder is ended when one job alone runs,
or none.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path

import psutil

_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
# The time between a request to end and a kill: mpirun needs it to end its ranks on other nodes.
_GRACE_S = 5.0
_ORPHANS_END_S = 30.0
_SHARED_MEMORY = Path("/dev/shm")

ORPHANS_S = 0.5
"""The seconds that an orphan has to end by itself, because its parent may have asked it to."""

# Held while a job starts, so that no other one takes its first process for an orphan.
_lock = threading.RLock()
# The first processes of the jobs that run now.
_running: set[int] = set()
# The number of blocks in which this process adopts, and whether it did so before the first.
_adopting = 0
_adopted_before = ctypes.c_int()


@contextlib.contextmanager
def adopted() -> Iterator[set[psutil.Process]]:
    """Adopt orphans within the block, and yield the processes that were below this one before it.

    Once the last of several blocks has ended, this process adopts or does not adopt, as before.
    """
    with _lock:
        _begin_to_adopt()
        others = set(_below_this_process())
    try:
        yield others
    finally:
        with _lock:
            _end_to_adopt()


def _begin_to_adopt() -> None:
    global _adopting
    if not _adopting:
        _prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(_adopted_before))
        _prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1))
    _adopting += 1


def _end_to_adopt() -> None:
    global _adopting
    _adopting -= 1
    if not _adopting:
        _prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(_adopted_before.value))


class Descendants:
    """The processes that a job started: those below its first process, and its orphans."""

    def __init__(
        self,
        start: Callable[[], subprocess.Popen[bytes]],
        environment: Mapping[str, str],
        others: set[psutil.Process],
        orphans_s: float = ORPHANS_S,
    ) -> None:
        """Start a job in an environment. `others` is what `adopted` yielded.

        The first process leads a session. Its TMPDIR is a folder that no other job has now. Orphans
        have `orphans_s` seconds to end by themselves.
        """
        self._orphans_s = orphans_s
        self._environment = environment
        self._others = others
        with _lock:
            self._job = start()
            _running.add(self._job.pid)
        self._alive: set[psutil.Process] = set()
        # the names of orphans that did not end by themselves
        self.killed: list[str] = []
        self._pids = {self._job.pid}

    @property
    def job(self) -> subprocess.Popen[bytes]:
        """The first process of the job."""
        return self._job

    @property
    def temporary(self) -> str:
        """The job's folder for temporary files."""
        return self._environment["TMPDIR"]

    def look(self) -> bool:
        """Look which processes are alive, and return whether one has ended since the last look."""
        before = self._alive
        every = self._all()
        self._alive = {process for process in every if _is_alive(process)}
        # An orphan that has ended stays a zombie until its new parent has asked about it.
        psutil.wait_procs(filter(_is_orphan, every), timeout=0)
        return not before <= self._alive

    def end(self) -> None:
        """End the whole job."""
        self._ask_first()
        _kill(self._all())
        self.end_first()
        self.end_orphans()

    def end_first(self) -> None:
        """End the first process of the job. What it has started may live on."""
        self._ask_first()
        self._job.kill()
        self._job.wait()

    def _ask_first(self) -> None:
        """Ask the first process to end, so that mpirun ends its ranks, and wait for a while."""
        if self._job.poll() is None:
            self._job.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._job.wait(_GRACE_S)

    def end_orphans(self) -> None:
        """End the processes whose parent has died, and reap them, because nobody else can.

        `killed` names those that did not end by themselves.
        """
        deadline = time.monotonic() + _ORPHANS_END_S
        # What an orphan had started is an orphan as soon as that has ended.
        while (orphans := self.orphans()) and time.monotonic() < deadline:
            self.killed += _end(orphans, self._orphans_s)

    def orphans(self) -> list[psutil.Process]:
        """Return the processes of the job that this process has adopted."""
        return [process for process in self._all() if _is_orphan(process)]

    def clear_up(self) -> None:
        """Remove the shared memory of the job's processes, and end those that Slurm started.

        After this, other jobs do not know this one any more.
        """
        with _lock:
            _running.discard(self._job.pid)
        if "SLURM_JOB_ID" in self._environment:
            self._end_ranks_of_slurm()
        for pid in self._pids:
            # PyTorch names its segments after processes, and a killed one leaves them.
            for segment in _SHARED_MEMORY.glob(f"torch_{pid}_*"):
                segment.unlink(missing_ok=True)

    def _end_ranks_of_slurm(self) -> None:
        """End the ranks on this node that Slurm's daemons started for the job.

        Over several nodes, mpirun starts its own daemons with srun, so that their ranks are not
        below this process. When such a daemon is killed, for example because memory ran out, its
        ranks stay at work with init as their parent until the Slurm job ends, and would disturb the
        measurements until then. They are known by the temporary folder of the run.
        """
        everyone = psutil.process_iter()
        ranks = [rank for rank in everyone if temporary_folder(rank) == self.temporary]
        self._pids |= {rank.pid for rank in ranks}
        _end(ranks)

    def _all(self) -> set[psutil.Process]:
        """Return all processes of the job but its first one.

        A process below this one may also be another thread's. It is in this process's session, and
        no process of the job can be, because the job's first process leads a session of its own.
        """
        with _lock:
            below = set(_below_this_process()) - self._others
            others = _running - {self._job.pid}
        processes = {process for process in below if not _is_in_our_session(process)}
        processes = {process for process in processes if process.pid != self._job.pid}
        if others:
            processes = {process for process in processes if self._is_own(process, others)}
        self._pids |= {process.pid for process in processes}
        return processes

    def _is_own(self, process: psutil.Process, others: Collection[int]) -> bool:
        """Return whether a process is of this job, while others run."""
        if process.pid in others:
            return False
        try:
            above = [parent.pid for parent in process.parents()]
        except psutil.NoSuchProcess:
            return False
        if self._job.pid in above:
            return True
        if not set(above).isdisjoint(others):
            return False
        if not _is_alive(process):
            # A zombie has no environment any more. Anybody may reap it.
            return True
        return temporary_folder(process) == self.temporary


def _prctl(option: int, argument: object) -> None:
    unused = ctypes.c_ulong(0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, argument, unused, unused, unused) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _below_this_process() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def _is_orphan(process: psutil.Process) -> bool:
    """Return whether this process is the parent, for a process of the job but its first one."""
    try:
        return bool(process.ppid() == os.getpid())
    except psutil.NoSuchProcess:
        return False


def _is_in_our_session(process: psutil.Process) -> bool:
    try:
        return os.getsid(process.pid) == os.getsid(0)
    except ProcessLookupError:
        return False


def _is_alive(process: psutil.Process) -> bool:
    """Return False for a zombie too, because a launcher may be slow to ask about a dead rank."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def temporary_folder(process: psutil.Process) -> str | None:
    """Return the folder for temporary files that a process was started with.

    Jobs that run at once have different ones. None where the process has ended, has no such
    folder, or is another user's.
    """
    try:
        folder: str | None = process.environ().get("TMPDIR")
    except psutil.Error:
        return None
    return folder


def _end(processes: Iterable[psutil.Process], patience_s: float = ORPHANS_S) -> list[str]:
    """Give processes time to end by themselves, then kill them. Return the names of these."""
    _, still_alive = psutil.wait_procs(processes, timeout=patience_s)
    names = [_name(process) for process in still_alive]
    _kill(still_alive)
    psutil.wait_procs(still_alive, timeout=_GRACE_S)
    return names


def _name(process: psutil.Process) -> str:
    try:
        return str(process.name())
    except psutil.Error:
        return f"number {process.pid}"


def end_strays(others: set[psutil.Process]) -> None:
    """End the processes below this one that no job has known as its own.

    `others` is what `adopted` yielded. Such a process is an orphan that has changed its environment
    while several jobs ran. Nothing may be running.
    """
    deadline = time.monotonic() + _ORPHANS_END_S
    while time.monotonic() < deadline:
        below = set(_below_this_process()) - others
        strays = [process for process in below if not _is_in_our_session(process)]
        if not strays:
            return
        _end(strays)


def end_left_in(folder: Path) -> None:
    """End the processes of jobs whose driver was killed. They work below this folder.

    They are known by their temporary folder. The kernel ends the first process of a job with its
    driver, and nobody ends what that had started, such as a daemon.
    """
    inside = f"{folder}/"
    _end(
        process
        for process in psutil.process_iter()
        if (temporary_folder(process) or "").startswith(inside)
    )


def end_all(processes: Iterable[psutil.Process]) -> list[str]:
    """End processes that were left to live for a while, and what they have started.

    Return the names of those that did not end by themselves.
    """
    killed: list[str] = []
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            _kill(process.children(recursive=True))
            killed += _end([process])
    return killed


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
