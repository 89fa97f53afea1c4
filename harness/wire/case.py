"""What to measure: the values that go from the driver to a worker.

Standard library only, because they cross that border.
"""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

SUMMARY_ABOVE = 64  # ranks, as a rule
_LATER_FIELDS = (
    "strategy",
    "load_world",
    "every",
    "ablated",
    "scale",
    "nodes",
    "from_memory",
    "arm",
)


@dataclass(frozen=True)
class Case:
    """One cell of the table: a method on a workload in a framework at a world size."""

    framework: str
    framework_path: str  # "package.module:Class"
    workload: str
    preset: str
    precision: str
    dropout: float
    method: str
    method_path: str
    options: dict[str, Any]
    covers: str  # a Coverage of the contract
    rank_local: bool  # whether a multi-rank checkpoint holds every rank's own leaves
    device: str
    world: int
    launcher: str
    experiment: str = "cost"  # a name in harness.driver.experiments
    strategy: str = ""  # how the ranks train together; empty in a world of one
    # ranks of the loading job where they are not those of the saving one, else 0
    load_world: int = 0
    every: int = 0  # steps between two checkpoints, where training goes on around them
    ablated: str = ""  # the role of leaves that a resumed run does not get back
    scale: int = 0  # how many times as large the workload is; 0 for as it is
    nodes: int = 0  # over how many nodes the ranks are spread; 0 where they stay on one machine
    from_memory: bool = False  # its loads restore from shared memory, and not from files
    arm: str = ""  # which side of a comparison, where a run has two

    @functools.cached_property
    def id(self) -> str:
        """The first 12 hex digits of the SHA-256 of the case's canonical JSON.

        What a case has of the fields that schema 1 did not know counts only where it is not the
        default, so that the identifiers of stored runs stay what they are.
        """
        known = {
            name: value
            for name, value in asdict(self).items()
            if name not in _LATER_FIELDS or value
        }
        canonical = json.dumps(known, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Task:
    """What one process still has to do for one case."""

    case: Case
    samples: int  # undisturbed samples wanted
    warmups: int
    repeats: int  # how many disturbed samples may be taken anew
    # number of the first sample, above those that an interrupted run has stored
    first_index: int = 0


@dataclass(frozen=True)
class Storage:
    """How the run's scratch directory takes I/O, found by the calibration job (block and depth in bytes and requests)."""

    direct: bool
    write_block_bytes: int
    write_depth: int
    read_block_bytes: int
    read_depth: int
    # whether the kernel accounts reads from this directory to the process
    counts_device_reads: bool


# What a worker process does with its tasks: time saves; time loads of what another process saved;
# save once under a tracer; look into checkpoints and save the same state twice; save the same state
# in another process; train and report numbers; time training with and without checkpoints; train
# without interruption; up to a checkpoint and a kill; from there on; once more from the beginning;
# save for another number of ranks; load what another number of ranks saved.
JobRole = Literal[
    "calibrate",
    "save",
    "load",
    "trace",
    "inspect",
    "repeat",
    "train",
    "steps",
    "straight",
    "interrupt",
    "resume",
    "again",
    "part",
    "reload",
]


@dataclass(frozen=True)
class Job:
    """The work of one worker process (or one per rank): its tasks share framework, workload, device and world."""

    name: str
    role: JobRole
    process: int  # which of the case's processes this is: the cluster of its samples
    scratch: str
    world: int = 1
    tasks: tuple[Task, ...] = ()
    packages: tuple[str, ...] = ()  # whose versions the worker reports
    storage: Storage | None = None  # None for the calibration job, which finds it
    calibration_bytes: int = 0
    # why the scratch directory takes no direct I/O, where it does not
    not_direct: str | None = None
    # of Python's hashes of text; None for another one in every process
    hash_seed: int | None = None
    # a folder in shared memory, for checkpoints that are restored from there
    memory: str | None = None
    summary_above: int = SUMMARY_ABOVE  # in a world of more ranks, rank 0 writes one record for all
    seed: int = 2026


def job_to_json(job: Job) -> str:
    """Return the job as the JSON that a worker reads."""
    return json.dumps(asdict(job), indent=1)


def job_from_json(text: str) -> Job:
    """Return the job that `job_to_json` wrote; raises TypeError or KeyError on anything else."""
    fields = json.loads(text)
    tasks = tuple(Task(**(task | {"case": Case(**task["case"])})) for task in fields.pop("tasks"))
    storage = fields.pop("storage")
    return Job(
        **fields | {"packages": tuple(fields["packages"])},
        tasks=tasks,
        storage=Storage(**storage) if storage else None,
    )
