"""The command line, and the only place that prints."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console, Group
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

import workloads
from harness.analysis import summary, tables
from harness.analysis.row import Row
from harness.analysis.runs import ReadRun, read_run
from harness.driver import catalog, doctor, judge, launch, manifest, preflight, progress, slurm, store, suite
from harness.driver.environments import Environments, parse_overrides
from harness.driver.errors import UsageError, nearest
from harness.driver.launch import ROOT
from harness.driver.progress import samples_wanted
from harness.driver.session import Event, Session, needed_disk_bytes, state_bytes
from harness.machine import comparable
from harness.plan import PlannedCase

RESULTS = ROOT / "results"
SCRATCH = ROOT / ".scratch"
VENVS = ROOT / ".venvs"
FORMATS = ("table", "markdown", "csv", "json")
LISTS = ("frameworks", "methods", "strategies", "workloads", "suites")

_TEXT_COLUMNS = ("method", "covers", "power-safe", "verified", "framework", "same files", "same state")

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Measure what checkpointing costs in a deep-learning framework, and whether what it wrote can be trusted.",
)
env = typer.Typer(no_args_is_help=True, help="The frameworks' environments.")
app.add_typer(env, name="env")
out = Console(width=None if sys.stdout.isatty() else 120)  # a pipe has no width of its own; 80 would break the table
err = Console(stderr=True)

PythonOption = Annotated[
    list[str] | None, typer.Option("--python", metavar="FRAMEWORK=PATH", help="Use an interpreter of your own.")
]
_DIR_HELP = "Scratch directory: checkpoints are written to its file system, which all nodes share where ranks are on several."
DirOption = Annotated[Path | None, typer.Option("--dir", help=_DIR_HELP)]
ResultsOption = Annotated[Path, typer.Option("--results", help="Where runs are stored.")]


@app.command("doctor")
def doctor_command(python: PythonOption = None, directory: DirOption = None) -> None:
    """Say what this machine can run."""
    found = Table("check", "status", "detail")
    colours = {"ok": "green", "warning": "yellow", "missing": "red"}
    for check in doctor.doctor(_environments(python), _scratch(directory)):
        found.add_row(check.name, f"[{colours[check.status]}]{check.status}[/]", escape(check.detail))
    out.print(found)


@env.command("create")
def env_create(frameworks: Annotated[list[str], typer.Argument(metavar="FRAMEWORK…")]) -> None:
    """Make the environments of frameworks from their exact pins."""
    environments = _environments(None)
    for framework in frameworks:
        _make_environment(environments, framework)


@env.command("list")
def env_list() -> None:
    """Show the environments."""
    found = Table("framework", "state", "interpreter")
    for environment in _environments(None).listing():
        found.add_row(environment.framework, environment.state, str(environment.interpreter))
    out.print(found)


@app.command("list")
def list_command(what: Annotated[str, typer.Argument(metavar="|".join(LISTS))] = "methods") -> None:
    """List frameworks, methods, workloads or suites."""
    if what not in LISTS:
        raise nearest("list", what, LISTS)
    out.print(_LISTED[what]())


@app.command("run")
def run_command(
    suite_name: Annotated[str, typer.Argument(metavar="SUITE")] = "bench",
    framework: Annotated[list[str] | None, typer.Option(help="A framework, or 'all'; may be given several times.")] = None,
    workload: Annotated[list[str] | None, typer.Option(help="Only this workload; may be given several times.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Only this method; may be given several times.")] = None,
    option: Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Another value for a method's option.")] = None,
    world: Annotated[str | None, typer.Option(metavar="1,2,4", help="Numbers of ranks.")] = None,
    strategy: Annotated[list[str] | None, typer.Option(help="How ranks train together; may be given several times.")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    launcher: Annotated[str | None, typer.Option(help="local, mpirun, or slurm: one job for the whole run.")] = None,
    nodes: Annotated[int | None, typer.Option(help="Over how many nodes Slurm spreads the ranks.")] = None,
    site: Annotated[Path | None, typer.Option(help=f"What Slurm is told here (else {slurm.own_site_file()}).")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the job's script and submit nothing.")] = False,
    directory: DirOption = None,
    python: PythonOption = None,
    resume: Annotated[str | None, typer.Option(metavar="RUN", help="Go on with an interrupted run.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds without progress after which a worker is ended.")] = None,
    summary_above: Annotated[
        int, typer.Option(min=1, help="In a world of more ranks, store their spread instead of every rank's samples.")
    ] = 64,
    results: ResultsOption = RESULTS,
) -> None:
    """Measure a suite, and show its table."""
    run = store.Run(store.find(results, resume)) if resume else None
    if run is not None:
        directory = directory or (Path(run.header["directory"]) if run.header["directory"] else None)
        python = python or run.header["python"]
    scratch = _scratch(directory)
    environments = _environments(python)
    if run is not None:
        plan = run.plan
    else:
        known = catalog.frameworks()
        plan = suite.plan(
            suite.load(suite_name),
            catalog.select(known, _chosen_frameworks(framework, known)),
            workloads=workload,
            methods=method,
            worlds=_worlds(world),
            strategies=strategy,
            device=device,
            launcher=launcher,
            options=suite.parse_options(option or ()),
        )
        plan = slurm.spread(plan, nodes or 1)
    _refuse_stray_options(plan, {"--nodes": nodes, "--site": site, "--dry-run": dry_run or None}, resume)
    request = slurm.Request(plan, slurm.read_site(site), timeout) if dry_run or slurm.is_outside(plan) else None
    if request is not None and dry_run:
        print(request.script(run.folder if run else store.new_folder(results, suite_name, plan)), end="")
        return
    if request is not None:
        slurm.require_commands()
    elif run is None or not run.begun:
        _refuse_what_does_not_fit(plan, scratch)
    if run is None:
        for name in sorted({item.case.framework for item in plan}):
            _make_environment(environments, name)
        command = ["ckptbench", *sys.argv[1:]]
        run = store.create(results, suite_name, command, plan, None, directory, python or ())
    if request is not None:
        run = _measured_by_slurm(run, request)
    else:
        _settle_machine(run, scratch)
        run.lock()
        _measure(run, environments, scratch, timeout, summary_above)
    found = _show(run, "table")
    raise typer.Exit(judge.exit_code(run.plan, found))


@app.command("show")
def show_command(
    name: Annotated[str, typer.Argument(metavar="RUN")] = store.LATEST,
    form: Annotated[str, typer.Option("--format", help=", ".join(FORMATS))] = "table",
    results: ResultsOption = RESULTS,
) -> None:
    """Show a stored run."""
    if form not in FORMATS:
        raise nearest("format", form, FORMATS)
    _show(store.Run(store.find(results, name)), form)


def main() -> None:
    """Run the command line. Exit 2 with one sentence on wrong usage, 130 on Ctrl-C and on a request to end."""
    for number in slurm.INTERRUPTIONS:
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup leaves it
            signal.signal(number, signal.default_int_handler)
    try:
        app()
    except UsageError as error:
        err.print(f"[red]ckptbench:[/] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)


def _measure(run: store.Run, environments: Environments, scratch: Path, timeout_s: float | None, summary_above: int) -> None:
    packages = {name: entry.packages for name, entry in catalog.frameworks().items()}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    err.print(f"run {run.name}: {len(run.plan)} cases, about {judge.estimated_s(run.plan) / 60:.0f} min", highlight=False)
    not_direct = preflight.direct_io(scratch)
    if not_direct:
        err.print(
            f"[yellow]{escape(not_direct)}[/]: ceilings go through the page cache and say little about a disk", soft_wrap=True
        )
    with Progress(*columns, console=err) as bar:
        task = bar.add_task("", total=samples_wanted(run.plan))

        def on_event(event: Event) -> None:
            bar.update(task, completed=session.progress.samples_done(run.plan))
            if event.text:
                bar.update(task, description=escape(event.text[:60]))
                bar.console.print(escape(event.text), highlight=False, soft_wrap=True)

        session = Session(run, environments, scratch / run.name, packages, not_direct, timeout_s, on_event, summary_above)
        try:
            session.measure()
        except KeyboardInterrupt:
            err.print(f"interrupted; go on with: ckptbench run --resume {shlex.quote(run.name)}", highlight=False, soft_wrap=True)
            raise


def _show(run: store.Run, form: str) -> list[Row]:
    read = read_run(run)
    found = read.rows
    for damage in run.damages:
        err.print(f"[yellow]damaged record[/] {escape(str(damage))}", highlight=False, soft_wrap=True)
    if form == "table":
        _print_tables(read)
    else:
        print({"markdown": tables.to_markdown, "csv": tables.to_csv, "json": tables.to_json}[form](found), end="")
    return found


def _print_tables(run: ReadRun) -> None:
    for title, members in tables.by_workload(run.rows).items():
        lines = tables.table(members)
        shown = Table(title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for column in lines.columns:
            shown.add_column(column, justify="left" if column in _TEXT_COLUMNS else "right", overflow="fold")
        for line in lines.itertuples(index=False):
            shown.add_row(*(escape(cell) for cell in line))
        out.print(shown)
        out.print(escape(summary.meaning(members)), highlight=False)
        for row in members:
            if row.reason:
                name = escape(row.method or row.framework)
                out.print(f"[red]{name}[/]: {row.status} in {row.phase or 'the run'}: {escape(row.reason)}", highlight=False)
        out.print()
    for note in summary.notes(run.rows, run.measured):
        out.print(escape(note), highlight=False)
    out.print(f"run {run.name}, in {run.stored.folder}", highlight=False)


def _measured_by_slurm(run: store.Run, request: slurm.Request) -> store.Run:
    """Submit a job that measures the run, wait for its end, and return the run with what it holds then."""
    run.lock()  # refuses a run that a job is measuring now
    run.close()
    script = run.folder / slurm.SCRIPT
    is_new = not script.exists()
    script.write_text(request.script(run.folder))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    try:
        with slurm.submitted(script) as job, Progress(*columns, console=err) as bar:
            task = bar.add_task("", total=samples_wanted(run.plan))

            def on_look(state: slurm.State) -> None:
                done = progress.Progress(store.Run(run.folder).records).samples_done(run.plan)
                text = escape(f"Slurm job {job.id}: {state}")
                if bar.tasks[task].description != text:
                    bar.console.print(text, highlight=False, soft_wrap=True)
                bar.update(task, completed=done, description=text)

            state = job.watch(on_look)
    except slurm.Refused:
        if is_new:
            run.discard()
        raise
    except KeyboardInterrupt:
        err.print(f"cancelled; go on with: ckptbench run --resume {shlex.quote(run.name)}", highlight=False, soft_wrap=True)
        raise
    run = store.Run(run.folder)
    if progress.Progress(run.records).samples_done(run.plan) < samples_wanted(run.plan):
        err.print(f"[red]ckptbench:[/] {escape(request.failure(run, job, state))}", highlight=False, soft_wrap=True)
    return run


def _refuse_stray_options(plan: Sequence[PlannedCase], given: Mapping[str, object], resume: str | None) -> None:
    """Refuse what has no meaning: options of Slurm for another launcher, other nodes for a run that has some already."""
    named = [name for name, value in given.items() if value is not None]
    if named and not slurm.is_launcher(plan):
        raise UsageError(f"{named[0]} is for --launcher slurm")
    if resume is not None and "--nodes" in named:
        raise UsageError("--nodes is for a new run: one that goes on keeps the nodes of its plan")


def _settle_machine(run: store.Run, scratch: Path) -> None:
    """A run begins on the machine that measures it, and goes on only there: unlike samples are never pooled."""
    here = manifest.capture(scratch)
    if not run.begun:
        run.begin(here)
        return
    differences = comparable(run.manifest, here)
    if differences:
        raise UsageError(f"run {run.name} was begun elsewhere or otherwise ({', '.join(differences)}): it cannot go on here")


def _refuse_what_does_not_fit(plan: Sequence[PlannedCase], scratch: Path) -> None:
    preflight.check_scratch(scratch, needed_disk_bytes(plan))
    largest = max((item.case for item in plan), key=lambda case: state_bytes(case) * launch.ranks_per_node(case.world, case.nodes))
    ranks = launch.ranks_per_node(largest.world, largest.nodes)
    preflight.check_memory(preflight.needed_memory_bytes(state_bytes(largest), ranks), preflight.available_memory_bytes())


def _make_environment(environments: Environments, framework: str) -> None:
    with err.status(f"environment of {framework}") as status:
        environments.interpreter(framework, lambda line: status.update(f"environment of {framework}: {escape(line[:80])}"))


def _environments(python: Sequence[str] | None) -> Environments:
    return Environments(VENVS, catalog.ADAPTERS, parse_overrides(python or ()))


def _chosen_frameworks(given: Sequence[str] | None, known: dict[str, catalog.FrameworkEntry]) -> list[str]:
    """The frameworks named; for none or "all", every one but `raw`, which is the floor and not a framework."""
    names = [name for item in given or ("all",) for name in item.split(",")]
    if "all" in names:
        return [name for name in known if name != "raw"]
    return names


def _worlds(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise UsageError(f"--world reads numbers like 1,2,4, not {text!r}") from error


def _scratch(directory: Path | None) -> Path:
    """The scratch directory: the default one is made; one that was named must be there."""
    if directory is None:
        SCRATCH.mkdir(exist_ok=True)
    return (directory or SCRATCH).absolute()


def _frameworks() -> Table:
    found = Table("framework", "devices", "methods", "environment")
    states = {environment.framework: environment.state for environment in _environments(None).listing()}
    for name, entry in catalog.frameworks().items():
        found.add_row(name, ", ".join(entry.devices), str(len(entry.methods)), states.get(name, ""))
    return found


def _methods() -> Group:
    return Group(*(_methods_of(entry) for entry in catalog.frameworks().values()))


def _methods_of(entry: catalog.FrameworkEntry) -> Table:
    found = Table(title=entry.name, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), expand=True)
    for column in ("method", "covers", "format"):
        found.add_column(column, no_wrap=True)
    for column in ("default", "async", "sharded", "any world", "compressed"):
        found.add_column(column)
    found.add_column("description", overflow="fold", ratio=1)
    for method in entry.methods.values():
        traits = (method.default, method.asynchronous, method.sharded, method.reshards, method.compressed)
        description = f"{method.description} (test double)" if method.test_double else method.description
        found.add_row(method.name, method.covers, method.format, *("yes" if has_it else "–" for has_it in traits), description)
    return found


def _strategies() -> Table:
    found = Table("framework", "strategy", "default", "sharded", "description")
    for entry in catalog.frameworks().values():
        for name, strategy in entry.strategies.items():
            traits = ("yes" if has_it else "–" for has_it in (strategy.default, strategy.sharded))
            found.add_row(entry.name, name, *traits, strategy.description)
    return found


def _workloads() -> Table:
    found = Table("workload", "preset", "precision", "parameters", "state")
    for name in workloads.names():
        for preset in workloads.presets(name):
            for precision in workloads.precisions(name):
                workload = workloads.load(name, preset, precision)
                found.add_row(name, preset, precision, f"{workload.parameter_count:,}", tables.size(workload.state_bytes))
    return found


def _suites() -> Table:
    found = Table("suite", "what it measures")
    for name in suite.names():
        found.add_row(name, suite.load(name).description)
    return found


_LISTED = {
    "frameworks": _frameworks,
    "methods": _methods,
    "strategies": _strategies,
    "workloads": _workloads,
    "suites": _suites,
}


if __name__ == "__main__":
    main()
