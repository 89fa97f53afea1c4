"""The stage of experiment `recovery`: ranks that train, are killed, and come back."""

from __future__ import annotations

from harness.worker.bench import Bench, Entries


def recover(bench: Bench, entries: Entries) -> None:
    """Train by the script of the case, and end this process."""
    # It starts MPI, so a process that only looks for stages must not import it.
    from harness.experiments.recovery import ranks

    ranks.run(bench, entries)


STAGES = {"recover": recover}
