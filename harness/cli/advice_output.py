"""The output of `advise`: a table, sentences, and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from harness.analysis import judging
from harness.analysis.advice import Advice, Assumed
from harness.analysis.judging import Judged, Source, Spares
from harness.analysis.text import listed, ranks_in_words
from harness.cli.app import out
from harness.cli.printing import print_table
from harness.intervals import expected, failures
from harness.intervals.expected import Shares
from harness.intervals.failures import RandomFailures

_MOSTLY = 0.6  # a part of the loss beside which no other matters much
_IN_WORDS = {"wait": "waiting for a node"}
_OUTSIDE_CHECKPOINTS = ("detect", "wait", "restart")
_UNITS_S = {"d": 86_400.0, "h": 3600.0, "min": 60.0}


@dataclass(frozen=True)
class Job:
    """The job that was asked about, as the output repeats it."""

    ranks: int
    nodes: int
    spares: int  # the most that are tried
    trace: str
    policy: str

    def exceeds_trace(self, spares: int = 0) -> bool:
        """Return whether the job and so many spares are more nodes than the trace's system has."""
        return bool(self.trace) and self.nodes + spares > failures.TRACES[self.trace][1]


def table(
    title: str, advised: Sequence[Advice], judged: Sequence[Judged] | None, job: Job
) -> Table:
    """Return a line for each method. With a trace, all shares are those of its replay."""
    parts = [part for part in expected.PARTS if part != "wait" or judged is not None]
    made = _headed(title, advised, job, parts)
    for number, each in enumerate(advised):
        one = judged[number] if judged is not None else None
        split = one.shares if one else each.shares
        ends = (one.low, one.high) if one else (each.low, each.high)
        made.add_row(
            escape(each.measured.name),
            duration(each.interval_s),
            str(each.steps or "–"),
            _share(split, *ends, has_spread=one is not None or each.measured.has_spread),
            *(f"{getattr(split, part):.2%}" for part in parts),
            split.largest_loss,
            duration(each.flat_from_s),
            duration(each.flat_to_s),
        )
    return made


def _headed(title: str, advised: Sequence[Advice], job: Job, parts: Sequence[str]) -> Table:
    """Return a table without lines. Its words say what is extrapolated."""
    if any(each.measured.is_extrapolated for each in advised):
        title += ", costs extrapolated to a larger state"
    made = Table(
        title=escape(title), title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    made.add_column("method", overflow="fold")
    trains = f"trains in\n{job.trace}" if job.trace else "trains"
    if job.exceeds_trace():
        trains += ",\nextrapolated"
    headings = ("every", "steps", trains, *parts, "largest\nloss", "as good\nfrom", "to")
    for heading in headings:
        made.add_column(heading, justify="right", no_wrap=True)
    return made


def explain(
    advised: Sequence[Advice], judged: Sequence[Judged] | None, assumed: Assumed, job: Job
) -> None:
    """Say in words what the best method's loss is, and what was assumed."""
    best = advised[0]
    words = _largest_loss(best, judged[0].shares if judged else best.shares, job)
    say(words)
    budget = assumed.allowed_share
    within = f", within a budget of {100 * budget:g}%" if budget else ""
    say(f"The interval is that of the policy {job.policy}{within}.")
    say(
        f"The interval is flat: between {duration(best.flat_from_s)} and "
        f"{duration(best.flat_to_s)}, the share under failures at random instants is at most half "
        "a point lower."
    )
    extrapolated = any(each.measured.is_extrapolated for each in advised)
    origin = "Extrapolated from what was measured" if extrapolated else _measured(advised, job)
    # With a trace, the brackets in the table are percentiles over draws.
    by_costs = " In brackets is what follows from the intervals of the costs."
    brackets = "" if job.trace else by_costs
    say(
        f"Assumed: a failure every {duration(assumed.mtbf_s)} ({job.nodes} nodes), "
        f"{duration(assumed.restart_s)} to restart, {duration(assumed.detect_s)} to detect it. "
        f"{origin}: what a checkpoint costs.{brackets}"
    )
    if job.trace:
        say(
            "In the trace: the mean and, in brackets, the 5th to 95th percentile of "
            f"{judging.DRAWS} jobs drawn from the second half of {job.trace}, whose first half "
            "gave the failure rate."
        )
    if job.exceeds_trace(job.spares):
        known = failures.TRACES[job.trace][1]
        what = "" if job.exceeds_trace() else " with spares"
        needed = job.nodes + job.spares
        say(
            f"Extrapolated{what}: {job.trace} has {known} nodes, and the job {needed}. "
            "So it meets copies of the trace at other instants, too, and no burst strikes two "
            "copies at once."
        )
    for note in dict.fromkeys(note for each in advised for note in each.measured.notes):
        names = [each.measured.name for each in advised if note in each.measured.notes]
        whose = "all methods" if len(names) == len(advised) else ", ".join(names)
        say(f"{whose}: {note}.")


def _measured(advised: Sequence[Advice], job: Job) -> str:
    """Return on how many ranks the costs were measured, where the job has another number."""
    worlds = sorted({each.measured.world for each in advised})
    if worlds == [job.ranks]:
        return "Measured"
    return f"Measured on {ranks_in_words(worlds)}, and supposed to be the same on {job.ranks:,}"


def _largest_loss(best: Advice, shares: Shares, job: Job) -> str:
    part = shares.largest_loss
    share = getattr(shares, part) / shares.lost if shares.lost else 0.0
    where = f" in {job.trace}" if job.trace else ""
    words = (
        f"With {best.measured.name}{where}, the largest part of the lost time is "
        f"{_IN_WORDS.get(part, part)}: {share:.0%}."
    )
    if share > _MOSTLY and part in _OUTSIDE_CHECKPOINTS:
        words += " A better checkpoint cannot help with that."
    if part == "wait" and not job.spares:
        words += " Spare nodes may: try --spares."
    return words


def _share(shares: Shares, low: float, high: float, has_spread: bool) -> str:
    ends = f"{100 * low:.2f}–{100 * high:.2f}" if has_spread else "–"
    return f"{shares.effective:.2%}\n[{ends}]"


def print_spares(tried: Sequence[Spares], method: str, source: Source) -> None:
    """Print what spare nodes are worth, against waiting for a repair and against shrinking."""
    made = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("spares", "per node, if it waits", "per node, if it shrinks"):
        made.add_column(heading, justify="right")
    for each in tried:
        made.add_row(str(each.count), f"{each.waiting:.2%}", f"{each.shrinking:.2%}")
    print_table(out, made)
    waiting = max(tried, key=lambda each: each.waiting)
    shrinking = max(tried, key=lambda each: each.shrinking)
    as_good = [each.count for each in tried if each.waiting_behind.high >= 0]
    as_good_shrinking = [each.count for each in tried if each.shrinking_behind.high >= 0]
    say(
        f"Per node that is paid for, spares included, {_spares(waiting.count)} best with "
        f"{method} if the job waits for repairs where no spare is left ({waiting.waiting:.2%}"
        f"{_tied(as_good, waiting.count)}), and {_spares(shrinking.count)} if it goes on with "
        f"fewer nodes ({shrinking.shrinking:.2%}{_tied(as_good_shrinking, shrinking.count)})."
    )
    if tried[-1].count in (waiting.count, shrinking.count) and len(tried) > 1:
        say(f"More than {tried[-1].count} were not tried. They may be better.")
    if isinstance(source, RandomFailures):
        say(
            f"These are {judging.DRAWS} draws of half a year with failures at random instants. A "
            f"repair takes {duration(source.repair_s)} on average, and most are much shorter. The "
            "table of methods knows no wait for a repair. Real failures come in bursts: see "
            "--trace."
        )
    else:
        say("The table of methods is without spares.")


def _spares(count: int) -> str:
    return "1 spare node is" if count == 1 else f"{count} spare nodes are"


def _tied(as_good: Sequence[int], best: int) -> str:
    """Return the other numbers of spares that are as good, as far as the draws can tell."""
    others = [str(count) for count in as_good if count != best]
    return f", a tie with {listed(others)}" if others else ""


def as_json(
    advised: Sequence[Advice],
    judged: Sequence[Judged] | None,
    assumed: Assumed,
    job: Job,
    tried: Sequence[Spares],
    source: Source,
) -> str:
    """Return a list with an object for each method."""
    circumstances = {
        "job_mtbf_s": assumed.mtbf_s,
        "ranks": job.ranks,
        "nodes": job.nodes,
        "trace": job.trace or None,
        "policy": job.policy,
        "budget": assumed.allowed_share,
        "extrapolated": job.exceeds_trace(),
    }
    lines = []
    for number, each in enumerate(advised):
        line = each.to_json() | circumstances
        if judged is not None:
            line |= judged[number].to_json()
        if tried and number == 0:
            line["spares"] = [spares.to_json() for spares in tried]
            is_random = isinstance(source, RandomFailures)
            line["spares_repair_s"] = source.repair_s if is_random else None
        lines.append(line)
    return json.dumps(lines, indent=1) + "\n"


def duration(seconds: float) -> str:
    """Return a duration in the largest unit that it has one of."""
    if math.isinf(seconds):
        return "never"
    for unit, unit_s in _UNITS_S.items():
        if seconds >= unit_s:
            return f"{seconds / unit_s:.3g} {unit}"
    return f"{seconds:.3g} s"


def say(text: str, console: Console = out) -> None:
    """Print a sentence, which a terminal may wrap."""
    console.print(escape(text), highlight=False, soft_wrap=True)
