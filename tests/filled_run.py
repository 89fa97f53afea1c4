"""A program that fills a run's folder as a driver does that is killed once, but without workers."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import records
from conftest import planned

from harness.driver import machine
from harness.driver.session import Session
from harness.run import flushing, store
from harness.wire.phases import records_path
from harness.wire.records import Record, to_line

OF_FINISHED_JOB = tuple(records.save(index=index) for index in range(4))
OF_KILLED_JOB = tuple(records.save(index=index) for index in range(4, 8))
KILLED_JOB = "002-save-0"


def main(results: Path) -> None:
    """Measure one job to its end, be killed in the next one, and begin to resume."""
    plan, here = [planned()], machine.capture(results.parent)
    run = store.create(results, "smoke", ["ckptbench", "run"], plan, here)
    run.lock()
    for record in OF_FINISHED_JOB:
        run.absorb(to_line(record).rstrip("\n"))
    run.flush()
    write_safely(run.jobs / KILLED_JOB, OF_KILLED_JOB)
    run.close()
    resumed = store.Run(run.folder)
    resumed.lock()
    Session(resumed, {}, results.parent / "scratch", None, None, lambda _: None)


def write_safely(job: Path, found: tuple[Record, ...]) -> None:
    """Write a worker's records, and wait until they are on the disk."""
    flushing.make_folder(job)
    with records_path(job, 0).open("w") as file:
        file.writelines(to_line(record) for record in found)
        file.flush()
        os.fsync(file.fileno())
    flushing.flush_folder(job)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
