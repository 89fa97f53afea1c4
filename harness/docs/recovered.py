"""Tables of what a killed rank costs, and of harder failures, from the rows of reference runs."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from harness.analysis import text
from harness.analysis.row import Row
from harness.analysis.runs import ReadRun
from harness.docs.markdown import folded, table
from harness.docs.reference import NOT_STORED, newest_full_runs
from harness.docs.row_tables import (
    by_framework,
    cell,
    framework_of,
    has_result,
    markdown_table,
    packages_and_sources,
    rows_where,
    sources,
    text_table,
)
from harness.experiments.drill import DRILLS
from harness.experiments.drill.rows import DrillRow
from harness.experiments.recovery.plans import KILLS
from harness.experiments.recovery.rows import RecoveryRow

# The suites whose runs the pages show.
_USUAL_SUITE, _LARGE_SUITE = "recovery", "recovery-large"
_DRILL_SUITE, _FULL_SUITE = "drills", "recovery-full"
# The part of the last one that a page has room for.
_SHOWN_WORKLOAD, _FEW_RANKS = "resnet50", 2
_REASON_CHARACTERS = 220  # of a quotation; the frameworks' own words go on
# An editor chooses the columns that a first reader asks for.
WAYS_BACK_COLUMNS = (
    *("way back", "came back", "detect", "reconfigure", "restart", "of it, opening", "restore"),
    *("recompute", "back", "against restart", "steps repeated", "ranks after", "own state"),
    "same bits as",
)
STEADY_COLUMNS = ("way back", "step", "agreement", "copies", "checkpoint", "waiting spare")
EVERY_WAY_COLUMNS = (*WAYS_BACK_COLUMNS, "survivors go on", *STEADY_COLUMNS[1:])
RESTORES_COLUMNS = (
    *("way back", "came back", "restart", "of it, opening", "restore", "recompute", "back"),
    "against restart",
)
WAYS_IN_SHORT = {
    ("restart", False): "restart from the default method",
    ("rollback-memory", False): "roll back in memory",
    ("peer-spawn", False): "a spawned process takes over",
    ("peer-spare", True): "a spare takes over, mirrored",
    ("shrink", False): "shrink",
}
"""Ways back that every framework has, by way and mirror."""


def ways_back() -> str:
    """Return what each way back from a killed rank costs, by framework."""
    runs = newest_full_runs(_USUAL_SUITE)
    measured = {framework_of(run): _recovered(run) for run in runs}
    survived = {framework_of(run): rows_where(run, _has_steady_cost) for run in runs}
    parts = by_framework(measured, WAYS_BACK_COLUMNS)
    steady = by_framework(survived, STEADY_COLUMNS)
    shown = folded("What a step costs without a failure", steady)
    return "\n\n".join([parts, *_why_not(runs), shown, packages_and_sources(runs)])


def ways_back_in_short() -> str:
    """Return the time from a kill until training is back, a column for each framework."""
    runs = newest_full_runs(_USUAL_SUITE)
    names = [framework_of(run) for run in runs]
    by_way: dict[tuple[str, bool], dict[str, str]] = {key: {} for key in WAYS_IN_SHORT}
    for run in runs:
        for row in rows_where(run, _is_in_short):
            by_way[row.way, row.mirror][framework_of(run)] = _back_in_short(row)
    lines = []
    for key, words in WAYS_IN_SHORT.items():
        lines.append([words, *(by_way[key].get(name, text.NOTHING) for name in names)])
    return f"{table(['way back', *names], lines)}\n\n{_survived()}\n\n{sources(runs)}"


def _survived() -> str:
    """Return how many kills of the newest runs came back, and how many drills were passed."""
    suites = (_USUAL_SUITE, _LARGE_SUITE, _DRILL_SUITE, _FULL_SUITE)
    runs = [run for suite in suites for run in newest_full_runs(suite)]
    failed = [row for run in runs for row in rows_where(run, _is_failed_way)]
    rows = [row for run in runs for row in _recovered(run)]
    came_back = sum((row.came_back or 0) - row.wrong_bits - row.unknown_bits for row in rows)
    # Of a way that failed, no kill counts as one after which training came back.
    kills = sum(row.kills or 0 for row in rows) + KILLS * len(failed)
    tried = [row for run in runs for row in _tried_drills(run)]
    passed = sum(row.passed is True for row in tried)
    not_back = [row for row in rows if row.verdict != "back" or row.unknown_bits] + failed
    lost = [f"'{row.way_in_words}' in {row.framework}" for row in not_back]
    but = f" The others are of {text.listed(lost)}; see [Limits](#limits)." if lost else ""
    return (
        f"In the newest runs, training came back after {came_back} of {kills} kills with the bits "
        f"that the way promises, and passed {passed} of {len(tried)} [drills](#harder-failures)."
        f"{but}"
    )


def _is_in_short(row: RecoveryRow) -> bool:
    """Return whether a row is that of the default method, with no other setting than a mirror."""
    usual = row.default and not (row.cold or row.heartbeats)
    return has_result(row) and usual and (row.way, row.mirror) in WAYS_IN_SHORT


def _back_in_short(row: RecoveryRow) -> str:
    """Return when training was back, against a restart, and how often where it was not always."""
    if not row.back:
        return "never"
    back = f"{text.duration(row.back)} ({cell(row, 'against restart')})"
    if row.came_back == row.kills:
        return back
    return f"{back}, {cell(row, 'came back')}"


def restores() -> str:
    """Return what it takes to restore a large state after a kill, by framework."""
    runs = newest_full_runs(_LARGE_SUITE)
    if not runs:
        return NOT_STORED
    measured = {framework_of(run): _recovered(run) for run in runs}
    parts = by_framework(measured, RESTORES_COLUMNS)
    return "\n\n".join([parts, *_why_not(runs), packages_and_sources(runs)])


def every_way_back() -> str:
    """Return the ways back of the suite recovery-full where each rank has a processor for itself.

    Its drills are those on as many ranks. The runs have more, which is left out for its length.
    """
    runs = newest_full_runs(_FULL_SUITE)
    if not runs:
        return NOT_STORED
    parts = []
    for run in runs:
        rows = [row for row in _recovered(run) if _is_shown_in_full(row)]
        shown = text_table(rows).columns
        columns = [name for name in EVERY_WAY_COLUMNS if name in shown]
        parts.append(folded(framework_of(run), markdown_table(rows, columns)))
    harder = folded("Harder failures on two ranks", "\n\n".join(_drills(runs, _FEW_RANKS)))
    return "\n\n".join([*parts, *_why_not(runs), harder, packages_and_sources(runs)])


def _is_shown_in_full(row: RecoveryRow) -> bool:
    return row.workload == _SHOWN_WORKLOAD and row.world == _FEW_RANKS


def drills() -> str:
    """Return whether each way back survived each harder failure, by framework."""
    runs = newest_full_runs(_DRILL_SUITE)
    return "\n\n".join([*_drills(runs), packages_and_sources(runs)])


def _drills(runs: Sequence[ReadRun], world: int | None = None) -> list[str]:
    """Return a table of the verdicts on every failure, and why training did not survive one.

    `world` is how many ranks the drills had; None for all drills.
    """
    tried = [row for run in runs for row in _tried_drills(run) if world in (None, row.world)]
    verdicts: dict[tuple[str, str, str], dict[str, str]] = {}
    broken = []
    for row in tried:
        subject = (row.framework, str(row.world), row.title(several_frameworks=False))
        verdicts.setdefault(subject, {})[row.failure] = _verdict_and_time(row)
        if row.reason:
            broken.append(f"> {row.framework}, {row.world} ranks: {row.subject}: {row.reason}")
    was_tried = {row.failure for row in tried}
    failures = [failure for failure in DRILLS if failure in was_tried]
    lines = []
    for subject, of_subject in verdicts.items():
        lines.append([*subject, *(of_subject.get(failure, text.NOTHING) for failure in failures)])
    headings = ["framework", "ranks", "way back", *(DRILLS[failure] for failure in failures)]
    return [table(headings, lines), *broken]


def _recovered(run: ReadRun) -> list[RecoveryRow]:
    """Return the ways back of a run that were measured."""
    return rows_where(run, lambda row: isinstance(row, RecoveryRow) and has_result(row))


def _tried_drills(run: ReadRun) -> list[DrillRow]:
    """Return the drills of a run that were done, or failed."""
    return rows_where(run, lambda row: isinstance(row, DrillRow) and _was_tried(row))


def _why_not(runs: Sequence[ReadRun]) -> list[str]:
    """Return why ways back failed, did not always bring training back, or are marked, as quotes."""
    lines = []
    for run in runs:
        for row in rows_where(run, lambda row: isinstance(row, RecoveryRow)):
            where = f"{row.framework}, {row.workload} on {row.world} ranks: {row.way_in_words}"
            if row.status == "failed":
                lines.append(f"> {where} failed: {row.reason}")
            elif row.came_back != row.kills:
                reason = textwrap.shorten(row.not_back, _REASON_CHARACTERS, placeholder=" …")
                lines.append(f"> {where}, {cell(row, 'came back')}: {reason}")
            lines += [f"> {where} is marked: {mark}" for mark in row.marks]
    return lines


def _is_failed_way(row: Row) -> bool:
    return isinstance(row, RecoveryRow) and row.status == "failed"


def _was_tried(row: Row) -> bool:
    """Return whether a row was measured, or failed."""
    return row.status in ("ok", "failed")


def _verdict_and_time(row: DrillRow) -> str:
    """Return whether training survived, and when it was back."""
    return f"{row.verdict} {text.duration(row.back)}" if row.back else row.verdict


def _has_steady_cost(row: RecoveryRow) -> bool:
    """Return whether a row is a way over survivors, or the plain restart, which needs no ULFM."""
    return has_result(row) and (row.way != "restart" or row.default)
