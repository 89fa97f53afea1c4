"""The steps that every measuring command takes: check that it fits, prepare, measure, report."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.markup import escape

from harness.analysis import precision
from harness.analysis.row import Row
from harness.analysis.runs import read_run
from harness.cli import amounts
from harness.cli.app import VENVS, err, make_environment
from harness.cli.watching import in_minutes, watching
from harness.driver import (
    arms,
    catalog,
    judge,
    launch,
    machine,
    names,
    outside,
    own_models,
    preflight,
)
from harness.driver.arms import Arm
from harness.driver.declarations import FrameworkEntry
from harness.driver.environments import Environments
from harness.driver.ledger import Event
from harness.driver.progress import Progress, samples_wanted
from harness.driver.session import Goal, Session
from harness.driver.units import needed_disk_bytes, state_bytes
from harness.run import store
from harness.run.errors import UsageError
from harness.run.manifest import Manifest, differences, same_code
from harness.run.plan import PlannedCase, Selection, Settings
from harness.run.stored import run_argument
from harness.wire.case import Case, OwnModel


def new_run(
    plan: Sequence[PlannedCase],
    suite_name: str,
    results: Path,
    selection: Selection,
    directory: Path | None = None,
    python: Sequence[str] = (),
    described: Mapping[str, arms.Described] | None = None,
    goal: Mapping[str, float] | None = None,
    settings: Settings | None = None,
) -> store.Run:
    """Make the folder of a new run, on whatever machine is going to measure it."""
    command = ["ckptbench", *sys.argv[1:]]
    sides = {name: arm.to_json() for name, arm in (described or {}).items()}
    return store.create(
        results,
        suite_name,
        command,
        plan,
        None,
        directory,
        python,
        sides,
        goal,
        settings or settings_of(None, None),
        selection,
    )


def settings_of(
    mpirun: Path | None,
    timeout_s: float | None,
    summary_above: int | None = None,
    site: Path | None = None,
) -> Settings:
    """Return the settings that hold for a whole run."""
    return Settings(
        summary_above=summary_above or Settings.summary_above,
        mpirun=_absolute(mpirun),
        timeout_s=timeout_s,
        site=_absolute(site),
        adapters=outside.named(),
    )


def goal_of(precision_asked: float | None, budget: str | None) -> dict[str, float]:
    """Return the precision asked for and its budget in seconds; empty where none was asked for."""
    if precision_asked is None:
        if budget is not None:
            raise UsageError("--budget says when to stop for --precision, so give --precision too")
        return {}
    return {"precision": precision_asked, "budget_s": amounts.seconds("--budget", budget or "10m")}


def require_costs(plan: Sequence[PlannedCase], goal: Mapping[str, float], suite_name: str) -> None:
    """Raise UsageError where a precision is asked for that no row of a plan has."""
    if goal and not precision.is_measurable(plan):
        raise UsageError(
            f"leave --precision out, because the suite {suite_name} has no times that are sampled "
            "in several processes"
        )


def arms_of(run: store.Run, environments: Environments) -> dict[str, Arm]:
    """Return the arms of a run by name; the one called "" has the given environments."""
    frameworks = sorted({item.case.framework for item in run.plan})
    sides = arms.opened(arms.described(run.header), frameworks, VENVS)
    return sides or {"": only_arm(environments)}


def only_arm(environments: Environments) -> Arm:
    """Return the arm of a run that compares nothing."""
    return Arm(environments, catalog.packages(catalog.frameworks()))


def make_environments(sides: Mapping[str, Arm], plan: Sequence[PlannedCase]) -> None:
    """Make the environments of all arms, where they are not there yet."""
    for name, environment in sorted({(item.case.arm, item.case.environment) for item in plan}):
        make_environment(sides[name].environments, environment)


def require_mpirun(plan: Sequence[PlannedCase], sides: Mapping[str, Arm]) -> None:
    """Raise UsageError for ranks that nothing starts, before the cases of one rank are measured.

    The environments are there already.
    """
    for item in plan:
        case = item.case
        # Ranks under a launcher of the framework's own need no mpirun.
        if case.world > 1 and not (case.peers.get("launch") or item.unsupported):
            launch.mpirun_of(sides[case.arm].environments.interpreter(case.environment))


def own_model(
    text: str | None,
    workloads: Sequence[str] | None,
    frameworks: Sequence[FrameworkEntry],
    environments: Environments,
    device: str,
    planned: Sequence[PlannedCase] = (),
) -> OwnModel | None:
    """Return the user's own model after it was built once; None where none was named.

    The framework's environment is made first. Say what its interpreter lacks for the methods of the
    planned cases. Raise UsageError where the model cannot be measured.
    """
    if text is None:
        return None
    model = own_models.named(text)
    if workloads:
        raise UsageError("--workload names a workload of this project, so leave it or --model out")
    if len(frameworks) != 1:
        raise UsageError(
            "--model is a model of one framework, so name that with --framework, such as "
            "--framework pytorch"
        )
    (framework,) = frameworks
    names.require_devices(frameworks, device)
    make_environment(environments, framework.name)
    interpreter = environments.interpreter(framework.name)
    cases = [item.case for item in planned if item.case.environment == framework.name]
    methods = {case.method: case.method_path for case in cases}

    def warn(text: str) -> None:
        err.print(f"[yellow]{escape(text)}[/]", soft_wrap=True, highlight=False)

    with err.status(escape(f"building {model} once")):
        return own_models.looked_at(model, framework, interpreter, device, methods, warn)


def measure_here(
    run: store.Run, sides: Mapping[str, Arm], scratch: Path, timeout_s: float | None = None
) -> None:
    """Measure on this machine what a run still lacks."""
    _settle_machine(run, scratch)
    run.lock()
    _measure(run, sides, scratch, timeout_s)


def refuse_what_does_not_fit_any_more(run: store.Run, scratch: Path) -> None:
    """Raise UsageError where disk or memory are too small for what an interrupted run still lacks.

    Each of its cases would fail, and a case that failed is not measured again.
    """
    done = Progress(run.records)
    missing = [item for item in run.plan if done.samples_done([item]) < samples_wanted([item])]
    if missing:
        present_bytes = preflight.bytes_in(preflight.scratch_of(run.folder, scratch))
        refuse_what_does_not_fit(missing, scratch, present_bytes)


def refuse_what_does_not_fit(
    plan: Sequence[PlannedCase], scratch: Path, present_bytes: int = 0
) -> None:
    """Raise UsageError where disk or memory are too small for a plan.

    `present_bytes` of it are on the disk already.
    """
    preflight.check_scratch(scratch, needed_disk_bytes(plan) - present_bytes)
    largest = max((item.case for item in plan), key=_needed_memory_bytes)
    preflight.check_memory(
        _needed_memory_bytes(largest),
        preflight.available_memory_bytes(),
        f"{largest.workload} ({largest.preset}) in a world of {largest.world}",
        _smaller(largest),
    )


def _needed_memory_bytes(case: Case) -> int:
    ranks = launch.ranks_per_node(case.world, case.nodes)
    return preflight.needed_memory_bytes(state_bytes(case), ranks)


def _smaller(case: Case) -> str:
    """Return how a user makes a case smaller that does not fit into memory."""
    if case.model is None:
        return "narrow the run with --workload or --world"
    fewer = ", or give fewer ranks with --world" if case.world > 1 else ""
    return (
        f"free memory on the machine, or have {case.model.function} return a smaller model{fewer}"
    )


def chosen_frameworks(
    given: Sequence[str] | None, known: Mapping[str, FrameworkEntry]
) -> list[str]:
    """Return the frameworks named, each once.

    Without names, these are all but the floor, which is no framework. The name "all" stands for the
    same, and other names may stand beside it.
    """
    names = [name for item in given or ("all",) for name in item.split(",")]
    chosen: list[str] = []
    for name in names:
        is_all = name == "all"
        chosen += [each for each in known if not known[each].floor] if is_all else [name]
    return list(dict.fromkeys(chosen))


def worlds(text: str | None) -> list[int] | None:
    """Return the numbers of ranks in a text such as "1,2,4"."""
    if text is None:
        return None
    if not all(re.fullmatch("[0-9]{1,9}", part) for part in text.split(",")):
        raise UsageError(f"--world must be numbers such as 1,2,4, not {text!r}")
    return [int(part) for part in text.split(",")]


def _settle_machine(run: store.Run, scratch: Path) -> None:
    """Begin a run on this machine, or check that it was begun here.

    A run goes on only where it was begun, and by the same code, because unlike samples are never
    pooled.
    """
    here = machine.capture(scratch)
    if not run.begun:
        run.begin(here)
        return
    unlike = differences(run.manifest, here)
    if unlike:
        raise UsageError(
            f"run {run.name} cannot go on here, because this machine differs in "
            f"{', '.join(unlike)} from the one where it was begun; start a new run here"
        )
    if not same_code(run.manifest, here):
        raise UsageError(
            f"run {run.name} was begun by the code of {_code(run.manifest)}, and this is "
            f"{_code(here)}; take that code again, or start a new run"
        )


def _code(manifest: Manifest) -> str:
    """Return the name of the code that a run was measured by."""
    name = (
        f"commit {manifest.commit[:12]}" if manifest.commit else f"ckptbench {manifest.ckptbench}"
    )
    return f"{name} with changes" if manifest.dirty else name


def _measure(
    run: store.Run, sides: Mapping[str, Arm], scratch: Path, timeout_s: float | None
) -> None:
    estimated_s = judge.estimated_s(run.plan)
    err.print(
        f"run {escape(run.name)}: {len(run.plan)} cases, about {in_minutes(estimated_s)}",
        highlight=False,
    )
    not_direct = preflight.direct_io(scratch)
    if not_direct:
        err.print(
            f"[yellow]{escape(not_direct)}[/]: ceilings go through the page cache, and say little "
            "about a disk",
            soft_wrap=True,
        )
    own_scratch = preflight.scratch_of(run.folder, scratch)
    too_long = preflight.too_long_for_sockets(own_scratch)
    if too_long:
        warning = f"[yellow]{escape(too_long)}[/]: {preflight.WITHOUT_SOCKETS}"
        err.print(warning, soft_wrap=True, highlight=False)
    with watching(run, estimated_s) as watcher:

        def on_event(event: Event) -> None:
            watcher.look(session, event.text)

        session = Session(run, sides, own_scratch, not_direct, timeout_s, on_event)
        try:
            session.measure(_goal(run))
        except (KeyboardInterrupt, OSError, UsageError) as error:
            happened = "interrupted" if isinstance(error, KeyboardInterrupt) else "ended early"
            again = f"ckptbench run --resume {run_argument(run.folder)}"
            err.print(f"{happened}; go on with: {escape(again)}", highlight=False, soft_wrap=True)
            raise


def exit_code(run: store.Run, rows: Sequence[Row]) -> int:
    """Return 0 when every row is as its adapter declares, else 1, after saying which was not."""
    sentence = judge.in_one_sentence(run.plan, rows, run_argument(run.folder))
    if sentence is None:
        return 0
    err.print(f"[red]ckptbench:[/] {escape(sentence)}", highlight=False, soft_wrap=True)
    return 1


def _absolute(path: Path | None) -> str | None:
    return str(path.absolute()) if path else None


def _goal(run: store.Run) -> Goal | None:
    goal: dict[str, float] = run.header.get("goal") or {}
    if not goal:
        return None
    return Goal(lambda: precision.too_wide(read_run(run), goal["precision"]), goal["budget_s"])
