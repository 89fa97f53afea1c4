"""The commands that list this machine, environments, frameworks, methods and suites."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Annotated

import typer
from rich import box
from rich.markup import escape
from rich.table import Table

import workloads
from harness.analysis.text import size
from harness.cli.app import (
    AdapterOption,
    DirOption,
    PythonOption,
    app,
    env,
    environments_of,
    make_environment,
    out,
    put,
    scratch_directory,
)
from harness.cli.printing import print_table
from harness.driver import catalog, doctor, script, suite
from harness.driver.declarations import FrameworkEntry, Listed, MethodEntry, ReadableBy
from harness.run.errors import UsageError, nearest

LISTS = ("frameworks", "methods", "strategies", "workloads", "suites")
Entries = dict[str, FrameworkEntry]
"""Frameworks by their names."""


@app.command("doctor")
def doctor_command(
    python: PythonOption = None,
    adapter: AdapterOption = None,
    directory: DirOption = None,
) -> None:
    """Say what this machine can run."""
    found = Table("check", "status", "detail")
    colours = {"ok": "green", "warning": "yellow", "missing": "red"}
    for check in doctor.doctor(environments_of(python), scratch_directory(directory)):
        found.add_row(
            check.name, f"[{colours[check.status]}]{check.status}[/]", escape(check.detail)
        )
    print_table(out, found)


@env.command("create")
def env_create(
    frameworks: Annotated[list[str], typer.Argument(metavar="FRAMEWORK…")],
    adapter: AdapterOption = None,
) -> None:
    """Make the environments of frameworks from their exact pins.

    FRAMEWORK+NAME is that of methods with packages of their own.
    """
    environments = environments_of(None)
    for framework in frameworks:
        make_environment(environments, framework)


@env.command("list")
def env_list(adapter: AdapterOption = None) -> None:
    """Show the environments."""
    found = Table("environment", "state", "interpreter")
    for environment in environments_of(None).listing():
        interpreter = escape(str(environment.interpreter))
        found.add_row(environment.name, environment.state, interpreter)
    print_table(out, found)


@app.command("list")
def list_command(
    what: Annotated[str, typer.Argument(metavar="|".join(LISTS))] = "methods",
    how: Annotated[
        str | None,
        typer.Option(
            metavar="METHOD|all",
            help="Print the lines of a training script that save and load with this method.",
        ),
    ] = None,
    framework: Annotated[
        list[str] | None,
        typer.Option(help="Only this framework; may be given several times."),
    ] = None,
    adapter: AdapterOption = None,
) -> None:
    """List frameworks, methods, workloads or suites."""
    if what not in LISTS:
        raise nearest("list", what, LISTS)
    if framework and what not in _OF_FRAMEWORKS:
        raise UsageError(f"{what} are those of all frameworks, so leave out --framework")
    entries = _entries(framework)
    if how is not None:
        if what != "methods":
            raise UsageError("--how is about a method, so list methods")
        put(script.how(entries, how))
        return
    tables = _OF_FRAMEWORKS[what](entries) if what in _OF_FRAMEWORKS else _OF_ALL[what]()
    for table in tables:
        print_table(out, table)


def _entries(names: list[str] | None) -> Entries:
    """Return the frameworks of these names, or all of them. Raise UsageError for a wrong name."""
    known = catalog.frameworks()
    for name in names or []:
        if name not in known:
            raise nearest("framework", name, known)
    return {name: entry for name, entry in known.items() if not names or name in names}


def _frameworks(entries: Entries) -> list[Table]:
    found = Table("framework", "devices", "methods", "stores", "environment")
    states = {
        environment.name: environment.state for environment in environments_of(None).listing()
    }
    for name, entry in entries.items():
        methods = str(len(entry.methods) - len(entry.stores))
        stores = str(len(entry.stores))
        found.add_row(name, ", ".join(entry.devices), methods, stores, states.get(name, ""))
    return [found]


def _methods(entries: Entries) -> list[Table]:
    return [_methods_of(entry) for entry in entries.values()]


def _methods_of(entry: FrameworkEntry) -> Table:
    found = Table(
        title=entry.name,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        expand=True,
    )
    for column in ("method", "covers", "format"):
        found.add_column(column, no_wrap=True)
    for column in ("default", "async", "sharded", "any world", "compressed"):
        found.add_column(column)
    found.add_column("description", overflow="fold", ratio=1)
    for method in entry.methods.values():
        traits = (
            method.is_default,
            method.asynchronous,
            method.writes_parts,
            method.readable_by is ReadableBy.ANY_WORLD,
            method.compressed,
        )
        found.add_row(
            method.name,
            method.covers,
            escape(method.format),
            *("yes" if has_it else "–" for has_it in traits),
            escape(_description(method)),
        )
    return found


def _description(method: MethodEntry) -> str:
    if method.listed is Listed.TEST_DOUBLE:
        return f"{method.description} (test double)"
    return f"{method.description} (store)" if method.store else method.description


def _strategies(entries: Entries) -> list[Table]:
    found = Table("framework", "strategy", "default", "sharded", "description")
    for entry in entries.values():
        for name, strategy in entry.strategies.items():
            traits = ("yes" if has_it else "–" for has_it in (strategy.default, strategy.sharded))
            found.add_row(entry.name, escape(name), *traits, escape(strategy.description))
    return [found]


def _workloads() -> list[Table]:
    found = Table("workload", "preset", "precision", "parameters", "state")
    for name in workloads.names():
        for preset in workloads.presets(name):
            for precision in workloads.precisions(name):
                workload = workloads.load(name, preset, precision)
                found.add_row(
                    name,
                    preset,
                    precision,
                    f"{workload.parameter_count:,}",
                    size(workload.state_bytes),
                )
    return [found]


def _suites() -> Iterator[Table]:
    """Yield the table of the suites that can be read. Then raise UsageError about the others."""
    found = Table("suite", "what it measures")
    readable, broken = suite.load_all()
    for each in readable:
        found.add_row(escape(each.name), escape(each.description))
    yield found
    if broken:
        raise UsageError("; ".join(broken))


_OF_FRAMEWORKS: dict[str, Callable[[Entries], Iterable[Table]]] = {
    "frameworks": _frameworks,
    "methods": _methods,
    "strategies": _strategies,
}
_OF_ALL: dict[str, Callable[[], Iterable[Table]]] = {
    "workloads": _workloads,
    "suites": _suites,
}
