"""What each experiment does with a case: which jobs, one after the other, in each of the case's processes."""

from __future__ import annotations

from dataclasses import dataclass

from harness.case import JobRole

SAMPLED: frozenset[JobRole] = frozenset({"save", "load"})  # jobs that take a number of samples; the others are one piece


@dataclass(frozen=True)
class Stage:
    """One job of a process slot. `keeps`: it leaves a checkpoint in the scratch directory that the next stage needs."""

    role: JobRole
    keeps: bool = False


@dataclass(frozen=True)
class Experiment:
    """`traced`: one save is watched at the system calls. `methods`: its cases are methods; else the framework's own training.

    `processes` is how many process slots a case has where the suite has no say in it. With `fixed_hashing` every second slot
    runs its jobs with the same hashes of text, where Python else has other ones in every process.
    """

    name: str
    stages: tuple[Stage, ...]
    traced: bool
    methods: bool = True
    processes: int | None = None
    fixed_hashing: bool = False

    def hash_seed(self, slot: int) -> int | None:
        """The seed of Python's hashes in a slot; None for another one in every process."""
        return 0 if self.fixed_hashing and slot % 2 else None


COST = Experiment("cost", (Stage("save", keeps=True), Stage("load")), traced=True)
SIZES = Experiment("sizes", (Stage("inspect", keeps=True), Stage("repeat")), traced=True, processes=2, fixed_hashing=True)
PARITY = Experiment("parity", (Stage("train"),), traced=False, methods=False, processes=1)

EXPERIMENTS = {experiment.name: experiment for experiment in (COST, SIZES, PARITY)}


def stages(experiment: str) -> tuple[Stage, ...]:
    """The stages of an experiment."""
    return EXPERIMENTS[experiment].stages
