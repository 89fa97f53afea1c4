"""Experiment `cost` in words: which method is fastest, stalls least, and can be lost."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis import statistics
from harness.analysis.claims import (
    Claims,
    Runs,
    Told,
    are_of_several_runs,
    by_framework,
    by_method,
    rows_of_kind,
    whole,
)
from harness.analysis.row import Naming, Row, group_title
from harness.analysis.statistics import Estimate, Samples
from harness.analysis.text import DISTURBED, duration, listed, size
from harness.experiments.cost import own_words
from harness.experiments.cost.rows import CostRow
from harness.experiments.cost.samples import DURABILITY
from harness.experiments.cost.scaling import is_scaling

_LONGEST = float("inf")


def meaning(rows: Sequence[CostRow], naming: Naming) -> str:
    """Return which method is fastest, by how much, which stalls least, and which can be lost."""
    good = [row for row in rows if _is_good(row)]
    if not good:
        return "No method gave a verified checkpoint without a mark here."
    has_worlds = is_scaling(rows)
    sentences = []
    if good[0].model is not None:
        sentences.append(own_words.answer(good, naming, has_worlds))
    if has_worlds:
        sentences.append(_scaling(rows, naming))
    elif good[0].model is None:
        sentences = [_fastest(good, naming), _least_stall(good, naming), _unsafe(good, naming)]
    failed = [naming.name(row) for row in rows if row.status == "failed"]
    if failed:
        sentences.append(f"{listed(failed)} failed: see the reasons below.")
    return " ".join(sentence for sentence in sentences if sentence)


def notes(rows: Sequence[CostRow], naming: Naming) -> list[str]:
    """Return what a reader must know about the samples and their ceilings."""
    measured = [row for row in rows if row.samples]
    if not measured:
        return []
    said = [_samples_note(measured)]
    if any(row.ceiling_direct is False for row in measured):
        said.append(
            "The scratch directory takes no direct I/O. The ceilings went through the page cache, "
            "and say little about a disk."
        )
    if any(row.backing == "unknown" for row in measured):
        said.append(
            "Memory backing could not be shown for some samples. Their times may include the host "
            "handing memory back."
        )
    doubtful = [naming.name(row) for row in measured if row.above_ceiling]
    if doubtful:
        said.append(
            f"* {listed(doubtful)} beat the ceiling beyond the interval. There the ceiling is in "
            "doubt, and not the method."
        )
    return said


def claims(runs: Runs) -> Claims:
    """Return what is durable soonest, what stalls least, and what outlives a power loss."""
    costs = rows_of_kind(runs, CostRow)
    good = by_framework(costs, _is_good)
    found = Claims()
    if good:
        found.speed.append(_speed_claim(good, runs))
        stalls = {name: min(whole(rows), key=_stall) for name, rows in good.items()}
        told = [Told(row.method, name, _least(row)) for name, row in stalls.items()]
        found.training.append(f"a checkpoint stops training least with {by_method(told)}")
    safety = _safety_claim([row for rows in costs for row in rows])
    if safety:
        found.trust.append(safety)
    return found


def compared_with_default(row: CostRow, rows: Sequence[CostRow]) -> Estimate | None:
    """Return how many times as fast as the framework's default a method is durable.

    The interval holds for all methods of the table together. None where nothing could tell the two
    apart: without a default, or where either was measured in one process alone, which says nothing
    about other processes.
    """
    defaults = [other for other in rows if other.default and _is_alike(other, row)]
    if not defaults or defaults[0] is row:
        return None
    default = defaults[0]
    if not (row.durable_samples and default.durable_samples):
        return None
    if any(_of_one_process(samples) for samples in (default.durable_samples, row.durable_samples)):
        return None
    comparisons = sum(1 for other in rows if other.durable_samples) - 1
    return statistics.ratio(default.durable_samples, row.durable_samples, comparisons)


def _of_one_process(samples: Samples) -> bool:
    return len(set(samples.processes)) == 1


def _is_alike(one: Row, other: Row) -> bool:
    return (one.framework, one.strategy) == (other.framework, other.strategy)


def _is_good(row: CostRow) -> bool:
    return row.is_clean and row.verified and row.durable_s is not None


def _durable(row: CostRow) -> float:
    return row.durable_s.value if row.durable_s else _LONGEST


def _stall(row: CostRow) -> float:
    return row.stall_s.value if row.stall_s else _LONGEST


def _fastest(rows: Sequence[CostRow], naming: Naming) -> str:
    best = min(whole(rows), key=_durable)
    name = naming.name(best)
    text = (
        f"{name} makes a verified {best.covers} checkpoint durable fastest, in "
        f"{duration(best.durable_s)}{_power_loss(best)}"
    )
    whose = naming.whose(best)
    gain = compared_with_default(best, rows)
    if gain is None:
        return f"{text}, and it is {whose} default." if best.default else f"{text}."
    if gain.low > 1:
        interval = f"({gain.low:.1f} to {gain.high:.1f})"
        return f"{text}. That is {gain.value:.1f} times {interval} as fast as {whose} default."
    if gain.high < 1:
        default = next(row for row in rows if row.default and _is_alike(row, best))
        return (
            f"{text}. Only {whose} default, {default.method}, is faster, and it covers less "
            f"({default.covers})."
        )
    return f"{text}. Its time cannot be told from that of {whose} default."


def _power_loss(row: CostRow) -> str:
    """Return that a checkpoint is not safe by itself; empty where it is, or nobody knows."""
    return " (the method itself does not make it power-safe)" if row.durability == "never" else ""


def _least_stall(rows: Sequence[CostRow], naming: Naming) -> str:
    best = min(whole(rows), key=_stall)
    # The sentence before has said it of the fastest one.
    is_fastest = best is min(whole(rows), key=_durable)
    unsafe = "" if is_fastest else _power_loss(best)
    return (
        f"Training stands still least with {naming.name(best)}: {duration(best.stall_s)} a "
        f"checkpoint{unsafe}."
    )


def _unsafe(rows: Sequence[CostRow], naming: Naming) -> str:
    never = [row for row in rows if row.durability == "never"]
    nothing = [naming.name(row) for row in never if row.data_durability == "never"]
    data_only = [naming.name(row) for row in never if row.data_durability != "never"]
    said = []
    if nothing:
        said.append(
            f"After a power loss nothing that {listed(nothing)} wrote is certain, because not all "
            "of it is flushed."
        )
    if data_only:
        verb = "flushes" if len(data_only) == 1 else "flush"
        said.append(f"{listed(data_only)} {verb} the data but not every file name.")
    return " ".join(said)


def _scaling(rows: Sequence[CostRow], naming: Naming) -> str:
    """Return what the largest world does to each method, and which is then the fastest."""
    scaled = [row for row in rows if row.slowdown is not None]
    world = max((row.world for row in scaled), default=0)
    good = [row for row in scaled if row.world == world and _is_good(row)]
    if not good:
        return "No method gave a verified checkpoint in several worlds."
    # A method that saves less is not the first, and one without a smaller world may be.
    best = min(whole([row for row in rows if row.world == world and _is_good(row)]), key=_durable)
    by_slowdown = sorted(good, key=_slowdown)
    times = "; ".join(f"{naming.full_name(row)} {_slowdown(row):.1f}" for row in by_slowdown)
    each = " for each byte" if best.scale else ""
    said = [
        f"On {world} ranks {naming.full_name(best)} is durable first, in "
        f"{duration(best.durable_s)}.",
        f"As multiples of the time{each} in the fewest ranks that the method was measured on: "
        f"{times}.",
    ]
    if any(row.oversubscribed for row in rows):
        said.append(
            "+ marks more ranks than processors (oversubscribed). These ranks also wait for one "
            "another's turn."
        )
    return " ".join(said)


def _slowdown(row: CostRow) -> float:
    return row.slowdown.value if row.slowdown else 0.0


def _samples_note(rows: Sequence[CostRow]) -> str:
    used = sum(row.samples for row in rows)
    disturbed = sum(row.disturbed for row in rows)
    processes = max(row.processes for row in rows)
    processes_in_words = "one process" if processes == 1 else f"up to {processes} processes"
    text = (
        f"Medians of {used} saves, {processes_in_words} a method, 95 % bootstrap intervals "
        f"clustered by process. {disturbed} samples stood between ceilings that differed by more "
        "than 10 %, or on a disk that was busy with others, and were tagged disturbed."
    )
    if not any(row.used_disturbed or row.load_used_disturbed for row in rows):
        return text
    return (
        f"{text} They count where a row has too few others, or their process has none. Then "
        f"{DISTURBED} stands behind their number, or behind the time of the load."
    )


def _speed_claim(good: dict[str, list[CostRow]], runs: Runs) -> str:
    best = {name: min(whole(rows), key=_durable) for name, rows in good.items()}
    told = [Told(row.method, name, _speed(row, good[name])) for name, row in best.items()]
    first = next(iter(best.values()))
    state = f"{size(first.state_bytes)} of " if first.state_bytes else ""
    apart = " (each within its own run)" if are_of_several_runs(best.values(), runs) else ""
    all_full = all(row.covers == "full" for row in best.values())
    checkpoint = "full checkpoint" if all_full else "checkpoint"
    return (
        f"on {state}{group_title(first)}, a verified {checkpoint} is durable soonest with "
        f"{by_method(told)}{apart}"
    )


def _speed(row: CostRow, rows: Sequence[CostRow]) -> str:
    said = [duration(row.durable_s)]
    gain = compared_with_default(row, rows)
    if gain is not None and gain.low > 1:
        said.append(f"{gain.value:.1f} times as fast as the default")
    if row.durability == "never":
        said.append("by itself not power-safe")
    return ", ".join(said)


def _least(row: CostRow) -> str:
    unsafe = ", by itself not power-safe" if row.durability == "never" else ""
    return f"{duration(row.stall_s)}{unsafe}"


def _safety_claim(rows: Sequence[CostRow]) -> str:
    """Return whose checkpoints outlive a power loss. Rows with a mark are in doubt."""
    known = [row for row in rows if row.status == "ok" and row.durability in DURABILITY]
    if not known:
        return ""
    unsafe = {(row.framework, row.method) for row in known if row.durability == "never"}
    doubtful = {(row.framework, row.method) for row in known if not _is_good(row)}
    safe = {(row.framework, row.method) for row in known} - unsafe - doubtful
    if not safe and doubtful - unsafe:
        return ""
    if not safe:
        return (
            "a power loss may cost any of these checkpoints, because none is flushed to the last "
            "name"
        )
    told = [Told(method, framework) for framework, method in sorted(safe)]
    return f"only with {by_method(told)} is a checkpoint certain to outlive a power loss"
