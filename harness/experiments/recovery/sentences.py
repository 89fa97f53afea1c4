"""Experiment `recovery` in words: which way back is the shortest, and what it does to the bits."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.claims import Claims, Runs, rows_of_kind
from harness.analysis.row import Naming
from harness.experiments.recovery import WAYS
from harness.experiments.recovery.cells import two_digits
from harness.experiments.recovery.rows import RecoveryRow


def meaning(rows: Sequence[RecoveryRow], naming: Naming) -> str:
    """Return the shortest way back, how it compares with a restart, and which ways went wrong.

    The control that drops batches is no way that anybody would choose.
    """
    if not any(row.kills for row in rows):
        said = ["No rank was killed."]
    elif not any(row.came_back for row in rows):
        said = ["Training did not come back after any kill."]
    else:
        said = _shortest(rows)
    for row in rows:
        if row.status == "failed":
            said.append(f"'{row.way_in_words}' failed: {row.reason}.")
    not_back = [row for row in rows if row.status == "ok" and row.came_back != row.kills]
    for row in not_back:
        said.append(f"'{row.way_in_words}' did not come back after every kill: {row.not_back}.")
    for row in rows:
        if row.wrong_bits:
            said.append(
                f"After {row.wrong_bits} of {row.kills} kills, '{row.way_in_words}' had other bits "
                "than it must have."
            )
    return " ".join(said)


def _shortest(rows: Sequence[RecoveryRow]) -> list[str]:
    """Return the sentence about the shortest way that anybody would choose; none where none is."""
    always = [row for row in rows if row.is_clean and row.came_back == row.kills]
    back = [row for row in always if row.back is not None and not WAYS[row.way].drops]
    if not back:
        return []
    fastest = min(back, key=lambda row: row.back.value if row.back else float("inf"))
    assert fastest.back is not None
    way = fastest.way_in_words
    named = f"to {way}" if fastest.way.startswith("shrink") else f"'{way}'"
    said = f"The shortest way back is {named}: {fastest.back.value:.2g} s after a kill"
    is_baseline = fastest.way == "restart" and fastest.default and not fastest.cold
    if is_baseline:
        return [f"{said}."]
    return [f"{said}, {_against_restart(fastest)}."]


def claims(runs: Runs) -> Claims:
    """Return after how many kills training came back with the bits that it must have.

    A row with wrong bits counts, although that is a mark. Other marks leave a row out.
    """
    rows = [row for members in rows_of_kind(runs, RecoveryRow) for row in members]
    certain = [row for row in rows if not row.marks or row.wrong_bits]
    measured = [row for row in certain if row.status == "ok" and row.kills]
    if not measured:
        return Claims()
    came_back = sum(row.came_back or 0 for row in measured)
    # Whether the bits were right is not known where an undisturbed run broke.
    right = came_back - sum(row.wrong_bits + row.unknown_bits for row in measured)
    kills = sum(row.kills or 0 for row in measured)
    return Claims(
        trust=[
            f"training came back with the bits that it must have after {right} of {kills} "
            "kills of a rank"
        ]
    )


def _against_restart(row: RecoveryRow) -> str:
    if row.times_faster is None:
        return "without a restart to compare with"
    return f"{two_digits(row.times_faster)} times sooner than by a restart"
