"""The words of figures: names of methods, captions, and sentences about missing numbers."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence

from harness.analysis.pools import Cell, Pool, State, case_key, grouped
from harness.analysis.row import Row, printable
from harness.analysis.statistics import Estimate
from harness.analysis.text import listed, ranks_in_words
from harness.run.manifest import Manifest

INTERVALS = "Medians with 95 % bootstrap intervals clustered by process"
_REASON_LENGTH = 220
# A quoted traceback. Its last error says more than the lines before it, which only say where.
_TRACEBACK = re.compile(
    r'(rank \d+: )?.*File "[^"]*", line \d+.*?\b((?:\w+\.)*\w*(?:Error|Exception): .*)', re.DOTALL
)


def label(row: Row) -> str:
    """Return a row's method, with what tells the row from others of the same method."""
    method = printable(row.method) or "no checkpoint"
    default = " (default)" if row.default else ""
    covers = f" [{row.covers} only]" if row.method and row.covers != "full" else ""
    arm = f" ({row.arm})" if row.arm else ""
    return f"{method}{default}{row.detail}{covers}{arm}"


def doubtful_label(row: Row) -> str:
    """Return a row's label, with a word where its numbers are in doubt."""
    marked = " (marked)" if row.marks else ""
    is_unverified = row.status == "ok" and getattr(row, "verified", None) is False
    unverified = " (not verified)" if is_unverified else ""
    return f"{label(row)}{marked}{unverified}"


def ranks_suffix(world: int) -> str:
    """Return the number of ranks as a title ends with it; one rank goes without saying."""
    return "" if world == 1 else f", {ranks_in_words([world])}"


def slug(*parts: str) -> str:
    """Return the parts as the stem of a file's name, without the empty ones."""
    plain = [re.sub(r"[^a-z0-9.]+", "-", part.lower()).strip("-") for part in parts if part]
    return "-".join(plain)


def shown_estimate(row: Row, name: str) -> Estimate | None:
    """Return a row's estimate of that name; None where the case was not measured to its end."""
    if row.status != "ok":
        return None
    estimate: Estimate | None = getattr(row, name)
    return estimate


def is_single(row: Row) -> bool:
    """Return whether the row's numbers are of one sample, which has no interval."""
    return getattr(row, "samples", 0) == 1


def hollow_note(cells: Iterable[Cell[Row]]) -> str:
    """Return the sentence of a guide on hollow marks; empty where no row has a single sample."""
    return " Hollow: one sample, which has no interval." if _has_single(cells) else ""


def reason(row: Row, length: int = _REASON_LENGTH) -> str:
    """Return why a row has no number, in at most `length` characters."""
    phase = f" in {row.phase}" if row.status == "failed" and row.phase else ""
    text = f"{row.status}{phase}: {_cause(row.reason)}"
    return textwrap.shorten(text, length, placeholder=" …")


def missing(cells: Iterable[Cell[Row]]) -> tuple[str, ...]:
    """Return a sentence for every cell without a number, which says why it has none."""
    failed = [cell.row for cell in cells if cell.row.status != "ok"]
    return unique(missing_sentence(row, reason(row)) for row in failed)


def missing_sentence(row: Row, why: str) -> str:
    """Return a sentence that names a row and says why a figure does not show it."""
    strategy = f" ({row.strategy})" if row.strategy else ""
    ranks = f" on {row.world} ranks" if row.world > 1 else ""
    name = f"{row.framework} {label(row)}{strategy}, {State.of(row).title}{ranks}"
    return f"{name}: {why.rstrip('.!')}."


def left_out(cells: Iterable[Cell[Row]], shown: Iterable[Cell[Row]]) -> tuple[str, ...]:
    """Return a sentence for every case that no run of the cells `shown` measured, but another."""
    known = {case_key(cell) for cell in shown}
    sentences = []
    for cell in cells:
        if cell.row.status == "ok" and case_key(cell) not in known:
            moment = f"run {cell.run.name} measured it at another time than the rows shown"
            sentences.append(missing_sentence(cell.row, f"not drawn, because {moment}"))
    return unique(sentences)


def on_other_ranks(cells: Sequence[Cell[Row]], world: int) -> tuple[str, ...]:
    """Return a sentence for every method that no run measured on `world` ranks, but on more."""
    drawn = {_name(cell.row) for cell in cells if cell.row.world == world}
    ranks = "one rank" if world == 1 else f"{world} ranks"
    why = f"not drawn, because no run measured it on {ranks}"
    others = [cell.row for cell in cells if _name(cell.row) not in drawn]
    return unique(missing_sentence(row, why) for row in others)


def unique(sentences: Iterable[str]) -> tuple[str, ...]:
    """Return each sentence once, in order."""
    return tuple(dict.fromkeys(sentences))


def caption(
    what: str, basis: str, cells: Sequence[Cell[Row]], pool: Pool, *, is_counted: bool = True
) -> str:
    """Return a figure's caption.

    It says what the figure shows, what its numbers rest on, how many samples they are of (where it
    is counted), which machine measured them, and which run has which row.
    """
    counted = cells if is_counted else []
    return f"{what} {footer(basis, counted, pool)} {_origin(cells)}"


def footer(basis: str, cells: Sequence[Cell[Row]], pool: Pool) -> str:
    """Return the part of a caption that is short enough to stand in the figure."""
    has_single = basis == INTERVALS and _has_single(cells)
    single = " (where n = 1 there is no interval)" if has_single else ""
    return f"{basis}{_counts(cells)}{single}. {_machine(pool.manifest)}."


def _has_single(cells: Iterable[Cell[Row]]) -> bool:
    return any(cell.row.status == "ok" and is_single(cell.row) for cell in cells)


def _name(row: Row) -> tuple[str, str]:
    return (row.framework, label(row))


def _cause(text: str) -> str:
    """Return the error at the end of a quoted traceback, or the text if it has none."""
    traceback = _TRACEBACK.match(text)
    if traceback is None:
        return text
    rank = traceback[1] or ""
    return f"{rank}{traceback[2]}"


def _counts(cells: Sequence[Cell[Row]]) -> str:
    measured = [cell.row for cell in cells if cell.row.status == "ok"]
    counts = [count for row in measured if (count := getattr(row, "samples", 0))]
    if not counts:
        return ""
    fewest = min(counts)
    most = max(counts)
    return f", n = {fewest}" if fewest == most else f", n = {fewest} to {most}"


def _machine(manifest: Manifest) -> str:
    kind = "virtual machine" if manifest.hypervisor else "machine"
    cores = f"{manifest.logical_cores} cores ({manifest.cpu_model})"
    memory = f"{manifest.memory_bytes / 2**30:.0f} GiB of memory"
    gpus = f", {listed(manifest.gpus)}" if manifest.gpus else ""
    device = f" on {manifest.device}" if manifest.device else ""
    parts = f"{cores}, {memory}{gpus}, {manifest.filesystem}{device}"
    return f"Measured on {kind} {manifest.machine}: {parts}"


def _origin(cells: Sequence[Cell[Row]]) -> str:
    """Return which run has which rows."""
    by_run = grouped(cells, lambda cell: cell.run.name)
    if len(by_run) == 1:
        return f"Run {next(iter(by_run))}."
    by_framework = grouped(cells, lambda cell: cell.row.framework)
    runs_of = {}
    for framework, members in by_framework.items():
        runs_of[framework] = {cell.run.name for cell in members}
    runs = [f"{name} ({_rows_of_run(members, runs_of)})" for name, members in by_run.items()]
    return f"Runs: {'; '.join(runs)}."


def _rows_of_run(cells: Sequence[Cell[Row]], runs_of: Mapping[str, set[str]]) -> str:
    """Return a run's frameworks, with the methods where other runs have rows of that framework."""
    parts = []
    for framework, members in grouped(cells, lambda cell: cell.row.framework).items():
        methods = [cell.row.method or "no checkpoint" for cell in members]
        parts.append(
            framework if len(runs_of[framework]) == 1 else f"{framework} {listed(methods)}"
        )
    return ", ".join(parts)
