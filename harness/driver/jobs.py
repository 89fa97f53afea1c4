"""Runs one job: a worker process, or one for each rank, in the environment of its cases."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import psutil

from harness import experiments
from harness.driver import descendants, launch, outside, process
from harness.driver.arms import Arm
from harness.driver.descendants import ORPHANS_S
from harness.driver.launch import Launch
from harness.driver.ledger import Ledger
from harness.driver.shared_memory import SharedMemory
from harness.driver.units import state_bytes
from harness.run.reading import InvalidLine
from harness.wire.case import TRACE, Case, Job
from harness.wire.folders import Folders

_SLOWEST_METHOD_BYTES_PER_S = 5e6
_SLOWEST_START_S = 120.0
_SLOWEST_DEVICE_BYTES_PER_S = 20e6
# The guards of the driver, by name.
EMPTY_FOLDER = "empty-folder"
LEFT_BEHIND = "left-behind"
SWEEP_TRANSFERS = 126  # 9 settings, 7 rounds, writes and reads, as in harness/worker/ceiling.py


class JobRunner:
    """Starts jobs of one run, and hands what their ranks write to the ledger."""

    def __init__(
        self,
        ledger: Ledger,
        arms: Mapping[str, Arm],
        scratch: Path,
        timeout_s: float | None,
    ) -> None:
        """Take the ledger, the arms by name ("" where a run has one), and the scratch directory.

        A worker without progress for `timeout_s` seconds is ended; None derives the limit from the
        job.
        """
        run = ledger.run
        self.scratch = scratch
        self.folder = run.jobs
        self._ledger = ledger
        self._arms = dict(arms)
        self._timeout_s = timeout_s
        # Set while several threads run jobs and one of them must not go on.
        self.stop = threading.Event()
        self._naming = threading.Lock()
        self._last_number = 0
        # A method that restores from memory may leave processes that hold it.
        self._living: list[psutil.Process] = []
        self._settings = run.settings
        self._logs = run.folder / "logs"
        self._shared_memory = SharedMemory(run.folder)
        mpirun = run.settings.mpirun
        self._mpi = launch.open_mpi(Path(mpirun)) if mpirun else None

    def run(
        self,
        job: Job,
        case: Case,
        prefix: Sequence[str] = (),
        options: Sequence[str] = (),
        orphans_s: float | None = None,
    ) -> process.Ending:
        """Run a job in the environment of a case, behind a command prefix such as a tracer.

        `options` are those of the launcher of several ranks. Processes that outlive their parent
        have `orphans_s` seconds to end by themselves, else half a second.

        Records are stored as they are written, and are safe from a power loss in the end. Returns
        how the job ended. Raises Stopped where `stop` is set.
        """
        if self.stop.is_set():
            raise process.Stopped
        arm = self._arms[case.arm]
        job = self._completed(job, case)
        folder = self.folder / job.name
        folder.mkdir(parents=True)
        (folder / "job.json").write_text(arm.job_to_json(job))
        nodes = job.tasks[0].case.nodes if job.tasks else 0
        start = Launch(
            interpreter=arm.environments.interpreter(case.environment),
            job_file=folder / "job.json",
            folder=folder,
            world=job.world,
            nodes=nodes,
            mpi=self._mpi,
            options=tuple(options),
            own=_own_launcher(job),
        )
        launcher = job.tasks[0].case.launcher if job.world > 1 else "local"
        ranks_on_one_machine = job.world > 1 and nodes <= 1
        environment = launch.environment(
            self._emptied_temporary(job),
            hash_seed=job.hash_seed,
            shared_memory=self._shared_memory.ranks if ranks_on_one_machine else None,
            root=arm.checkout,
            mpi=self._mpi,
            added=outside.link_into(self.folder / "outside"),
            threads=_threads(job),
        )
        intake = _Intake(self._ledger, job)
        follower = process.Follower(folder, job.world, intake.take)
        command = launch.argv(launcher, start, list(prefix))
        log = self._logs / f"{job.name}.log"
        limit_s = self._patience_s(job)
        try:
            ending = process.run(
                command,
                environment,
                log,
                follower,
                job.world,
                limit_s,
                lets_orphans_live=self._may_leave_processes(job),
                stop=self.stop,
                orphans_s=ORPHANS_S if orphans_s is None else orphans_s,
            )
        finally:
            self._shared_memory.clear_ranks()
        self._living += ending.living
        intake.close(ending)
        # No clock runs between jobs. A power loss can now take samples of the next job alone.
        self._ledger.run.flush()
        return ending

    def _emptied_temporary(self, job: Job) -> Path:
        """Return the job's folder for temporary files."""
        temporary = Folders(Path(job.scratch)).temporary
        # A job must not find there what another one has left for it.
        if self._guards(EMPTY_FOLDER):
            shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True, exist_ok=True)
        return temporary

    def name(self, role: str, slot: int, arm: str = "") -> str:
        """Return the name of the next job. Its number counts the logs that are there."""
        with self._naming:
            self._logs.mkdir(exist_ok=True)
            number = max(len(list(self._logs.iterdir())), self._last_number) + 1
            self._last_number = number
        return f"{number:03d}-{role}-{slot}{arm}"

    def clear_shared_memory(self) -> list[str]:
        """Remove what the jobs so far have left in memory, and end processes that hold it.

        Return the names of the processes that had to be killed.
        """
        killed = descendants.end_all(self._living)
        self._living.clear()
        self._shared_memory.clear()
        return killed

    def _guards(self, name: str) -> bool:
        """Return whether a guard of the driver is on."""
        return name not in self._settings.without_guards

    def _may_leave_processes(self, job: Job) -> bool:
        """Return whether processes of a job may live until the last load.

        That is so where each of its methods restores from memory, because nobody can tell which
        method left a process.
        """
        from_memory = [task.case.from_memory for task in job.tasks]
        return bool(from_memory) and (all(from_memory) or not self._guards(LEFT_BEHIND))

    def _completed(self, job: Job, case: Case) -> Job:
        """Add what every job with tasks is given."""
        if not job.tasks:
            return job
        return replace(
            job,
            packages=self._arms[case.arm].packages[case.environment],
            summary_above=self._settings.summary_above,
            without_guards=self._settings.without_guards,
            memory=self._memory_of(job),
        )

    def _memory_of(self, job: Job) -> str | None:
        """Return the folder for checkpoints in memory, where any case keeps one there.

        Ranks on several nodes get none, because nobody would clear the memory of the others.
        """
        on_one_machine = all(task.case.nodes <= 1 for task in job.tasks)
        if not on_one_machine or not any(task.case.from_memory for task in job.tasks):
            return None
        folder = self._shared_memory.levels
        return str(folder) if folder else None

    def _patience_s(self, job: Job) -> float:
        """Return how many seconds a job may stand in one phase.

        That is a slow start, and the slowest method known on this state, or a slow device's sweep.
        """
        if self._timeout_s and job.tasks:
            return self._timeout_s
        size_bytes = max((state_bytes(task.case) for task in job.tasks), default=0)
        sweep_s = SWEEP_TRANSFERS * job.calibration_bytes / _SLOWEST_DEVICE_BYTES_PER_S
        return _SLOWEST_START_S + max(size_bytes / _SLOWEST_METHOD_BYTES_PER_S, sweep_s)


def _own_launcher(job: Job) -> tuple[str, ...]:
    """Return what starts the ranks by the framework's own launcher; empty for mpirun."""
    return tuple(job.tasks[0].case.peers.get("launch", ())) if job.tasks else ()


def _threads(job: Job) -> int | None:
    """Return with how many threads each rank is to compute; None for the framework's own choice.

    Spares do not count, because they wait. Another number of threads could also change the bits.
    """
    if not job.tasks or job.role == TRACE:
        return None
    case = job.tasks[0].case
    stage = experiments.experiment(case.experiment).stage(job.role)
    if not stage.divides_processors:
        return None
    ranks_here = launch.ranks_per_node(case.world, case.nodes)
    return max(1, len(os.sched_getaffinity(0)) // ranks_here)


class _Intake:
    """Takes in a job's lines.

    A line that is no record fails the case whose record follows it, because it was written on the
    way to that record.
    """

    def __init__(self, ledger: Ledger, job: Job) -> None:
        self._ledger = ledger
        self._job = job
        self._invalid: dict[int, str] = {}

    def take(self, rank: int, line: str) -> None:
        """Take in one line of a rank."""
        try:
            record = self._ledger.absorb(line)
        except InvalidLine as error:
            self._invalid.setdefault(rank, f"the worker wrote an invalid record: {error}")
            return
        case = getattr(record, "case", None)
        if case is not None and rank in self._invalid:
            self._refuse(case, rank, self._invalid.pop(rank))

    def close(self, ending: process.Ending) -> None:
        """Fail the case at which the job ended for a line that nothing followed."""
        for rank, reason in self._invalid.items():
            if self._job.tasks:
                at = min(max(0, ending.at.task), len(self._job.tasks) - 1)
                task = self._job.tasks[at]
                self._refuse(task.case.id, rank, reason)

    def _refuse(self, case: str, rank: int, reason: str) -> None:
        self._ledger.fail(case, self._job.process, rank, "records", reason)
