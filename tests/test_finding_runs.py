"""Runs are found by name, by path, and as the latest one."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from harness.run import store
from harness.run.errors import UsageError


def named(results: Path, *names: str) -> None:
    for name in names:
        (results / name).mkdir(parents=True)
        (results / name / store.RECORDS).touch()


def test_the_latest_is_the_newest_by_name_wherever_it_lies(tmp_path: Path) -> None:
    named(
        tmp_path,
        "20250102-000000-smoke-raw",
        "20250101-235959-smoke-raw",
        "reference/machine/20240101-000000-bench-raw",
    )
    assert store.find(tmp_path, "latest").name == "20250102-000000-smoke-raw"
    named(tmp_path, "reference/machine/20260101-000000-bench-raw")
    assert (
        store.find(tmp_path, "latest") == tmp_path / "reference/machine/20260101-000000-bench-raw"
    )


def test_of_two_runs_of_one_second_the_later_one_is_the_latest(tmp_path: Path) -> None:
    names = [
        "20250101-000000-smoke-raw",
        "20250101-000000-smoke-raw-2",
        "20250101-000000-bench-raw",
    ]
    named(tmp_path, *names)
    for age, name in enumerate(reversed(names)):
        os.utime(tmp_path / name, (1e9 + age, 1e9 + age))
    assert store.find(tmp_path, "latest").name == names[0]


def test_a_run_is_found_by_name_or_by_path(tmp_path: Path) -> None:
    named(tmp_path, "results/one", "results/reference/machine/two", "elsewhere/three")
    results = tmp_path / "results"
    assert store.find(results, "one") == results / "one"
    assert store.find(results, "two") == results / "reference/machine/two"
    assert store.find(results, str(tmp_path / "elsewhere/three")) == tmp_path / "elsewhere/three"


def test_a_run_is_found_by_path_where_there_are_no_others(tmp_path: Path) -> None:
    named(tmp_path, "elsewhere/three")
    assert (
        store.find(tmp_path / "results", str(tmp_path / "elsewhere/three"))
        == tmp_path / "elsewhere/three"
    )


def test_an_unknown_run_gets_the_nearest_name_and_those_there_are(tmp_path: Path) -> None:
    named(tmp_path, "20250101-000000-smoke-raw", "20250102-000000-bench-raw")
    message = (
        "unknown run '20250101-000000-smoke-rav'; did you mean '20250101-000000-smoke-raw'? "
        "(known: 20250101-000000-smoke-raw, 20250102-000000-bench-raw)"
    )
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        store.find(tmp_path, "20250101-000000-smoke-rav")


def test_of_many_runs_the_newest_are_named(tmp_path: Path) -> None:
    named(tmp_path, *(f"20250101-0000{number:02}-smoke-raw" for number in range(33)))
    with pytest.raises(
        UsageError,
        match=r"\(known: 20250101-000003-smoke-raw, .*, 20250101-000032-smoke-raw and 3 more\)$",
    ):
        store.find(tmp_path, "none-such")


@pytest.mark.parametrize("name", ["latest", "20250101-000000-smoke-raw", "/no/such/place"])
def test_without_any_run_the_message_says_so(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=f"^there are no runs in {tmp_path} yet; measure one"):
        store.find(tmp_path, name)


def test_a_folder_without_records_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "20250101-000000-smoke-raw").mkdir()
    assert store.folders(tmp_path) == []


def test_a_renamed_folder_is_not_the_latest(tmp_path: Path) -> None:
    named(tmp_path, "20250102-000000-smoke-raw", "torch-2.1-old", "99-bottles")
    assert store.find(tmp_path, "latest").name == "20250102-000000-smoke-raw"


def test_folders_of_a_run_are_not_looked_through(tmp_path: Path) -> None:
    """A run that ends meanwhile removes them."""
    named(tmp_path, "20250102-000000-smoke-raw", "20250102-000000-smoke-raw/jobs/003")
    assert [folder.name for folder in store.folders(tmp_path)] == ["20250102-000000-smoke-raw"]
