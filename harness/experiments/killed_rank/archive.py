"""The directories of killed ranks that stay with a run, and their kills as struck states."""

from __future__ import annotations

from pathlib import Path

from harness.durability import trees
from harness.durability.trees import Tree
from harness.experiments.faults.recorded_save import pack, unpack
from harness.experiments.faults.records import StruckRecord
from harness.experiments.killed_rank.records import RankKillRecord, RankLeftRecord
from harness.run.stored import StoredRun
from harness.wire.case import Case


def keep(folder: Path, number: int, checkpoints: Path) -> None:
    """Store what a killed rank has left with the run. Raises OSError where that fails."""
    folder.mkdir(parents=True, exist_ok=True)
    pack(trees.read(checkpoints), _archive(folder, number))


def read(folder: Path, number: int) -> Tree:
    """Return what `keep` stored. Raises OSError where it is not there."""
    return unpack(_archive(folder, number))


def struck_states(run: StoredRun, case: Case) -> list[StruckRecord]:
    """Return every kill of a case with what new ranks got, as other strikes are stored."""
    of_case = [record for record in run.records if getattr(record, "case", "") == case.id]
    # An interrupted case begins anew. The last answer counts.
    kills = {record.number: record for record in of_case if isinstance(record, RankKillRecord)}
    lefts = {record.number: record for record in of_case if isinstance(record, RankLeftRecord)}
    return [_struck(kills[number], lefts[number]) for number in sorted(kills.keys() & lefts.keys())]


def _struck(kill: RankKillRecord, left: RankLeftRecord) -> StruckRecord:
    return StruckRecord(
        kind="struck",
        case=kill.case,
        process=kill.process,
        rank=kill.rank,
        number=kill.number,
        strike="killed rank",
        instant=None,
        in_words=kill.in_words,
        verdict=left.verdict,
        got=left.got,
        reason=left.reason,
    )


def _archive(folder: Path, number: int) -> Path:
    return folder / f"{number:05d}.tar"
