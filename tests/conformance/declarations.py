"""The declarations of a framework, read with the standard library alone.

The harness reads them with pydantic, which the frameworks' environments lack.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ADAPTERS = Path(__file__).parents[2] / "adapters"

Declaration = dict[str, Any]


def frameworks() -> list[str]:
    """Return the names of all frameworks."""
    return sorted(path.parent.name for path in ADAPTERS.glob("*/adapter.toml"))


def declaration(framework: str) -> Declaration:
    """Return a framework's adapter.toml, with the methods of its engines in `methods`."""
    folder = ADAPTERS / framework
    declared = _toml(folder / "adapter.toml")
    for path in sorted(ADAPTERS.glob("*/methods.toml")):
        engine = path.parent.name
        if (folder / f"{engine}.py").is_file():
            script = declared["framework"].get("script")
            declared["methods"].update(_methods_for(framework, script, path))
    return declared


def _methods_for(
    framework: str, script: Mapping[str, str] | None, path: Path
) -> Iterator[tuple[str, Declaration]]:
    for name, method in _toml(path)["methods"].items():
        class_path = method["class"].replace("{framework}", framework)
        lines = {}
        if script is not None:
            lines["save"] = script["arrays"] + method["save"]
            before = script.get("slots", "") + script["arrays"]
            lines["load"] = before + method["load"] + script["restore"]
        yield name, method | lines | {"class": class_path}


def _toml(path: Path) -> Declaration:
    return tomllib.loads(path.read_text(encoding="utf-8"))


def is_readable_by_any_world(method: Declaration) -> bool:
    """Return whether another number of ranks can load what a method saved."""
    return method.get("readable_by") == "any-world"


def must_be_named(method: Declaration) -> bool:
    """Return whether a method is taken only when somebody names it."""
    return method.get("listed") in ("when-named", "test-double")


def is_store(method: Declaration) -> bool:
    """Return whether a method is a store, which names its checkpoints and finds the newest."""
    return bool(method.get("store"))


def has_a_race(method: Declaration) -> bool:
    """Return whether training behind a save may change what a method writes."""
    return any(failure.get("race") for failure in method.get("expected_failures", []))


def failures(method: Declaration) -> list[Declaration]:
    """Return the declared failures that a save and a load always meet."""
    declared = method.get("expected_failures", [])
    return [failure for failure in declared if not failure.get("race")]


def is_broken(method: Declaration, precision: str) -> bool:
    """Return whether a save and a load of a state of this precision fail, as declared."""
    return any(
        failure.get("precision", precision) == precision
        and failure.get("experiment", "cost") == "cost"
        for failure in failures(method)
    )
