"""Experiment `faults` in words: which methods leave a usable checkpoint whatever strikes a save."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from harness.analysis.claims import Claims, Runs, rows_of_kind
from harness.analysis.row import Naming
from harness.analysis.text import listed
from harness.experiments.faults.records import WORST_FIRST
from harness.experiments.faults.rows import FaultsRow

_REASON_CHARACTERS = 120  # in a line below a table

_EVERY_ONE = "every kill and power loss that was tried"


def meaning(rows: Sequence[FaultsRow], naming: Naming) -> str:
    """Return which methods survive every crash, and which load damaged bytes without an error."""
    tried = [row for row in rows if row.status == "ok"]
    if not tried:
        return "No save could be struck."
    crashed = _crashed(tried)
    safe = [naming.full_name(row) for row in crashed if _is_safe(row)]
    # A loss is worse, but it does not hide that other damages were silent.
    silent = [naming.full_name(row) for row in tried if (row.damage_verdicts or {}).get("silent")]
    said = []
    if safe:
        said.append(f"With {listed(safe)}, a resumed run is safe after {_EVERY_ONE}.")
    elif crashed:
        said.append(f"With no method is a resumed run safe after {_EVERY_ONE}.")
    if silent:
        said.append(f"Damaged files load without an error with {listed(silent)}.")
    else:
        said.append("No damage changes what a load brings back without an error.")
    return " ".join(said)


def details(rows: Sequence[FaultsRow], naming: Naming, *, is_short: bool) -> list[str]:
    """Return the worst states of each method that is not safe. Methods with the same share a line.

    A short line is a method's worst state, or its worst damage where every other strike is safe,
    with the first line of the loader's reason. Long lines are both of them, with the whole reason.
    A loader that refuses a damaged file is right, so damage counts only where it was silent. Where
    a strike is missing or was left out, a line of its own says so.
    """
    names_of: dict[str, list[str]] = {}
    for row in rows:
        lines = list(_worst_states(row, is_short=is_short))
        lines = lines[:1] if is_short else lines
        lines += [*_late(row), *_left_out(row), *_not_on_disks(row)]
        if row.not_struck:
            lines.append(row.not_struck)
        for line in lines:
            names_of.setdefault(line, []).append(naming.full_name(row))
    return [f"{listed(names)}: {line}" for line, names in names_of.items()]


def claims(runs: Runs) -> Claims:
    """Return how many methods are safe after every crash."""
    rows = [row for members in rows_of_kind(runs, FaultsRow) for row in members]
    crashed = _crashed(rows)
    if not crashed:
        return Claims()
    safe = sum(map(_is_safe, crashed))
    return Claims(trust=[f"{safe} of {len(crashed)} methods are safe after {_EVERY_ONE}"])


def _crashed(rows: Sequence[FaultsRow]) -> list[FaultsRow]:
    """Return the rows without a mark whose kills and power losses could be built."""
    return [row for row in rows if row.is_clean and row.kill and not row.not_seen]


def _is_safe(row: FaultsRow) -> bool:
    losses = [row.power_loss, row.power_loss_on_ext4]
    losses += [row.power_loss_on_xfs, row.power_loss_on_btrfs]
    # A real kill may hit an instant that was not built from the log.
    real_kills = [state for state in row.struck if state["strike"] == "real kill"]
    verdicts = [*losses, *(state["verdict"] for state in real_kills)]
    return row.kill == "safe" and all(verdict in ("", "safe") for verdict in verdicts)


def _worst_states(row: FaultsRow, *, is_short: bool) -> Iterator[str]:
    """Yield why there are no crashes, then the worst state but damages, then the worst damage."""
    if row.not_seen and row.kill:
        yield f"power losses were not seen, and its kills are real ones: {row.not_seen}"
    elif row.not_seen:
        yield f"kills and power losses were not seen: {row.not_seen}"
    others = [state for state in row.struck if state["strike"] != "damage"]
    damages = [state for state in row.struck if state["strike"] == "damage"]
    unsafe = [state for state in others if state["verdict"] != "safe"]
    unnoticed = [state for state in damages if state["verdict"] == "silent"]
    for states in (unsafe, unnoticed):
        if states:
            worst = min(states, key=lambda state: WORST_FIRST.index(state["verdict"]))
            yield _in_words(worst, is_short=is_short)


def _late(row: FaultsRow) -> Iterator[str]:
    """Yield after which SIGTERMs the grace was over too early."""
    if not row.late:
        return
    times = {"while training": row.preempted_s, "in a save": row.preempted_in_save_s}
    moments = [moment for moment, took in times.items() if took is None]
    yield f"no checkpoint was durable within {row.grace_s} s of a SIGTERM {listed(moments)}"


def _left_out(row: FaultsRow) -> Iterator[str]:
    """Yield how many power losses the limit has left out."""
    if row.singles_left_out:
        yield (
            f"{row.singles_left_out} power losses that take a single name or file were not tried; "
            "--states all tries them"
        )


def _not_on_disks(row: FaultsRow) -> Iterator[str]:
    """Yield why no power was cut on real file systems. Those with the same reason share a line."""
    names_of: dict[str, list[str]] = {}
    for file_system, reason in (row.not_on_disks or {}).items():
        names_of.setdefault(reason, []).append(file_system)
    for reason, names in names_of.items():
        yield f"no power was cut on {listed(names)}: {reason}"


def _in_words(state: dict[str, Any], *, is_short: bool) -> str:
    """Return a state with its verdict and the loader's reason."""
    reason = state["reason"]
    if is_short:
        first_line = reason.partition("\n")[0]
        reason = textwrap.shorten(first_line, _REASON_CHARACTERS, placeholder=" …")
    because = f", {reason}" if reason else ""
    return f"{state['in_words']}: {state['verdict']}{because}"
