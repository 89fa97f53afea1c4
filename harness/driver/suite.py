"""A suite: a TOML file with sweeps, each the product of its axes."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from harness import experiments
from harness.driver import tables
from harness.run.errors import UsageError, nearest
from harness.wire.case import MOST_PROCESSES, MOST_RANKS, MOST_SAMPLES, OwnModel
from harness.wire.experiment import Experiment, SuiteKey
from workloads import is_scalable, precisions, presets
from workloads import names as workload_names

SUITES = Path(__file__).resolve().parents[2] / "workloads" / "suites"
_COUNTS = ("samples", "warmups", "slow_samples", "slow_processes", "repeats", "processes")


def _as_list(value: object) -> object:
    return value if isinstance(value, list) else [value]


_AXIS = (BeforeValidator(_as_list), Field(strict=False, min_length=1))
Names = Annotated[tuple[str, ...], *_AXIS]
Worlds = Annotated[tuple[Annotated[int, Field(ge=1, le=MOST_RANKS)], ...], *_AXIS]
Rates = Annotated[tuple[Annotated[float, Field(ge=0, lt=1)], ...], *_AXIS]


@dataclass(frozen=True)
class Shape:
    """One point of a sweep: everything about a case but its framework and method."""

    workload: str
    preset: str
    precision: str
    dropout: float
    world: int
    scale: int  # 0 where the workload does not grow
    settings: Mapping[str, Any] = field(default_factory=dict)  # the experiment's own suite keys
    model: OwnModel | None = None  # where the user's own model takes the workload's place


class Sweep(tables.Table):
    """One `[[sweep]]`: the product of its axes, each a scalar or a list.

    Besides these keys, a sweep may have the suite keys that its experiment declares. They are
    gathered in `settings`.
    """

    experiment: str = Field(default_factory=experiments.default)
    workload: Names
    preset: Names
    precision: Names
    method: Annotated[tuple[str, ...], *_AXIS] = ()  # names of methods, or traits
    world: Worlds = (1,)
    # names of strategies, or traits; a world of one rank has none
    strategy: Annotated[tuple[str, ...], *_AXIS] = ("default",)
    weak: bool = False  # the workload grows with the world
    dropout: Rates = (0.0,)
    samples: int = Field(default=1, ge=1, le=MOST_SAMPLES)  # undisturbed samples per process
    warmups: int = Field(default=1, ge=0, le=MOST_SAMPLES)
    # samples of a method that the catalog calls slow, which then has no warm-up
    slow_samples: int | None = Field(default=None, ge=1, le=MOST_SAMPLES)
    # processes of such a method, because each costs a start and one more slow save
    slow_processes: int | None = Field(default=None, ge=1, le=MOST_PROCESSES)
    # how many disturbed samples a process may take anew
    repeats: int = Field(default=2, ge=0, le=MOST_SAMPLES)
    processes: int = Field(default=2, ge=1, le=MOST_PROCESSES)
    # the timed saves of a process that are loaded and verified too
    checked: Literal["one", "all"] = "one"
    # one save of each case is watched at the system calls, where its experiment has that
    traced: bool = True
    settings: dict[str, tuple[Any, ...]] = Field(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _gather_settings(cls, table: object) -> object:
        """Move the experiment's own suite keys into `settings`."""
        if not isinstance(table, dict):
            return table
        experiment = _experiment(table.get("experiment", experiments.default()))
        common = {name for name in cls.model_fields if name != "settings"}
        for key in table:
            if key not in common and key not in experiment.suite_keys:
                raise _unknown_key(key, common, experiment)
        settings = {}
        for key, suite_key in experiment.suite_keys.items():
            settings[key] = _setting_values(experiment, key, suite_key, table)
        rest = {key: value for key, value in table.items() if key in common}
        return rest | {"settings": settings}

    @model_validator(mode="after")
    def _fits_the_experiment(self) -> Self:
        """Refuse a sweep of methods without any, and counts that its experiment does not use."""
        experiment = experiments.experiment(self.experiment)
        name = repr(self.experiment)
        if experiment.methods and not self.method:
            raise ValueError(f"experiment {name} needs 'method': the methods that it measures")
        if self.method and not experiment.methods:
            raise ValueError(f"experiment {name} measures no methods, so leave 'method' out")
        if experiment.takes_samples:
            if "samples" not in self.model_fields_set:
                raise ValueError(
                    f"experiment {name} needs 'samples': how many samples each process takes"
                )
            return self
        for count in _COUNTS:
            if count in self.model_fields_set:
                raise ValueError(f"experiment {name} takes no samples, so leave {count!r} out")
        return self

    @model_validator(mode="after")
    def _grows(self) -> Self:
        """Refuse weak scaling of a workload that has one size."""
        for workload in self.workload if self.weak else ():
            if not is_scalable(workload):
                raise ValueError(
                    f"workload {workload} does not grow with the world: weak scaling needs one "
                    "that does"
                )
        return self

    @model_validator(mode="after")
    def _known_values(self) -> Self:
        for workload in self.workload:
            require("workload", workload, workload_names())
            for preset in self.preset:
                require("preset", preset, presets(workload), f"of workload {workload}")
        self._require_precisions()
        return self

    def _require_precisions(self) -> None:
        """Refuse a precision that no workload of the sweep has.

        Refuse a workload that has none of the sweep's precisions, too.
        """
        known: set[str] = set()
        for workload in self.workload:
            known |= set(precisions(workload))
        for precision in self.precision:
            require("precision", precision, known)
        for workload in self.workload:
            of_workload = precisions(workload)
            if not set(self.precision) & set(of_workload):
                require("precision", self.precision[0], of_workload, f"of workload {workload}")

    def shapes(self, worlds: Sequence[int], model: OwnModel | None = None) -> Iterator[Shape]:
        """Yield the product of the axes, over `worlds` where any are given instead of the sweep's.

        A precision that a workload lacks is left out, because it is there for other workloads of
        the sweep. A model of the user's own takes the place of all workloads.
        """
        states = self._states() if model is None else [(model.workload, model.digest, "", 0.0)]
        axes = list(itertools.product(worlds or self.world, *self.settings.values()))
        for workload, preset, precision, dropout in states:
            for world, *values in axes:
                yield Shape(
                    workload=workload,
                    preset=preset,
                    precision=precision,
                    dropout=dropout,
                    world=world,
                    scale=world if self.weak and model is None else 0,
                    settings=dict(zip(self.settings, values, strict=True)),
                    model=model,
                )

    def _states(self) -> Iterator[tuple[str, str, str, float]]:
        """Yield workload, preset, precision and dropout of each state that the sweep trains."""
        states = itertools.product(self.workload, self.preset, self.precision, self.dropout)
        for state in states:
            workload, _, precision, _ = state
            if precision in precisions(workload):
                yield state


class _SuiteFile(tables.Table):
    description: str
    sweep: tuple[Sweep, ...] = Field(strict=False, min_length=1)


@dataclass(frozen=True)
class Suite:
    """A named list of sweeps."""

    name: str
    description: str
    sweeps: tuple[Sweep, ...]


def names(folder: Path = SUITES) -> list[str]:
    """Return the names of the suites in `folder`."""
    return sorted(path.stem for path in folder.glob("*.toml"))


def load(name: str, folder: Path = SUITES) -> Suite:
    """Return the suite of that name. Raises UsageError where there is none or its file is wrong."""
    require("suite", name, names(folder))
    declared = tables.read(folder / f"{name}.toml", _SuiteFile)
    return Suite(name, declared.description, declared.sweep)


def load_all(folder: Path = SUITES) -> tuple[list[Suite], list[str]]:
    """Return the suites of a folder that can be read, and for each other one a sentence why not."""
    readable: list[Suite] = []
    broken: list[str] = []
    for name in names(folder):
        try:
            readable.append(load(name, folder))
        except UsageError as error:
            broken.append(str(error))
    return readable, broken


def with_option(suite: Suite, option: str, value: int) -> Suite:
    """Return a suite with another value of the suite key that an option replaces.

    Raises UsageError where no sweep has such a key, or where it does not take the value.
    """
    sweeps = []
    replaced = False
    for sweep in suite.sweeps:
        keys = experiments.experiment(sweep.experiment).suite_keys
        settings = dict(sweep.settings)
        for key, suite_key in keys.items():
            if suite_key.option == option:
                value_taken = min(value, suite_key.at_most)
                wanted = suite_key.why_not(value_taken)
                if wanted:
                    raise UsageError(f"{option} takes {wanted} or 'all', not {value}")
                settings[key] = (value_taken,)
                replaced = True
        sweeps.append(sweep.model_copy(update={"settings": settings}))
    if not replaced:
        raise UsageError(f"suite {suite.name} strikes no saves, so leave {option} out")
    return Suite(suite.name, suite.description, tuple(sweeps))


def require(kind: str, given: str, valid: Collection[str], where: str = "") -> None:
    """Raise UsageError with the nearest valid name unless a name is valid."""
    if given not in valid:
        raise nearest(kind, given, valid, where)


def _experiment(name: object) -> Experiment:
    """Return an experiment's declaration. Raises UsageError with the nearest name."""
    require("experiment", str(name), experiments.names())
    return experiments.experiment(str(name))


def _unknown_key(key: str, common: set[str], experiment: Experiment) -> ValueError:
    """Return the error for a key that neither all sweeps have nor those of this experiment."""
    owners = [
        name for name in experiments.names() if key in experiments.experiment(name).suite_keys
    ]
    if owners:
        return ValueError(f"only experiment {owners[0]!r} has the key {key!r}")
    return nearest("key", key, [*common, *experiment.suite_keys])


def _setting_values(
    experiment: Experiment, key: str, suite_key: SuiteKey, table: Mapping[str, Any]
) -> tuple[Any, ...]:
    """Return the values that a sweep has for one of its experiment's own keys."""
    if key not in table:
        if suite_key.default is None:
            raise ValueError(f"experiment {experiment.name!r} needs {key!r}: {suite_key.meaning}")
        return (suite_key.default,)
    values = table[key] if isinstance(table[key], list) else [table[key]]
    if not values:
        raise ValueError(f"{key} needs at least one value")
    for value in values:
        _require_setting(key, suite_key, value)
    return tuple(values)


def _require_setting(key: str, suite_key: SuiteKey, value: object) -> None:
    """Raise UsageError or ValueError for a value that the key does not take."""
    if suite_key.choices:
        require(key, str(value), suite_key.choices)
        return
    wanted = suite_key.why_not(value)
    if wanted:
        raise ValueError(f"{key} takes {wanted}, not {value!r}")
