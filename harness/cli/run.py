"""The command `run`: measure a suite here, or as a Slurm job."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from harness.cli import measuring
from harness.cli.app import (
    RESULTS,
    AdapterOption,
    DirOption,
    PythonOption,
    ResultsOption,
    app,
    environments_of,
    err,
    put,
    scratch_directory,
)
from harness.cli.choices import (
    BudgetOption,
    DeviceOption,
    DryRunOption,
    FrameworkOption,
    LauncherOption,
    MethodOption,
    MethodOptionOption,
    ModelOption,
    MpirunOption,
    NodesOption,
    PrecisionOption,
    ResumeOption,
    SiteOption,
    StatesOption,
    StrategyOption,
    SuiteArgument,
    SummaryOption,
    TimeoutOption,
    WorkloadOption,
    WorldOption,
)
from harness.cli.show import show
from harness.driver import (
    arms,
    catalog,
    launch,
    options,
    outside,
    own_models,
    planning,
    preflight,
    progress,
    slurm,
    slurm_jobs,
    suite,
)
from harness.driver.environments import Environments
from harness.driver.progress import samples_wanted
from harness.run import store
from harness.run.errors import UsageError
from harness.run.plan import PlannedCase, Selection, Settings
from harness.run.stored import run_argument

_ALSO_WITH_RESUME = (
    "suite_name",
    "directory",
    "python",
    "site",
    "dry_run",
    "resume",
    "timeout",
    "results",
)


@app.command("run")
def run_command(
    context: typer.Context,
    suite_name: SuiteArgument = "bench",
    framework: FrameworkOption = None,
    workload: WorkloadOption = None,
    model: ModelOption = None,
    method: MethodOption = None,
    option: MethodOptionOption = None,
    world: WorldOption = None,
    strategy: StrategyOption = None,
    device: DeviceOption = "cpu",
    launcher: LauncherOption = None,
    nodes: NodesOption = None,
    site: SiteOption = None,
    dry_run: DryRunOption = False,
    directory: DirOption = None,
    python: PythonOption = None,
    adapter: AdapterOption = None,
    precision: PrecisionOption = None,
    budget: BudgetOption = None,
    resume: ResumeOption = None,
    states: StatesOption = None,
    timeout: TimeoutOption = None,
    summary_above: SummaryOption = None,
    mpirun: MpirunOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Measure a suite, and show its table."""
    asked = _Asked(directory, python, nodes, site, dry_run, timeout, mpirun, results)
    if resume is not None:
        given = _given(context)
        _require_none_for_new_runs(context, given)
        run = _gone_on(asked, resume, suite_name if "suite_name" in given else None)
    else:
        goal = measuring.goal_of(precision, budget)
        settings = measuring.settings_of(mpirun, timeout, summary_above, site)
        wishes: dict[str, Any] = {
            "workloads": workload,
            "methods": method,
            "worlds": measuring.worlds(world),
            "strategies": strategy,
            "device": device,
            "launcher": launcher,
            "options": options.parse_options(option or ()),
        }
        chosen = _suite_of(suite_name, states)
        run = _newly_measured(asked, chosen, framework, model, wishes, goal, settings)
    rows = show(run, "table")
    raise typer.Exit(measuring.exit_code(run, rows))


@dataclass(frozen=True)
class _Asked:
    """The options of the command line that say where and how to measure."""

    directory: Path | None
    python: list[str] | None
    nodes: int | None
    site: Path | None
    dry_run: bool
    timeout_s: float | None
    mpirun: Path | None
    results: Path


def _suite_of(name: str, states: str | None) -> suite.Suite:
    """Return the suite of that name, with as many struck instants as asked for."""
    chosen = suite.load(name)
    if states is None:
        return chosen
    if states != "all" and not states.isdecimal():
        raise UsageError(f"--states takes a number or 'all', not {states!r}")
    number = sys.maxsize if states == "all" else int(states)
    return suite.with_option(chosen, "--states", number)


def _newly_measured(
    asked: _Asked,
    chosen: suite.Suite,
    framework: list[str] | None,
    model: str | None,
    wishes: Mapping[str, Any],
    goal: Mapping[str, float],
    settings: Settings,
) -> store.Run:
    """Make a new run, and measure it here or in a Slurm job. Everything is refused before that."""
    scratch = scratch_directory(asked.directory)
    environments = environments_of(asked.python)
    known = catalog.frameworks()
    names = measuring.chosen_frameworks(framework, known)
    frameworks = catalog.select(known, names)
    draft: Sequence[PlannedCase] = ()
    if model is not None:
        # A mistyped name is told before the model is built.
        draft = planning.plan(chosen, frameworks, model=own_models.NOT_BUILT, **wishes)
    own_model = measuring.own_model(
        model, wishes["workloads"], frameworks, environments, wishes["device"], draft
    )
    planned = planning.plan(chosen, frameworks, model=own_model, **wishes)
    plan = slurm.spread(planned, asked.nodes or 1)
    _refuse_stray_options(asked, plan)
    measuring.require_costs(plan, goal, chosen.name)
    request = _request(asked, plan, asked.site, asked.timeout_s)
    if request is not None and asked.dry_run:
        _print_script(request, store.new_folder(asked.results, chosen.name, plan))
    if request is not None:
        slurm.require_commands()
    else:
        measuring.refuse_what_does_not_fit(plan, scratch)
        if asked.mpirun is not None:
            # Of a Slurm job, only its nodes can say whether this is an Open MPI.
            launch.open_mpi(asked.mpirun)
    sides = {"": measuring.only_arm(environments)}
    measuring.make_environments(sides, plan)
    if request is None and asked.mpirun is None:
        measuring.require_mpirun(plan, sides)
    run = measuring.new_run(
        plan,
        chosen.name,
        asked.results,
        Selection.of(names, nodes=asked.nodes, model=own_model, **wishes),
        asked.directory,
        environments.named(),
        goal=goal,
        settings=settings,
    )
    return _measured(run, request, environments, scratch, asked.timeout_s)


def _given(context: typer.Context) -> set[str]:
    """Return the names of the parameters that the command line has."""
    given = set()
    for parameter in context.command.params:
        source = context.get_parameter_source(parameter.name or "")
        if source is not None and source.name == "COMMANDLINE":
            given.add(parameter.name or "")
    return given


def _require_none_for_new_runs(context: typer.Context, given: Collection[str]) -> None:
    """Raise UsageError for the first option of the command that --resume ignores."""
    for parameter in context.command.params:
        if parameter.name in given and parameter.name not in _ALSO_WITH_RESUME:
            raise UsageError(
                f"leave {parameter.opts[0]} out, because --resume keeps what the run was asked for "
                "at first"
            )


def _gone_on(asked: _Asked, name: str, suite_name: str | None) -> store.Run:
    """Measure what an interrupted run still lacks, with what it was told when it began.

    `suite_name` is the suite that the command line names; None where it names none.
    """
    run = store.Run(store.find(asked.results, name))
    suite_of_run = run.header["suite"]
    if suite_name not in (None, suite_of_run):
        raise UsageError(f"run {run.name} is of suite {suite_of_run}, not {suite_name}")
    if asked.python and arms.described(run.header):
        raise UsageError(
            "leave --python out, because each side of this run keeps the interpreter that it had"
        )
    _require_adapters(run.settings.adapters)
    outside.choose(map(Path, run.settings.adapters))
    preflight.check_cases(run.plan)
    catalog.require_same_adapters(catalog.frameworks(), run.plan)
    stored_directory = run.header["directory"]
    directory = asked.directory or (Path(stored_directory) if stored_directory else None)
    scratch = scratch_directory(directory)
    environments = environments_of(asked.python or run.header["python"])
    _refuse_stray_options(asked, run.plan)
    site = asked.site or (Path(run.settings.site) if run.settings.site else None)
    timeout_s = run.settings.timeout_s if asked.timeout_s is None else asked.timeout_s
    request = _request(asked, run.plan, site, timeout_s)
    if request is not None and asked.dry_run:
        _print_script(request, run.folder)
    if request is not None:
        slurm.require_commands()
    else:
        measuring.refuse_what_does_not_fit_any_more(run, scratch)
        if run.settings.mpirun is None:
            measuring.require_mpirun(run.plan, measuring.arms_of(run, environments))
    return _measured(run, request, environments, scratch, timeout_s)


def _require_adapters(adapters: Sequence[str]) -> None:
    """Raise UsageError for an adapter from outside that has gone since the run began."""
    for adapter in adapters:
        if not Path(adapter).is_dir():
            raise UsageError(
                f"the run uses the adapter {adapter}, which is no longer there; put it back, or "
                "start a new run"
            )


def _request(
    asked: _Asked, plan: Sequence[PlannedCase], site: Path | None, timeout_s: float | None
) -> slurm.Request | None:
    """Return what is asked of Slurm; None where the run is measured by this process."""
    if asked.dry_run or slurm.is_outside(plan):
        return slurm.Request(plan, slurm.read_site(site), timeout_s)
    return None


def _print_script(request: slurm.Request, folder: Path) -> None:
    """Print the script of a Slurm job, and end the command."""
    put(request.script(folder))
    raise typer.Exit(0)


def _measured(
    run: store.Run,
    request: slurm.Request | None,
    environments: Environments,
    scratch: Path,
    timeout_s: float | None,
) -> store.Run:
    if request is not None:
        return _measured_by_slurm(run, request)
    measuring.measure_here(run, measuring.arms_of(run, environments), scratch, timeout_s)
    return run


def _measured_by_slurm(run: store.Run, request: slurm.Request) -> store.Run:
    """Submit a job that measures the run, wait for its end, and return the run as it is then."""
    run.lock()  # refuses a run that a job is measuring now
    run.close()
    script = run.folder / slurm.SCRIPT
    holds_nothing = not (run.begun or run.records or script.exists())
    script.write_text(request.script(run.folder), encoding="utf-8")
    try:
        with slurm_jobs.submitted(script) as job:
            state = _watched(job, run)
    except slurm_jobs.Refused:
        if holds_nothing:
            run.discard()
        raise
    except KeyboardInterrupt:
        _say(f"cancelled; go on with: ckptbench run --resume {escape(run_argument(run.folder))}")
        raise
    run = store.Run(run.folder)
    if _samples_done(run) < samples_wanted(run.plan):
        _say(f"[red]ckptbench:[/] {escape(request.failure(run, job, state))}")
    return run


def _watched(job: slurm_jobs.Job, run: store.Run) -> slurm_jobs.State:
    """Show how far a job is until it ends, and return its last state."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=err) as bar:
        task = bar.add_task("", total=samples_wanted(run.plan))

        def on_look(state: slurm_jobs.State) -> None:
            text = escape(f"Slurm job {job.id}: {state}")
            if bar.tasks[task].description != text:
                bar.console.print(text, highlight=False, soft_wrap=True)
            # A shared file system may refuse a read once. That is no reason to cancel the job.
            with contextlib.suppress(OSError, UsageError):
                bar.update(task, completed=_samples_done(store.Run(run.folder)))
            bar.update(task, description=text)

        return job.watch(on_look)


def _samples_done(run: store.Run) -> int:
    return progress.Progress(run.records).samples_done(run.plan)


def _say(text: str) -> None:
    err.print(text, highlight=False, soft_wrap=True)


def _refuse_stray_options(asked: _Asked, plan: Sequence[PlannedCase]) -> None:
    """Refuse options of Slurm for another launcher."""
    given = {"--nodes": asked.nodes, "--site": asked.site, "--dry-run": asked.dry_run or None}
    named = [name for name, value in given.items() if value is not None]
    if named and not slurm.starts_ranks(plan):
        raise UsageError(f"{named[0]} needs --launcher slurm")
