"""Where a run writes, all of it below its scratch directory.

The driver looks here too, to see what a worker has left.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.wire.case import Case


@dataclass(frozen=True)
class Folders:
    """Where a job writes, all of it below the run's scratch directory."""

    scratch: Path

    @property
    def trial(self) -> Path:
        """Parent of the checkpoint under test; empty before each sample."""
        return self.scratch / "trial"

    @property
    def ceilings(self) -> Path:
        """Where the ceilings' files lie: the same file system as the checkpoints."""
        return self.scratch / "ceilings"

    @property
    def temporary(self) -> Path:
        """What methods may use for sockets and the like."""
        return self.scratch / "tmp"

    def kept(self, case: Case) -> Path:
        """Parent of the checkpoint that a later process loads."""
        return self.scratch / "kept" / case.id

    def digests(self, case: Case, rank: int) -> Path:
        """What that checkpoint must restore on a rank."""
        return self.scratch / "expected" / f"{case.id}-{rank}.json"

    def reference(self, case: Case, rank: int) -> Path:
        """A rank's list of what it has kept of the uninterrupted run, beside the values themselves."""
        return self.scratch / "reference" / _state_key(case) / f"rank-{rank}.json"


def _state_key(case: Case) -> str:
    """What cases with the same training have in common."""
    return f"{case.workload}-{case.preset}-{case.precision}-{case.dropout}-{case.scale}"
