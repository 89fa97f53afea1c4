"""Stored runs with their rows. Tables, figures, reports, comparisons and notebooks begin here."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from harness.analysis.records import RunRecords
from harness.analysis.row import Row, Wanted
from harness.analysis.rows import rows_of
from harness.run.stored import StoredRun, folders

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "results" / "reference"  # a folder for each machine, with the runs that are kept


@dataclass(frozen=True)
class ReadRun:
    """A stored run, its sorted records, and a row for every case of its plan, in the same order."""

    stored: StoredRun
    records: RunRecords
    rows: list[Row]

    @property
    def name(self) -> str:
        """The name of the run's folder."""
        return self.stored.name


def read_run(run: StoredRun | Path) -> ReadRun:
    """Read a run. Raises OSError where the folder holds none."""
    stored = run if isinstance(run, StoredRun) else StoredRun(run)
    wanted = [Wanted.of(item) for item in stored.plan]
    records = RunRecords(stored.records, {item.case.id: item.case.world for item in wanted})
    return ReadRun(stored, records, rows_of(wanted, records))


def reference_runs(folder: Path = REFERENCE) -> list[ReadRun]:
    """Return the committed runs, oldest first."""
    by_time = sorted(folders(folder), key=lambda run: run.name)
    return [read_run(run) for run in by_time]
