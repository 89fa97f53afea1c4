"""Measuring a suite: here, or as a Slurm job."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from harness.cli import measuring
from harness.cli.app import (
    RESULTS,
    DirOption,
    PythonOption,
    ResultsOption,
    app,
    environments_of,
    err,
    scratch_directory,
)
from harness.cli.measuring import BudgetOption, MpirunOption, PrecisionOption
from harness.cli.show import show
from harness.driver import catalog, launch, planning, progress, slurm, slurm_jobs, suite
from harness.driver.arms import Arm
from harness.driver.progress import samples_wanted
from harness.run import store
from harness.run.errors import UsageError
from harness.run.plan import PlannedCase, Selection


@app.command("run")
def run_command(
    suite_name: Annotated[str, typer.Argument(metavar="SUITE")] = "bench",
    framework: Annotated[
        list[str] | None, typer.Option(help="A framework, or 'all'; may be given several times.")
    ] = None,
    workload: Annotated[
        list[str] | None, typer.Option(help="Only this workload; may be given several times.")
    ] = None,
    method: Annotated[
        list[str] | None, typer.Option(help="Only this method; may be given several times.")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Another value for a method's option."),
    ] = None,
    world: Annotated[str | None, typer.Option(metavar="1,2,4", help="Numbers of ranks.")] = None,
    strategy: Annotated[
        list[str] | None, typer.Option(help="How ranks train together; may be given several times.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    launcher: Annotated[
        str | None, typer.Option(help="local, mpirun, or slurm: one job for the whole run.")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(help="Over how many nodes Slurm spreads the ranks.")
    ] = None,
    site: Annotated[
        Path | None, typer.Option(help=f"What Slurm is told here (else {slurm.own_site_file()}).")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the job's script and submit nothing.")
    ] = False,
    directory: DirOption = None,
    python: PythonOption = None,
    precision: PrecisionOption = None,
    budget: BudgetOption = None,
    resume: Annotated[
        str | None, typer.Option(metavar="RUN", help="Go on with an interrupted run.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds without progress after which a worker is ended.")
    ] = None,
    summary_above: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="In a world of more ranks, store their spread instead of every rank's samples [default: 64].",
        ),
    ] = None,
    mpirun: MpirunOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Measure a suite, and show its table."""
    run = store.Run(store.find(results, resume)) if resume else None
    if run is not None:
        directory = directory or (
            Path(run.header["directory"]) if run.header["directory"] else None
        )
        python = python or run.header["python"]
    scratch = scratch_directory(directory)
    environments = environments_of(python)
    known = catalog.frameworks()
    frameworks = measuring.chosen_frameworks(framework, known)
    wishes: dict[str, Any] = {
        "workloads": workload,
        "methods": method,
        "worlds": measuring.worlds(world),
        "strategies": strategy,
        "device": device,
        "launcher": launcher,
        "options": planning.parse_options(option or ()),
    }
    if run is not None:
        plan = run.plan
    else:
        plan = slurm.spread(
            planning.plan(suite.load(suite_name), catalog.select(known, frameworks), **wishes),
            nodes or 1,
        )
    _refuse_stray_options(
        plan, {"--nodes": nodes, "--site": site, "--dry-run": dry_run or None}, resume
    )
    goal = measuring.goal_of(precision, budget)
    if run is not None:
        _refuse_what_is_settled(
            {"--precision": precision, "--summary-above": summary_above, "--mpirun": mpirun}
        )
        site = site or (Path(run.settings.site) if run.settings.site else None)
        timeout = timeout if timeout is not None else run.settings.timeout_s
    settings = measuring.settings_of(mpirun, timeout, summary_above, site)
    request = (
        slurm.Request(plan, slurm.read_site(site), timeout)
        if dry_run or slurm.is_outside(plan)
        else None
    )
    if request is not None and dry_run:
        print(
            request.script(run.folder if run else store.new_folder(results, suite_name, plan)),
            end="",
        )
        return
    if request is not None:
        slurm.require_commands()
    elif run is None or not run.begun:
        measuring.refuse_what_does_not_fit(plan, scratch)
    if mpirun is not None and request is None:
        # refused before anything is stored; of a job, only its nodes can say
        launch.open_mpi(mpirun.absolute())
    if run is None:
        measuring.make_environments({"": Arm(environments)}, plan)
        selection = Selection.of(frameworks, nodes=nodes, **wishes)
        run = measuring.new_run(
            plan,
            suite_name,
            results,
            selection,
            directory,
            python or (),
            goal=goal,
            settings=settings,
        )
    if request is not None:
        run = _measured_by_slurm(run, request)
    else:
        measuring.measure_here(run, measuring.arms_of(run, environments), scratch, timeout)
    found = show(run, "table")
    raise typer.Exit(measuring.exit_code(run, found))


def _measured_by_slurm(run: store.Run, request: slurm.Request) -> store.Run:
    """Submit a job that measures the run, wait for its end, and return the run with what it holds then."""
    run.lock()  # refuses a run that a job is measuring now
    run.close()
    script = run.folder / slurm.SCRIPT
    is_new = not script.exists()
    script.write_text(request.script(run.folder))
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    try:
        with slurm_jobs.submitted(script) as job, Progress(*columns, console=err) as bar:
            task = bar.add_task("", total=samples_wanted(run.plan))

            def on_look(state: slurm_jobs.State) -> None:
                done = progress.Progress(store.Run(run.folder).records).samples_done(run.plan)
                text = escape(f"Slurm job {job.id}: {state}")
                if bar.tasks[task].description != text:
                    bar.console.print(text, highlight=False, soft_wrap=True)
                bar.update(task, completed=done, description=text)

            state = job.watch(on_look)
    except slurm_jobs.Refused:
        if is_new:
            run.discard()
        raise
    except KeyboardInterrupt:
        err.print(
            f"cancelled; go on with: ckptbench run --resume {shlex.quote(run.name)}",
            highlight=False,
            soft_wrap=True,
        )
        raise
    run = store.Run(run.folder)
    if progress.Progress(run.records).samples_done(run.plan) < samples_wanted(run.plan):
        err.print(
            f"[red]ckptbench:[/] {escape(request.failure(run, job, state))}",
            highlight=False,
            soft_wrap=True,
        )
    return run


def _refuse_what_is_settled(given: Mapping[str, object]) -> None:
    """Refuse to say anew what a run was told when it began."""
    for name, value in given.items():
        if value is not None:
            raise UsageError(
                f"{name} is for a new run: one that goes on keeps what it was asked for"
            )


def _refuse_stray_options(
    plan: Sequence[PlannedCase], given: Mapping[str, object], resume: str | None
) -> None:
    """Refuse what has no meaning: options of Slurm for another launcher, other nodes for a run that has some already."""
    named = [name for name, value in given.items() if value is not None]
    if named and not slurm.is_launcher(plan):
        raise UsageError(f"{named[0]} is for --launcher slurm")
    if resume is not None and "--nodes" in named:
        raise UsageError("--nodes is for a new run: one that goes on keeps the nodes of its plan")
