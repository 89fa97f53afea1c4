"""The parts of the answer in three sentences that experiments give, from rows that they choose."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from harness.analysis.row import Row, group_title
from harness.analysis.text import listed

AnyRow = TypeVar("AnyRow", bound=Row)
Runs = Sequence[Sequence[Row]]
"""The rows of each run, oldest run first."""


@dataclass
class Claims:
    """Clauses on how fast a checkpoint is, what training loses, and what can be trusted."""

    speed: list[str] = field(default_factory=list)
    training: list[str] = field(default_factory=list)
    trust: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Told:
    """A method of a framework, and what is said of it."""

    method: str
    framework: str
    what: str = ""


def rows_of_kind(runs: Runs, kind: type[AnyRow]) -> list[list[AnyRow]]:
    """Return each run's rows of one class."""
    return [[row for row in rows if isinstance(row, kind)] for rows in runs]


def certain_rows(runs: Runs, kind: type[AnyRow]) -> list[AnyRow]:
    """Return the rows of one class over all runs, without those that a mark puts in doubt."""
    rows = [row for members in rows_of_kind(runs, kind) for row in members]
    return [row for row in rows if not row.marks]


def by_framework(
    runs: Sequence[Sequence[AnyRow]], is_good: Callable[[AnyRow], bool]
) -> dict[str, list[AnyRow]]:
    """Return the good rows of each framework from one run, of the most common state and ranks.

    The run is the one that tried most methods, the newest of several. So a run of a few methods
    does not replace one of all, and a method that has failed since is no longer praised. Times of
    two runs are never compared with each other. The floor is no framework, and is left out beside
    any.
    """
    settings = [_setting(row) for rows in runs for row in rows if is_good(row)]
    if not settings:
        return {}
    common = max(dict.fromkeys(settings), key=settings.count)
    found: dict[str, list[AnyRow]] = {}
    for name in sorted({row.framework for rows in runs for row in rows}):
        of_framework = [
            [row for row in rows if row.framework == name and _setting(row) == common]
            for rows in runs
        ]
        telling = [rows for rows in reversed(of_framework) if any(map(is_good, rows))]
        if telling:
            fullest = max(telling, key=_tried)
            found[name] = [row for row in fullest if is_good(row)]
    frameworks = {name: members for name, members in found.items() if not members[0].floor}
    return frameworks or found


def whole(rows: Sequence[AnyRow]) -> Sequence[AnyRow]:
    """Return the rows whose checkpoints hold the whole state, where there are any.

    A method that saves less is not a faster way to save.
    """
    return [row for row in rows if row.covers == "full"] or rows


def by_method(told: Iterable[Told]) -> str:
    """Return each method once, with its frameworks and what is said of it there."""
    frameworks_of: dict[str, list[str]] = {}
    for each in told:
        text = f"{each.framework} ({each.what})" if each.what else each.framework
        frameworks_of.setdefault(each.method, []).append(text)
    alike: dict[str, list[str]] = {}
    for method, frameworks in frameworks_of.items():
        alike.setdefault(listed(frameworks), []).append(method)
    parts = [f"{listed(methods)} in {frameworks}" for frameworks, methods in alike.items()]
    return ", and with ".join(parts)


def are_of_several_runs(rows: Iterable[Row], runs: Runs) -> bool:
    """Return whether rows come from more than one run."""
    numbers = set()
    for row in rows:
        for number, members in enumerate(runs):
            if any(row is member for member in members):
                numbers.add(number)
    return len(numbers) > 1


def _setting(row: Row) -> tuple[str, int]:
    return (group_title(row), row.world)


def _tried(rows: Sequence[Row]) -> int:
    """Return how many methods were tried to the end."""
    return len({row.method for row in rows if row.status in ("ok", "failed")})
