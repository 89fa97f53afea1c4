"""The command `ab`: measure two sides in turn, process by process, within one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from harness.analysis.runs import read_run
from harness.cli import measuring
from harness.cli.app import (
    RESULTS,
    VENVS,
    AdapterOption,
    DirOption,
    ResultsOption,
    app,
    scratch_directory,
)
from harness.cli.choices import (
    BudgetOption,
    DeviceOption,
    MethodOption,
    ModelOption,
    MpirunOption,
    PrecisionOption,
    SuiteArgument,
    TimeoutOption,
    WorkloadOption,
    WorldOption,
)
from harness.cli.compare import FormatOption, OutOption, compared, end, require_output
from harness.driver import arms, catalog, launch, own_models, pins, slurm, suite
from harness.run.errors import UsageError
from harness.run.plan import AB, PlannedCase, Selection
from harness.wire.case import OwnModel

_HELP = (
    "The {} side. It is a pin of a requirement (torch==2.12.*), an interpreter, a checkout of this "
    "project, a method's option (KEY=VALUE), or '.' for what is here, which is the default. May be "
    "given several times, such as for a pin and an option."
)


@app.command("ab")
def ab_command(
    suite_name: SuiteArgument = "gate",
    a: Annotated[list[str] | None, typer.Option("--a", help=_HELP.format("base"))] = None,
    b: Annotated[list[str] | None, typer.Option("--b", help=_HELP.format("head"))] = None,
    framework: Annotated[
        list[str] | None,
        typer.Option(help="A framework; by default the one that requires what is pinned."),
    ] = None,
    workload: WorkloadOption = None,
    model: ModelOption = None,
    method: MethodOption = None,
    world: WorldOption = None,
    device: DeviceOption = "cpu",
    adapter: AdapterOption = None,
    directory: DirOption = None,
    precision: PrecisionOption = None,
    budget: BudgetOption = None,
    timeout: TimeoutOption = None,
    mpirun: MpirunOption = None,
    form: FormatOption = "table",
    folder: OutOption = None,
    results: ResultsOption = RESULTS,
) -> None:
    """Measure two sides in turn on this machine, and compare them.

    Exit 1 where B is slower or worse than A. Exit 3 where nothing is worse, but of the saves and
    loads that both sides have, no time could be compared.

    An interrupted run goes on with `ckptbench run --resume RUN`; `ckptbench compare RUN` compares
    its arms again.
    """
    described = _described(a, b)
    frameworks = _frameworks(framework, described)
    arms.require_pins(described, frameworks)
    require_output(form, folder)
    goal = measuring.goal_of(precision, budget)
    if mpirun is not None:
        launch.open_mpi(mpirun)
    slurm.require_a_node()
    scratch = scratch_directory(directory)
    wishes: dict[str, Any] = {
        "workloads": workload,
        "methods": method,
        "worlds": measuring.worlds(world),
        "device": device,
    }
    sides = arms.opened(described, frameworks, VENVS)
    chosen = suite.load(suite_name)
    own_model = _own_model(model, described, frameworks, chosen, sides, wishes)
    plan = arms.plan(described, frameworks, chosen, model=own_model, **wishes)
    measuring.require_costs(plan, goal, suite_name)
    measuring.refuse_what_does_not_fit(plan, scratch)
    measuring.make_environments(sides, plan)
    if mpirun is None:
        measuring.require_mpirun(plan, sides)
    run = measuring.new_run(
        plan,
        f"{AB}{suite_name}",
        results,
        Selection.of(frameworks, model=own_model, **wishes),
        directory,
        described=described,
        goal=goal,
        settings=measuring.settings_of(mpirun, timeout),
    )
    measuring.measure_here(run, sides, scratch, timeout)
    read = read_run(run)
    found = compared(read)
    end(found, form, folder, measuring.exit_code(run, read.rows))


def _own_model(
    text: str | None,
    described: Mapping[str, arms.Described],
    frameworks: Sequence[str],
    chosen: suite.Suite,
    sides: Mapping[str, arms.Arm],
    wishes: Mapping[str, Any],
) -> OwnModel | None:
    """Return the user's own model after side A has built it once; None where none was named."""
    draft: Sequence[PlannedCase] = ()
    if text is not None:
        # A mistyped name is told before the model is built.
        draft = arms.plan(described, frameworks, chosen, model=own_models.NOT_BUILT, **wishes)
    side = arms.ARMS[0]
    return measuring.own_model(
        text,
        wishes["workloads"],
        catalog.select(catalog.frameworks(), frameworks),
        sides[side].environments,
        wishes["device"],
        [item for item in draft if item.case.arm == side],
    )


def _described(a: Sequence[str] | None, b: Sequence[str] | None) -> dict[str, arms.Described]:
    """Return both sides by name. A side that is not given is what is here."""
    if not a and not b:
        raise UsageError(
            "name at least one side, such as --a torch==2.13.0; the other one is what is here"
        )
    sides = (arms.describe(a or [arms.HERE]), arms.describe(b or [arms.HERE]))
    return dict(zip(arms.ARMS, sides, strict=True))


def _frameworks(given: Sequence[str] | None, described: dict[str, arms.Described]) -> list[str]:
    """Return the frameworks named, or the one that requires every package that a side pins."""
    known = catalog.frameworks()
    if given:
        return [
            entry.name for entry in catalog.select(known, measuring.chosen_frameworks(given, known))
        ]
    pinned = {name for arm in described.values() for name in arm.pins}
    texts = {name: entry.own_requirements() for name, entry in known.items()}
    pins.require_known(pinned, texts.values())
    fitting = [name for name, text in texts.items() if pinned and pinned <= pins.names(text)]
    if len(fitting) == 1:
        return fitting
    raise UsageError(f"name a --framework: {', '.join(fitting or known)}")
