"""Remarks beside the results: what was not compared, and what else changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from harness.analysis.comparison import facts
from harness.analysis.comparison.metrics import LeftOut, MatchedRow
from harness.analysis.comparison.sides import Side, SideRow, missing
from harness.analysis.runs import ReadRun
from harness.analysis.text import listed
from harness.wire.records import WorkerRecord

_ABSENT = "(absent)"

Versions = Mapping[tuple[str, str], str]
"""Versions by framework and package."""


def packages(base: Versions, head: Versions) -> list[str]:
    """Return which packages have other versions, of the frameworks that both sides have."""
    in_base = {framework for framework, _ in base}
    in_head = {framework for framework, _ in head}
    changes = []
    for name in sorted(base.keys() | head.keys()):
        framework, package = name
        before, now = base.get(name, _ABSENT), head.get(name, _ABSENT)
        if framework in in_base & in_head and before != now:
            changes.append(f"{package} {before} to {now}")
    # Frameworks have packages in common.
    unique = dict.fromkeys(changes)
    return [f"packages: {', '.join(unique)}"] if unique else []


def versions(run: ReadRun, arm: str = "") -> Versions:
    """Return the versions in a run's environments, or in those of one arm."""
    found = {}
    for worker in run.records.all(WorkerRecord):
        # The name of a job of an arm ends with the arm's name.
        if not worker.job.endswith(arm):
            continue
        found[worker.framework, "python"] = worker.python
        for package, version in worker.packages.items():
            found[worker.framework, package] = version
    return found


def mpirun(base: ReadRun, head: ReadRun) -> list[str]:
    """Return that the ranks of two runs were started by unlike programs."""
    before, now = _mpirun(base), _mpirun(head)
    return [f"mpirun: {before} to {now}"] if before and now and before != now else []


def of_left_out_metrics(rows: Iterable[MatchedRow]) -> list[str]:
    """Return which metrics are not compared for a reason that concerns the runs, and what to do."""
    names: dict[LeftOut, list[str]] = {}
    for row in rows:
        for name, left_out in row.left_out.items():
            if left_out.advice:
                names.setdefault(left_out, []).append(name)
    remarks = []
    for left_out, metrics in names.items():
        why = f"not compared, because {left_out.reason}. {left_out.advice}"
        remarks.append(f"{listed(metrics)}: {why}")
    return remarks


def of_row(row: MatchedRow) -> list[str]:
    """Return what a reader must know of one row."""
    remarks = []
    if facts.failed_by_chance(row.base, row.head):
        remarks.append("fails now and then by a race in its framework, so it is not compared")
    elif facts.failed_on_both(row.base, row.head):
        remarks.append("failed on both sides, so nothing of it is compared")
    for name, left_out in row.left_out.items():
        if not left_out.advice:
            remarks.append(f"{name} is not compared, because {left_out.reason}")
    remarks += facts.doubts(row.base, row.head)
    return [f"{row.head.name}: {remark}" for remark in remarks]


def of_rows_of_one_side(base: Side, head: Side) -> list[str]:
    """Return how many rows one side was not asked for, and which rows are new in the head."""
    _, not_asked_of_head = missing(base, head)
    added, not_asked_of_base = missing(head, base)
    remarks = [
        *_of_left_out_rows(base, head, not_asked_of_head),
        *_of_left_out_rows(head, base, not_asked_of_base),
    ]
    if added:
        remarks.append(f"new in {head.name}: {', '.join(row.name for row in added)}")
    return remarks


def _of_left_out_rows(of: Side, other: Side, rows: Sequence[SideRow]) -> list[str]:
    if not rows:
        return []
    is_one = len(rows) == 1
    suite, other_suite = of.run.stored.header["suite"], other.run.stored.header["suite"]
    if suite == other_suite:
        why = f"{other.name} was not asked for {'it' if is_one else 'them'}"
    else:
        why = f"{other.name} is of suite {other_suite}, not {suite}"
    left_out = "1 row is" if is_one else f"{len(rows)} rows are"
    return [f"{left_out} left out of {of.name}, because {why}"]


def _mpirun(run: ReadRun) -> str:
    """Return the program that started a run's ranks; empty where no case has several."""
    if all(planned.case.world == 1 for planned in run.stored.plan):
        return ""
    settings = run.stored.header.get("settings") or {}
    return settings.get("mpirun") or "the environment's"
