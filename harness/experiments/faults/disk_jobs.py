"""Cuts the power of real file systems while a save is at work, and stores what is left."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.durability import trees
from harness.durability.blocks.available import available
from harness.durability.blocks.disk import LoggedDisk, logged_disk
from harness.durability.blocks.states import DiskState, Span, states
from harness.durability.blocks.tools import DiskError
from harness.durability.trees import File, Tree
from harness.experiments.faults import EXPERIMENT
from harness.experiments.faults import left as lefts
from harness.experiments.faults.jobs import bring, missing, unfinished
from harness.experiments.faults.left import Left
from harness.experiments.faults.recorded_save import DISK_INSTANTS, DISK_ORDER, read, report
from harness.experiments.faults.records import ON_DISK, DisksRecord
from harness.wire.case import Case
from harness.wire.driving import ExperimentSession

# The older and the newer checkpoint, and what a method writes beside them before it renames it.
_ROOM = 6
_SUBSETS_AT_MOST = 20


@dataclass(frozen=True)
class _Noted:
    """The instants of a disk's log: the begin of a save, its end, and some seconds after that."""

    begin: int
    finished: int
    settled: int


@dataclass(frozen=True)
class _Counts:
    """The block writes of a save, and the power losses that were built of them."""

    block_writes: int
    losses: int


class _NotDoneError(Exception):
    """A save that came to no end on a disk."""


def cut_power(session: ExperimentSession) -> None:
    """Cut the power of every case's save on the file systems that its suite asks for."""
    for case in missing(session, "disks"):
        bring(session, case)
    cases = unfinished(session, "disks", DisksRecord)
    asked = {kind for case in cases for kind in _asked(case)}
    if asked:
        session.announce("power losses on real file systems")
    obstacles = {kind: available(kind) for kind in sorted(asked)}
    for case in cases:
        counts: dict[str, _Counts] = {}
        not_done: dict[str, str] = {}
        for kind in _asked(case):
            try:
                counts[kind] = _cut(session, case, kind, obstacles[kind])
            except (_NotDoneError, DiskError, OSError) as error:
                not_done[kind] = str(error)
        record = DisksRecord(
            kind="disks",
            case=case.id,
            process=session.slot,
            rank=0,
            block_writes={kind: each.block_writes for kind, each in counts.items()},
            losses={kind: each.losses for kind, each in counts.items()},
            not_done=not_done,
        )
        report(bring(session, case), record)
        unfinished(session, "disks", DisksRecord)


def _asked(case: Case) -> list[str]:
    """Return the file systems of a case."""
    chosen = EXPERIMENT.settings(case)["file_systems"]
    if chosen == "all":
        return list(ON_DISK)
    return [] if chosen == "none" else [chosen]


def _cut(session: ExperimentSession, case: Case, kind: str, obstacle: str | None) -> _Counts:
    """Save on one file system, and store what power losses leave."""
    if obstacle is not None:
        raise _NotDoneError(obstacle)
    recorded = bring(session, case)
    save = read(recorded)
    place = session.scratch / "disk"
    room_bytes = _ROOM * max(_bytes_of(save.before), _bytes_of(save.after))
    try:
        with logged_disk(kind, place, room_bytes) as disk:
            trees.fill(save.before, disk.folder)
            # The older checkpoint is complete, and no power loss may take it.
            disk.sync()
            noted = _save(session, case, recorded, disk)
        return _store(case, recorded, disk, noted)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _save(session: ExperimentSession, case: Case, recorded: Path, disk: LoggedDisk) -> _Noted:
    """Have a worker save on a disk. Raises _NotDoneError where the save does not succeed."""
    begin = disk.instant()
    kind = disk.file_system.name
    order = {"file_system": kind, "folder": str(disk.folder), "log": str(disk.log)}
    (recorded / DISK_ORDER).write_text(json.dumps(order))
    instants = recorded / DISK_INSTANTS
    instants.unlink(missing_ok=True)
    reason = session.run_job("disk", [case])
    if not instants.exists():
        raise _NotDoneError(f"the save on {kind} came to no end: {reason or 'it was left out'}")
    noted: dict[str, Any] = json.loads(instants.read_text())
    if noted["error"]:
        raise _NotDoneError(f"the save on {kind} failed: {noted['error']}")
    return _Noted(begin, noted["finished"], noted["settled"])


def _store(case: Case, recorded: Path, disk: LoggedDisk, noted: _Noted) -> _Counts:
    """Store each different directory that a power loss leaves."""
    instants = int(EXPERIMENT.settings(case)["instants"])
    subsets = min(_SUBSETS_AT_MOST, instants // 3)
    span = Span(noted.begin, noted.settled, instants, subsets, seed=case.id)
    stored: set[str] = set()
    losses = 0
    for state in states(disk, span, disk.log.parent):
        losses += 1
        digest = trees.digest(state.tree)
        if digest not in stored:
            stored.add(digest)
            lefts.store(recorded, _left(state, disk.file_system.name, noted), state.tree)
    return _Counts(disk.writes_between(span.begin, span.end), losses)


def _left(state: DiskState, kind: str, noted: _Noted) -> Left:
    is_over = state.instant >= noted.finished
    said = "the save had reported success" if is_over else "the save was at work"
    words = f"{state.in_words}, after the save" if is_over else state.in_words
    if state.refused:
        said += f"; {state.refused}"
    return Left(ON_DISK[kind], words, lefts.of_disk(kind), said, succeeded=is_over)


def _bytes_of(tree: Tree) -> int:
    return sum(len(node.data) for node in tree.values() if isinstance(node, File))
