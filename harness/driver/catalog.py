"""The catalog of frameworks and methods, read from TOML so that no framework is imported.

`adapters/NAME/adapter.toml` declares a framework, its methods and its strategies. An engine that
serves several frameworks declares its methods once, in `adapters/ENGINE/methods.toml`. Every
framework whose folder holds a file `ENGINE.py` has these methods too.

Folders from outside this project, which `harness.driver.outside` finds, add frameworks, and methods
of known ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from harness.driver import outside, tables
from harness.driver.declarations import (
    REQUIREMENTS,
    AdapterFile,
    EngineFile,
    FrameworkEntry,
    MethodEntry,
    MethodsFile,
    MethodTable,
    Script,
)
from harness.driver.outside import Outside
from harness.run.errors import UsageError, nearest
from harness.run.plan import PlannedCase

ADAPTERS = Path(__file__).resolve().parents[2] / "adapters"
DECLARATION = "adapter.toml"
ENGINE_DECLARATION = "methods.toml"

_FRAMEWORK_IN_CLASS_PATH = "{framework}"


def frameworks(adapters: Path = ADAPTERS) -> dict[str, FrameworkEntry]:
    """Return every framework by name: those under `adapters`, and those from outside.

    Raises UsageError for a broken declaration.
    """
    known = {path.parent.name: read(path) for path in sorted(adapters.glob(f"*/{DECLARATION}"))}
    code = outside.found()
    # Methods from outside may be those of a framework from outside.
    for each in code:
        if (each.folder / DECLARATION).is_file():
            _add_framework(known, each)
    for each in code:
        if (each.folder / ENGINE_DECLARATION).is_file():
            _add_methods(known, each)
        elif not (each.folder / DECLARATION).is_file():
            raise UsageError(
                f"{each.folder} declares nothing: it needs {DECLARATION} for a framework, "
                f"or {ENGINE_DECLARATION} for methods of a known one"
            )
    return known


def _add_framework(known: dict[str, FrameworkEntry], code: Outside) -> None:
    path = code.folder / DECLARATION
    if code.name in known:
        raise UsageError(f"{path}: there is a framework {code.name} already, so rename the folder")
    if not (code.folder / REQUIREMENTS).is_file():
        raise UsageError(f"{code.folder} declares a framework, and so it needs {REQUIREMENTS}")
    entry = read(path)
    code.require_class(entry.class_path, f"{path}: framework")
    for name, method in entry.methods.items():
        code.require_class(method.class_path, f"{path}: methods.{name}")
    known[code.name] = entry.model_copy(update={"origin": code.label})


def _add_methods(known: dict[str, FrameworkEntry], code: Outside) -> None:
    path = code.folder / ENGINE_DECLARATION
    declared = tables.read(path, MethodsFile)
    if declared.framework not in known:
        raise nearest("framework", declared.framework, known, f"in {path}")
    methods = {}
    for name, table in declared.methods.items():
        code.require_class(table.class_path, f"{path}: methods.{name}")
        methods[name] = _entry(name, table).model_copy(update={"origin": code.label})
    framework = known[declared.framework]
    try:
        known[declared.framework] = framework.with_methods(methods, declared.environments)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def require_same_adapters(known: Mapping[str, FrameworkEntry], plan: Iterable[PlannedCase]) -> None:
    """Raise UsageError where code from outside has changed since a run of it began."""
    for item in plan:
        case = item.case
        if not case.adapter:
            continue
        framework = known.get(case.framework)
        # Options that the user has set stand behind the name.
        name = case.method.partition("[")[0]
        method = framework.methods.get(name) if framework else None
        now = framework.origin_of(method) if framework and method else "not there"
        if now != case.adapter:
            raise UsageError(
                f"method {case.method} of {case.framework} was {case.adapter} when the run began, "
                f"and is {now} now; restore it, or start a new run"
            )


def floors(adapters: Path = ADAPTERS) -> frozenset[str]:
    """Return the names that stand for no framework, but for plain files as a floor."""
    return frozenset(name for name, entry in frameworks(adapters).items() if entry.floor)


def packages(entries: Mapping[str, FrameworkEntry]) -> dict[str, tuple[str, ...]]:
    """Return for each environment the packages whose versions a worker reports."""
    found: dict[str, tuple[str, ...]] = {}
    for entry in entries.values():
        found |= entry.packages_of()
    return found


def read(path: Path) -> FrameworkEntry:
    """Return the framework that an adapter.toml declares, with the methods of its engines.

    Raises UsageError with file and key where a declaration is broken.
    """
    declared = tables.read(path, AdapterFile)
    name = path.parent.name
    methods = {method: _entry(method, table) for method, table in declared.methods.items()}
    for engine in _engines_of(path.parent):
        for method, entry in _engine_methods(engine, name, declared.framework.script).items():
            if method in methods:
                raise UsageError(f"{path}: methods.{method}: {engine} declares this method too")
            methods[method] = entry
    return FrameworkEntry(
        name=name,
        methods=methods,
        folder=path.parent,
        strategies=declared.strategies,
        peers=declared.peers,
        environments=declared.environments,
        **declared.framework.model_dump(by_alias=True),
    )


def _engines_of(folder: Path) -> list[Path]:
    """Return the declarations of the engines for which a framework's folder holds a file."""
    declarations = sorted(folder.parent.glob(f"*/{ENGINE_DECLARATION}"))
    return [path for path in declarations if (folder / f"{path.parent.name}.py").is_file()]


def _engine_methods(path: Path, framework: str, script: Script | None) -> dict[str, MethodEntry]:
    """Return the methods that an engine's methods.toml gives to a framework."""
    methods = {}
    for name, table in tables.read(path, EngineFile).methods.items():
        lines = {"save": "", "load": ""}
        if script is not None:
            lines["save"] = f"{script.arrays}\n{table.save}"
            lines["load"] = f"{script.slots}\n{script.arrays}\n{table.load}\n{script.restore}"
        class_path = table.class_path.replace(_FRAMEWORK_IN_CLASS_PATH, framework)
        methods[name] = _entry(name, table.model_copy(update=lines | {"class_path": class_path}))
    return methods


def _entry(name: str, table: MethodTable) -> MethodEntry:
    return MethodEntry(**table.model_dump(by_alias=True) | {"name": name})


def select(known: Mapping[str, FrameworkEntry], names: Iterable[str]) -> list[FrameworkEntry]:
    """Return the named frameworks in the order given, each once; all if no name is given.

    Raises UsageError for an unknown name.
    """
    wanted = list(dict.fromkeys(names)) or list(known)
    for name in wanted:
        if name not in known:
            raise nearest("framework", name, known)
    return [known[name] for name in wanted]
