"""From a suite's sweeps and the command line's choices to a list of planned cases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from harness import experiments
from harness.driver import names, peers
from harness.driver.declarations import (
    FrameworkEntry,
    MethodEntry,
    PeersEntry,
    ReadableBy,
    Speed,
    Writes,
)
from harness.driver.launch import LAUNCHERS
from harness.driver.names import STRATEGY_TRAITS, TRAITS
from harness.driver.options import labelled, overrides
from harness.driver.suite import Shape, Suite, Sweep, require
from harness.run.errors import UsageError
from harness.run.plan import PlannedCase
from harness.wire.case import Case, OwnModel
from harness.wire.experiment import Experiment
from workloads import names as workload_names

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
_CASE_FIELDS = frozenset(declared.name for declared in fields(Case))


@dataclass(frozen=True)
class _Cell:
    """One case to be: a framework, a method on a shape, and the sweep that asks for it.

    `method` is None where the experiment measures the framework itself.
    """

    framework: FrameworkEntry
    method: MethodEntry | None
    shape: Shape
    strategy: str
    sweep: Sweep

    @property
    def experiment(self) -> Experiment:
        return experiments.experiment(self.sweep.experiment)

    @property
    def is_sharded(self) -> bool:
        """Return whether no rank holds the whole state."""
        return _is_sharded(self.framework, self.strategy)

    @property
    def peers(self) -> PeersEntry | None:
        """The framework's own means to add up; None for MPI."""
        return peers.entry(self.framework, self.sweep, self.shape)


@dataclass(frozen=True)
class _Choices:
    """The values that the command line puts in the place of a suite's own."""

    device: str
    launcher: str | None
    options: Mapping[str, Any]
    arm: str
    arm_options: Mapping[str, Any]


def plan(
    suite: Suite,
    frameworks: Sequence[FrameworkEntry],
    *,
    workloads: Sequence[str] | None = None,
    model: OwnModel | None = None,
    methods: Sequence[str] | None = None,
    worlds: Sequence[int] | None = None,
    strategies: Sequence[str] | None = None,
    device: str = "cpu",
    launcher: str | None = None,
    options: Mapping[str, Any] | None = None,
    arm: str = "",
    arm_options: Mapping[str, Any] | None = None,
) -> list[PlannedCase]:
    """Return the suite's cases for `frameworks`, each once.

    Where two sweeps hold the same case, the counts of the first one apply. `workloads` and
    `methods` narrow the suite. A method that the suite does not list for a workload is added where
    the framework has it. `model`, one of the user's own, takes the place of all workloads. `worlds`
    and `strategies` replace the suite's. `options` replace those of the methods that have them, and
    show in the method's name. `arm_options`, those of one side, do not, so both name rows alike.

    Raises UsageError for an unknown name, a device that a framework lacks, or a plan without cases.
    """
    names.require_devices(frameworks, device)
    names.require_worlds(worlds or ())
    names.require_methods(frameworks, methods or ())
    names.require_known(suite, frameworks)
    names.require_use_of_stores(suite, frameworks, methods or ())
    names.require_strategies(frameworks, strategies or ())
    sweeps = _of_own_models(suite) if model else _narrowed(suite, workloads or ())
    if strategies:
        sweeps = [sweep.model_copy(update={"strategy": tuple(strategies)}) for sweep in sweeps]
    cells: list[_Cell] = []
    for framework in frameworks:
        cells += _cells(framework, sweeps, methods or (), worlds or (), model)
    if not cells:
        raise UsageError(
            f"suite {suite.name} has nothing to run for {names.in_words(frameworks)} with these "
            "workloads and methods"
        )
    if strategies and all(cell.shape.world == 1 for cell in cells):
        raise UsageError(
            f"a strategy is for several ranks, and suite {suite.name} has one rank here: leave "
            "--strategy out, or give --world 2"
        )
    choices = _Choices(device, launcher, options or {}, arm, arm_options or {})
    for given in (choices.options, choices.arm_options):
        names.require_options([cell.method for cell in cells if cell.method], given)
    return _each_once(_planned(cell, choices) for cell in cells)


def _each_once(plan: Iterable[PlannedCase]) -> list[PlannedCase]:
    """Return the first of every case that a plan has several times."""
    planned: dict[str, PlannedCase] = {}
    for item in plan:
        planned.setdefault(item.case.id, item)
    return list(planned.values())


def _narrowed(suite: Suite, workloads: Sequence[str]) -> list[Sweep]:
    """Return the suite's sweeps with only these workloads; all of them where none is named."""
    measured: dict[str, None] = {}
    for sweep in suite.sweeps:
        measured |= dict.fromkeys(sweep.workload)
    for workload in workloads:
        require("workload", workload, workload_names())
        if workload not in measured:
            raise UsageError(
                f"suite {suite.name} does not measure workload {workload!r} "
                f"(it measures: {', '.join(measured)})"
            )
    narrowed = []
    for sweep in suite.sweeps:
        remaining = tuple(name for name in sweep.workload if name in (workloads or measured))
        if remaining:
            narrowed.append(sweep.model_copy(update={"workload": remaining}))
    return narrowed


def _of_own_models(suite: Suite) -> list[Sweep]:
    """Return the suite's sweeps of experiments that measure a model of the user's own.

    Raise UsageError where there is none.
    """
    sweeps = [
        sweep for sweep in suite.sweeps if experiments.experiment(sweep.experiment).own_models
    ]
    if not sweeps:
        raise UsageError(
            f"suite {suite.name} measures the workloads of this project alone, so leave --model out"
        )
    return sweeps


def _cells(
    framework: FrameworkEntry,
    sweeps: Sequence[Sweep],
    requested: Sequence[str],
    worlds: Sequence[int],
    model: OwnModel | None,
) -> Iterator[_Cell]:
    for sweep in sweeps:
        for shape in sweep.shapes(worlds, model):
            if not peers.are_declared(framework, sweep, shape):
                continue
            # The model takes part in every sweep, and so do all methods that any sweep lists.
            listed = _listed(sweeps, shape.workload if model is None else None)
            for strategy in _strategies(framework, sweep, shape.world):
                yield from _cells_of(framework, sweep, shape, strategy, listed, requested)


def _cells_of(
    framework: FrameworkEntry,
    sweep: Sweep,
    shape: Shape,
    strategy: str,
    listed: Sequence[str],
    requested: Sequence[str],
) -> Iterator[_Cell]:
    """Yield the cells of one shape and strategy: one per method, or one for the framework."""
    experiment = experiments.experiment(sweep.experiment)
    if not experiment.methods:
        if not requested:
            yield _Cell(framework, None, shape, strategy, sweep)
        return
    for method in _methods(framework, sweep, listed, requested):
        # In a suite of several experiments, a store that was asked for is for some of them alone.
        if method.store and not experiment.stores:
            continue
        cell = _Cell(framework, method, shape, strategy, sweep)
        # A method that was asked for gets a row that says why it cannot be measured.
        wants_a_reason = method.name in requested or experiment.reads_in_another_world
        fits = wants_a_reason or method.takes_shards or not cell.is_sharded
        is_named = method.name in requested or method.name in sweep.method
        if fits and (is_named or _is_measured(method, sweep, shape.world)):
            yield cell


def _is_measured(method: MethodEntry, sweep: Sweep, world: int) -> bool:
    """Return whether a method says something new in an experiment and world, as it declares."""
    in_experiment = not method.experiments or sweep.experiment in method.experiments
    return world >= method.min_world and in_experiment


def _strategies(framework: FrameworkEntry, sweep: Sweep, world: int) -> list[str]:
    """Return how the framework's ranks are to train together.

    That is [""] where there is one rank, or one way that has no name.
    """
    if world == 1 or not framework.strategies:
        unsharded = [
            name
            for name in sweep.strategy
            if name != "sharded" and not _is_sharded(framework, name)
        ]
        return [""] if unsharded else []
    traits = [STRATEGY_TRAITS[name] for name in sweep.strategy if name in STRATEGY_TRAITS]
    chosen = []
    for name, strategy in framework.strategies.items():
        if name in sweep.strategy or any(has_trait(strategy) for has_trait in traits):
            chosen.append(name)
    return chosen


def _is_sharded(framework: FrameworkEntry, strategy: str) -> bool:
    return strategy in framework.strategies and framework.strategies[strategy].sharded


def _listed(sweeps: Iterable[Sweep], workload: str | None) -> list[str]:
    """Return the names and traits of methods that any sweep lists for the workload.

    None stands for every workload.
    """
    listed: list[str] = []
    for sweep in sweeps:
        if workload is None or workload in sweep.workload:
            listed += sweep.method
    return listed


def _methods(
    framework: FrameworkEntry, sweep: Sweep, listed: Sequence[str], requested: Sequence[str]
) -> list[MethodEntry]:
    """Return the sweep's methods narrowed to the requested ones.

    Requested methods that the suite does not list at all are added.
    """
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
    """Return whether a name or a trait means this method."""
    if method.name in wanted:
        return True
    if method.must_be_named:
        return False
    return any(TRAITS[name](method) for name in wanted if name in TRAITS)


def _planned(cell: _Cell, choices: _Choices) -> PlannedCase:
    method = cell.method or NO_METHOD
    experiment = cell.experiment
    failures = [
        failure
        for failure in method.expected_failures
        if failure.concerns(experiment.name, cell.shape.precision)
    ]
    expected = failures[0] if failures else None
    is_slow = method.speed is Speed.SLOW and cell.sweep.slow_samples is not None
    return PlannedCase(
        case=_case(cell, method, choices),
        samples=(cell.sweep.slow_samples or 1) if is_slow else cell.sweep.samples,
        # Between the ceilings of a slow save lie seconds, so a disturbed one says as much.
        warmups=0 if is_slow else cell.sweep.warmups,
        repeats=0 if is_slow else cell.sweep.repeats,
        processes=experiment.processes or _processes(cell.sweep, method),
        own_process=method.own_process,
        expected_failure=expected.reason if expected else None,
        race=expected is not None and expected.race,
        # The framework's own reason says more than the declarations do.
        unsupported="" if expected else _unsupported(cell),
        default=method.is_default,
        asynchronous=method.asynchronous,
        size_varies=method.size_varies,
        sharded=method.writes_parts,
        copies=method.copies(cell.shape.world, cell.is_sharded),
        checked_saves=_checked_saves(cell),
        one_writer=method.writes is Writes.ONE_RANK,
        files=method.files,
        traced=cell.sweep.traced,
        floor=cell.framework.floor,
        has_lines=cell.framework.has_lines_of(method),
    )


def _checked_saves(cell: _Cell) -> int:
    """Return how many of a process's timed saves are loaded and verified too."""
    if not cell.experiment.checks_timed_saves:
        return 0
    sweep = cell.sweep
    return sweep.warmups + sweep.samples + sweep.repeats if sweep.checked == "all" else 1


def _case(cell: _Cell, method: MethodEntry, choices: _Choices) -> Case:
    shape = cell.shape
    replaced = overrides(method, choices.options)
    of_arm = overrides(method, choices.arm_options)
    fields_of_case = {key: shape.settings[key] for key in shape.settings if key in _CASE_FIELDS}
    settings = cell.experiment.told_apart(shape.settings)
    return Case(
        framework=cell.framework.name,
        framework_path=cell.framework.class_path,
        workload=shape.workload,
        preset=shape.preset,
        precision=shape.precision,
        dropout=shape.dropout,
        method=labelled(method.name, replaced),
        method_path=method.class_path,
        options={**method.options, **replaced, **of_arm},
        covers=method.covers,
        rank_local=method.rank_local,
        device=choices.device,
        world=shape.world,
        launcher=_launcher(shape.world, choices.launcher),
        experiment=cell.experiment.name,
        strategy=cell.strategy,
        scale=shape.scale,
        from_memory=method.from_memory,
        arm=choices.arm,
        settings={key: settings[key] for key in settings if key not in _CASE_FIELDS},
        peers=peers.of_case(cell.peers),
        model=shape.model,
        adapter=cell.framework.origin_of(method),
        own_environment=peers.own_environment(cell.framework, method, cell.peers),
        **fields_of_case,
    )


def _unsupported(cell: _Cell) -> str:
    """Return why a case cannot be measured, as far as the declarations say; empty where it can."""
    if cell.method is None:
        return ""
    if not cell.method.takes_shards and cell.is_sharded:
        return "it saves what one rank holds, and of sharded state no rank holds the whole"
    same_world_only = cell.method.readable_by is ReadableBy.SAME_WORLD
    if cell.experiment.reads_in_another_world and same_world_only:
        return "what it writes is for the number of ranks that wrote it"
    return peers.obstacle(cell.method, cell.peers)


def _processes(sweep: Sweep, method: MethodEntry) -> int:
    """Return how many processes measure a method."""
    if method.speed is Speed.SLOW and sweep.slow_processes is not None:
        return sweep.slow_processes
    return sweep.processes


def _launcher(world: int, wanted: str | None) -> str:
    if wanted is None:
        return "local" if world == 1 else "mpirun"
    require("launcher", wanted, LAUNCHERS)
    if wanted == "local" and world > 1:
        raise UsageError(
            f"launcher 'local' starts one process, and world {world} needs 'mpirun' or 'slurm'"
        )
    return wanted
