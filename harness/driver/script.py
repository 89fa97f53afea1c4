"""The lines that a user writes in a training script to save and load with a method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness.driver.declarations import FrameworkEntry, MethodEntry
from harness.run.errors import UsageError, nearest

ALL = "all"


def how(known: Mapping[str, FrameworkEntry], method: str) -> str:
    """Return the lines of a method in every framework that has it, or of all methods.

    Raise UsageError for an unknown method, and for one that declares no lines.
    """
    having = [(framework, entry) for framework, entry in _methods(known) if _fits(entry, method)]
    if not having:
        names = {entry.name for _, entry in _methods(known)}
        raise nearest("method", method, [*names, ALL])
    texts = [
        _lines(known[framework], entry) for framework, entry in having if entry.save and entry.load
    ]
    if not texts:
        frameworks = ", ".join(framework for framework, _ in having)
        raise UsageError(f"method {method} of {frameworks} declares no lines for a training script")
    return "\n".join(texts)


def _methods(known: Mapping[str, FrameworkEntry]) -> Iterator[tuple[str, MethodEntry]]:
    for name, framework in known.items():
        for method in framework.methods.values():
            yield name, method


def _fits(entry: MethodEntry, method: str) -> bool:
    return method in (ALL, entry.name)


def _lines(framework: FrameworkEntry, entry: MethodEntry) -> str:
    title = f"{entry.name} in {framework.name}"
    note = framework.script.note.strip() if framework.script else ""
    above = f"{note}\n" if note else ""
    save, load = entry.save.strip(), entry.load.strip()
    return f"# {title}: save\n{above}{save}\n\n# {title}: load\n{load}\n"
