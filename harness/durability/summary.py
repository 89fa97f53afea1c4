"""Puts the counts and the verdict of one save into a record."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from harness.durability.replay import Event
from harness.durability.verdict import Verdict
from harness.wire.records import SyscallsRecord


def summarise(
    case_id: str,
    events: Sequence[Event],
    late_events: Sequence[Event],
    files: int,
    verdict: Verdict,
) -> SyscallsRecord:
    """Count the events of a save, and the writes among those after it finished.

    `fsyncs` counts fsync and fdatasync, of files and of directories. `syncs` counts sync and
    syncfs. `msyncs` counts msync with MS_SYNC. The sizes of writes are what the calls returned, and
    0 if there was no write. `files` is the number of files that the save left.
    """
    kinds = [event.kind for event in events]
    sizes_bytes = [event.size_bytes for event in events if event.kind == "write"]
    return SyscallsRecord(
        kind="syscalls",
        case=case_id,
        durability=verdict.durability,
        data_durability=verdict.data_durability,
        reason=verdict.reason,
        writes=len(sizes_bytes),
        write_bytes=sum(sizes_bytes),
        write_min_bytes=min(sizes_bytes, default=0),
        write_median_bytes=statistics.median_low(sizes_bytes) if sizes_bytes else 0,
        write_max_bytes=max(sizes_bytes, default=0),
        direct_writes=sum(event.is_direct for event in events),
        fsyncs=kinds.count("fsync"),
        syncs=kinds.count("sync"),
        msyncs=kinds.count("msync"),
        renames=kinds.count("rename"),
        files=files,
        late_writes=sum(event.kind == "write" for event in late_events),
    )


def unknown(case_id: str, reason: str) -> SyscallsRecord:
    """Return the record of a save that could not be traced, or not be found in its log."""
    return summarise(case_id, [], [], files=0, verdict=Verdict.unknown(reason))


def never(record: SyscallsRecord, reason: str) -> SyscallsRecord:
    """Return the record of a save that no flush makes safe, because of where its files are."""
    return replace(record, durability="never", data_durability="never", reason=reason)
