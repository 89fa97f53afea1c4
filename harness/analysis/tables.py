"""Rows as tables for people: one per workload, and as Markdown, CSV and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pandas as pd

from harness.analysis.row import Row, group_title, listed
from harness.analysis.statistics import Estimate
from harness.experiments.cost.rows import CostRow
from harness.experiments.cost.scaling import Scaled, is_scaling, series
from harness.experiments.parity.rows import ParityRow
from harness.experiments.reshard.rows import ReshardRow
from harness.experiments.resume.rows import ResumeRow
from harness.experiments.sizes.rows import SizesRow
from harness.experiments.train.rows import TrainRow

_ABLATED = {
    "optimizer": "optimizer",
    "rng": "RNG",
    "buffer": "batch-norm statistics",
    "position": "position",
}
OVERSUBSCRIBED = " +"  # more ranks than processors
DISTURBED = "~"  # behind the number of those among the samples that count
NO_INTERVAL = "[–]"  # of a single sample
OPEN = "open"  # a column that older runs lack
_UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def by_workload(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Group rows of one experiment with the same state on the same device, in order, under a title."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.experiment, group_title(row)), []).append(row)
    return {_full_title(*key, members): members for key, members in groups.items()}


def table(rows: Sequence[Row]) -> pd.DataFrame:
    """The final table of rows of one experiment: text, one line per row.

    The framework is named where there are several.
    """
    several = len({row.framework for row in rows}) > 1
    cost = [row for row in rows if isinstance(row, CostRow)]
    if cost and is_scaling(cost):
        return pd.DataFrame(
            [_scaled_line(member, several) for members in series(cost) for member in members]
        )
    lines = pd.DataFrame([_line(row, several) for row in rows])
    return lines.drop(columns=OPEN) if cost and all(row.open_s is None for row in cost) else lines


def to_markdown(rows: Sequence[Row]) -> str:
    """Every group as a Markdown table under its title."""
    parts = []
    for title, members in by_workload(rows).items():
        lines = table(members)
        head = (
            "| "
            + " | ".join(lines.columns)
            + " |\n|"
            + "|".join([" --- "] * len(lines.columns))
            + "|"
        )
        body = [
            "| " + " | ".join(_escaped(cell) for cell in line) + " |"
            for line in lines.itertuples(index=False)
        ]
        parts.append("\n".join([f"**{title}**", "", head, *body]))
    return "\n\n".join(parts) + "\n"


def to_csv(rows: Sequence[Row]) -> str:
    """Every row with all of its fields."""
    return pd.DataFrame([row.to_json() for row in rows]).to_csv(index=False)


def to_json(rows: Sequence[Row]) -> str:
    """A JSON array with one object per row: the stable interface."""
    return json.dumps([row.to_json() for row in rows], indent=1) + "\n"


def duration(estimate: Estimate | None) -> str:
    """A duration to three digits, in seconds or milliseconds."""
    if estimate is None:
        return "–"
    value, unit = (
        (estimate.value, "s") if abs(estimate.value) >= 0.9995 else (1e3 * estimate.value, "ms")
    )
    # from 100 on, "g" would turn to powers of ten
    return f"{value:#.3g} {unit}" if abs(value) < 99.95 else f"{value:.0f} {unit}"


def spread_duration(estimate: Estimate | None) -> str:
    """A duration around zero with its interval, in milliseconds."""
    if estimate is None:
        return "–"
    interval = (
        NO_INTERVAL if estimate.single else f"[{1e3 * estimate.low:.0f}–{1e3 * estimate.high:.0f}]"
    )
    return f"{1e3 * estimate.value:.0f} ms {interval}"


def share(estimate: Estimate | None) -> str:
    """A share of a ceiling, or another ratio, with its interval."""
    if estimate is None:
        return "–"
    interval = NO_INTERVAL if estimate.single else f"[{estimate.low:.2f}–{estimate.high:.2f}]"
    return f"{estimate.value:.2f} {interval}"


def size(count: float) -> str:
    """A number of bytes in decimal units."""
    for unit, name in _UNITS:
        if count >= 0.9995 * unit:
            return (
                f"{count / unit:.3g} {name}"
                if count < 999.5 * unit
                else f"{count / unit:.0f} {name}"
            )
    return f"{count:.0f} B"


def fraction(value: float | None) -> str:
    """A share of one, or how much larger than one."""
    return "–" if value is None else f"{value:.3f}"


def _line(row: Row, several_frameworks: bool) -> dict[str, str]:
    match row:
        case CostRow():
            return _cost_line(row, several_frameworks)
        case SizesRow():
            return _sizes_line(row, several_frameworks)
        case ParityRow():
            return _parity_line(row)
        case TrainRow():
            return _train_line(row, several_frameworks)
        case ResumeRow():
            return _resume_line(row, several_frameworks)
        case ReshardRow():
            return _reshard_line(row, several_frameworks)
    raise TypeError(f"no table for {type(row).__name__}")


def _cost_line(row: CostRow, several_frameworks: bool) -> dict[str, str]:
    return {
        "method": _method(row, several_frameworks),
        "stall": duration(row.stall_s),
        "durable": duration(row.durable_s),
        "share of ceiling": share(row.write_efficiency) + "*" * row.above_ceiling,
        "n": _count(row),
        **(_ranks(row) if row.world > 1 else {}),
        "cold load": _load(row),
        OPEN: duration(row.open_s),
        "bytes": _ratio(row.file_bytes, row.state_bytes),
        "covers": row.covers,
        "power-safe": _power_safe(row),
        "verified": "yes" if row.verified else _why(row),
    }


def _count(row: CostRow | TrainRow) -> str:
    """How many samples count, and how many of them although they were disturbed."""
    if not row.samples:
        return "–"
    return (
        f"{row.samples} ({row.used_disturbed}{DISTURBED})"
        if row.used_disturbed
        else str(row.samples)
    )


def _ranks(row: CostRow) -> dict[str, str]:
    """Who came last says something only where all ranks have the same to do."""
    alike = row.writers is None or row.writers == row.world
    return {
        "last / median rank": f"{row.straggler:.2f}"
        if row.straggler is not None and alike
        else "–",
        "writers": "–" if row.writers is None else f"{row.writers} of {row.world}",
    }


def _scaled_line(member: Scaled, several_frameworks: bool) -> dict[str, str]:
    row = member.row
    return {
        "method": _method(row, several_frameworks),
        "ranks": f"{row.world}{OVERSUBSCRIBED * bool(row.oversubscribed)}",
        "stall": duration(row.stall_s),
        "durable": duration(row.durable_s),
        "for each byte, to one rank's" if row.scale else "to one rank's": share(member.slowdown),
        "share of ceiling": share(row.write_efficiency) + "*" * row.above_ceiling,
        "n": _count(row),
        **_ranks(row),
        "cold load": _load(row),
        "bytes": _ratio(row.file_bytes, row.state_bytes),
        "verified": "yes" if row.verified else _why(row),
    }


def _sizes_line(row: SizesRow, several_frameworks: bool) -> dict[str, str]:
    return {
        "method": _method(row, several_frameworks),
        "bytes": _ratio(row.file_bytes, row.state_bytes),
        "fresh": _ratio(row.fresh_file_bytes, row.state_bytes),
        "weights": _ratio(row.weights_bytes, row.state_bytes),
        "optimizer": _ratio(row.optimizer_bytes, row.state_bytes),
        "rest": "–"
        if row.metadata_bytes is None or row.other_bytes is None
        else size(row.metadata_bytes + row.other_bytes),
        "files": "–" if row.files is None else str(row.files),
        "writes": _writes(row),
        "to device": _ratio(row.device_written_bytes, row.file_bytes),
        "same files": _same(row) if row.status == "ok" else row.status,
    }


def _parity_line(row: ParityRow) -> dict[str, str]:
    return {
        "framework": row.framework,
        "leaves": "–" if row.leaves is None else f"{row.leaves} + {len(row.extra_leaves)}",
        "forward": _within(row.forward_difference, row.forward_tolerance),
        "one step": _within(row.step_difference, row.step_tolerance),
        "ten losses": _within(row.losses_difference, row.losses_tolerance),
        "first loss": "–" if row.first_loss is None else f"{row.first_loss:.6f}",
        "last loss": "–" if row.last_loss is None else f"{row.last_loss:.6f}",
        "same state": "yes" if row.verified else _why(row),
    }


def _train_line(row: TrainRow, several_frameworks: bool) -> dict[str, str]:
    return {
        "method": _method(row, several_frameworks),
        "every": f"{row.every} steps",
        "step": duration(row.step_s),
        "overhead": spread_duration(row.overhead_s),
        "of training": _percent(row.overhead_share),
        "stall": duration(row.stall_s),
        "slowdown": duration(row.slowdown_s),
        "back-pressure": duration(row.back_pressure_s),
        "unflushed": duration(row.unflushed_s),
        "n": _count(row),
        "verified": "yes" if row.verified else _why(row),
    }


def _percent(estimate: Estimate | None) -> str:
    if estimate is None:
        return "–"
    interval = (
        NO_INTERVAL
        if estimate.single
        else f"[{100 * estimate.low:+.1f} to {100 * estimate.high:+.1f}]"
    )
    return f"{100 * estimate.value:+.1f} % {interval}"


def _resume_line(row: ResumeRow, several_frameworks: bool) -> dict[str, str]:
    measured = row.bitwise is not None
    return {
        "method": _method(row, several_frameworks)
        if row.method
        else f"{row.framework} without a checkpoint{_strategy(row)}",
        "covers": row.covers if row.method else "",
        "resumed": row.verdict if measured else row.status,
        "first": ""
        if row.diverged_at is None
        else f"{row.first_leaves[0]}{f' on rank {row.diverged_rank}' * (row.world > 1)}",
        "at the end": ""
        if not row.final_count
        else f"{row.final_count} leaves, up to {row.final_max_ulp} ulp",
        "last loss": f"{row.losses[-1]:.6f} / {row.straight_losses[-1]:.6f}" if measured else "–",
    }


def _reshard_line(row: ReshardRow, several_frameworks: bool) -> dict[str, str]:
    return {
        "method": _method(row, several_frameworks),
        "ranks": f"{row.world} to {row.load_world}",
        "replicated": "–" if row.replicated_leaves is None else str(row.replicated_leaves),
        "sharded": "–" if row.sharded_leaves is None else str(row.sharded_leaves),
        "left out": "–" if row.left_out is None else str(row.left_out),
        "whole": "yes" if row.verified else _why(row),
    }


def _strategy(row: Row) -> str:
    return f", {row.strategy}" if row.strategy else ""


def _method(row: Row, several_frameworks: bool) -> str:
    ablated = f" without {_ABLATED[row.ablated]}" if row.ablated else ""
    return (
        f"{row.framework} " * several_frameworks
        + row.method
        + " (default)" * row.default
        + ablated
        + _strategy(row)
    )


def _ratio(part: int | None, whole: int | None) -> str:
    return fraction(part / whole if part is not None and whole else None)


def _writes(row: SizesRow) -> str:
    """How many, and their median size."""
    return (
        "–"
        if row.writes is None or row.write_median_bytes is None
        else f"{row.writes} of {size(row.write_median_bytes)}"
    )


def _same(row: SizesRow) -> str:
    """Whether saving again gives the same files: in one process, in two."""
    words = {True: "yes", False: "no", None: "–"}
    return f"{words[row.same_in_one_process]}, {words[row.same_in_two_processes]}"


def _within(difference: float | None, tolerance: float | None) -> str:
    return "–" if difference is None or tolerance is None else f"{difference:.0e} of {tolerance:g}"


def _load(row: CostRow) -> str:
    if row.load_s is None or row.load_cache == "cold":
        return duration(row.load_s)
    return f"{duration(row.load_s)} ({row.load_cache})"


def _power_safe(row: CostRow) -> str:
    if row.durability == "never" and row.data_durability in ("at return", "at finished"):
        return f"never (data {row.data_durability})"
    return row.durability


def _why(row: Row) -> str:
    return row.status if row.status != "ok" else "not yet"


def _full_title(experiment: str, title: str, rows: Sequence[Row]) -> str:
    sizes = [
        row.state_bytes
        for row in rows
        if isinstance(row, CostRow | SizesRow | TrainRow) and row.state_bytes
    ]
    prefix = "" if experiment == "cost" else f"{experiment}: "
    worlds = sorted({row.world for row in rows})
    cost = experiment == "cost" and worlds != [1]
    title += f", {ranks_in_words(worlds)}" if cost else ""
    title += (
        " (oversubscribed)" if any(row.oversubscribed for row in rows) and len(worlds) == 1 else ""
    )
    if not sizes:
        return f"{prefix}{title}"
    smallest = f"{size(min(sizes))} to " if rows[0].scale and min(sizes) < max(sizes) else ""
    return f"{prefix}{title}: {smallest}{size(max(sizes))} of state"


def ranks_in_words(worlds: Sequence[int]) -> str:
    """Numbers of ranks as a title has them."""
    return f"{listed([str(world) for world in worlds])} rank{'s' * (list(worlds) != [1])}"


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|")
