"""Experiment `sizes` in words: how far the state can be compressed, and which files repeat."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis.claims import Claims, Runs, certain_rows
from harness.analysis.row import Naming
from harness.analysis.text import fraction, listed
from harness.experiments.sizes.rows import SizesRow


def meaning(rows: Sequence[SizesRow], naming: Naming) -> str:
    """Return how far the state itself can be compressed, and which files change."""
    good = [row for row in rows if row.status == "ok"]
    if not good:
        return "No method's files could be looked at."
    said = [_compressibility(good[0], naming.whose(good[0]))]
    changing = [row for row in good if row.same_in_one_process is False]
    in_one = [_with_causes(row, naming) for row in changing]
    steady = [row for row in good if row.same_in_one_process]
    in_two = [_with_causes(row, naming) for row in steady if row.same_in_two_processes is False]
    if in_one:
        said.append(
            f"Saving the same state twice in one process gives other files with {listed(in_one)}."
        )
    if in_two:
        said.append(f"Two processes with the same state write other files with {listed(in_two)}.")
    if not in_one and not in_two:
        every = "Every method" if len(good) == len(rows) else "Every method that could be looked at"
        said.append(f"{every} writes the same files for the same state.")
    return " ".join(sentence for sentence in said if sentence)


def claims(runs: Runs) -> Claims:
    """Return how often two processes write the same files for the same state."""
    rows = certain_rows(runs, SizesRow)
    verdicts = [row.same_in_two_processes for row in rows]
    known = [verdict for verdict in verdicts if verdict is not None]
    if not known:
        return Claims()
    return Claims(
        trust=[
            f"{sum(known)} of {len(known)} times two processes write the same files for the same "
            "state"
        ]
    )


def _with_causes(row: SizesRow, naming: Naming) -> str:
    return f"{naming.name(row)} ({', '.join(row.causes)})"


def _compressibility(row: SizesRow, whose: str) -> str:
    if row.weights_deflated_trained is None or row.optimizer_deflated_trained is None:
        return ""
    return (
        f"Deflate leaves {fraction(row.weights_deflated_trained)} of {whose} trained weights "
        f"(fresh: {fraction(row.weights_deflated_fresh)}; with a byte shuffle: "
        f"{fraction(row.weights_shuffled_trained)}) and {fraction(row.optimizer_deflated_trained)} "
        f"of the optimizer's slots (fresh: {fraction(row.optimizer_deflated_fresh)}; with a byte "
        f"shuffle: {fraction(row.optimizer_shuffled_trained)})."
    )
