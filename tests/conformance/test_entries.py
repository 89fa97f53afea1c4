"""The entries of a checkpoint account for the leaves, and for the bytes of the files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from entry_checks import check_files, check_sizes_of_roles, check_stored_sizes, leaf_bytes_of
from subject import SUBJECT, new_method, saved_entries

QUIRKS = SUBJECT.quirks
CASES = SUBJECT.chosen(QUIRKS.cases_of_entries)
SAVING = [name for name in SUBJECT.methods if name not in QUIRKS.cannot_save]
WITH_ENTRIES = [
    name for name in SAVING if SUBJECT.methods[name]["format"] not in QUIRKS.formats_without_entries
]


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
    check_sizes_of_roles(name, leaf_bytes_of(lasting_framework, state), entries)
    check_files(path, entries)
    check_stored_sizes(SUBJECT.methods[name], entries)
    if QUIRKS.entry_names_are_unique:
        assert len({entry.name for entry in entries}) == len(entries)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", WITH_ENTRIES if QUIRKS.leaves_out_zeros else [])
def test_the_entries_account_for_zeros_that_are_left_out(
    lasting_framework: Any, name: str, case: str, tmp_path: Path
) -> None:
    state = lasting_framework.build(SUBJECT.workload(case), 1)
    method = new_method(name, lasting_framework)
    entries = saved_entries(method, state, tmp_path / "checkpoint")
    check_sizes_of_roles(name, leaf_bytes_of(lasting_framework, state), entries)
