"""What each experiment does with a case: which jobs, one after the other, in each of the case's processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from harness.case import Case, JobRole

# Jobs that take a number of samples; the others are one piece.
SAMPLED: frozenset[JobRole] = frozenset({"save", "load", "steps"})


@dataclass(frozen=True)
class Stage:
    """One job of a process slot.

    `keeps`: what it leaves in the scratch directory for the stages after it. `alone`: every case
    has a process of its own. `killed`: its processes do not come back. `once`: one sample, however
    many the case wants. `elsewhere`: the ranks are as many as the case's `load_world`.
    """

    role: JobRole
    keeps: Literal["", "checkpoint", "reference"] = ""
    alone: bool = False
    killed: bool = False
    once: bool = False
    elsewhere: bool = False

    def world(self, case: Case) -> int:
        """How many ranks the stage has."""
        return case.load_world if self.elsewhere else case.world


@dataclass(frozen=True)
class Experiment:
    """`traced`: one save is watched at the system calls.

    `methods`: its cases are methods; else the framework's own training.

    `processes` is how many process slots a case has where the suite has no say in it. With
    `fixed_hashing` every second slot runs its jobs with the same hashes of text, where Python else
    has other ones in every process.
    """

    name: str
    stages: tuple[Stage, ...]
    traced: bool = False
    methods: bool = True
    sampled: bool = False
    processes: int | None = 1
    fixed_hashing: bool = False

    def hash_seed(self, slot: int) -> int | None:
        """The seed of Python's hashes in a slot; None for another one in every process."""
        return 0 if self.fixed_hashing and slot % 2 else None


_STRAIGHT = Stage("straight", keeps="reference")

COST = Experiment(
    "cost",
    (Stage("save", keeps="checkpoint"), Stage("load")),
    traced=True,
    sampled=True,
    processes=None,
)
SIZES = Experiment(
    "sizes",
    (Stage("inspect", keeps="checkpoint"), Stage("repeat")),
    traced=True,
    processes=2,
    fixed_hashing=True,
)
PARITY = Experiment("parity", (Stage("train"),), methods=False)
TRAIN = Experiment(
    "train",
    (Stage("steps", keeps="checkpoint"), Stage("load", once=True)),
    sampled=True,
    processes=None,
)
RESUME = Experiment(
    "resume",
    (_STRAIGHT, Stage("interrupt", keeps="checkpoint", killed=True), Stage("resume", alone=True)),
)
RERUN = Experiment("rerun", (_STRAIGHT, Stage("again")), methods=False)
RESHARD = Experiment(
    "reshard", (Stage("part", keeps="checkpoint"), Stage("reload", elsewhere=True))
)

EXPERIMENTS = {
    experiment.name: experiment
    for experiment in (COST, SIZES, PARITY, TRAIN, RESUME, RERUN, RESHARD)
}


def stages(experiment: str) -> tuple[Stage, ...]:
    """The stages of an experiment."""
    return EXPERIMENTS[experiment].stages
