"""The kills of each way: who dies, in which step, at which instant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from harness.experiments.recovery import WAYS
from harness.experiments.recovery.script import SAVE_EVERY, Instant, Kill, Script

KILLS = 6  # of a row; their range covers the true median 97 times of 100
# Two steps after each checkpoint. So two steps are lost where ranks go back to one.
_FIRST_STEP = SAVE_EVERY + 2
_INSTANTS: tuple[Instant, ...] = ("forward", "before", "exchange", "after", "save", "before")
_VICTIMS = (1, 2, 0, 1, 0, 2)
_STEPS_AFTER_LAST = 4


def kills(way: str, members: int) -> list[tuple[Kill, ...]]:
    """Return the kills of each job of a way. A restarted job counts as one that goes on.

    Without newcomers every kill costs a rank, so a job has at most as many as leave one rank.
    """
    chained = WAYS[way].kills_a_job
    if not WAYS[way].restarts and not WAYS[way].newcomer:
        chained = min(chained, members - 1)
    jobs = []
    for first in range(0, KILLS, chained):
        numbers = range(first, min(first + chained, KILLS))
        jobs.append(tuple(_kill(number, number - first, way, members) for number in numbers))
    return jobs


def scripts(way: str, members: int, mirror: bool, **settings: Any) -> list[Script]:
    """Return the script of each job of a way. `settings` are other fields of every script."""
    written = []
    for chain in kills(way, members):
        written.append(
            Script(
                way=way,
                members=members,
                spares=len(chain) if WAYS[way].newcomer == "waiting" else 0,
                steps=_last_step(chain),
                kills=chain,
                mirror=mirror,
                hashed=_compared_after(way, chain),
                **settings,
            )
        )
    return written


def _compared_after(way: str, chain: Sequence[Kill]) -> tuple[int, ...] | None:
    """Return after how many steps the state is compared; None for after each.

    It is after each killed step. Where a new process joins later, nobody knows after which step.
    """
    if WAYS[way].goes_on:
        return None
    return tuple(kill.step + 1 for kill in chain)


def undisturbed(members: int, way: str) -> Script:
    """Return the script of a run in which nobody dies, as long as the longest one.

    The ranks add up as they do in the way, because another order of sums gives other bits.
    """
    steps = max(script.steps for script in scripts("restart", members, mirror=False))
    way = _adding_up_as(way)
    return Script(way=way, members=members, spares=0, steps=steps, kills=(), planned=True)


def with_leaves_taken(script: Script) -> Script:
    """Return the script in which the ranks that a shrink loses take leave at the same steps."""
    leaving = tuple(kill for kill in script.kills if kill.instant != "apart")
    way = _adding_up_as(script.way)
    return replace(
        script,
        way=way,
        spares=0,
        kills=leaving,
        mirror=False,
        planned=True,
        heartbeats=False,
        pause_s=Script.pause_s,
        hashed=None,
    )


def _adding_up_as(way: str) -> str:
    """Return the way whose runs without a failure have the same sums as those of this one."""
    return way if WAYS[way].own else "shrink"


def _kill(number: int, place: int, way: str, members: int) -> Kill:
    """Return kill number `number` of a way, which is the `place`-th of its job."""
    instant = _INSTANTS[number]
    victim = _VICTIMS[number] % members
    step = _FIRST_STEP + place * SAVE_EVERY
    if instant != "save":
        return Kill(step, instant, victim)
    if WAYS[way].state_from == "peers":
        # There is no checkpoint.
        return Kill(step, "forward", victim)
    next_save = (step // SAVE_EVERY + 1) * SAVE_EVERY
    return Kill(next_save, instant, victim)


def _last_step(chain: tuple[Kill, ...]) -> int:
    return max(kill.step for kill in chain) + _STEPS_AFTER_LAST
