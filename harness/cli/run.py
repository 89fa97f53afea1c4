"""Measuring a suite: here, or as a Slurm job."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from harness.cli.app import (
    RESULTS,
    DirOption,
    PythonOption,
    ResultsOption,
    app,
    environments_of,
    err,
    make_environment,
    scratch_directory,
)
from harness.cli.show import show
from harness.driver import catalog, judge, launch, manifest, preflight, progress, slurm, store, suite
from harness.driver.environments import Environments
from harness.driver.errors import UsageError
from harness.driver.progress import samples_wanted
from harness.driver.session import Event, Session, needed_disk_bytes, state_bytes
from harness.machine import comparable
from harness.plan import PlannedCase


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
    scratch = scratch_directory(directory)
    environments = environments_of(python)
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
            make_environment(environments, name)
        command = ["ckptbench", *sys.argv[1:]]
        run = store.create(results, suite_name, command, plan, None, directory, python or ())
    if request is not None:
        run = _measured_by_slurm(run, request)
    else:
        _settle_machine(run, scratch)
        run.lock()
        _measure(run, environments, scratch, timeout, summary_above)
    found = show(run, "table")
    raise typer.Exit(judge.exit_code(run.plan, found))


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
