"""The stage of experiment `goodput`: ranks that train until an instant or a kill."""

from __future__ import annotations

from harness.worker.bench import Bench, Entries


def recover(bench: Bench, entries: Entries) -> None:
    """Train from the newest checkpoint on, by the script of the case."""
    # It starts MPI, so a process that only looks for stages must not import it.
    from harness.experiments.goodput import trainee

    trainee.run(bench, entries)


STAGES = {"recover": recover}
