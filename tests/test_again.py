"""The command that measures a row again: the commands that the harness has understand it."""

from __future__ import annotations

import shlex
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import typer
from conftest import ROOT, planned
from outside_folders import pickled

from harness.analysis.report import again
from harness.cli.app import app
from harness.driver import arms, outside
from harness.wire.case import SUMMARY_ABOVE, Case, OwnModel

HEADER: dict[str, Any] = {"suite": "gate", "directory": None, "python": []}


def parsed(command: str) -> tuple[str, dict[str, Any]]:
    """Return the command's name and its parsed words. Fail if the command takes them not."""
    program, name, *words = shlex.split(command)
    assert program == "ckptbench"
    found = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    return name, found.make_context(name, words).params


def case(**changes: Any) -> Case:
    return replace(planned().case, **changes)


def sides(a: list[str], b: list[str]) -> dict[str, Any]:
    return {
        name: asdict(arms.describe(asked)) for name, asked in zip(arms.ARMS, (a, b), strict=True)
    }


def test_a_row_of_a_run_is_measured_by_run() -> None:
    row = case(method="double[fault=none]", world=2, launcher="mpirun", strategy="ddp")
    name, found = parsed(again.command(row, HEADER, [row]))
    assert (name, found["suite_name"], found["framework"], found["world"]) == (
        "run",
        "gate",
        ["raw"],
        "2",
    )
    assert (found["method"], found["option"], found["strategy"]) == (
        ["double"],
        ["fault=none"],
        ["ddp"],
    )


def test_a_row_of_two_arms_is_measured_by_ab_with_both_sides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT)
    described = sides(["numpy==2.4.*", "slowdown=2.0", "fault=none"], ["."])
    row = case(method="double", arm="b", world=2, launcher="mpirun")
    command = again.command(row, HEADER | {"suite": "ab-gate", "arms": described}, [row])
    name, found = parsed(command)
    assert (name, found["suite_name"], found["framework"], found["method"]) == (
        "ab",
        "gate",
        ["raw"],
        ["double"],
    )
    assert (found["b"], found["world"]) == (["."], "2")
    assert asdict(arms.describe(found["a"])) == described["a"] | {"asked": tuple(found["a"])}


def test_places_do_not_depend_on_where_the_command_was_typed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(ROOT / "tests")
    described = sides([".."], [sys.executable])
    _, found = parsed(
        again.command(
            case(arm="a"), HEADER | {"suite": "ab-gate", "arms": described}, [case(arm="a")]
        )
    )
    assert (found["a"], found["b"]) == ([str(ROOT)], [sys.executable])


@pytest.mark.parametrize("arms_named", [False, True])
def test_a_users_own_model_and_adapter_are_named_with_their_interpreter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arms_named: bool
) -> None:
    monkeypatch.setattr(outside, "_named", [])
    monkeypatch.chdir(ROOT)
    folder = pickled(tmp_path)
    model = OwnModel(file="/home/me/my train.py", function="make", digest="12345678", state_bytes=9)
    row = case(workload=model.workload, model=model, arm="a" if arms_named else "")
    python = [f"raw={sys.executable}"]
    header = HEADER | {"settings": {"adapters": [str(folder)]}, "python": python}
    if arms_named:
        header |= {"suite": "ab-gate", "arms": sides(["."], ["."]), "python": []}
    _, found = parsed(again.command(row, header, [row]))
    assert (found["model"], found["workload"]) == ("/home/me/my train.py:make", ())
    assert (found["adapter"], found["framework"]) == ([folder], ["raw"])
    assert found.get("python") == (None if arms_named else python)


def test_the_precision_that_was_asked_for_is_asked_for_again() -> None:
    header = HEADER | {"goal": {"precision": 0.05, "budget_s": 5400.0}, "arms": {}}
    _, found = parsed(again.command(case(), header, [case()]))
    assert (found["precision"], found["budget"]) == (0.05, "5400s")


@pytest.mark.parametrize("arms_named", [False, True])
def test_ranks_are_started_and_summed_up_as_they_were(
    monkeypatch: pytest.MonkeyPatch, arms_named: bool
) -> None:
    monkeypatch.chdir(ROOT)
    row = case(world=2, launcher="mpirun", arm="a" if arms_named else "")
    header = HEADER | {"settings": {"summary_above": 4, "mpirun": sys.executable}}
    if arms_named:
        header |= {"suite": "ab-gate", "arms": sides(["."], ["."])}
    _, found = parsed(again.command(row, header, [row]))
    assert str(found["mpirun"]) == sys.executable
    assert found.get("summary_above") == (None if arms_named else 4)
    assert "--summary-above" not in again.command(
        row, HEADER | {"settings": {"summary_above": SUMMARY_ABOVE, "mpirun": None}}, [row]
    )
