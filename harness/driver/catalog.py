"""Which frameworks and methods exist: `adapters/*/adapter.toml` read as data, so that no framework is ever imported here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from harness.driver import tables
from harness.run.errors import nearest

ADAPTERS = Path(__file__).resolve().parents[2] / "adapters"
DECLARATION = "adapter.toml"

Device = Literal["cpu", "cuda"]
ClassPath = Annotated[str, Field(alias="class", pattern=r"^\w+(\.\w+)*:\w+$")]
"""`package.module:Class`, which a worker imports."""


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from error
    return pattern


class ExpectedFailure(tables.Table):
    """A failure that the framework itself causes: a regular expression for the row's reason, and where it is to be expected."""

    reason: Annotated[str, AfterValidator(_compiles)]
    # None: in every one
    experiment: Literal["cost", "sizes", "train", "resume", "reshard"] | None = None
    precision: str | None = None
    race: bool = False  # it depends on the moment: now and then the method comes out right

    def concerns(self, experiment: str, precision: str) -> bool:
        """Whether a row of this experiment and precision is to fail."""
        return self.experiment in (None, experiment) and self.precision in (None, precision)


class _MethodTable(tables.Table):
    """What `[methods.NAME]` may hold."""

    class_path: ClassPath
    covers: Literal["weights", "weights+optimizer", "full"]
    format: str
    description: str
    rank_local: bool = False  # a multi-rank checkpoint holds every rank's own leaves
    sharded: bool = False  # every rank writes a share
    asynchronous: bool = False
    compressed: bool = False
    from_memory: bool = False  # loads restore from shared memory, and not from files
    default: bool = False  # what the framework's documentation reaches for first
    fast: bool = False  # the framework's fastest known way
    # on fewer ranks it is another method of the framework: taken there only when named
    min_world: int = Field(default=1, ge=1)
    # in which it says something new; in others only when named
    experiments: tuple[str, ...] = Field(default=(), strict=False)
    # every rank writes all that it holds, so of replicated state there are as many copies as ranks
    every_rank: bool = False
    takes_shards: bool = False  # it can save a state of which no rank holds the whole
    reshards: bool = False  # another number of ranks can load what it wrote
    # it takes many times as long as the others: a suite may take fewer samples of it
    slow: bool = False
    # it forks or starts daemons: nothing else may be measured in the same process
    own_process: bool = False
    extra: bool = False  # a special use of another method: only taken when named
    test_double: bool = False  # misbehaves on purpose: only taken when named
    expected_failures: tuple[ExpectedFailure, ...] = Field(default=(), strict=False)
    options: dict[str, Any] = Field(default_factory=dict)


class Strategy(tables.Table):
    """What `[strategies.NAME]` may hold: a way in which several ranks train together."""

    description: str
    default: bool = False
    sharded: bool = False  # no rank holds the whole state


class MethodEntry(_MethodTable):
    """One method of a framework."""

    name: str


class _FrameworkTable(tables.Table):
    """What `[framework]` may hold."""

    class_path: ClassPath
    devices: tuple[Device, ...] = Field(strict=False, min_length=1)
    packages: tuple[str, ...] = Field(strict=False)  # whose versions a record carries


class FrameworkEntry(_FrameworkTable):
    """One framework: a folder under adapters/, whose name is the framework's."""

    name: str
    methods: dict[str, MethodEntry]
    strategies: dict[str, Strategy] = Field(default_factory=dict)


class _AdapterFile(tables.Table):
    framework: _FrameworkTable
    methods: dict[str, _MethodTable]
    strategies: dict[str, Strategy] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _one_default(self) -> Self:
        defaults = sorted(name for name, method in self.methods.items() if method.default)
        if len(defaults) != 1:
            found = ", ".join(defaults) or "none"
            raise ValueError(
                f"exactly one method must have `default = true`, and {len(defaults)} have it ({found})"
            )
        if self.strategies and sum(strategy.default for strategy in self.strategies.values()) != 1:
            raise ValueError("exactly one strategy must have `default = true`")
        return self


def frameworks(adapters: Path = ADAPTERS) -> dict[str, FrameworkEntry]:
    """Return every framework under `adapters` by name, in order.

    Raises UsageError for a broken declaration.
    """
    return {path.parent.name: read(path) for path in sorted(adapters.glob(f"*/{DECLARATION}"))}


def read(path: Path) -> FrameworkEntry:
    """Return the framework that one adapter.toml declares.

    Raises UsageError with file and key where it is broken.
    """
    declared = tables.read(path, _AdapterFile)
    methods = {
        name: MethodEntry(name=name, **table.model_dump(by_alias=True))
        for name, table in declared.methods.items()
    }
    return FrameworkEntry(
        name=path.parent.name,
        methods=methods,
        strategies=declared.strategies,
        **declared.framework.model_dump(by_alias=True),
    )


def select(known: Mapping[str, FrameworkEntry], names: Iterable[str]) -> list[FrameworkEntry]:
    """Return the named frameworks, each once, in the order given; all of them where no name is given."""
    wanted = list(dict.fromkeys(names)) or list(known)
    for name in wanted:
        if name not in known:
            raise nearest("framework", name, known)
    return [known[name] for name in wanted]
