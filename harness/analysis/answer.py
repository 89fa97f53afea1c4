"""The answer in three sentences, for who reads no further."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from harness.analysis.row import Row, group_title, listed
from harness.analysis.summary import compared_with_default
from harness.analysis.tables import duration, size, spread_duration
from harness.experiments.cost.rows import CostRow
from harness.experiments.parity.rows import ParityRow
from harness.experiments.reshard.rows import ReshardRow
from harness.experiments.resume.rows import ResumeRow
from harness.experiments.sizes.rows import SizesRow
from harness.experiments.train.rows import TrainRow

FLOOR = "raw"  # no framework: what the others are measured against
_Kind = TypeVar("_Kind", bound=Row)
_Timed = TypeVar("_Timed", CostRow, TrainRow)


def answer(runs: Sequence[Sequence[Row]]) -> list[str]:
    """Return what is fast, what training loses and what can be trusted, a sentence each.

    `runs` has the rows of each run, oldest first. Times of two runs are not held against each
    other: every framework has its own answer, from the run that tried most of its methods, the
    newest of several.
    """
    everything = [row for rows in runs for row in rows]
    return [_answer_on_speed(runs), _answer_on_training(runs), _answer_on_trust(everything)]


def _answer_on_speed(runs: Sequence[Sequence[Row]]) -> str:
    fields = _good_by_framework(_costs(runs))
    if not fields:
        return "No run here shows how fast a checkpoint is."
    best = {framework: min(_whole(rows), key=_durable) for framework, rows in fields.items()}
    told = [
        (row.method, framework, _speed(row, fields[framework])) for framework, row in best.items()
    ]
    first = next(iter(best.values()))
    state = f"{size(first.state_bytes)} of " if first.state_bytes else ""
    apart = " (each within its own run)" if _are_of_several(best.values(), runs) else ""
    covers = (
        "full checkpoint" if all(row.covers == "full" for row in best.values()) else "checkpoint"
    )
    return f"On {state}{group_title(first)}, a verified {covers} is durable soonest with {_by_method(told)}{apart}."


def _answer_on_training(runs: Sequence[Sequence[Row]]) -> str:
    said = []
    still = _good_by_framework(_costs(runs))
    if still:
        best = {framework: min(_whole(rows), key=_stall) for framework, rows in still.items()}
        told = [(row.method, framework, duration(row.stall_s)) for framework, row in best.items()]
        said.append(f"a checkpoint stops training least with {_by_method(told)}")
    loops = _good_by_framework(
        [[row for row in rows if isinstance(row, TrainRow)] for rows in runs]
    )
    if loops:
        least = {framework: min(_whole(rows), key=_overhead) for framework, rows in loops.items()}
        told = [
            (f"{row.method} every {row.every} steps", framework, _added(row))
            for framework, row in least.items()
        ]
        said.append(
            f"with all that also slows the steps, it costs training least with {_by_method(told)}"
        )
    return _sentence(said) or "No run here shows what training loses."


def _answer_on_trust(rows: Sequence[Row]) -> str:
    said = [_returned(rows), _spared([row for row in rows if isinstance(row, CostRow)])]
    resumed = [
        row
        for row in rows
        if isinstance(row, ResumeRow) and row.method and not row.ablated and row.covers == "full"
    ]
    same = [row.bitwise for row in resumed if row.bitwise is not None]
    if same:
        said.append(
            f"{sum(same)} of {len(same)} killed runs went on bit by bit from a checkpoint of their whole state"
        )
    parity = [
        row.verified
        for row in rows
        if isinstance(row, ParityRow) and row.status in ("ok", "failed")
    ]
    if parity:
        said.append(
            f"{sum(parity)} of {len(parity)} states built by a framework are the same as the others'"
        )
    repeated = [
        row.same_in_two_processes
        for row in rows
        if isinstance(row, SizesRow) and row.same_in_two_processes is not None
    ]
    if repeated:
        said.append(
            f"{sum(repeated)} of {len(repeated)} times two processes write the same files for the same state"
        )
    loaded = [
        row.verified
        for row in rows
        if isinstance(row, ReshardRow) and row.status in ("ok", "failed")
    ]
    if loaded:
        said.append(
            f"{sum(loaded)} of {len(loaded)} checkpoints are whole for another number of ranks"
        )
    return (
        _sentence([clause for clause in said if clause])
        or "No run here shows whether a checkpoint can be trusted."
    )


def _sentence(clauses: Sequence[str]) -> str:
    text = "; ".join(clauses)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def _returned(rows: Sequence[Row]) -> str:
    """With how many methods all bytes came back, and with which they did not."""
    tried = [
        row
        for row in rows
        if isinstance(row, CostRow | TrainRow) and row.status in ("ok", "failed")
    ]
    if not tried:
        return ""
    names = {(row.framework, row.method) for row in tried}
    failed = list(
        dict.fromkeys((row.framework, row.method) for row in tried if row.status == "failed")
    )
    text = f"{len(names) - len(failed)} of {len(names)} methods gave every byte back"
    return (
        f"{text} (failed: {listed([f'{method} in {framework}' for framework, method in failed])})"
        if failed
        else text
    )


def _spared(rows: Sequence[CostRow]) -> str:
    """Whose checkpoints outlive a power loss."""
    known = [row for row in rows if row.status == "ok" and row.durability != "unknown"]
    if not known:
        return ""
    safe = {(row.framework, row.method) for row in known if row.durability != "never"}
    safe -= {(row.framework, row.method) for row in known if row.durability == "never"}
    if not safe:
        return (
            "a power loss may cost any of these checkpoints, for none is flushed to the last name"
        )
    told = [(method, framework, "") for framework, method in sorted(safe)]
    return f"only with {_by_method(told)} is a checkpoint certain to outlive a power loss"


def _costs(runs: Sequence[Sequence[Row]]) -> list[list[CostRow]]:
    return [[row for row in rows if isinstance(row, CostRow)] for rows in runs]


def _is_good(row: CostRow | TrainRow) -> bool:
    number = row.durable_s if isinstance(row, CostRow) else row.overhead_s
    return row.status == "ok" and row.verified and number is not None


def _good_by_framework(runs: Sequence[Sequence[_Timed]]) -> dict[str, list[_Timed]]:
    """The good rows of each framework from one run, of the state and ranks that most good rows are about.

    It is the run that tried most methods, so that one of a few methods takes no answer from one of
    all, and a method that has failed since is no longer praised; the newest where several tried as
    many.
    """
    settings = [_setting(row) for rows in runs for row in rows if _is_good(row)]
    if not settings:
        return {}
    common = max(dict.fromkeys(settings), key=settings.count)
    found: dict[str, list[_Timed]] = {}
    for name in sorted({row.framework for rows in runs for row in rows}):
        own = [
            [row for row in rows if row.framework == name and _setting(row) == common]
            for rows in runs
        ]
        telling = [rows for rows in reversed(own) if any(_is_good(row) for row in rows)]
        if telling:
            found[name] = [row for row in max(telling, key=_tried) if _is_good(row)]
    return {name: rows for name, rows in found.items() if name != FLOOR or len(found) == 1}


def _tried(rows: Sequence[Row]) -> int:
    """How many methods were tried to the end."""
    return len({row.method for row in rows if row.status in ("ok", "failed")})


def _setting(row: Row) -> tuple[str, int]:
    return group_title(row), row.world


def _whole(rows: Sequence[_Kind]) -> Sequence[_Kind]:
    """The rows whose checkpoints hold the whole state, where there are any: to save less is no way to save fast."""
    return [row for row in rows if row.covers == "full"] or rows


def _durable(row: CostRow) -> float:
    return row.durable_s.value if row.durable_s else float("inf")


def _stall(row: CostRow) -> float:
    return row.stall_s.value if row.stall_s else float("inf")


def _overhead(row: TrainRow) -> float:
    return row.overhead_s.value if row.overhead_s else float("inf")


def _speed(row: CostRow, rows: Sequence[CostRow]) -> str:
    gain = compared_with_default(row, rows)
    return duration(row.durable_s) + (
        f", {gain.value:.1f} times as fast as the default" if gain and gain.low > 1 else ""
    )


def _added(row: TrainRow) -> str:
    share = f", {100 * row.overhead_share.value:+.1f} % of training" if row.overhead_share else ""
    return f"{spread_duration(row.overhead_s)}{share}"


def _by_method(told: Sequence[tuple[str, str, str]]) -> str:
    """Each method once, with the frameworks that it is told of and what is told: (method, framework, what)."""
    methods: dict[str, list[str]] = {}
    for method, framework, what in told:
        methods.setdefault(method, []).append(f"{framework} ({what})" if what else framework)
    alike: dict[str, list[str]] = {}
    for method, frameworks in methods.items():
        alike.setdefault(listed(frameworks), []).append(method)
    return ", and with ".join(
        f"{listed(names)} in {frameworks}" for frameworks, names in alike.items()
    )


def _are_of_several(rows: Iterable[Row], runs: Sequence[Sequence[Row]]) -> bool:
    return (
        len(
            {
                number
                for row in rows
                for number, members in enumerate(runs)
                if any(row is member for member in members)
            }
        )
        > 1
    )
