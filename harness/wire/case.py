"""The values that go from the driver to a worker and say what to measure.

Standard library only, because they cross that border.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from typing import Any

SUMMARY_ABOVE = 64  # ranks: in a larger world one record speaks for all, unless the user says more
# Beyond these, a number is a typing error or a damaged byte, and loops over it would never end.
MOST_RANKS = 2**16
MOST_PROCESSES = 10_000  # of one case, one after the other
MOST_SAMPLES = 1_000_000  # of one process
_LATER_FIELDS = (
    "strategy",
    "load_world",
    "every",
    "ablated",
    "scale",
    "nodes",
    "from_memory",
    "arm",
    "settings",
    "peers",
    "adapter",
    "own_environment",
)

IGNORABLE = {"ignorable": True}
"""Marks a field without which a worker of an older version measures the same, with fewer checks."""

_NO_IDENTITY = ("model",)
"""Fields that do not tell cases apart."""


@dataclass(frozen=True)
class OwnModel:
    """The place of a model of the user's own, and the size of its state.

    `file` is the absolute path of the user's text, `function` the name of the function in it that
    makes the model, and `digest` the first digits of the SHA-256 of the text and its modules.
    `modules` are the files below the folder of the text that building the model imported.
    """

    file: str
    function: str
    digest: str
    state_bytes: int
    modules: tuple[str, ...] = ()

    @property
    def workload(self) -> str:
        """The name of the model as a workload, such as "train.py:make"."""
        return f"{self.file.rpartition('/')[2]}:{self.function}"


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
    experiment: str  # the name of a folder in harness/experiments
    strategy: str = ""  # how the ranks train together; empty in a world of one
    # These three are suite keys of one experiment each, and older than `settings`. They stay
    # fields, because identifiers of stored cases and rows in JSON have them. No others are added.
    load_world: int = 0
    every: int = 0
    ablated: str = ""
    scale: int = 0  # how many times as large the workload is; 0 for as it is
    nodes: int = 0  # over how many nodes the ranks are spread; 0 where they stay on one machine
    from_memory: bool = False  # its loads restore from shared memory, and not from files
    arm: str = ""  # which side of a comparison, where a run has two
    # values of an experiment's own suite keys, but for those that have a field above
    settings: dict[str, Any] = field(default_factory=dict)
    # The framework's own means by which ranks add up: `class`, and in `launch` the arguments of the
    # interpreter that start the ranks, where mpirun does not. Empty where they add up over MPI.
    peers: dict[str, Any] = field(default_factory=dict)
    # Where the user's own model is; None for a workload of this project. `workload` and `preset`
    # then hold its name and the digest of its text.
    model: OwnModel | None = None
    # name, version and digest of the code from outside this project that is measured; empty where
    # all is of this project
    adapter: str = ""
    # the environment of a method with packages of its own; empty where it runs in the framework's
    own_environment: str = ""

    @property
    def environment(self) -> str:
        """The name of the environment in which the case runs."""
        return self.own_environment or self.framework

    @functools.cached_property
    def id(self) -> str:
        """The first 12 hex digits of the SHA-256 of the case's canonical JSON.

        What a case has of the fields that schema 1 did not know counts only where it is not the
        default, so that the identifiers of stored runs stay what they are. The folder of a model of
        the user's own does not count, because the digest of its text does.
        """
        known = {
            name: value
            for name, value in asdict(self).items()
            if name not in _NO_IDENTITY and (name not in _LATER_FIELDS or value)
        }
        canonical = json.dumps(known, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:12]


@dataclass(frozen=True)
class Task:
    """The work that one process still has to do for one case."""

    case: Case
    samples: int  # undisturbed samples wanted
    warmups: int
    repeats: int  # how many disturbed samples may be taken anew
    # number of the first sample, above those that an interrupted run has stored
    first_index: int = 0
    # how many of the timed saves are loaded and verified too
    checked_saves: int = field(default=0, metadata=IGNORABLE)
    # one rank writes what all ranks will load
    one_writer: bool = field(default=False, metadata=IGNORABLE)
    # a checkpoint has files
    files: bool = field(default=True, metadata=IGNORABLE)


@dataclass(frozen=True)
class Storage:
    """The way in which the scratch directory takes I/O, found by the calibration job.

    The block is in bytes, and the depth in requests.
    """

    direct: bool
    write_block_bytes: int
    write_depth: int
    read_block_bytes: int
    read_depth: int
    # whether the kernel accounts reads from this directory to the process
    counts_device_reads: bool


CALIBRATE = "calibrate"
"""The role of the job that finds out how the scratch directory takes I/O."""

TRACE = "trace"
"""The role of a job whose saves are watched at the system calls."""


@dataclass(frozen=True)
class Job:
    """The work of one worker process, or of one process a rank.

    Its tasks share framework, workload, device and world.
    """

    name: str
    role: str  # a stage of the cases' experiment, or CALIBRATE or TRACE
    process: int  # which of the case's processes this is: the cluster of its samples
    scratch: str
    world: int = 1
    tasks: tuple[Task, ...] = ()
    packages: tuple[str, ...] = ()  # whose versions the worker reports
    # None for the calibration job that finds it; one that only tries it is given it
    storage: Storage | None = None
    calibration_bytes: int = 0
    # why the scratch directory takes no direct I/O, where it does not
    not_direct: str | None = None
    # of Python's hashes of text; None for another one in every process
    hash_seed: int | None = None
    # a folder in shared memory, for checkpoints that are restored from there
    memory: str | None = None
    # names of guards that are switched off, to show what they catch
    without_guards: tuple[str, ...] = ()
    summary_above: int = SUMMARY_ABOVE  # in a world of more ranks, rank 0 writes one record for all
    seed: int = 2026


def job_to_json(job: Job, leave_out: Mapping[str, Collection[str]] | None = None) -> str:
    """Return the job as the JSON that a worker reads.

    `leave_out` names fields by class, such as `{"Case": ["settings"]}`, because the worker of
    another version may not know them.
    """
    return json.dumps(_to_json(job, leave_out or {}), indent=1)


def job_from_json(text: str) -> Job:
    """Return the job that `job_to_json` wrote; raises TypeError or KeyError on anything else."""
    values = json.loads(text)
    storage = values.pop("storage")
    return Job(
        **known_fields(Job, values)
        | {
            "packages": tuple(values["packages"]),
            "without_guards": tuple(values.get("without_guards", ())),
            "tasks": tuple(_task(task) for task in values["tasks"]),
            "storage": Storage(**known_fields(Storage, storage)) if storage else None,
        }
    )


def case_from_json(values: Mapping[str, Any]) -> Case:
    """Return the case that `asdict` gave, also one of a version that has more fields."""
    known = known_fields(Case, values)
    model = known.get("model")
    if model is not None:
        modules = tuple(model.get("modules", ()))
        known["model"] = OwnModel(**known_fields(OwnModel, model) | {"modules": modules})
    return Case(**known)


def _task(values: Mapping[str, Any]) -> Task:
    return Task(**known_fields(Task, values) | {"case": case_from_json(values["case"])})


def _to_json(value: Any, leave_out: Mapping[str, Collection[str]]) -> Any:
    if isinstance(value, tuple):
        return [_to_json(element, leave_out) for element in value]
    if not is_dataclass(value):
        return value
    left_out = leave_out.get(type(value).__name__, ())
    names = [declared.name for declared in fields(value) if declared.name not in left_out]
    return {name: _to_json(getattr(value, name), leave_out) for name in names}


def known_fields(kind: type[Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that belong to a field of the dataclass `kind`.

    A later version may have written more fields, and this version does without them.
    """
    names = {declared.name for declared in fields(kind)}
    return {name: value for name, value in values.items() if name in names}
