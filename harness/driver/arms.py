"""The two arms of a run: the sides of a comparison within one run.

An arm may have other pins, another interpreter, another checkout, or other options of a method.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from harness.driver import border, catalog, machine, options, pins, planning, suite
from harness.driver.border import UnknownFields
from harness.driver.declarations import FrameworkEntry
from harness.driver.environments import Environments
from harness.driver.launch import ROOT
from harness.driver.paths import expanded
from harness.run.errors import IncomparableError, UsageError
from harness.run.plan import PlannedCase
from harness.wire.case import Job, job_to_json, known_fields

ARMS = ("a", "b")
HERE = "."
_PIN = re.compile(r"[\w.-]+(\[.*\])?\s*(==|[<>~!]=?)")


@dataclass(frozen=True)
class Arm:
    """An arm of a run: the checkout of its worker, and its environments.

    A run without a comparison has one arm, called "". `packages` names for each environment the
    packages whose versions a worker reports. `unknown` names the fields that the worker of the
    checkout does not know.
    """

    environments: Environments
    packages: Mapping[str, tuple[str, ...]]
    checkout: Path = ROOT
    unknown: UnknownFields = field(default_factory=dict)

    def job_to_json(self, job: Job) -> str:
        """Return the job as the JSON that the arm's worker reads.

        Raise IncomparableError where the job sets a field that the worker does not know.
        """
        values = [job, *job.tasks, *(task.case for task in job.tasks)]
        if job.storage is not None:
            values.append(job.storage)
        border.require_unset(self.unknown, values, self.checkout)
        return job_to_json(job, leave_out=self.unknown)


@dataclass(frozen=True)
class Described:
    """The description of an arm, as its user asked for it.

    Paths are absolute. The commit of a checkout is None where git does not know it.
    """

    asked: tuple[str, ...]
    pins: dict[str, str] = field(default_factory=dict)  # package -> requirement
    options: dict[str, Any] = field(default_factory=dict)  # of methods
    python: str | None = None
    checkout: str | None = None
    commit: str | None = None

    @property
    def adapters(self) -> Path:
        """Return the adapters of the arm's checkout."""
        return self.root / "adapters"

    @property
    def root(self) -> Path:
        """Return the arm's checkout."""
        return Path(self.checkout) if self.checkout else ROOT

    def to_json(self) -> dict[str, Any]:
        """Return the arm as a run's header has it."""
        return asdict(self)


def described(header: Mapping[str, Any]) -> dict[str, Described]:
    """Return the arms that a run's header names. A run without a comparison has none."""
    arms = header.get("arms") or {}
    return {
        name: Described(**known_fields(Described, values) | {"asked": tuple(values["asked"])})
        for name, values in arms.items()
    }


def describe(asked: Sequence[str]) -> Described:
    """Read the description of an arm: pins, options, one interpreter, one checkout, or ".".

    Raise UsageError where a text is none of them.
    """
    described = Described(tuple(asked))
    for text in asked:
        described = _with(described, text)
    if described.python and described.pins:
        raise UsageError(
            f"an arm with the interpreter {described.python} takes no pins, "
            "because pins are for an environment that is made here"
        )
    return described


def require_pins(arms: Mapping[str, Described], frameworks: Sequence[str]) -> None:
    """Check that every arm can have the frameworks of the run.

    Raise UsageError for a pin of a package that no framework of the run requires, and for one
    interpreter for two frameworks. Raise IncomparableError where an arm's checkout lacks a
    framework, because the other arm may have added it.
    """
    for arm in arms.values():
        known = _declared(arm)
        for name in frameworks:
            if arm.checkout and name not in known:
                raise IncomparableError(
                    f"{arm.checkout} has no framework {name}, so there is nothing to compare"
                )
        pins.require_known(arm.pins, [known[name].own_requirements() for name in frameworks])
        if arm.python and len(frameworks) > 1:
            raise UsageError(
                f"{arm.python} is the interpreter of one framework, "
                f"and the run has {len(frameworks)}: name one with --framework"
            )


def opened(arms: Mapping[str, Described], frameworks: Sequence[str], venvs: Path) -> dict[str, Arm]:
    """Return the arms with their environments, which are not made yet.

    Raise UsageError where a checkout has changed since it was named.
    """
    return {name: _opened(arm, frameworks, venvs) for name, arm in arms.items()}


def plan(
    arms: Mapping[str, Described], frameworks: Sequence[str], chosen: suite.Suite, **wishes: Any
) -> list[PlannedCase]:
    """Return the cases of all arms, each as its own checkout declares them.

    `wishes` are those of `planning.plan`. Raise IncomparableError where an arm cannot have them.
    """
    planned: list[PlannedCase] = []
    for name, arm in arms.items():
        entries = catalog.select(_declared(arm), frameworks)
        cases = planning.plan(chosen, entries, arm=name, arm_options=arm.options, **wishes)
        _require_drivable(arm, cases)
        planned.extend(cases)
    return planned


def _declared(arm: Described) -> dict[str, FrameworkEntry]:
    """Return the frameworks as an arm's checkout declares them.

    Raise IncomparableError where this code cannot read another checkout's declarations.
    """
    try:
        return catalog.frameworks(arm.adapters)
    except UsageError as error:
        if arm.checkout is None:
            raise
        raise IncomparableError(f"{arm.checkout} cannot be read from here: {error}") from error


def _require_drivable(arm: Described, planned: Sequence[PlannedCase]) -> None:
    if arm.checkout:
        unknown = border.unknown_fields(arm.root)
        cases = [entry.case for entry in planned]
        border.require_unset(unknown, cases, arm.root)


def _opened(arm: Described, frameworks: Sequence[str], venvs: Path) -> Arm:
    overrides = {name: Path(arm.python) for name in frameworks} if arm.python else {}
    environments = Environments(
        venvs,
        arm.adapters,
        overrides,
        arm.pins,
        usual=catalog.ADAPTERS,
        known=_declared(arm).values(),
    )
    packages = catalog.packages(_declared(arm))
    if not arm.checkout:
        return Arm(environments, packages)
    _require_same_commit(arm)
    return Arm(environments, packages, arm.root, border.unknown_fields(arm.root))


def _require_same_commit(arm: Described) -> None:
    commit = machine.commit_of(arm.root)
    if commit != arm.commit:
        raise UsageError(
            f"the checkout {arm.root} was at commit {arm.commit} when the run began "
            f"and is at {commit} now; check out {arm.commit} again, or start a new run"
        )


def _with(described: Described, text: str) -> Described:
    """Return a description with one more text of its user."""
    path = expanded(text)
    if _PIN.match(text):
        name, requirement = pins.parse(text)
        return replace(described, pins={**described.pins, name: requirement})
    if text == HERE:
        return described
    if path.is_dir():
        return _with_checkout(described, path.resolve())
    if path.is_file():
        _refuse_second("interpreter", described.python, text)
        # A link stays unresolved, because its own folder decides the environment.
        return replace(described, python=str(path.absolute()))
    if "=" in text:
        parsed = options.parse_options([text])
        return replace(described, options={**described.options, **parsed})
    raise UsageError(
        f"{text!r} is none of NAME==VERSION, KEY=VALUE, an interpreter, a checkout, "
        "or '.' for this checkout"
    )


def _with_checkout(described: Described, folder: Path) -> Described:
    if not (folder / "harness" / "worker").is_dir() or not (folder / "adapters").is_dir():
        raise UsageError(
            f"{folder} is no checkout of this project: it has no harness/worker and adapters"
        )
    # An arm that cannot be driven is refused before anything is planned.
    border.unknown_fields(folder)
    _refuse_second("checkout", described.checkout, str(folder))
    return replace(described, checkout=str(folder), commit=machine.commit_of(folder))


def _refuse_second(what: str, first: str | None, second: str) -> None:
    if first is not None:
        raise UsageError(f"an arm has one {what}, not {first} and {second}")
