"""Pins of a requirements file, and their replacement by other pins."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from harness.run.errors import UsageError, nearest


def parse(text: str) -> tuple[str, str]:
    """Return the canonical name and the requirement of a pin, such as `("torch", "torch==2.12.*")`.

    Raise UsageError where the text pins no version.
    """
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"a pin must be NAME==VERSION, not {text!r}: {reason}") from error
    if [specifier.operator for specifier in requirement.specifier] != ["=="]:
        raise UsageError(f"a pin must be NAME==VERSION or NAME==VERSION.*, not {text!r}")
    return canonicalize_name(requirement.name), str(requirement)


def names(requirements: str) -> set[str]:
    """Return the canonical names of the packages in the text of a requirements file."""
    lines = requirements.splitlines()
    return {name for name in map(_name, lines) if name}


def require_known(pins: Iterable[str], requirements: Iterable[str]) -> None:
    """Raise UsageError with the nearest name for a pin of a package that no file requires.

    `requirements` holds the texts of the requirements files.
    """
    known: set[str] = set()
    known.update(*map(names, requirements))
    for name in pins:
        if name not in known:
            raise nearest("package", name, known, "among the requirements")


def replaced(requirements: str, pins: Mapping[str, str]) -> str:
    """Return a requirements file's text in which `pins` (by package) replace the file's own."""
    return "".join(f"{_pin(line, pins)}\n" for line in requirements.splitlines())


def without_extras(requirements: str) -> str:
    """Return a requirements file's text for use as constraints, which pip refuses with extras."""
    return "".join(f"{_without_extras(line)}\n" for line in requirements.splitlines())


def _without_extras(line: str) -> str:
    requirement = _requirement(line)
    if requirement is None or not requirement.extras:
        return line
    requirement.extras = set()
    return str(requirement)


def _pin(line: str, pins: Mapping[str, str]) -> str:
    return pins.get(_name(line) or "", line)


def _name(line: str) -> str | None:
    """Return the canonical name of the package that a line requires.

    Return None for comments and options.
    """
    requirement = _requirement(line)
    return canonicalize_name(requirement.name) if requirement else None


def _requirement(line: str) -> Requirement | None:
    try:
        return Requirement(line.partition(" #")[0].strip())
    except InvalidRequirement:
        return None
