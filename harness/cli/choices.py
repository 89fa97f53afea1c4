"""The options by which measuring commands choose what to measure and how, each declared once."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from harness.driver import slurm
from harness.driver.paths import at_home, program
from harness.run.errors import UsageError

_PRECISION_HELP = (
    "Add processes after the suite's own until every metric's interval is at most this share wide "
    "on each side, or the budget is over."
)
_SUMMARY_HELP = (
    "In a world of more ranks, store their spread instead of every rank's samples (default: 64)."
)


def _above_zero(value: float | None) -> float | None:
    """Refuse a number of seconds that is no duration."""
    if value is not None and not 0 < value < math.inf:
        raise UsageError(f"--timeout must be a number of seconds above 0, not {value:g}")
    return value


def _share(value: float | None) -> float | None:
    """Refuse a precision that nothing can be compared with."""
    if value is not None and not 0.001 <= value <= 1.0:
        raise UsageError(f"--precision must be a share from 0.001 to 1, not {value:g}")
    return value


SuiteArgument = Annotated[
    str, typer.Argument(metavar="SUITE", help="The suite; 'ckptbench list suites' has them all.")
]

# What is measured.
FrameworkOption = Annotated[
    list[str] | None,
    typer.Option(
        help="A framework, or 'all' but the floor; may be given several times (default: all)."
    ),
]
WorkloadOption = Annotated[
    list[str] | None, typer.Option(help="Only this workload; may be given several times.")
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        metavar="FILE.py:FUNCTION",
        help="Measure a model of your own, which the function returns with its optimizer.",
    ),
]
MethodOption = Annotated[
    list[str] | None, typer.Option(help="Only this method; may be given several times.")
]
MethodOptionOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="Another value for an option of the methods that have it, such as threads=4; may be "
        "given several times.",
    ),
]
WorldOption = Annotated[str | None, typer.Option(metavar="1,2,4", help="Numbers of ranks.")]
StrategyOption = Annotated[
    list[str] | None, typer.Option(help="How ranks train together; may be given several times.")
]
DeviceOption = Annotated[str, typer.Option(help="cpu or cuda.")]
StatesOption = Annotated[
    str | None,
    typer.Option(metavar="N|all", help="Strike each save at so many instants at most."),
]
ResumeOption = Annotated[
    str | None, typer.Option(metavar="RUN", help="Go on with an interrupted run.")
]

# How ranks are started.
LauncherOption = Annotated[
    str | None,
    typer.Option(
        help="What starts the ranks: local (one rank), mpirun, or slurm, which submits the whole "
        "run as one job (default: mpirun for several ranks)."
    ),
]
NodesOption = Annotated[
    int | None,
    typer.Option(min=1, help="The number of nodes that Slurm spreads the ranks over."),
]
SiteOption = Annotated[
    Path | None,
    typer.Option(parser=at_home, help=f"The site file for Slurm (else {slurm.own_site_file()})."),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Print the job's script and submit nothing.")
]
MpirunOption = Annotated[
    Path | None,
    typer.Option(parser=program, help="Start ranks by this mpirun, of an Open MPI of the system."),
]

# How long and how precisely.
PrecisionOption = Annotated[
    float | None, typer.Option(callback=_share, metavar="0.05", help=_PRECISION_HELP)
]
BudgetOption = Annotated[
    str | None,
    typer.Option(
        metavar="10m",
        help="With --precision: add no process that would outlast this time (default: 10m).",
    ),
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        callback=_above_zero, help="Seconds without progress after which a worker is ended."
    ),
]
SummaryOption = Annotated[int | None, typer.Option(min=1, help=_SUMMARY_HELP)]
