"""A framework and suites that are declared for a test alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.driver import catalog, suite
from harness.driver.declarations import FrameworkEntry
from harness.driver.suite import Suite
from harness.run.plan import PlannedCase

HEAD = """
[framework]
class = "adapters.toy.framework:Toy"
devices = ["cpu"]
packages = []
"""


METHOD = """
[methods.{name}]
class = "adapters.toy.{name}:{name}"
covers = "full"
format = "zip"
description = "a method"
{traits}
"""


SWEEP = """
description = "a test"
[[sweep]]
workload = "llm-slice"
preset = "small"
precision = "float32"
method = "all"
samples = 2
"""


def declared(folder: Path, name: str, methods: dict[str, str], head: str = HEAD) -> FrameworkEntry:
    path = folder / name / "adapter.toml"
    path.parent.mkdir(parents=True)
    path.write_text(
        head
        + "".join(METHOD.format(name=method, traits=traits) for method, traits in methods.items())
    )
    return catalog.read(path)


def read_suite(folder: Path, text: str) -> Suite:
    (folder / "test.toml").write_text(text)
    return suite.load("test", folder)


def sweeps_of(*sweeps: dict[str, Any]) -> str:
    """Return a suite's text: one sweep over SWEEP's values for each dictionary."""
    defaults: dict[str, Any] = {
        "workload": "llm-slice",
        "preset": "small",
        "precision": "float32",
        "method": "all",
        "samples": 2,
    }
    tables = [{**defaults, **sweep} for sweep in sweeps]
    lines = [
        "\n".join(
            [
                "[[sweep]]",
                *(f"{key} = {in_toml(value)}" for key, value in table.items() if value is not None),
            ]
        )
        for table in tables
    ]
    return "\n".join(["description = 'a test'", *lines])


def in_toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def method_names(planned: list[PlannedCase]) -> list[str]:
    return [item.case.method for item in planned]
