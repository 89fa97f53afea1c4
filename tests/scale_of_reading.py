"""Measure the time and the memory that a large run takes to load and to report.

By hand: `python tests/scale_of_reading.py [SAMPLES]`.

The report is made in a process of its own, as a user makes it. The run is made up, in lines of the
present schema: cases on one rank and on eight, with a save and a load for every two samples.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import records
from conftest import planned

from harness.driver import machine
from harness.run import store
from harness.run.plan import PlannedCase
from harness.run.stored import RECORDS
from harness.wire.records import Record, to_line

METHODS = ("direct", "buffered", "npz", "npz-raw")
FRAMEWORKS = ("chainer", "jax", "pytorch", "raw", "tensorflow")
WORLDS = (1, 8)
PROCESSES = 4


def write_run(results: Path, samples: int) -> Path:
    """Store a run of about `samples` saves and loads of all ranks, and return its folder."""
    plan = [
        _case(framework, method, world)
        for framework in FRAMEWORKS
        for method in METHODS
        for world in WORLDS
    ]
    each = samples // (2 * PROCESSES * len(plan))
    plan = [replace(item, samples=each // item.case.world) for item in plan]
    run = store.create(
        results, "bench", ["ckptbench", "run", "bench"], plan, machine.capture(results)
    )
    run.close()
    generator = np.random.default_rng(7)
    with (run.folder / RECORDS).open("w") as file:
        for item in plan:
            file.writelines(_lines(item, generator))
    return run.folder


def _case(framework: str, method: str, world: int) -> PlannedCase:
    item = planned(processes=PROCESSES, warmups=0)
    return replace(item, case=replace(item.case, framework=framework, method=method, world=world))


def _lines(item: PlannedCase, generator: np.random.Generator) -> Iterator[str]:
    """The lines of one case, in the order in which workers write them."""
    case, worlds = item.case.id, range(item.case.world)
    centre_s = generator.uniform(0.05, 0.5)
    templates = {
        name: _fields(make(case)) for name, make in (("save", records.save), ("load", records.load))
    }
    yield to_line(records.state(case))
    yield to_line(records.syscalls(case))
    for process in range(item.processes):
        for kind, duration in (("save", "save_ns"), ("load", "load_ns")):
            for index in range(item.samples):
                durations = centre_s * generator.lognormal(sigma=0.1, size=item.case.world)
                for rank in worlds:
                    own = {
                        "process": process,
                        "index": index,
                        "rank": rank,
                        duration: int(1e9 * durations[rank]),
                    }
                    yield json.dumps(templates[kind] | own, separators=(",", ":")) + "\n"
        for rank in worlds:
            yield to_line(records.verified(case, process=process, rank=rank))


def _fields(record: Record) -> dict[str, Any]:
    return json.loads(to_line(record)) | {"backing": asdict(records.BACKED)}


def main() -> None:
    """Print what loading and reporting take together."""
    samples = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
    with tempfile.TemporaryDirectory() as folder:
        run = write_run(Path(folder), samples)
        print(f"{samples} samples, {(run / RECORDS).stat().st_size / 1e6:.0f} MB of records")
        argv = [
            sys.executable,
            "-c",
            "from harness.cli import main; main()",
            "report",
            str(run),
            "--out",
            folder,
        ]
        begin_s = time.perf_counter()
        subprocess.run(argv, check=True)
        peak_bytes = 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        print(
            f"loaded and reported in {time.perf_counter() - begin_s:.1f} s, "
            f"with at most {peak_bytes / 2**20:.0f} MiB of memory"
        )


if __name__ == "__main__":
    main()
