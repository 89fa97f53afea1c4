"""From a suite's sweeps and the command line's wishes to a list of cases."""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from harness.driver import catalog, tables
from harness.driver.catalog import FrameworkEntry, MethodEntry, Strategy
from harness.run.errors import UsageError, nearest
from harness.run.plan import PlannedCase
from harness.wire.case import Case
from harness.wire.experiment import EXPERIMENTS, RESHARD, RESUME, TRAIN
from workloads import is_scalable, precisions, presets
from workloads import names as workload_names

SUITES = Path(__file__).resolve().parents[2] / "workloads" / "suites"
TRAITS: dict[str, Callable[[MethodEntry], bool]] = {
    "all": lambda method: True,
    "default": lambda method: method.default,
    "fast": lambda method: method.fast,
    "asynchronous": lambda method: method.asynchronous,
}
STRATEGY_TRAITS: dict[str, Callable[[Strategy], bool]] = {
    "all": lambda strategy: True,
    "default": lambda strategy: strategy.default,
    "sharded": lambda strategy: strategy.sharded,
}
NO_METHOD = MethodEntry.model_validate(
    {
        "name": "",
        "class": "adapters.base:Method",
        "covers": "full",
        "rank_local": True,
        "format": "",
        "description": "",
    }
)
_OWN_KEYS = {"load_world": RESHARD, "every": TRAIN, "ablated": RESUME}
LAUNCHERS = ("local", "mpirun", "slurm")


def _as_list(value: object) -> object:
    return value if isinstance(value, list) else [value]


_AXIS = (BeforeValidator(_as_list), Field(strict=False, min_length=1))
Ablated = Literal["", "optimizer", "rng", "buffer", "position"]
Names = Annotated[tuple[str, ...], *_AXIS]
Worlds = Annotated[tuple[Annotated[int, Field(ge=1)], ...], *_AXIS]
Rates = Annotated[tuple[Annotated[float, Field(ge=0, lt=1)], ...], *_AXIS]


@dataclass(frozen=True)
class Shape:
    """One point of a sweep: everything about a case but its framework and method."""

    workload: str
    preset: str
    precision: str
    dropout: float
    world: int
    load_world: int  # 0 where the same ranks load
    every: int  # steps between two checkpoints; 0 where no training is timed
    ablated: str
    scale: int  # 0 where the workload does not grow


class Sweep(tables.Table):
    """One `[[sweep]]`: the product of its axes, each a scalar or a list."""

    experiment: Literal["cost", "sizes", "parity", "train", "resume", "rerun", "reshard"] = "cost"
    workload: Names
    preset: Names
    precision: Names
    method: Annotated[tuple[str, ...], *_AXIS] = ()  # names of methods, or traits
    world: Worlds = (1,)
    # names of strategies, or traits; a world of one has none
    strategy: Annotated[tuple[str, ...], *_AXIS] = ("default",)
    # numbers of ranks that load what `world` ranks saved: experiment reshard alone
    load_world: Worlds | tuple[()] = ()
    every: Worlds | tuple[()] = ()  # steps between two checkpoints: experiment train alone
    # what a resumed run does not get back: experiment resume alone
    ablated: Annotated[tuple[Ablated, ...], *_AXIS] = ("",)
    weak: bool = False  # the workload grows with the world
    dropout: Rates = (0.0,)
    samples: int = Field(default=1, ge=1)  # undisturbed samples per process
    warmups: int = Field(default=1, ge=0)
    # of a method that the catalog calls slow, which then has no warm-up
    slow_samples: int | None = Field(default=None, ge=1)
    # of such a method: each costs a start and one more slow save
    slow_processes: int | None = Field(default=None, ge=1)
    repeats: int = Field(default=2, ge=0)  # how many disturbed samples a process may take anew
    processes: int = Field(default=2, ge=1)
    # one save of each case is watched at the system calls, where its experiment has that
    traced: bool = True

    @model_validator(mode="after")
    def _fits_the_experiment(self) -> Self:
        """Refuse a sweep of methods without any, and counts that its experiment has no use for."""
        experiment = EXPERIMENTS[self.experiment]
        if experiment.methods != bool(self.method):
            wanted = (
                "names no method" if experiment.methods else "measures no methods, and one is named"
            )
            raise ValueError(f"a sweep of experiment {self.experiment} {wanted}")
        for key, owner in _OWN_KEYS.items():
            if key in self.model_fields_set and experiment is not owner:
                raise ValueError(f"{key} has a meaning in experiment {owner.name} alone")
            if key not in self.model_fields_set and experiment is owner and key != "ablated":
                raise ValueError(f"a sweep of experiment {owner.name} says {key}")
        if experiment.sampled:
            if "samples" not in self.model_fields_set:
                raise ValueError(
                    f"a sweep of experiment {experiment.name} says how many samples each process takes"
                )
        else:
            for name in (
                "samples",
                "warmups",
                "slow_samples",
                "slow_processes",
                "repeats",
                "processes",
            ):
                if name in self.model_fields_set:
                    raise ValueError(
                        f"experiment {self.experiment} takes no samples: {name} has no meaning there"
                    )
        return self

    @model_validator(mode="after")
    def _grows(self) -> Self:
        """Refuse weak scaling of a workload that has one size."""
        for workload in self.workload if self.weak else ():
            if not is_scalable(workload):
                raise ValueError(
                    f"workload {workload} does not grow with the world: weak scaling needs one that does"
                )
        return self

    @model_validator(mode="after")
    def _known_values(self) -> Self:
        for workload in self.workload:
            _require("workload", workload, workload_names())
            for preset in self.preset:
                _require("preset", preset, presets(workload), f"of workload {workload}")
        self._require_precisions()
        return self

    def _require_precisions(self) -> None:
        """Refuse a precision that no workload of the sweep has, and a workload that has none of the sweep's precisions."""
        for precision in self.precision:
            _require(
                "precision",
                precision,
                {known for workload in self.workload for known in precisions(workload)},
            )
        for workload in self.workload:
            if not set(self.precision) & set(precisions(workload)):
                _require(
                    "precision", self.precision[0], precisions(workload), f"of workload {workload}"
                )

    def shapes(self, worlds: Sequence[int]) -> Iterator[Shape]:
        """Yield the product of the axes, over `worlds` instead of the sweep's own where there are any.

        A precision that a workload lacks is left out: it is there for the sweep's other workloads.
        """
        states = itertools.product(self.workload, self.preset, self.precision, self.dropout)
        uses = itertools.product(
            worlds or self.world, self.load_world or (0,), self.every or (0,), self.ablated
        )
        for state, (world, load_world, every, ablated) in itertools.product(states, list(uses)):
            shape = Shape(
                *state, world, load_world, every, ablated, scale=world if self.weak else 0
            )
            if shape.precision in precisions(shape.workload):
                yield shape


class _SuiteFile(tables.Table):
    description: str
    sweep: tuple[Sweep, ...] = Field(strict=False, min_length=1)


@dataclass(frozen=True)
class Suite:
    """A named list of sweeps."""

    name: str
    description: str
    sweeps: tuple[Sweep, ...]


@dataclass(frozen=True)
class _Cell:
    framework: FrameworkEntry
    method: MethodEntry | None  # None where the experiment measures the framework itself
    shape: Shape
    strategy: str
    sweep: Sweep


def names(folder: Path = SUITES) -> list[str]:
    """Return the names of the suites in `folder`."""
    return sorted(path.stem for path in folder.glob("*.toml"))


def load(name: str, folder: Path = SUITES) -> Suite:
    """Return the suite of that name.

    Raises UsageError where there is none or where its file is wrong.
    """
    _require("suite", name, names(folder))
    declared = tables.read(folder / f"{name}.toml", _SuiteFile)
    return Suite(name, declared.description, declared.sweep)


def parse_options(pairs: Iterable[str]) -> dict[str, Any]:
    """Return `["crc=false"]` as `{"crc": False}`: values as TOML writes them, and bare words as text."""
    options = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not (key and separator):
            raise UsageError(f"an option reads KEY=VALUE, not {pair!r}")
        options[key] = _toml_value(value)
    return options


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def plan(
    suite: Suite,
    frameworks: Sequence[FrameworkEntry],
    *,
    workloads: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    worlds: Sequence[int] | None = None,
    strategies: Sequence[str] | None = None,
    device: str = "cpu",
    launcher: str | None = None,
    options: Mapping[str, Any] | None = None,
    arm: str = "",
    arm_options: Mapping[str, Any] | None = None,
) -> list[PlannedCase]:
    """Return the suite's cases for `frameworks`, each once: where two sweeps hold the same case, the first one's counts apply.

    `workloads` and `methods` narrow the suite; a method that the suite does not list for a workload
    is added where the framework has it. `worlds` and `strategies` replace the suite's. `options`
    replace those of the methods that have them, and then show in the method's name; `arm_options`,
    those of one side of a comparison, do not, so that the sides' rows are known by the same name.
    Raises UsageError for an unknown name, a device that a framework lacks, or a plan without any
    case.
    """
    _require_devices(frameworks, device)
    _require_worlds(worlds or ())
    # a suite may name what another framework has
    everywhere = [*frameworks, *catalog.frameworks().values()]
    _require_methods(frameworks, methods or ())
    _require_methods(everywhere, [name for sweep in suite.sweeps for name in sweep.method])
    sweeps = _narrowed(suite, workloads or ())
    if strategies:
        sweeps = [sweep.model_copy(update={"strategy": tuple(strategies)}) for sweep in sweeps]
    _require_strategies(frameworks, strategies or ())
    _require_strategies(everywhere, [name for sweep in suite.sweeps for name in sweep.strategy])
    cells = [
        cell
        for framework in frameworks
        for cell in _cells(framework, sweeps, methods or (), worlds or ())
    ]
    if not cells:
        raise UsageError(
            f"suite {suite.name} has nothing to run for {_in_words(frameworks)} with these workloads and methods"
        )
    for given in (options or {}, arm_options or {}):
        _require_options([cell.method for cell in cells if cell.method], given)
    planned: dict[str, PlannedCase] = {}
    for cell in cells:
        item = _planned(cell, device, launcher, options or {}, arm, arm_options or {})
        planned.setdefault(item.case.id, item)
    return list(planned.values())


def _require(kind: str, given: str, valid: Collection[str], where: str = "") -> None:
    if given not in valid:
        raise nearest(kind, given, valid, where)


def _require_devices(frameworks: Iterable[FrameworkEntry], device: str) -> None:
    for framework in frameworks:
        _require("device", device, framework.devices, f"in framework {framework.name}")


def _require_worlds(worlds: Iterable[int]) -> None:
    for world in worlds:
        if world < 1:
            raise UsageError(f"a world has at least 1 rank, not {world}")


def _require_methods(frameworks: Sequence[FrameworkEntry], wanted: Iterable[str]) -> None:
    known = {name for framework in frameworks for name in framework.methods}
    for name in wanted:
        if name not in TRAITS:
            _require("method", name, known, f"in {_in_words(frameworks)}")


def _require_strategies(frameworks: Sequence[FrameworkEntry], wanted: Iterable[str]) -> None:
    known = {name for framework in frameworks for name in framework.strategies}
    for name in wanted:
        if name not in STRATEGY_TRAITS:
            _require("strategy", name, known, f"in {_in_words(frameworks)}")


def _require_options(methods: Iterable[MethodEntry], options: Mapping[str, Any]) -> None:
    known = {key for method in methods for key in method.options}
    for key in options:
        _require("option", key, known, "of the selected methods")


def _in_words(frameworks: Sequence[FrameworkEntry]) -> str:
    names_ = ", ".join(framework.name for framework in frameworks)
    return f"framework {names_}" if len(frameworks) == 1 else f"frameworks {names_}"


def _is_measured(method: MethodEntry, sweep: Sweep, world: int) -> bool:
    """Whether a method has anything to say in an experiment and world, as far as it declares that."""
    return world >= method.min_world and sweep.experiment in (method.experiments or EXPERIMENTS)


def _narrowed(suite: Suite, workloads: Sequence[str]) -> list[Sweep]:
    """Return the suite's sweeps with only these workloads; all of them where none is named."""
    measured = list(
        dict.fromkeys(workload for sweep in suite.sweeps for workload in sweep.workload)
    )
    for workload in workloads:
        _require("workload", workload, workload_names())
        if workload not in measured:
            raise UsageError(
                f"suite {suite.name} does not measure workload {workload!r} (it measures: {', '.join(measured)})"
            )
    kept = [
        (sweep, tuple(name for name in sweep.workload if name in (workloads or measured)))
        for sweep in suite.sweeps
    ]
    return [sweep.model_copy(update={"workload": names_}) for sweep, names_ in kept if names_]


def _cells(
    framework: FrameworkEntry,
    sweeps: Sequence[Sweep],
    requested: Sequence[str],
    worlds: Sequence[int],
) -> Iterator[_Cell]:
    for sweep in sweeps:
        for shape in sweep.shapes(worlds):
            for strategy in _strategies(framework, sweep, shape.world):
                if not EXPERIMENTS[sweep.experiment].methods:
                    yield from (
                        () if requested else (_Cell(framework, None, shape, strategy, sweep),)
                    )
                    continue
                for method in _methods(
                    framework, sweep, _listed(sweeps, shape.workload), requested
                ):
                    named = method.name in (*requested, *sweep.method)
                    # then a row says why not
                    told = method.name in requested or sweep.experiment == RESHARD.name
                    fits = told or method.takes_shards or not _is_sharded(framework, strategy)
                    if fits and (named or _is_measured(method, sweep, shape.world)):
                        yield _Cell(framework, method, shape, strategy, sweep)


def _strategies(framework: FrameworkEntry, sweep: Sweep, world: int) -> list[str]:
    """Return how the framework's ranks are to train together: "" where there is one rank, or one way that has no name."""
    if world == 1 or not framework.strategies:
        unsharded = any(
            name != "sharded" and not _is_sharded(framework, name) for name in sweep.strategy
        )
        return [""] if unsharded else []
    return [
        name
        for name, strategy in framework.strategies.items()
        if name in sweep.strategy
        or any(
            STRATEGY_TRAITS[trait](strategy) for trait in sweep.strategy if trait in STRATEGY_TRAITS
        )
    ]


def _is_sharded(framework: FrameworkEntry, strategy: str) -> bool:
    return strategy in framework.strategies and framework.strategies[strategy].sharded


def _listed(sweeps: Iterable[Sweep], workload: str) -> list[str]:
    """Return the names and traits of methods that any sweep lists for the workload."""
    return [name for sweep in sweeps if workload in sweep.workload for name in sweep.method]


def _methods(
    framework: FrameworkEntry, sweep: Sweep, listed: Sequence[str], requested: Sequence[str]
) -> list[MethodEntry]:
    """Return the sweep's methods narrowed to the requested ones, and the requested ones that the suite does not list at all."""
    if not requested:
        return _selected(framework, sweep.method)
    return [
        method
        for method in _selected(framework, requested)
        if _matches(method, sweep.method) or not _matches(method, listed)
    ]


def _selected(framework: FrameworkEntry, wanted: Sequence[str]) -> list[MethodEntry]:
    return [method for method in framework.methods.values() if _matches(method, wanted)]


def _matches(method: MethodEntry, wanted: Sequence[str]) -> bool:
    """Whether a name or a trait in `wanted` means this method.

    No trait means a test double or an extra.
    """
    if method.name in wanted:
        return True
    return not (method.test_double or method.extra) and any(
        TRAITS[name](method) for name in wanted if name in TRAITS
    )


def _planned(
    cell: _Cell,
    device: str,
    launcher: str | None,
    options: Mapping[str, Any],
    arm: str,
    arm_options: Mapping[str, Any],
) -> PlannedCase:
    shape, experiment = cell.shape, EXPERIMENTS[cell.sweep.experiment]
    method = cell.method or NO_METHOD
    overrides, of_arm = _overrides(method, options), _overrides(method, arm_options)
    case = Case(
        framework=cell.framework.name,
        framework_path=cell.framework.class_path,
        workload=shape.workload,
        preset=shape.preset,
        precision=shape.precision,
        dropout=shape.dropout,
        method=_labelled(method.name, overrides),
        method_path=method.class_path,
        options={**method.options, **overrides, **of_arm},
        covers=method.covers,
        rank_local=method.rank_local,
        device=device,
        world=shape.world,
        launcher=_launcher(shape.world, launcher),
        experiment=experiment.name,
        strategy=cell.strategy,
        load_world=shape.load_world,
        every=shape.every,
        ablated=shape.ablated,
        scale=shape.scale,
        from_memory=method.from_memory,
        arm=arm,
    )
    expected = next(
        (
            item
            for item in method.expected_failures
            if item.concerns(experiment.name, shape.precision)
        ),
        None,
    )
    unsupported = "" if expected else _unsupported(cell)  # a framework's own reason says more
    samples, warmups, repeats = _counts(cell.sweep, method)
    return PlannedCase(
        case=case,
        samples=samples,
        warmups=warmups,
        repeats=repeats,
        processes=experiment.processes or _processes(cell.sweep, method),
        own_process=method.own_process,
        expected_failure=expected.reason if expected else None,
        race=expected is not None and expected.race,
        unsupported=unsupported,
        default=method.default,
        asynchronous=method.asynchronous,
        sharded=method.sharded,
        copies=shape.world
        if method.every_rank and not _is_sharded(cell.framework, cell.strategy)
        else 1,
        traced=cell.sweep.traced,
    )


def _unsupported(cell: _Cell) -> str:
    """Why a case cannot be measured, as far as the declarations tell; empty where it can."""
    if cell.method and not cell.method.takes_shards and _is_sharded(cell.framework, cell.strategy):
        return "it saves what one rank holds, and of sharded state no rank holds the whole"
    if cell.sweep.experiment == RESHARD.name and cell.method and not cell.method.reshards:
        return "what it writes is for the number of ranks that wrote it"
    return ""


def _counts(sweep: Sweep, method: MethodEntry) -> tuple[int, int, int]:
    """(samples, warm-ups, repeats) of a method in each process.

    What disturbs two ceilings says little of seconds between them.
    """
    if method.slow and sweep.slow_samples is not None:
        return sweep.slow_samples, 0, 0
    return sweep.samples, sweep.warmups, sweep.repeats


def _processes(sweep: Sweep, method: MethodEntry) -> int:
    """How many processes measure a method."""
    return (
        sweep.slow_processes
        if method.slow and sweep.slow_processes is not None
        else sweep.processes
    )


def _overrides(method: MethodEntry, options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the options that the method has, in order."""
    return {
        key: _checked(method, key, options[key]) for key in sorted(options) if key in method.options
    }


def _checked(method: MethodEntry, key: str, value: Any) -> Any:
    """Return the value where it has the type that adapter.toml declares, so that `crc=off` is not taken for a true value."""
    declared = method.options[key]
    if type(value) is type(declared):
        return value
    if isinstance(declared, float) and type(value) is int:
        return float(value)
    kind = type(declared).__name__
    raise UsageError(
        f"option {key!r} of method {method.name!r} takes a {kind} such as {_shown(declared)}, not {value!r}"
    )


def _labelled(name: str, overrides: Mapping[str, Any]) -> str:
    if not overrides:
        return name
    return f"{name}[{','.join(f'{key}={_shown(value)}' for key, value in overrides.items())}]"


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _launcher(world: int, wanted: str | None) -> str:
    if wanted is None:
        return "local" if world == 1 else "mpirun"
    _require("launcher", wanted, LAUNCHERS)
    if wanted == "local" and world > 1:
        raise UsageError(
            f"launcher 'local' starts one process, and world {world} needs 'mpirun' or 'slurm'"
        )
    return wanted
