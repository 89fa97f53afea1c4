"""The fate of each rank's save, as the ranks have noted it."""

from __future__ import annotations

from dataclasses import dataclass

from harness.experiments.killed_rank.orders import Notes, Order
from harness.experiments.killed_rank.records import Fate, RankKillRecord
from harness.experiments.recovery.events import Event, read_events
from harness.wire import stacks
from harness.wire.strikes import Report

# The thread with a file of this folder in its stack is the one that saves.
_ITSELF = "harness/experiments/killed_rank"


@dataclass(frozen=True)
class RankSave:
    """One rank's save. Instants are those of the system's monotonic clock.

    `ended_ns` is None where the process noted no end, because it was killed, hung or died.
    """

    rank: int
    group: int
    began_ns: int
    ended_ns: int | None
    fate: Fate
    said: str


def read(notes: Notes, number: int, world: int) -> list[RankSave]:
    """Return the save of every rank that began one."""
    events = read_events(notes.of_save(number))
    saves = []
    for rank in range(world):
        of_rank = {event.name: event for event in events if event.rank == rank}
        if "begin" in of_rank:
            saves.append(_save(notes, number, rank, of_rank))
    return saves


def of_kill(notes: Notes, order: Order, report: Report, process: int) -> RankKillRecord | None:
    """Return the fate of the rank that was not killed; None where nobody was."""
    saves = read(notes, order.number, notes.case.world)
    if not report.struck or len(saves) < notes.case.world:
        return None
    caller = next((save for save in saves if save.group == report.group), None)
    if caller is None:
        return None
    kills_caller = order.effect == "kill-group"
    other = next(save for save in saves if save is not caller)
    survivor, victim = (other, caller) if kills_caller else (caller, other)
    after_ns = _after_ns(survivor, report.at_ns, order.limit_s)
    return RankKillRecord(
        kind="rank-kill",
        case=notes.case.id,
        process=process,
        rank=0,
        number=order.number,
        in_words=_in_words(notes, order, report, victim.rank),
        victim=victim.rank,
        is_caller=kills_caller,
        fate=survivor.fate,
        after_ns=after_ns,
        said=survivor.said,
    )


def _after_ns(survivor: RankSave, killed_ns: int, limit_s: float) -> int | None:
    """Return the time from the kill to the end of the other's save, or to the time limit."""
    if survivor.fate == "hung":
        return max(0, survivor.began_ns + int(limit_s * 1e9) - killed_ns)
    if survivor.ended_ns is None:
        return None
    return max(0, survivor.ended_ns - killed_ns)


def _in_words(notes: Notes, order: Order, report: Report, victim: int) -> str:
    call = (report.first or "call").replace(f"{notes.folder_name(order.number)}/", "")
    whose = "its" if order.effect == "kill-group" else "the other rank's"
    return f"rank {victim} killed before {whose} {call}"


def _save(notes: Notes, number: int, rank: int, of_rank: dict[str, Event]) -> RankSave:
    fates: tuple[Fate, ...] = ("finished", "raised")
    began = of_rank["begin"]
    for fate in fates:
        if fate in of_rank:
            end = of_rank[fate]
            said = str(end.values.get("said", ""))
            return RankSave(rank, began.values["group"], began.at_ns, end.at_ns, fate, said)
    stack = notes.hung(number, rank)
    stack_text = stack.read_text() if stack.exists() else ""
    hung = "Timeout" in stack_text
    place = stacks.innermost(stack_text, _ITSELF)
    said = f"stood in {place}" if hung else "its process ended by itself"
    fate = "hung" if hung else "died"
    return RankSave(rank, began.values["group"], began.at_ns, None, fate, said)
