"""Pins of a requirements file, and other ones in their place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from harness.run.errors import UsageError, nearest


def parse(text: str) -> tuple[str, str]:
    """Return `("torch", "torch==2.12.*")` for such a pin: the canonical name and the requirement. Raises UsageError."""
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise UsageError(
            f"a pin reads NAME==VERSION, not {text!r}: {str(error).splitlines()[0]}"
        ) from error
    if [specifier.operator for specifier in requirement.specifier] != ["=="]:
        raise UsageError(f"a pin reads NAME==VERSION or NAME==VERSION.*, not {text!r}")
    return canonicalize_name(requirement.name), str(requirement)


def names(requirements: str) -> set[str]:
    """The canonical names of the packages that a requirements file (its text) names."""
    return {name for name in map(_name, requirements.splitlines()) if name}


def require_known(pins: Iterable[str], requirements: Iterable[str]) -> None:
    """Raise UsageError with the nearest name for a package that none of the requirements files names."""
    known = {name for text in requirements for name in names(text)}
    for name in pins:
        if name not in known:
            raise nearest("package", name, known, "among the requirements")


def replaced(requirements: str, pins: Mapping[str, str]) -> str:
    """Return a requirements file's text with the pins of these packages in the place of its own."""
    return "".join(f"{_pin(line, pins)}\n" for line in requirements.splitlines())


def _pin(line: str, pins: Mapping[str, str]) -> str:
    return pins.get(_name(line) or "", line)


def _name(line: str) -> str | None:
    """The canonical name of the package that a line requires; None for comments and options."""
    try:
        return canonicalize_name(Requirement(line.partition(" #")[0].strip()).name)
    except InvalidRequirement:
        return None
