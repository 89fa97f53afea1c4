"""The checks of a checkpoint's entries."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from declarations import Declaration
from subject import SUBJECT

from adapters.base import Entry, Framework
from workloads import Role

QUIRKS = SUBJECT.quirks
# The share of all bytes of a checkpoint that its entries must account for.
LEAST_SHARE = 0.5
# Of a smaller checkpoint, the format's own parts may be most.
SMALL_BYTES = 64 << 10


def leaf_bytes_of(framework: Framework[Any], state: Any) -> Counter[Role]:
    """Return the size of all leaves of each role."""
    leaf_bytes: Counter[Role] = Counter()
    for leaf in framework.leaves(state):
        leaf_bytes[leaf.role] += leaf.data.nbytes
    return leaf_bytes


def check_sizes_of_roles(
    name: str,
    leaf_bytes: Counter[Role],
    entries: list[Entry],
    roles: Iterable[Role] = Role,
    writers: int = 1,
) -> None:
    """Assert that the entries of every role are as large as its leaves, from all writers."""
    declared = SUBJECT.methods[name]
    header_bytes = QUIRKS.header_bytes.get(declared["format"], 0)
    entry_bytes: Counter[Role | None] = Counter()
    for entry in entries:
        entry_bytes[entry.role] += entry.raw_bytes - header_bytes
    copies = SUBJECT.copies(name)
    extra_bytes = QUIRKS.extra_bytes.get(declared["format"], {})
    for role in roles:
        if role is Role.POSITION and declared["format"] in QUIRKS.position_bytes:
            assert entry_bytes[role] in QUIRKS.position_bytes[declared["format"]]
            continue
        expected = copies.get(role, 0) * leaf_bytes[role]
        if role in copies:
            expected += writers * extra_bytes.get(role, 0)
        assert entry_bytes[role] == expected, role
    without_role = [entry.name for entry in entries if entry.role is None]
    pattern = QUIRKS.entries_without_role
    assert [part for part in without_role if not re.fullmatch(pattern, part)] == []


def check_files(path: Path, entries: list[Entry]) -> None:
    """Assert that no file has less than its entries, and that they account for most bytes."""
    assert len({(entry.file, entry.name) for entry in entries}) == len(entries)
    stored_bytes: Counter[str] = Counter()
    for entry in entries:
        assert entry.stored_bytes >= 0
        stored_bytes[entry.file] += entry.stored_bytes
    file_bytes = sizes_of_files(path)
    assert stored_bytes.keys() <= file_bytes.keys()
    for file, size_bytes in stored_bytes.items():
        left_bytes = file_bytes[file] - size_bytes
        assert left_bytes >= 0, file
        for part, limit_bytes in QUIRKS.unaccounted_bytes.items():
            assert part not in file or left_bytes <= limit_bytes, file
    all_bytes = sum(file_bytes.values())
    share = stored_bytes.total() / all_bytes
    assert share > LEAST_SHARE or all_bytes < SMALL_BYTES, f"entries are {share:.0%} of the files"


def sizes_of_files(path: Path) -> dict[str, int]:
    """Return the size of every file of a checkpoint, by the name that entries give it."""
    if path.is_file():
        return {path.name: path.stat().st_size}
    files = [file for file in path.rglob("*") if file.is_file()]
    return {str(file.relative_to(path)): file.stat().st_size for file in files}


def check_stored_sizes(declared: Declaration, entries: list[Entry]) -> None:
    """Assert that entries are compressed where the method says so, and nowhere else."""
    if declared.get("compressed"):
        slots = [entry for entry in entries if entry.role is Role.OPTIMIZER]
        stored_bytes = sum(entry.stored_bytes for entry in slots)
        assert not slots or stored_bytes < sum(entry.raw_bytes for entry in slots)
        return
    padding_bytes = QUIRKS.padding_bytes.get(declared["format"], 0)
    limit_bytes = QUIRKS.compressed_up_to_bytes.get(declared["format"], 0)
    for entry in entries:
        assert entry.stored_bytes <= entry.raw_bytes + padding_bytes, entry
        assert entry.stored_bytes >= entry.raw_bytes or entry.raw_bytes <= limit_bytes, entry
