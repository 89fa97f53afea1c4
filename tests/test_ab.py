"""The arms of a run: descriptions, pins, and the plan for both."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from ab_commands import planned
from conftest import ROOT
from stubs import command

from harness.driver import arms, catalog, pins, suite
from harness.driver.environments import Environments
from harness.driver.units import group
from harness.run.errors import UsageError

# The description of an arm


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (["torch==2.12.*"], {"pins": {"torch": "torch==2.12.*"}}),
        (
            ["Typing_Extensions==4.16.0", "numpy==2.4.0"],
            {"pins": {"typing-extensions": "Typing_Extensions==4.16.0", "numpy": "numpy==2.4.0"}},
        ),
        (["crc=false"], {"options": {"crc": False}}),
        ([sys.executable], {"python": sys.executable}),
        (["."], {}),
    ],
)
def test_a_side_is_what_it_was_asked_to_be(asked: list[str], expected: dict) -> None:
    assert arms.describe(asked) == arms.Described(tuple(asked), **expected)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["torch>=2.12"], "a pin must be NAME==VERSION or NAME==VERSION.*, not 'torch>=2.12'"),
        (["torch==2.*.1"], "a pin must be NAME==VERSION, not 'torch==2.*.1'"),
        (["no-such-thing"], "'no-such-thing' is none of NAME==VERSION, KEY=VALUE"),
        (["tests"], "tests is no checkout of this project"),
        (
            [sys.executable, "numpy==2.4.0"],
            "takes no pins, because pins are for an environment that is made here",
        ),
        ([sys.executable, sys.executable], "an arm has one interpreter"),
    ],
)
def test_a_side_that_cannot_be_gets_one_sentence(
    asked: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(UsageError) as error:
        arms.describe(asked)
    assert message in str(error.value)


def test_a_pin_that_no_framework_requires_names_the_nearest() -> None:
    with pytest.raises(
        UsageError, match="unknown package 'torhc' among the requirements; did you mean 'torch'"
    ):
        arms.require_pins({"a": arms.describe(["torhc==2.0"])}, ["pytorch"])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name at least one side"),
        (["--a", "torhc==2.12.*"], "did you mean 'torch'?"),
        (["--a", "numpy==2.4.0"], "name a --framework: "),
        (["--b", "slowdwn=2.0", "--framework", "raw", "--method", "double"], "slowdwn"),
        (["--b", "torch==2.12.*", "--framework", "raw"], "unknown package 'torch'"),
        (
            ["--b", "slowdown=2.0", "--framework", "raw", "--budget", "10m"],
            "so give --precision too",
        ),
        (
            ["--b", "slowdown=2.0", "--framework", "raw", "--mpirun", "/no/mpirun"],
            "--mpirun: there is no file /no/mpirun",
        ),
        (
            ["--b", "slowdown=2.0", "--framework", "raw", "--precision", "0.1", "--budget", "soon"],
            "--budget is 'soon', and must be a time above 0 with its unit",
        ),
    ],
)
def test_wrong_usage_gets_one_sentence_and_exit_2(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    done = command("ab", *arguments, "--results", str(tmp_path))
    assert (done.status, message in " ".join(done.errors.split())) == (2, True), done.errors
    assert not list(tmp_path.iterdir())


# Pins

REQUIREMENTS = (
    "# all of it\nnumpy==2.4.0  # arrays\ntorch==2.13.0\nTyping_extensions==4.16.0\n--no-deps\n"
)


def test_a_pin_replaces_its_own_line_alone() -> None:
    changed = pins.replaced(
        REQUIREMENTS, dict([pins.parse("torch==2.12.*"), pins.parse("typing-extensions==4.15.0")])
    )
    assert changed.splitlines() == [
        "# all of it",
        "numpy==2.4.0  # arrays",
        "torch==2.12.*",
        "typing-extensions==4.15.0",
        "--no-deps",
    ]
    assert pins.names(REQUIREMENTS) == {"numpy", "torch", "typing-extensions"}


def test_other_pins_have_an_environment_of_their_own_beside_the_usual_one(tmp_path: Path) -> None:
    usual = Environments(tmp_path, catalog.ADAPTERS, {})
    other = Environments(
        tmp_path, catalog.ADAPTERS, {}, dict([pins.parse("numpy==2.3.*")]), usual=catalog.ADAPTERS
    )
    same = Environments(
        tmp_path, catalog.ADAPTERS, {}, dict([pins.parse("numpy==2.4.6")]), usual=catalog.ADAPTERS
    )
    folders = [
        next(e.interpreter for e in made.listing() if e.name == "raw").parents[1].name
        for made in (usual, other, same)
    ]
    assert (folders[0], folders[2]) == ("raw", "raw")
    assert folders[1].startswith("raw-")
    assert "numpy==2.3.*" in other.requirements("raw")


# The plan of a run with two arms


def test_both_sides_have_the_same_rows_under_the_same_name(tmp_path: Path) -> None:
    first, second = planned(tmp_path)
    assert (first.case.arm, second.case.arm) == ("a", "b")
    assert first.case.method == second.case.method == "double"
    assert (first.case.options["slowdown"], second.case.options["slowdown"]) == (1.0, 3.0)
    assert first.case.id != second.case.id


def test_sides_share_no_process(tmp_path: Path) -> None:
    assert [unit.case.arm for unit in group(planned(tmp_path))] == ["a", "b"]


def test_the_sides_processes_of_the_same_cases_follow_one_another() -> None:
    described = {"a": arms.describe(["."]), "b": arms.describe(["."])}
    units = group(arms.plan(described, ["raw", "pytorch"], suite.load("gate")))
    pairs = list(zip(units[::2], units[1::2], strict=True))
    assert len(pairs) > 3
    for first, second in pairs:
        assert (first.case.arm, second.case.arm) == ("a", "b")
        assert [replace(item.case, arm="") for item in first.items] == [
            replace(item.case, arm="") for item in second.items
        ]
