"""The verdict on one directory that a strike has left."""

from __future__ import annotations

from dataclasses import dataclass

from harness.experiments.faults.records import Verdict


@dataclass(frozen=True)
class Outcome:
    """The verdict on one directory. `got` is the checkpoint that came back; empty for none."""

    verdict: Verdict
    got: str
    reason: str
