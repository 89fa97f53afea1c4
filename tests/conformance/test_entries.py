"""The entries of a checkpoint account for the leaves, and for the bytes of the files."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from declarations import Declaration
from subject import SUBJECT, new_method, saved_entries

from adapters.base import Coverage, Entry
from workloads import Role

QUIRKS = SUBJECT.quirks
CASES = SUBJECT.chosen(QUIRKS.cases_of_entries)
SAVING = [name for name in SUBJECT.methods if name not in QUIRKS.cannot_save]
WITH_ENTRIES = [
    name
    for name in SAVING
    if SUBJECT.methods[name]["format"] not in QUIRKS.formats_without_entries
]
DEFAULT_SHARE = 0.5


@pytest.mark.parametrize("name", [name for name in SAVING if name not in WITH_ENTRIES])
def test_a_format_without_entries_has_none(
    lasting_framework: Any, prepared: Any, name: str, tmp_path: Path
) -> None:
    method = new_method(name, lasting_framework)
    assert saved_entries(method, prepared(CASES[0], 1), tmp_path / "checkpoint") == []


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", WITH_ENTRIES)
def test_the_entries_of_a_trained_state(
    lasting_framework: Any, prepared: Any, name: str, case: str, tmp_path: Path
) -> None:
    state = prepared(case, 1)
    path = tmp_path / "checkpoint"
    entries = saved_entries(new_method(name, lasting_framework), state, path)
    check_sizes_of_roles(name, lasting_framework, state, entries)
    check_files(name, path, entries)
    check_stored_sizes(SUBJECT.methods[name], entries)


@pytest.mark.skipif(not QUIRKS.leaves_out_zeros, reason="no format leaves anything out")
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", WITH_ENTRIES)
def test_the_entries_account_for_zeros_that_are_left_out(
    lasting_framework: Any, name: str, case: str, tmp_path: Path
) -> None:
    state = lasting_framework.build(SUBJECT.workload(case), 1)
    method = new_method(name, lasting_framework)
    entries = saved_entries(method, state, tmp_path / "checkpoint")
    check_sizes_of_roles(name, lasting_framework, state, entries)


def check_sizes_of_roles(name: str, framework: Any, state: Any, entries: list[Entry]) -> None:
    """Assert that the entries of every role are as large as its leaves."""
    declared = SUBJECT.methods[name]
    leaf_bytes: Counter[Role] = Counter()
    for leaf in framework.leaves(state):
        leaf_bytes[leaf.role] += leaf.data.nbytes
    header_bytes = QUIRKS.header_bytes.get(declared["format"], 0)
    entry_bytes: Counter[Role | None] = Counter()
    for entry in entries:
        entry_bytes[entry.role] += entry.raw_bytes - header_bytes
    once = dict.fromkeys(Coverage(declared["covers"]).roles, 1)
    copies = QUIRKS.copies.get(name, once)
    extra_bytes = QUIRKS.extra_bytes.get(declared["format"], {})
    for role in Role:
        if role is Role.POSITION and declared["format"] in QUIRKS.position_bytes:
            assert entry_bytes[role] in QUIRKS.position_bytes[declared["format"]]
            continue
        expected = copies.get(role, 0) * leaf_bytes[role]
        if role in copies:
            expected += extra_bytes.get(role, 0)
        assert entry_bytes[role] == expected, role
    without_role = [entry.name for entry in entries if entry.role is None]
    pattern = QUIRKS.entries_without_role
    assert [part for part in without_role if not re.fullmatch(pattern, part)] == []


def check_files(name: str, path: Path, entries: list[Entry]) -> None:
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
    format_name = SUBJECT.methods[name]["format"]
    share = QUIRKS.least_share.get(format_name, DEFAULT_SHARE)
    assert stored_bytes.total() > share * sum(file_bytes.values())


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
