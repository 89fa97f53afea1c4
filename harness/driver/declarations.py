"""The tables of adapter.toml and methods.toml, with every key that they may have."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from harness import experiments
from harness.driver import pins, tables
from harness.run.errors import UsageError, nearest

REQUIREMENTS = "requirements.txt"
IN = "+"
"""Stands in the name of an environment between a framework and what its methods or peers add."""

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


def _is_exact(requirement: str) -> str:
    _, pin = pins.parse(requirement)
    if pin.endswith("*"):
        raise ValueError(f"a pin must be exact, not {requirement!r}")
    return pin


ExactPin = Annotated[str, AfterValidator(_is_exact)]


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


class MethodTable(tables.Table):
    """The keys of `[methods.NAME]` in adapter.toml."""

    class_path: ClassPath
    covers: Literal["weights", "weights+optimizer", "full"]
    format: str
    description: str
    # The lines of a training script that save and load with this method. They use the names that
    # `Script` explains.
    save: str = ""
    load: str = ""
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
    # the name of one of `[environments]`, for a method that needs packages of its own
    environment: str = ""

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


class EngineMethodTable(MethodTable):
    """The keys of `[methods.NAME]` in methods.toml."""

    class_path: ClassPathTemplate


class MethodEntry(MethodTable):
    """One method of a framework."""

    name: str
    # the outside code that it is; empty for a method of this project
    origin: str = ""

    @property
    def is_default(self) -> bool:
        """Return whether the framework's documentation uses this method first."""
        return self.listed is Listed.DEFAULT

    @property
    def must_be_named(self) -> bool:
        """Return whether the method is taken only when somebody names it."""
        return self.listed in (Listed.WHEN_NAMED, Listed.TEST_DOUBLE)

    @property
    def is_of_ranks(self) -> bool:
        """Return whether several ranks have to do with a save, and not one of them alone."""
        return self.writes is not Writes.ONE_RANK or self.min_world > 1

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
    # the name of one of `[environments]`, where it needs packages of its own
    environment: str = ""
    description: str


class Script(tables.Table):
    """The keys of `[framework.script]`: the lines around those of an engine of several frameworks.

    All lines use the same names: `model` and `optimizer`, `path` (the checkpoint, or a store's
    folder; its parent exists), `step` (the number of steps taken), `rank`, and `memory` (a folder
    of one's own under /dev/shm). In JAX, `model` and `optimizer` are pytrees, and a load gives both
    names new values. For what trains by itself, there are `trainer` in Chainer, and `inputs` and
    `targets` in TensorFlow.
    """

    arrays: str  # makes `arrays`, a dictionary of numpy arrays, of model and optimizer
    restore: str  # sets model and optimizer to the values of `arrays`
    slots: str = ""  # makes what an optimizer lacks before its first step, for `arrays` of a load
    note: str = ""  # what the lines of all methods do not cover, as a comment above them


class PackagesTable(tables.Table):
    """The keys of `[environments.NAME]`: packages that some methods or peers need.

    These run in an environment of their own, which holds the framework's pins and these. So the
    framework's other rows run on exactly what they would run on without them.
    """

    requirements: tuple[ExactPin, ...] = Field(strict=False, min_length=1)


class FrameworkTable(tables.Table):
    """The keys of `[framework]`."""

    class_path: ClassPath
    devices: tuple[Device, ...] = Field(strict=False, min_length=1)
    # the packages whose versions a record carries
    packages: tuple[str, ...] = Field(strict=False)
    # No framework, but plain files, against which the frameworks are measured. It is taken only
    # when named.
    floor: bool = False
    # A framework without these lines has none for the methods of engines either.
    script: Script | None = None


class FrameworkEntry(FrameworkTable):
    """One framework. Its name is the name of its folder."""

    name: str
    folder: Path
    methods: dict[str, MethodEntry]
    strategies: dict[str, Strategy] = Field(default_factory=dict)
    peers: dict[str, PeersEntry] = Field(default_factory=dict)
    environments: dict[str, PackagesTable] = Field(default_factory=dict)
    # the outside code that it is; empty for a framework of this project
    origin: str = ""

    @property
    def stores(self) -> frozenset[str]:
        """Return the names of the methods that are stores."""
        return frozenset(name for name, method in self.methods.items() if method.store)

    def environment_of(self, user: MethodEntry | PeersEntry) -> str:
        """Return the environment that a method, or peers, have for themselves; empty for none."""
        return f"{self.name}{IN}{user.environment}" if user.environment else ""

    def origin_of(self, method: MethodEntry) -> str:
        """Return the outside code that a method runs; empty where all is of this project."""
        return ", ".join(dict.fromkeys(filter(None, (self.origin, method.origin))))

    def has_lines_of(self, method: MethodEntry) -> bool:
        """Return whether `list methods --how` prints the method's lines for a training script.

        Code from outside is found only where the command names its folder.
        """
        return bool(method.save and method.load) and not self.origin_of(method)

    def with_methods(
        self, methods: Mapping[str, MethodEntry], environments: Mapping[str, PackagesTable]
    ) -> Self:
        """Return the framework with more methods and environments.

        Raise UsageError for a name that it has already.
        """
        for kind, known, added in (
            ("method", self.methods, methods),
            ("environment", self.environments, environments),
        ):
            for name in added:
                if name in known:
                    raise UsageError(f"{self.name} has a {kind} {name} already, so rename this one")
        return self.model_copy(
            update={
                "methods": {**self.methods, **methods},
                "environments": {**self.environments, **environments},
            }
        )

    def own_requirements(self) -> str:
        """Return the text of the framework's own pins."""
        return (self.folder / REQUIREMENTS).read_text(encoding="utf-8")

    def packages_of(self) -> dict[str, tuple[str, ...]]:
        """Return for each environment the packages whose versions a record carries."""
        packages = {self.name: self.packages}
        for name, table in self.environments.items():
            own = [pins.parse(requirement)[0] for requirement in table.requirements]
            packages[f"{self.name}{IN}{name}"] = (*self.packages, *own)
        return packages


class AdapterFile(tables.Table):
    """The content of adapter.toml."""

    framework: FrameworkTable
    methods: dict[str, MethodTable]
    strategies: dict[str, Strategy] = Field(default_factory=dict)
    peers: dict[str, PeersEntry] = Field(default_factory=dict)
    environments: dict[str, PackagesTable] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _knows_environments(self) -> Self:
        _require_environments(self.methods, self.environments)
        _require_environments(self.peers, self.environments)
        return self

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


class EngineFile(tables.Table):
    """The content of methods.toml."""

    methods: dict[str, EngineMethodTable]


class MethodsFile(tables.Table):
    """The content of methods.toml in a folder from outside."""

    framework: str
    methods: dict[str, MethodTable]
    environments: dict[str, PackagesTable] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _knows_environments(self) -> Self:
        _require_environments(self.methods, self.environments)
        return self

    @model_validator(mode="after")
    def _no_second_default(self) -> Self:
        for name, method in self.methods.items():
            if method.listed is Listed.DEFAULT:
                raise ValueError(f"method {name} cannot be the framework's default, which it has")
        return self


def _require_environments(
    users: Mapping[str, MethodTable] | Mapping[str, PeersEntry],
    environments: Mapping[str, PackagesTable],
) -> None:
    for user in users.values():
        if user.environment and user.environment not in environments:
            raise nearest("environment", user.environment, environments)
