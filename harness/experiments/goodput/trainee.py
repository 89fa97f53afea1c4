"""A rank that trains until an instant, and notes when each step and each checkpoint was done.

This module imports mpi4py, so the worker imports it only when its ranks are there.
"""

from __future__ import annotations

import time
from pathlib import Path

from mpi4py import MPI

from harness.experiments.recovery.events import EventLog
from harness.experiments.recovery.member import Member, PlainWorld
from harness.experiments.recovery.ranks import go_on_from_files, parts_of
from harness.experiments.recovery.script import read_script, script_path
from harness.worker.bench import Bench, Entries


class Trainee(Member):
    """A member that notes its saves."""

    world: PlainWorld

    def save_in_files(self) -> None:
        """Write the checkpoint of this step, and note when training stands still for it."""
        self.log.write("saving", step=self.step)
        super().save_in_files()
        self.log.write("saved", step=self.step)

    def is_done(self) -> bool:
        """Return whether the last step is done. All ranks have the answer of the first one."""
        until_ns = self.script.until_ns
        if not until_ns:
            return super().is_done()
        return bool(self.world.team.bcast(time.monotonic_ns() >= until_ns))


def run(bench: Bench, entries: Entries) -> None:
    """Train from the newest checkpoint on, if there is one, until the last step is done."""
    index, task = entries[0]
    bench.output.task(index)
    script = read_script(script_path(bench.folders.scratch, task.case))
    log = EventLog(Path(script.events), bench.world.rank)
    parts = parts_of(bench, task.case, script, log)
    trainee = Trainee(PlainWorld(MPI.COMM_WORLD), parts)
    go_on_from_files(bench, trainee)
    while not trainee.is_done():
        bench.output.enter("train")
        trainee.take_step()
    bench.output.enter("finish")
    parts.checkpoints.wait()
    bench.output.finish()
    bench.world.leave()
