"""The two sides of a comparison within one run: other pins, another interpreter, another checkout, other options of a method."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.driver import catalog, machine, pins, planning, suite
from harness.driver.environments import REQUIREMENTS, Environments
from harness.driver.launch import ROOT
from harness.run.errors import IncomparableError, UsageError
from harness.run.plan import PlannedCase

ARMS = ("a", "b")
HERE = "."
_PIN = re.compile(r"[\w.-]+(\[.*\])?\s*(==|[<>~!]=?)")
_PROBE_TIMEOUT_S = 60
# What both sides of the process border have to agree on: run in a checkout, and here.
_PROBE = """
import dataclasses, json
try:
    from harness.wire import case, records
except ImportError:  # a checkout from before 2026-11-24
    from harness import case, record as records
kinds = (case.Case, case.Task, case.Storage, case.Job)
fields = {kind.__name__: [field.name for field in dataclasses.fields(kind)] for kind in kinds}
print(json.dumps({"schema": records.SCHEMA, **fields}))
"""


@dataclass(frozen=True)
class Arm:
    """A side of a comparison: whose worker runs, and in which environments.

    A run without arms has one, called "".
    """

    environments: Environments
    checkout: Path = ROOT


@dataclass(frozen=True)
class Described:
    """What a side was asked to be.

    Paths are absolute; the commit of a checkout is None where git does not know it.
    """

    asked: tuple[str, ...]
    pins: dict[str, str] = field(default_factory=dict)  # package -> requirement
    options: dict[str, Any] = field(default_factory=dict)  # of methods
    python: str | None = None
    checkout: str | None = None
    commit: str | None = None

    @property
    def adapters(self) -> Path:
        """The adapters of the side's checkout."""
        return self.root / "adapters"

    @property
    def root(self) -> Path:
        """The side's checkout."""
        return Path(self.checkout) if self.checkout else ROOT

    def to_json(self) -> dict[str, Any]:
        """The side as a run's header has it."""
        return asdict(self)


def described(header: Mapping[str, Any]) -> dict[str, Described]:
    """The sides that a run's header names; none for a run without."""
    arms = header.get("arms") or {}
    return {
        name: Described(**{**fields, "asked": tuple(fields["asked"])})
        for name, fields in arms.items()
    }


def describe(asked: Sequence[str]) -> Described:
    """Read what a side is to be: pins, options, one interpreter, one checkout, or "." for what is here. Raises UsageError."""
    made = Described(tuple(asked))
    for text in asked:
        path = Path(text).expanduser()
        if _PIN.match(text):
            name, requirement = pins.parse(text)
            made = replace(made, pins={**made.pins, name: requirement})
        elif text == HERE:
            continue
        elif path.is_dir():
            made = _with_checkout(made, path.resolve())
        elif path.is_file():
            _refuse_second("interpreter", made.python, text)
            # unresolved: a link's place decides its environment
            made = replace(made, python=str(path.absolute()))
        elif "=" in text:
            made = replace(made, options={**made.options, **planning.parse_options([text])})
        else:
            raise UsageError(
                f"{text!r} is none of NAME==VERSION, KEY=VALUE, an interpreter, a checkout, or '.' for what is here"
            )
    if made.python and made.pins:
        raise UsageError(
            f"an arm with an interpreter of its own ({made.python}) has no pins: they are for an environment made here"
        )
    return made


def require_pins(arms: Mapping[str, Described], frameworks: Sequence[str]) -> None:
    """Raise UsageError for a pin of a package that no framework of the run requires, and for two frameworks in one interpreter.

    IncomparableError where a side's checkout lacks a framework: the other side adds it.
    """
    for arm in arms.values():
        for name in frameworks:
            if arm.checkout and not (arm.adapters / name / REQUIREMENTS).exists():
                raise IncomparableError(
                    f"{arm.checkout} has no framework {name}, so there is nothing to compare"
                )
        pins.require_known(
            arm.pins,
            [
                (arm.adapters / name / REQUIREMENTS).read_text(encoding="utf-8")
                for name in frameworks
            ],
        )
        if arm.python and len(frameworks) > 1:
            raise UsageError(
                f"{arm.python} is the interpreter of one framework, and the run has {len(frameworks)}"
            )


def opened(arms: Mapping[str, Described], frameworks: Sequence[str], venvs: Path) -> dict[str, Arm]:
    """Return the sides' environments, not made yet.

    Raises UsageError where a checkout is not as it was when it was named.
    """
    return {name: _opened(arm, frameworks, venvs) for name, arm in arms.items()}


def plan(
    arms: Mapping[str, Described], frameworks: Sequence[str], chosen: suite.Suite, **wishes: Any
) -> list[PlannedCase]:
    """Return the cases of all sides, each side's by its own checkout's declarations; `wishes` are those of `planning.plan`."""
    return [
        item
        for name, arm in arms.items()
        for item in _planned(name, arm, frameworks, chosen, wishes)
    ]


def _planned(
    name: str,
    arm: Described,
    frameworks: Sequence[str],
    chosen: suite.Suite,
    wishes: Mapping[str, Any],
) -> list[PlannedCase]:
    entries = catalog.select(_declared(arm), frameworks)
    return planning.plan(chosen, entries, arm=name, arm_options=arm.options, **wishes)


def _declared(arm: Described) -> dict[str, catalog.FrameworkEntry]:
    """The frameworks as a side's checkout declares them.

    IncomparableError where this code cannot read another checkout's.
    """
    try:
        return catalog.frameworks(arm.adapters)
    except UsageError as error:
        if arm.checkout is None:
            raise
        raise IncomparableError(f"{arm.checkout} cannot be read from here: {error}") from error


def _opened(arm: Described, frameworks: Sequence[str], venvs: Path) -> Arm:
    if arm.checkout:
        _require_same_commit(arm)
    overrides = {name: Path(arm.python) for name in frameworks} if arm.python else {}
    return Arm(
        Environments(venvs, arm.adapters, overrides, arm.pins, usual=catalog.ADAPTERS), arm.root
    )


def _require_same_commit(arm: Described) -> None:
    commit = machine.commit_of(arm.root)
    if commit != arm.commit:
        raise UsageError(
            f"the checkout {arm.root} was at commit {arm.commit} when the run began and is at {commit} now"
        )


def _with_checkout(made: Described, folder: Path) -> Described:
    if not (folder / "harness" / "worker").is_dir() or not (folder / "adapters").is_dir():
        raise UsageError(
            f"{folder} is no checkout of this project: it has no harness/worker and adapters"
        )
    here, there = _language(ROOT), _language(folder)
    for key, value in here.items():
        if there.get(key) != value:
            raise IncomparableError(
                f"the worker of {folder} cannot be driven from here: {_unlike(key, value, there.get(key))}"
            )
    _refuse_second("checkout", made.checkout, str(folder))
    return replace(made, checkout=str(folder), commit=machine.commit_of(folder))


def _language(checkout: Path) -> dict[str, Any]:
    """What a checkout's worker reads and writes. Raises IncomparableError where it does not say."""
    variables = os.environ | {"PYTHONPATH": str(checkout), "PYTHONSAFEPATH": "1"}
    argv = [sys.executable, "-c", _PROBE]
    done = subprocess.run(
        argv, env=variables, capture_output=True, text=True, check=False, timeout=_PROBE_TIMEOUT_S
    )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise IncomparableError(
            f"the worker of {checkout} does not say what records it writes: {last}"
        )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _unlike(key: str, here: Any, there: Any) -> str:
    if key == "schema":
        return f"its records have schema {there}, and those of this checkout {here}"
    fields = sorted(set(here) ^ set(there or ()))
    return f"its {key} differs from that of this checkout in {', '.join(fields) or 'order'}"


def _refuse_second(what: str, first: str | None, second: str) -> None:
    if first is not None:
        raise UsageError(f"an arm has one {what}, not {first} and {second}")
