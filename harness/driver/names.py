"""The names that a plan is made from. All others are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from harness import experiments
from harness.driver import catalog
from harness.driver.declarations import FrameworkEntry, MethodEntry, Speed, Strategy
from harness.driver.suite import Suite, require
from harness.run.errors import UsageError
from harness.wire.case import MOST_RANKS

STORES = "stores"
TRAITS: dict[str, Callable[[MethodEntry], bool]] = {
    "all": lambda method: not method.store,
    "default": lambda method: method.is_default,
    "fast": lambda method: method.speed is Speed.FASTEST_KNOWN and not method.store,
    "asynchronous": lambda method: method.asynchronous and not method.store,
    "of-ranks": lambda method: method.is_of_ranks and not method.store,
    STORES: lambda method: method.store,
}
STRATEGY_TRAITS: dict[str, Callable[[Strategy], bool]] = {
    "all": lambda strategy: True,
    "default": lambda strategy: strategy.default,
    "sharded": lambda strategy: strategy.sharded,
}


def require_devices(frameworks: Iterable[FrameworkEntry], device: str) -> None:
    """Refuse a device that a framework lacks."""
    for framework in frameworks:
        require("device", device, framework.devices, f"in framework {framework.name}")


def require_worlds(worlds: Iterable[int]) -> None:
    """Refuse a number of ranks that no world has."""
    for world in worlds:
        if world < 1:
            raise UsageError(f"a world has at least 1 rank, not {world}")
        if world > MOST_RANKS:
            raise UsageError(f"a world has at most {MOST_RANKS} ranks, not {world}")


def require_known(suite: Suite, frameworks: Sequence[FrameworkEntry]) -> None:
    """Refuse a suite that names what no framework has.

    It may name a method or strategy that only a framework has which is not measured now.
    """
    everywhere = [*frameworks, *catalog.frameworks().values()]
    for sweep in suite.sweeps:
        require_methods(everywhere, sweep.method)
        if not experiments.experiment(sweep.experiment).stores:
            _refuse_stores(everywhere, sweep.method, sweep.experiment)
        require_strategies(everywhere, sweep.strategy)


def require_methods(frameworks: Sequence[FrameworkEntry], wanted: Iterable[str]) -> None:
    """Refuse a method or trait that no framework has."""
    known: set[str] = set()
    for framework in frameworks:
        known |= set(framework.methods)
    for name in wanted:
        if name not in TRAITS:
            require("method", name, known, f"in {in_words(frameworks)}")


def require_use_of_stores(
    suite: Suite, frameworks: Iterable[FrameworkEntry], wanted: Iterable[str]
) -> None:
    """Refuse a store if the suite has no experiment of stores."""
    named = dict.fromkeys(sweep.experiment for sweep in suite.sweeps)
    if not any(experiments.experiment(name).stores for name in named):
        _refuse_stores(frameworks, wanted, ", ".join(named))


def require_strategies(frameworks: Sequence[FrameworkEntry], wanted: Iterable[str]) -> None:
    """Refuse a strategy or trait that no framework has."""
    known: set[str] = set()
    for framework in frameworks:
        known |= set(framework.strategies)
    for name in wanted:
        if name not in STRATEGY_TRAITS:
            require("strategy", name, known, f"in {in_words(frameworks)}")


def require_options(methods: Iterable[MethodEntry], options: Mapping[str, Any]) -> None:
    """Refuse an option that no method has."""
    known: set[str] = set()
    for method in methods:
        known |= set(method.options)
    for key in options:
        require("option", key, known, "of the selected methods")


def _refuse_stores(
    frameworks: Iterable[FrameworkEntry], wanted: Iterable[str], experiment: str
) -> None:
    """Raise UsageError if any of the wanted names is a store's, or the trait of stores."""
    stores = {STORES}.union(*(framework.stores for framework in frameworks))
    for name in wanted:
        if name in stores:
            takes = [each for each in experiments.names() if experiments.experiment(each).stores]
            means = "means stores" if name == STORES else "is a store"
            raise UsageError(
                f"{name!r} {means}, and experiment {experiment} measures none; name a method, or "
                f"run a suite whose experiment measures stores: {', '.join(takes)}"
            )


def in_words(frameworks: Sequence[FrameworkEntry]) -> str:
    """Return the frameworks as an error names them."""
    names = ", ".join(dict.fromkeys(framework.name for framework in frameworks))
    return f"framework {names}" if len(frameworks) == 1 else f"frameworks {names}"
