"""Tables of what is declared: suites, experiments, workloads, frameworks, methods, columns."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence

import workloads
from harness import experiments as experiment_folders
from harness.analysis import text
from harness.analysis.columns import Column, columns_of
from harness.analysis.compared import Cost
from harness.analysis.row import Row
from harness.docs.markdown import folded, table
from harness.docs.pages import ROOT
from harness.docs.reference import S_A_MINUTE, full_runs, minutes
from harness.driver import catalog, judge, pins, planning, preflight, suite, units
from harness.driver.declarations import (
    REQUIREMENTS,
    FrameworkEntry,
    MethodEntry,
    ReadableBy,
    Speed,
    Writes,
)
from harness.run.plan import PlannedCase
from harness.wire.experiment import Experiment

GIB = 1 << 30
_METHOD_HEADINGS = ("method", "covers", "format", "written by", "read by", "traits", "description")
_WRITERS = {
    Writes.ONE_RANK: "one rank",
    Writes.SHARES: "all, a share each",
    Writes.EVERY_RANK: "all, all that each holds",
}


def columns(experiment: str) -> str:
    """Return the columns of an experiment: those of its table, then those of JSON alone."""
    in_table: list[list[str]] = []
    in_json: list[list[str]] = []
    for field, column in columns_of(_row_class(experiment)).items():
        ranks = column.over_ranks.words if column.over_ranks else ""
        line = [f"`{field}`", column.unit, ranks, _compared(column)]
        if column.heading:
            in_table.append([column.heading, column.meaning, *line])
        else:
            in_json.append([column.meaning, *line])
    headings = ("meaning", "in JSON", "its unit", "of several ranks", "`compare`")
    shown = table(("column", *headings), in_table)
    if not in_json:
        return shown
    more = table(headings, in_json)
    return f"{shown}\n\n{folded('Only in CSV and JSON', more)}"


def suites() -> str:
    """Return a line for every suite: its description, its time, and the room that it needs."""
    lines = []
    for name in suite.names():
        declared = suite.load(name)
        plans = _plans(declared)
        disk = _gib(max(units.needed_disk_bytes(plan) for plan in plans))
        memory = _gib(max(_needed_memory_bytes(plan) for plan in plans))
        lines.append([f"`{name}`", declared.description, _minutes(name, plans), disk, memory])
    return table(("suite", "what it measures", "minutes", "disk", "memory"), lines)


def experiments() -> str:
    """Return a line for every experiment: its question and its stages."""
    lines = []
    for name in experiment_folders.names():
        declared = experiment_folders.experiment(name)
        stages = ", then ".join(stage.in_words for stage in declared.stages)
        lines.append([f"`{name}`", declared.question, stages, ", ".join(_suites_of(name))])
    return table(("experiment", "question", "stages", "suites"), lines)


def suite_keys() -> str:
    """Return a line for every key that only one experiment's sweeps have."""
    lines = []
    for name in experiment_folders.names():
        declared = experiment_folders.experiment(name)
        for key, meaning, values, default in _keys_of(declared):
            lines.append([f"`{name}`", f"`{key}`", meaning, values, default])
    return table(("experiment", "key", "meaning", "values", "default"), lines)


def workload_sizes() -> str:
    """Return a line for every workload, preset and precision: its parameters and its bytes."""
    lines = []
    for name in workloads.names():
        for preset in workloads.presets(name):
            for precision in workloads.precisions(name):
                workload = workloads.load(name, preset, precision)
                parameters = f"{workload.parameter_count:,}"
                size = text.size(workload.state_bytes)
                lines.append([f"`{name}`", preset, precision, parameters, size])
    return table(("workload", "preset", "precision", "parameters", "state"), lines)


def frameworks() -> str:
    """Return a line for every framework: its pinned packages, devices and methods."""
    lines = []
    for name, entry in catalog.frameworks().items():
        devices = ", ".join(entry.devices)
        methods = str(len(entry.methods) - len(entry.stores))
        lines.append([f"`{name}`", _versions(entry), devices, methods, str(len(entry.stores))])
    return table(("framework", "versions", "devices", "methods", "stores"), lines)


def strategies() -> str:
    """Return a line for every strategy of every framework."""
    lines = []
    for name, entry in catalog.frameworks().items():
        for strategy, declared in entry.strategies.items():
            default = " (default)" if declared.default else ""
            lines.append([f"`{name}`", f"`{strategy}`{default}", declared.description])
    return table(("framework", "strategy", "description"), lines)


def methods() -> str:
    """Return a table of the methods of every framework."""
    parts = []
    for name, entry in catalog.frameworks().items():
        lines = [_method_line(method) for method in entry.methods.values()]
        parts += [f"### {name}", table(_METHOD_HEADINGS, lines)]
    return "\n\n".join(parts)


def method_declaration(framework: str, method: str) -> str:
    """Return the lines of adapter.toml that declare a method, as a block of code."""
    path = catalog.ADAPTERS / framework / catalog.DECLARATION
    tables = re.split(r"\n\n(?=\[)", path.read_text(encoding="utf-8"))
    heading = f"[methods.{method}]\n"
    block = next(table for table in tables if table.startswith(heading))
    return f"```toml\n{block.strip()}\n```"


def _row_class(experiment: str) -> type[Row]:
    """Return the class of an experiment's rows, which declares its columns."""
    module = experiment_folders.part(experiment, "rows")
    classes = [value for value in vars(module).values() if isinstance(value, type)]
    return next(each for each in classes if issubclass(each, Row) and each is not Row)


def _compared(column: Column) -> str:
    """Return what `compare` does with a column, in words."""
    if column.compared is None:
        return ""
    if isinstance(column.compared, Cost):
        return f"tests it as {column.compared.name}"
    return "must not get worse"


def _minutes(name: str, plans: Sequence[list[PlannedCase]]) -> str:
    """Return how many minutes a suite takes, as a range over reference runs or frameworks.

    A suite without a reference run has the estimate that `ckptbench run` prints.
    """
    taken = [math.ceil(minutes(run)) for run in full_runs(name)]
    if taken:
        return _range(taken)
    estimated = [math.ceil(judge.estimated_s(plan) / S_A_MINUTE) for plan in plans]
    return f"about {_range(estimated)}"


def _range(values: Sequence[int]) -> str:
    shortest, longest = min(values), max(values)
    return str(shortest) if shortest == longest else f"{shortest} to {longest}"


def _plans(declared: suite.Suite) -> list[list[PlannedCase]]:
    """Return the plan of a suite for each framework."""
    known = catalog.frameworks()
    return [planning.plan(declared, [known[name]]) for name in known if not known[name].floor]


def _needed_memory_bytes(plan: Sequence[PlannedCase]) -> int:
    """Return the memory that the largest case of a plan on one machine needs."""
    needed = []
    for item in plan:
        state_bytes = units.state_bytes(item.case)
        needed.append(preflight.needed_memory_bytes(state_bytes, item.case.world))
    return max(needed)


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB"


def _suites_of(experiment: str) -> list[str]:
    names = []
    for name in suite.names():
        if any(sweep.experiment == experiment for sweep in suite.load(name).sweeps):
            names.append(f"`{name}`")
    return names


def _keys_of(declared: Experiment) -> list[tuple[str, str, str, str]]:
    lines = []
    for key, suite_key in declared.suite_keys.items():
        words = ", ".join(f'`"{word}"`' for word in suite_key.choices)
        values = words or f"a whole number from {suite_key.at_least} on"
        default = (
            "must be given" if suite_key.default is None else f"`{json.dumps(suite_key.default)}`"
        )
        lines.append((key, suite_key.meaning, values, default))
    return lines


def _versions(entry: FrameworkEntry) -> str:
    """Return the pins of the packages whose versions the framework's records carry."""
    requirements = (ROOT / "adapters" / entry.name / REQUIREMENTS).read_text(encoding="utf-8")
    shown = []
    for line in requirements.splitlines():
        names = pins.names(line)
        if names and names.pop().removesuffix("-cpu") in entry.packages:
            shown.append(line.replace("==", " "))
    return ", ".join(shown)


def _method_line(method: MethodEntry) -> list[str]:
    worlds = "any" if method.readable_by is ReadableBy.ANY_WORLD else "the same"
    return [
        f"`{method.name}`",
        method.covers,
        method.format,
        _WRITERS[method.writes],
        worlds,
        ", ".join(_traits(method)),
        method.description,
    ]


def _traits(method: MethodEntry) -> list[str]:
    """Return what else a reader chooses by, in words."""
    traits = {
        "default": method.is_default,
        "store": method.store,
        "fast": method.speed is Speed.FASTEST_KNOWN,
        "slow": method.speed is Speed.SLOW,
        "asynchronous": method.asynchronous,
        "compressed": method.compressed,
        f"from {method.min_world} ranks on": method.min_world > 1,
        "only when named": method.must_be_named,
        "fails as declared": bool(method.expected_failures),
    }
    return [words for words, holds in traits.items() if holds]
