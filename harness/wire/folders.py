"""The folders that a run writes to, all of them below its scratch directory.

The driver looks there too, to see what a worker has left.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.wire.case import Case

# The scratch directory of a thread that runs jobs beside others, in that of the run.
LANE = "lane-{}"


@dataclass(frozen=True)
class Folders:
    """The folders of a job, all of them below the run's scratch directory."""

    scratch: Path

    @property
    def saves(self) -> Path:
        """Return the folder of all checkpoints. Each has a folder of its own there."""
        return self.scratch / "saves"

    @property
    def ceilings(self) -> Path:
        """Return the folder of the ceilings' files, on the file system of the checkpoints."""
        return self.scratch / "ceilings"

    @property
    def temporary(self) -> Path:
        """Return the folder that methods may use for sockets and the like."""
        return self.scratch / "tmp"

    @property
    def programs(self) -> Path:
        """Return the folder that frameworks may use for compiled programs."""
        return self.scratch / "programs"

    def kept(self, case: Case, rank: int) -> Path:
        """Return the list of the checkpoints that a later process loads.

        It holds the digests that each checkpoint must restore on a rank. The driver looks whether
        it is there, so its name is the same in all versions.
        """
        return self.scratch / "expected" / f"{case.id}-{rank}.json"

    @property
    def gate_report(self) -> Path:
        """Return the file in which the gate around a job counts the calls that it strikes."""
        return self.scratch / "gate.json"

    @property
    def endings(self) -> Path:
        """Return the file that tells how the forked processes of a job have ended."""
        return self.scratch / "endings.json"

    @property
    def recordings(self) -> Path:
        """Return the folder of all recordings."""
        return self.scratch / "recordings"

    def recording(self, case: Case) -> Path:
        """Return the folder of what is recorded of one save of a case, call by call."""
        return self.recordings / case.id

    def reference(self, case: Case, rank: int) -> Path:
        """Return the index of the states that a rank stored of the uninterrupted run.

        The states lie beside it.
        """
        return self.scratch / "reference" / _state_key(case) / f"rank-{rank}.json"


def _state_key(case: Case) -> str:
    """Return a name that cases with the same training share."""
    return f"{case.workload}-{case.preset}-{case.precision}-{case.dropout}-{case.scale}"
