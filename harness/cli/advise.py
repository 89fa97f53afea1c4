"""The command `advise`: how often to checkpoint with each method of a stored run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from harness.analysis import advice, judging
from harness.analysis.advice import Advice, Assumed, LargerState, Measured
from harness.analysis.judging import JobInTrace, Judged, Source, Spares
from harness.analysis.runs import ReadRun, read_run
from harness.analysis.text import size
from harness.cli import advice_output, amounts
from harness.cli.advice_output import duration
from harness.cli.app import (
    RESULTS,
    ResultsOption,
    app,
    err,
    out,
    put,
    warn_of_damages,
)
from harness.cli.printing import print_table
from harness.driver.paths import at_home
from harness.intervals import failures
from harness.run import store
from harness.run.errors import UsageError, nearest
from harness.run.stored import run_argument

_NODES = 128  # of the job where nobody says how large it is
_REPAIR = "5d"  # about the mean of the 400 GPU servers' repairs
_MOST_RANKS = 10_000_000
_GIGA = 1e9
_LEAST_BANDWIDTH = 1e-3  # GB/s
_POLICIES = (*advice.POLICIES, judging.REPLAYED)
_WITH_A_LOSS_CURVE = "coci"


class Format(StrEnum):
    """The forms in which the command prints."""

    TABLE = "table"
    JSON = "json"


RunArgument = Annotated[str, typer.Argument(metavar="RUN")]

# The job, and its failures.
JobMtbfOption = Annotated[
    str,
    typer.Option(
        "--job-mtbf",
        help="Mean time between failures of the job, such as 8h. Alone, it is that of all "
        "failures. With --node-mtbf, it is that of the others, and both rates add up.",
    ),
]
NodeMtbfOption = Annotated[
    str,
    typer.Option(
        "--node-mtbf",
        help="Mean time between failures of one node. 250d is assumed where neither is given.",
    ),
]
RanksOption = Annotated[int, typer.Option(help="Ranks of the job.", min=1, max=_MOST_RANKS)]
RanksPerNodeOption = Annotated[int, typer.Option(help="Ranks on each node.", min=1)]
TraceOption = Annotated[
    str, typer.Option(help="Judge by real failures: gpu-400, lanl-18 or lanl-20.")
]
SparesOption = Annotated[int, typer.Option(help="Try up to so many spare nodes.", min=0, max=64)]
RepairOption = Annotated[
    str,
    typer.Option(
        help="Mean time to repair a node, for --spares without --trace. 5d is assumed.",
    ),
]
PolicyOption = Annotated[
    str,
    typer.Option(help=f"What chooses the interval: {', '.join(_POLICIES)} (with --trace)."),
]
RestartOption = Annotated[
    str, typer.Option(help="From a failure's detection to the beginning of the restore.")
]
DetectOption = Annotated[str, typer.Option(help="From a failure to its detection.")]
CostBudgetOption = Annotated[
    str, typer.Option(help="What checkpoints may cost without failures, such as 3.5%.")
]

# A larger state than the measured one.
StateBytesOption = Annotated[
    str, typer.Option(help="A larger state than the measured one, such as 1e12, 1TB or 105GiB.")
]
NodeBandwidthOption = Annotated[
    float | None, typer.Option(help="GB/s with which a node writes, for --state-bytes.")
]
StorageBandwidthOption = Annotated[
    float | None, typer.Option(help="GB/s of the whole storage, for --state-bytes.")
]

FigureFolderOption = Annotated[
    Path | None,
    typer.Option("--out", parser=at_home, help="Folder for a figure: share over interval."),
]
PrintedOption = Annotated[Format, typer.Option("--format", help="Print as.")]


@app.command("advise")
def advise_command(
    name: RunArgument,
    job_mtbf: JobMtbfOption = "",
    node_mtbf: NodeMtbfOption = "",
    ranks: RanksOption = 8 * _NODES,
    ranks_per_node: RanksPerNodeOption = 8,
    trace: TraceOption = "",
    spares: SparesOption = 0,
    repair: RepairOption = "",
    policy: PolicyOption = _POLICIES[0],
    restart: RestartOption = "2m",
    detect: DetectOption = "10s",
    budget: CostBudgetOption = "",
    state_bytes: StateBytesOption = "",
    node_bandwidth: NodeBandwidthOption = None,
    storage_bandwidth: StorageBandwidthOption = None,
    folder: FigureFolderOption = None,
    format_: PrintedOption = Format.TABLE,
    results: ResultsOption = RESULTS,
) -> None:
    """Say how often to checkpoint with each method of a run, and what it is worth.

    The costs of a checkpoint are those of the run. Failures are assumed to come at random, with the
    rate of the job or of its nodes, or they are those of a real trace.
    """
    _require_known(trace, policy)
    _require_one_source(trace, job_mtbf, node_mtbf)
    rates = _rates(job_mtbf, node_mtbf, repair)
    _require_spares(spares, repair, trace, rates)
    _require_bandwidths(state_bytes, node_bandwidth, storage_bandwidth)
    nodes = -(-ranks // ranks_per_node)
    learnt, unseen = _in_halves(trace, nodes) if trace else (None, None)
    run = read_run(store.Run(store.find(results, name)))
    warn_of_damages(run.stored)
    assumed = Assumed(
        _job_mtbf_s(rates, nodes, learnt),
        amounts.seconds("--restart", restart, from_zero=True),
        amounts.seconds("--detect", detect, from_zero=True),
        amounts.share("--budget", budget) if budget else None,
        policy if policy in advice.POLICIES else advice.POLICIES[0],
    )
    found = _costs_of(run, assumed)
    if state_bytes:
        count = amounts.size_bytes("--state-bytes", state_bytes)
        bandwidths = ((node_bandwidth or 0.0) * _GIGA, (storage_bandwidth or 0.0) * _GIGA)
        found = _scaled(found, LargerState(count, ranks, nodes, *bandwidths))
    found = _that_come_back(found, assumed, trace, bool(state_bytes))
    advised, judged = _best_first(_advised(found, assumed, policy, learnt), unseen)
    source = rates if unseen is None else unseen.failures
    tried = _with_spares(advised[0], source, nodes, spares)
    if folder is not None:
        drawn = _draw(advised, assumed, folder, run.name, unseen)
        # JSON is for programs, so nothing else goes the same way.
        advice_output.say(drawn, err if format_ is Format.JSON else out)
    job = advice_output.Job(ranks, nodes, spares, trace, policy)
    if format_ is Format.JSON:
        put(advice_output.as_json(advised, judged, assumed, job, tried, source))
        return
    print_table(out, advice_output.table(f"run {run.name}", advised, judged, job))
    advice_output.explain(advised, judged, assumed, job)
    if tried:
        advice_output.print_spares(tried, advised[0].measured.name, source)


def _in_halves(trace: str, nodes: int) -> tuple[JobInTrace, JobInTrace]:
    """Return the job in the first half of a trace, and in the second."""
    first, second = failures.halves(failures.trace(trace))
    return JobInTrace(trace, first, nodes), JobInTrace(trace, second, nodes)


def _advised(
    found: Sequence[Measured], assumed: Assumed, policy: str, learnt: JobInTrace | None
) -> Sequence[Advice]:
    """Return the advice for each method, by a formula or by the first half of the trace."""
    if learnt is not None and policy == judging.REPLAYED:
        return judging.replayed(found, assumed, learnt)
    return [advice.advise(one, assumed) for one in found]


def _with_spares(best: Advice, source: Source, nodes: int, most: int) -> list[Spares]:
    """Try every number of spares up to the most. Thousands of nodes take a minute."""
    if not most:
        return []
    with err.status(f"trying 0 to {most} spares beside {nodes} nodes"):
        return judging.with_spares(best, source, nodes, most)


def _best_first(
    advised: Sequence[Advice], unseen: JobInTrace | None
) -> tuple[list[Advice], list[Judged] | None]:
    """Return the advice in the order of what it is worth, in the trace where there is one.

    Methods that save a part of the state come last, because training cannot go on exactly.
    """
    judged = judging.judged(advised, unseen) if unseen is not None else None

    def rank(number: int) -> tuple[bool, float]:
        shares = judged[number].shares if judged is not None else advised[number].shares
        return advised[number].measured.is_partial, -shares.effective

    order = sorted(range(len(advised)), key=rank)
    in_order = [judged[number] for number in order] if judged is not None else None
    return [advised[number] for number in order], in_order


def _rates(job_mtbf: str, node_mtbf: str, repair: str) -> failures.RandomFailures:
    """Return the rates of failures that the options name, or that of nodes by default."""
    of_job_s = 1.0 / amounts.seconds("--job-mtbf", job_mtbf) if job_mtbf else 0.0
    if node_mtbf:
        of_node_s = 1.0 / amounts.seconds("--node-mtbf", node_mtbf)
    else:
        of_node_s = 0.0 if job_mtbf else failures.NODE_FAILURES_PER_S
    repair_s = amounts.seconds("--repair", repair or _REPAIR)
    return failures.RandomFailures(of_node_s, of_job_s, repair_s)


def _job_mtbf_s(rates: failures.RandomFailures, nodes: int, learnt: JobInTrace | None) -> float:
    """Return the mean seconds between failures of the job, from the rates of job and nodes.

    With a trace, they are those of such a job in its first half.
    """
    if learnt is not None:
        rate_of_job_s = learnt.failures.rate_of_job_s(nodes)
        if not rate_of_job_s:
            raise UsageError(
                f"the first half of {learnt.trace} has no failure that interrupts a job, so it "
                "tells no failure rate; give --node-mtbf instead of --trace"
            )
        return 1.0 / rate_of_job_s
    return advice.job_mtbf_s(nodes, rates.node_rate_s, rates.job_rate_s)


def _require_known(trace: str, policy: str) -> None:
    """Refuse an unknown trace or policy, and a policy that needs a trace where there is none."""
    if trace and trace not in failures.TRACES:
        raise nearest("trace", trace, failures.TRACES)
    if policy.lower() == _WITH_A_LOSS_CURVE:
        raise UsageError(
            "--policy coci needs the curve of a training's loss, which no run has; "
            "docs/intervals.md describes it under 'When the loss counts'"
        )
    if policy not in _POLICIES:
        raise nearest("policy", policy, _POLICIES)
    if policy == judging.REPLAYED and not trace:
        raise UsageError("--policy replayed needs --trace, whose first half it is chosen in")


def _require_one_source(trace: str, job_mtbf: str, node_mtbf: str) -> None:
    """Refuse a mean time between failures beside a trace, whose failures are known."""
    if trace and (job_mtbf or node_mtbf):
        option = "--job-mtbf" if job_mtbf else "--node-mtbf"
        raise UsageError(f"{option} and --trace exclude each other: a trace has its own failures")


def _require_spares(spares: int, repair: str, trace: str, rates: failures.RandomFailures) -> None:
    """Refuse spares where no node fails, and a time of repairs that nothing would use."""
    if repair and trace:
        raise UsageError("--repair and --trace exclude each other: a trace has its own repairs")
    if repair and not spares:
        raise UsageError("--repair needs --spares, because only jobs with spares are drawn")
    if spares and not trace and not rates.node_rate_s:
        raise UsageError(
            "--spares needs nodes that fail; give --node-mtbf, and with --job-mtbf only those "
            "failures that take no node, or take --trace"
        )


def _require_bandwidths(state_bytes: str, node: float | None, storage: float | None) -> None:
    """Refuse bandwidths without a state, and those that no storage has."""
    given = [bandwidth for bandwidth in (node, storage) if bandwidth is not None]
    if not all(math.isfinite(bandwidth) and bandwidth >= _LEAST_BANDWIDTH for bandwidth in given):
        raise UsageError(
            "--node-bandwidth and --storage-bandwidth are GB/s, and must be numbers from "
            f"{_LEAST_BANDWIDTH}"
        )
    if given and not state_bytes:
        raise UsageError(
            "--node-bandwidth and --storage-bandwidth need --state-bytes, the bytes of the state "
            "that they are for"
        )


def _costs_of(run: ReadRun, assumed: Assumed) -> Sequence[Measured]:
    found = advice.measured(run.rows, assumed)
    if not found and any(row.is_unfinished for row in run.rows):
        raise UsageError(
            f"run {run.name} was interrupted before it had costs of checkpoints; go on with: "
            f"ckptbench run --resume {run_argument(run.stored.folder)}"
        )
    if not found:
        raise UsageError(
            f"run {run.name} has no costs of checkpoints; take a run of the suite train-ranks, "
            "train or bench"
        )
    return found


def _scaled(found: Sequence[Measured], larger: LargerState) -> list[Measured]:
    for one in found:
        if not one.state_bytes:
            raise UsageError(
                f"--state-bytes needs the measured size, which {one.name} lacks; take another run, "
                "or leave --state-bytes out"
            )
        if larger.state_bytes < one.state_bytes:
            raise UsageError(
                f"--state-bytes is {size(larger.state_bytes)}, and {one.name} was measured with "
                f"{size(one.state_bytes)}; give a larger state"
            )
    return [advice.scaled(one, larger) for one in found]


def _that_come_back(
    found: Sequence[Measured], assumed: Assumed, trace: str, is_larger: bool
) -> Sequence[Measured]:
    """Return the methods that come back before the next failure, and name the others.

    Raises UsageError where there is none.
    """
    quick = [one for one in found if one.costs.recovery_s < assumed.mtbf_s]
    failing = f"the job fails every {duration(assumed.mtbf_s)}, and takes"
    if not quick:
        quickest = min((one.costs for one in found), key=lambda costs: costs.recovery_s)
        less = ", or a smaller --state-bytes or faster storage" if is_larger else ""
        rarer = "" if trace else ", a larger MTBF"
        raise UsageError(
            f"{failing} at least {duration(quickest.recovery_s)} to come back (detection "
            f"{duration(quickest.detect_s)}, restart {duration(quickest.restart_s)}, restore "
            f"{duration(quickest.restore_s)}), so it would hardly ever train; give a shorter "
            f"--restart or --detect, fewer --ranks{rarer}{less}"
        )
    for one in found:
        if one not in quick:
            back = duration(one.costs.recovery_s)
            text = escape(f"{one.name}: {failing} {back} to come back with it")
            err.print(f"[yellow]left out[/] {text}", highlight=False, soft_wrap=True)
    return quick


def _draw(
    advised: Sequence[Advice], assumed: Assumed, folder: Path, run: str, job: JobInTrace | None
) -> str:
    """Draw the share of the time that trains over the interval, and return where and what it is.

    There is a curve for each method. With a trace, it is from the replay of its second half.
    """
    # Matplotlib takes long to import, and the table does not need it.
    from harness.analysis import advice_figure
    from harness.analysis.figures import drawn

    try:
        with err.status("drawing the curves"):
            saved = drawn.save(advice_figure.draw(advised, assumed, run, job), folder)
    except OSError as error:
        raise UsageError(f"--out {folder}: {error.strerror}") from error
    return f"{saved.svg}, {saved.png.name}: {saved.title}"
