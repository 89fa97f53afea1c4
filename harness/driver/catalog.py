"""The catalog of frameworks and methods, read from TOML so that no framework is imported.

`adapters/NAME/adapter.toml` declares a framework, its methods and its strategies. An engine that
serves several frameworks declares its methods once, in `adapters/ENGINE/methods.toml`. Every
framework whose folder holds a file `ENGINE.py` has these methods too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from harness import experiments
from harness.driver import tables
from harness.run.errors import UsageError, nearest

ADAPTERS = Path(__file__).resolve().parents[2] / "adapters"
DECLARATION = "adapter.toml"
ENGINE_DECLARATION = "methods.toml"

_FRAMEWORK_IN_CLASS_PATH = "{framework}"

Device = Literal["cpu", "cuda"]


class Writes(StrEnum):
    """The ranks that write a checkpoint, and the part of the state that each of them writes."""

    ONE_RANK = "one-rank"  # one rank writes all that a checkpoint holds
    SHARES = "shares"  # every rank writes a share of it
    EVERY_RANK = "every-rank"  # every rank writes all that it holds


class ReadableBy(StrEnum):
    """The number of ranks that can load a checkpoint."""

    SAME_WORLD = "same-world"  # as many ranks as saved it
    ANY_WORLD = "any-world"


class Speed(StrEnum):
    """The speed of a method beside the framework's other methods."""

    USUAL = "usual"
    FASTEST_KNOWN = "fastest-known"
    SLOW = "slow"  # many times slower, so that a suite may take fewer samples of it


class Listed(StrEnum):
    """The occasions on which a method is taken without being named."""

    DEFAULT = "default"  # always; the framework's documentation uses it first
    ALWAYS = "always"  # whenever all methods are taken
    WHEN_NAMED = "when-named"  # never; it is a special use of another method
    TEST_DOUBLE = "test-double"  # never; it misbehaves on purpose


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    return pattern


def _exists(experiment: str) -> str:
    if experiment not in experiments.names():
        raise nearest("experiment", experiment, experiments.names())
    return experiment


ClassPath = Annotated[str, Field(alias="class", pattern=r"^\w+(\.\w+)*:\w+$")]
"""`package.module:Class`, which a worker imports."""

ClassPathTemplate = Annotated[
    str, Field(alias="class", pattern=r"^\w+(\.(\w+|\{framework\}))*:\w+$")
]
"""A class path in which `{framework}` stands for the name of the framework."""

ExperimentName = Annotated[str, AfterValidator(_exists)]


class ExpectedFailure(tables.Table):
    """A failure that the framework itself causes, and the rows in which it is expected."""

    # a regular expression for the row's reason
    reason: Annotated[str, AfterValidator(_compiles)]
    # None stands for every experiment
    experiment: ExperimentName | None = None
    # None stands for every precision
    precision: str | None = None
    # the failure depends on timing, so that a row without it is as expected too
    race: bool = False

    def concerns(self, experiment: str, precision: str) -> bool:
        """Return whether a row of this experiment and precision is expected to fail."""
        return self.experiment in (None, experiment) and self.precision in (None, precision)


class _MethodTable(tables.Table):
    """The keys of `[methods.NAME]` in adapter.toml."""

    class_path: ClassPath
    covers: Literal["weights", "weights+optimizer", "full"]
    format: str
    description: str
    writes: Writes = Field(default=Writes.ONE_RANK, strict=False)
    readable_by: ReadableBy = Field(default=ReadableBy.SAME_WORLD, strict=False)
    speed: Speed = Field(default=Speed.USUAL, strict=False)
    listed: Listed = Field(default=Listed.ALWAYS, strict=False)
    # the class is a `Store` of the contract: it names checkpoints, removes old ones and restores
    # the newest. Only experiments that declare `stores` take it.
    store: bool = False
    # a checkpoint of several ranks holds every rank's own leaves
    rank_local: bool = False
    # the method can save a state of which no rank holds the whole
    takes_shards: bool = False
    asynchronous: bool = False
    compressed: bool = False
    # a checkpoint of the same state is not always as large, for example because it holds only what
    # changed since another one
    size_varies: bool = False
    # loads restore from shared memory, and not from files
    from_memory: bool = False
    # a checkpoint has files; one without is in memory alone
    files: bool = True
    # the method forks or starts daemons, so that no other method may share its process
    own_process: bool = False
    # on fewer ranks the method does what another one does, and is taken only when named
    min_world: int = Field(default=1, ge=1)
    # the experiments in which the method says something new; empty stands for all.
    # In the others it is taken only when named.
    experiments: tuple[ExperimentName, ...] = Field(default=(), strict=False)
    expected_failures: tuple[ExpectedFailure, ...] = Field(default=(), strict=False)
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _is_somewhere(self) -> Self:
        if not self.files and not self.from_memory:
            raise ValueError("a method with `files = false` needs `from_memory = true`")
        return self

    @model_validator(mode="after")
    def _is_default_or_store(self) -> Self:
        if self.store and self.listed is Listed.DEFAULT:
            raise ValueError(
                "a store cannot be the default method, because most experiments "
                'measure no stores; give `listed = "default"` to another method'
            )
        return self


class _EngineMethodTable(_MethodTable):
    """The keys of `[methods.NAME]` in methods.toml."""

    class_path: ClassPathTemplate


class MethodEntry(_MethodTable):
    """One method of a framework."""

    name: str

    @property
    def is_default(self) -> bool:
        """Return whether the framework's documentation uses this method first."""
        return self.listed is Listed.DEFAULT

    @property
    def must_be_named(self) -> bool:
        """Return whether the method is taken only when somebody names it."""
        return self.listed in (Listed.WHEN_NAMED, Listed.TEST_DOUBLE)

    @property
    def writes_parts(self) -> bool:
        """Return whether a rank may write a part of the state.

        A rank writes a part because the ranks share the work, or because it writes all that it
        holds, and it holds a part of a sharded state.
        """
        return self.writes is Writes.SHARES or self.takes_shards

    def copies(self, world: int, sharded: bool) -> int:
        """Return how many copies of the state are in a checkpoint of `world` ranks.

        `sharded` says that each rank holds a part of the state, and not the whole.
        """
        return world if self.writes is Writes.EVERY_RANK and not sharded else 1


class Strategy(tables.Table):
    """The keys of `[strategies.NAME]`: a way in which several ranks train together."""

    description: str
    default: bool = False
    sharded: bool = False  # no rank holds the whole state


class PeersEntry(tables.Table):
    """The keys of `[peers.NAME]`: how ranks add up by the framework's own means.

    The name is a way back of experiment `recovery`, which this framework then has.
    """

    class_path: ClassPath
    # the arguments of the interpreter that start the ranks, where mpirun does not; `{ranks}` stands
    # for their number, and the worker's own arguments follow
    launch: tuple[str, ...] = Field(default=(), strict=False)
    description: str


class _FrameworkTable(tables.Table):
    """The keys of `[framework]`."""

    class_path: ClassPath
    devices: tuple[Device, ...] = Field(strict=False, min_length=1)
    # the packages whose versions a record carries
    packages: tuple[str, ...] = Field(strict=False)
    # No framework, but plain files, against which the frameworks are measured. It is taken only
    # when named.
    floor: bool = False


class FrameworkEntry(_FrameworkTable):
    """One framework. Its name is the name of its folder under adapters/."""

    name: str
    methods: dict[str, MethodEntry]
    strategies: dict[str, Strategy] = Field(default_factory=dict)
    peers: dict[str, PeersEntry] = Field(default_factory=dict)

    @property
    def stores(self) -> frozenset[str]:
        """Return the names of the methods that are stores."""
        return frozenset(name for name, method in self.methods.items() if method.store)


class _AdapterFile(tables.Table):
    """The content of adapter.toml."""

    framework: _FrameworkTable
    methods: dict[str, _MethodTable]
    strategies: dict[str, Strategy] = Field(default_factory=dict)
    peers: dict[str, PeersEntry] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_default(self) -> Self:
        defaults = [name for name in sorted(self.methods) if self._is_default(name)]
        if len(defaults) != 1:
            names = ", ".join(defaults) or "none"
            raise ValueError(
                f'exactly one method must have `listed = "default"`, and {len(defaults)} have it '
                f"({names})"
            )
        default_strategies = [name for name in self.strategies if self.strategies[name].default]
        if self.strategies and len(default_strategies) != 1:
            raise ValueError("exactly one strategy must have `default = true`")
        return self

    def _is_default(self, method: str) -> bool:
        return self.methods[method].listed is Listed.DEFAULT


class _EngineFile(tables.Table):
    """The content of methods.toml."""

    methods: dict[str, _EngineMethodTable]


def frameworks(adapters: Path = ADAPTERS) -> dict[str, FrameworkEntry]:
    """Return every framework under `adapters` by name, in alphabetical order.

    Raises UsageError for a broken declaration.
    """
    return {path.parent.name: read(path) for path in sorted(adapters.glob(f"*/{DECLARATION}"))}


def floors(adapters: Path = ADAPTERS) -> frozenset[str]:
    """Return the names that stand for no framework, but for plain files as a floor."""
    return frozenset(name for name, entry in frameworks(adapters).items() if entry.floor)


def read(path: Path) -> FrameworkEntry:
    """Return the framework that an adapter.toml declares, with the methods of its engines.

    Raises UsageError with file and key where a declaration is broken.
    """
    declared = tables.read(path, _AdapterFile)
    name = path.parent.name
    methods = {method: _entry(method, table) for method, table in declared.methods.items()}
    for engine in _engines_of(path.parent):
        for method, entry in _engine_methods(engine, name).items():
            if method in methods:
                raise UsageError(f"{path}: methods.{method}: {engine} declares this method too")
            methods[method] = entry
    return FrameworkEntry(
        name=name,
        methods=methods,
        strategies=declared.strategies,
        peers=declared.peers,
        **declared.framework.model_dump(by_alias=True),
    )


def _engines_of(folder: Path) -> list[Path]:
    """Return the declarations of the engines for which a framework's folder holds a file."""
    declarations = sorted(folder.parent.glob(f"*/{ENGINE_DECLARATION}"))
    return [path for path in declarations if (folder / f"{path.parent.name}.py").is_file()]


def _engine_methods(path: Path, framework: str) -> dict[str, MethodEntry]:
    """Return the methods that an engine's methods.toml gives to a framework."""
    declared = tables.read(path, _EngineFile)
    return {name: _entry(name, table, framework) for name, table in declared.methods.items()}


def _entry(name: str, table: _MethodTable, framework: str = "") -> MethodEntry:
    class_path = table.class_path.replace(_FRAMEWORK_IN_CLASS_PATH, framework)
    return MethodEntry(**table.model_dump(by_alias=True) | {"name": name, "class": class_path})


def select(known: Mapping[str, FrameworkEntry], names: Iterable[str]) -> list[FrameworkEntry]:
    """Return the named frameworks in the order given, each once; all if no name is given.

    Raises UsageError for an unknown name.
    """
    wanted = list(dict.fromkeys(names)) or list(known)
    for name in wanted:
        if name not in known:
            raise nearest("framework", name, known)
    return [known[name] for name in wanted]
