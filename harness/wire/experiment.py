"""The declaration of an experiment: its question, and the stages that answer it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from harness.wire.case import Case


def saving_ranks(case: Case) -> int:
    """Return how many ranks save the checkpoint of a case, which is how many train it."""
    return case.world


def three_states(case: Case) -> int:
    """Return 3: the state under test, a checkpoint of it, and the files of the ceilings."""
    return 3


def no_steps(case: Case) -> int:
    """Return 0: a sample trains too little to take time worth the name."""
    return 0


def no_jobs(case: Case) -> int:
    """Return 0: all jobs are those of the stages, which cases share."""
    return 0


@dataclass(frozen=True)
class Stage:
    """One job of a process slot. The function of this name in the experiment's `worker.py` does it.

    `in_words` names the stage in progress lines. `leaves` says what the stage leaves in the scratch
    directory for the stages after it. `samples` says how many samples it takes. That is as many as
    the suite asks for, one, or none because the stage is one piece. `reports` says which ranks
    write a record when they have come to its end.
    """

    name: str
    in_words: str
    leaves: Literal["nothing", "checkpoint", "reference"] = "nothing"
    samples: Literal["all", "one", "none"] = "none"
    reports: Literal["every rank", "rank 0"] = "every rank"
    ranks: Callable[[Case], int] = saving_ranks
    seed_offset: int = 0  # is added to the seed, so that a load starts from another state
    one_case_a_process: bool = False
    ends_killed: bool = False  # its processes never end by themselves
    by_driver: bool = False  # the experiment's `driver.py` runs its jobs
    # each task has a process and a session of its own, forked after the framework was imported
    forks: bool = False
    # each rank starts its framework as if it were the only one, because the ranks meet over MPI
    alone: bool = False
    # the ranks of a machine divide its processors. Else each has as many threads as there are
    # processors, and the threads wait for each other, so equal steps take unequal times.
    divides_processors: bool = False

    def reporting_ranks(self, case: Case) -> int:
        """Return how many ranks must report before the stage is complete for a case."""
        return 1 if self.reports == "rank 0" else self.ranks(case)


@dataclass(frozen=True)
class SuiteKey:
    """A key that only sweeps of one experiment have. Each of its values makes cases of its own.

    A value is a whole number from `at_least` to `at_most`, or one of the words in `choices`. A
    sweep that leaves the key out has `default`. Where that is None, every sweep must have the key.
    `in_words` returns what a case's name has of a value; empty where it goes without saying.
    `option` is the option of `ckptbench run` that replaces the suite's values; empty for none.
    A framework has a value in `declared_as_peers` only if it declares peers of that name. With
    `later`, the key is newer than stored runs. A case at its default is the same as one of them.
    """

    meaning: str  # completes the sentence "experiment 'train' needs 'every': …"
    at_least: int = 1
    at_most: int = 1_000_000
    choices: tuple[str, ...] = ()
    default: int | str | None = None
    in_words: Callable[[Any], str] | None = None
    option: str = ""
    declared_as_peers: tuple[str, ...] = ()
    later: bool = False

    def why_not(self, value: object) -> str:
        """Return which values the key takes instead of this one; empty where it takes it."""
        if self.choices:
            return "" if value in self.choices else f"one of {', '.join(map(repr, self.choices))}"
        if type(value) is not int:  # bool is an int to isinstance
            return "a whole number"
        if value < self.at_least:
            return f"a number from {self.at_least} on"
        return "" if value <= self.at_most else f"a number up to {self.at_most}"


@dataclass(frozen=True)
class Experiment:
    """One question that can be asked of a case, and how it is answered.

    `place` orders the experiments on the report page. With `methods`, a case is a checkpoint
    method. Without, it is the framework's own training. With `stores`, stores are measured too.
    `processes` is the number of a case's process slots. None leaves it to the suite. The slots take
    the seeds of Python's text hashes in turn from `hash_seeds`, where None means another seed in
    every process.
    `reads_in_another_world` says that other ranks load what these saved, so a method must allow
    that. `compares_frameworks` says that a row means something only beside rows of other
    frameworks. `states_at_work` counts the states that lie in the scratch directory at once, beside
    the checkpoints that are kept. `steps_a_sample` counts the training steps of one sample, and
    `jobs_a_case` the jobs that the experiment's `driver.py` starts for one case alone. With
    `checks_timed_saves`, timed saves are loaded too. With `own_models`, it also measures a model of
    the user's own.
    """

    name: str
    question: str
    place: int
    stages: tuple[Stage, ...]
    methods: bool = True
    stores: bool = False
    processes: int | None = 1
    hash_seeds: tuple[int | None, ...] = (None,)
    suite_keys: Mapping[str, SuiteKey] = field(default_factory=dict)
    reads_in_another_world: bool = False
    compares_frameworks: bool = False
    states_at_work: Callable[[Case], int] = three_states
    steps_a_sample: Callable[[Case], int] = no_steps
    jobs_a_case: Callable[[Case], int] = no_jobs
    checks_timed_saves: bool = False
    own_models: bool = True

    @property
    def takes_samples(self) -> bool:
        """Return whether any stage repeats a measurement as often as the suite asks for."""
        return any(stage.samples == "all" for stage in self.stages)

    def stage(self, name: str) -> Stage:
        """Return the stage of that name. Raises KeyError where there is none."""
        return {stage.name: stage for stage in self.stages}[name]

    def hash_seed(self, slot: int) -> int | None:
        """Return the seed of Python's text hashes in a process slot; None for a random one."""
        return self.hash_seeds[slot % len(self.hash_seeds)]

    def ranks(self, case: Case) -> tuple[int, ...]:
        """Return how many ranks each stage of a case has."""
        return tuple(stage.ranks(case) for stage in self.stages)

    def settings(self, case: Case) -> dict[str, Any]:
        """Return a case's values of the experiment's own suite keys.

        A case of a later version may have keys that are unknown here, and one of an older version
        may lack a key, whose default it then has.
        """
        values = dict(case.settings)
        for key, suite_key in self.suite_keys.items():
            stored = getattr(case, key) if hasattr(case, key) else values.get(key)
            values[key] = suite_key.default if stored is None else stored
        return values

    def told_apart(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings by which cases are told apart: not the defaults of later keys."""
        keys = self.suite_keys
        return {
            key: value
            for key, value in settings.items()
            if not (keys[key].later and value == keys[key].default)
        }

    def settings_in_words(self, case: Case) -> list[str]:
        """Return what a case's name has of its settings, such as "every 4 steps"."""
        texts = []
        for key, value in sorted(self.settings(case).items()):
            in_words = self.suite_keys[key].in_words if key in self.suite_keys else None
            texts.append(in_words(value) if in_words else f"{key}={value}")
        return [text for text in texts if text]
