"""The script of each failure: who fails when, and the bits that the survivors must have."""

from __future__ import annotations

from harness.experiments.recovery import WAYS
from harness.experiments.recovery.records import SameAs
from harness.experiments.recovery.script import SAVE_EVERY, Kill, Script

_STEP = SAVE_EVERY + 2
_STEPS_AFTER = 3
# Of two neighbours, one keeps the mirror of the other. The last rank is a neighbour of the first.
_OF_TWO = ("in-a-row", "at-once", "in-repair", "in-restore")
_RANKS_OF_TWO = 4


def why_not(failure: str, way: str, members: int) -> str:
    """Return why a way has no such failure, or a world too few ranks; empty where it can be."""
    if failure == "in-save" and WAYS[way].state_from == "peers":
        return "this way saves no checkpoints"
    if failure == "down-to-one" and WAYS[way].newcomer:
        return "newcomers take the places of the dead, so nobody is ever alone"
    if failure in _OF_TWO and members < _RANKS_OF_TWO:
        return f"it needs at least {_RANKS_OF_TWO} ranks, so that the two dead are no neighbours"
    return ""


def script_of(failure: str, way: str, members: int) -> Script:
    """Return the script of a failure. Its last step comes a few after the last strike."""
    kills = _kills(failure, members)
    # When the launcher is killed, a spare must end as the members do.
    deaths = sum(kill.instant != "apart" for kill in kills)
    steps = max(kill.step for kill in kills) + _STEPS_AFTER
    return Script(
        way=way,
        members=members,
        spares=deaths if WAYS[way].newcomer == "waiting" else 0,
        steps=steps,
        kills=kills,
        # Files have what each rank alone had, and who shrinks gives it up.
        mirror=bool(WAYS[way].newcomer) and WAYS[way].state_from != "files",
        hashed=(steps,),
    )


def expected_bits(failure: str, way: str) -> SameAs:
    """Return the undisturbed run whose bits the survivors of a failure must have."""
    if failure in ("apart", "launcher") or WAYS[way].newcomer:
        return "all ranks"
    # The control leaves batches out, so it must have the bits of neither run.
    return "neither" if WAYS[way].drops else "fewer ranks"


def _kills(failure: str, members: int) -> tuple[Kill, ...]:
    last = members - 1
    match failure:
        case "rank-0":
            return (Kill(_STEP, "exchange", 0),)
        case "in-a-row":
            return (Kill(_STEP, "exchange", 1), Kill(_STEP + 1, "before", last))
        case "at-once":
            return (Kill(_STEP, "before", 0), Kill(_STEP, "before", 2))
        case "down-to-one":
            return tuple(Kill(_STEP + slot, "exchange", slot) for slot in range(last))
        case "in-repair":
            return (Kill(_STEP, "exchange", 0), Kill(_STEP, "repair", 2))
        case "in-restore":
            return (Kill(_STEP, "exchange", 0), Kill(_STEP, "restore", 2))
        case "stopped":
            return (Kill(_STEP, "stopped", last),)
        case "apart":
            return (Kill(_STEP, "apart", last),)
        case "in-save":
            return (Kill(2 * SAVE_EVERY, "save", 0),)
        case "launcher":
            return (Kill(_STEP, "launcher", 0),)
    raise ValueError(f"unknown failure {failure!r}")
