"""The table of who may import whom, as `tests/test_layers.py` holds it."""

from __future__ import annotations

import runpy
from typing import Any

from harness.docs.markdown import table
from harness.docs.pages import ROOT

TEST = ROOT / "tests" / "test_layers.py"


def import_rules() -> str:
    """Return a line for every folder or file with a rule of its own."""
    declared = runpy.run_path(str(TEST))
    rules: dict[str, Any] = dict(declared["RULES"])
    for name, rule in declared["EXPERIMENT_RULES"].items():
        rules[f"harness/experiments/NAME/{name}"] = rule
    lines = [[f"`{path}`", _ours(rule), _libraries(rule)] for path, rule in sorted(rules.items())]
    shared = ", ".join(f"`adapters.{folder}`" for folder in sorted(declared["SHARED"]))
    adapter = ["`adapters/NAME`", f"`adapters.base`, `adapters.NAME`, {shared}, `workloads`"]
    lines.append([*adapter, "everything that its environment holds"])
    return table(("folder or file", "of this project", "of others"), lines)


def _ours(rule: Any) -> str:
    return _listed(rule.first_party)


def _libraries(rule: Any) -> str:
    if rule.libraries is None:
        return "everything but frameworks"
    return _listed(rule.libraries)


def _listed(names: frozenset[str]) -> str:
    return ", ".join(f"`{name}`" for name in sorted(names)) or "–"
