"""The framework that the suite is run for, and what every test does with its states."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from declarations import Declaration, declaration, is_broken, is_store

import workloads
from adapters.base import Coverage, DirectIo, Entry, Framework, Leaf, Method, Place, Store
from adapters.shared.quirks import Quirks
from workloads import Role, Workload

IO = DirectIo(direct=False, block_bytes=1 << 20, depth=1)

_ITEM_BYTES = {"bfloat16": 2}  # which numpy lacks

# The type, the shape and the role of a leaf, behind its name.
LeafShape = tuple[str, Role, str, tuple[int, ...]]


def item_bytes(dtype: str) -> int:
    """Return the bytes of one element of a leaf."""
    return _ITEM_BYTES.get(dtype) or np.dtype(dtype).itemsize


class Subject:
    """One framework's declarations, its class and its quirks."""

    def __init__(self, name: str) -> None:
        self.name = name
        declared = declaration(name)
        both: dict[str, Declaration] = declared["methods"]
        self.methods = {name: each for name, each in both.items() if not is_store(each)}
        self.stores = {name: each for name, each in both.items() if is_store(each)}
        self.strategies: dict[str, Declaration] = declared.get("strategies", {})
        self.framework_class: type[Framework[Any]] = _class_at(declared["framework"]["class"])
        self.quirks = _quirks(name)
        self.cases = [case for case in _all_cases() if not self._refuses(case)]

    def workload(self, case: str, **options: Any) -> Workload:
        """Return the small preset of a case, which is the name of a workload and a precision."""
        name, precision = _all_cases()[case]
        return workloads.load(name, "small", precision, **options)

    def precision(self, case: str) -> str:
        """Return the precision of a case."""
        return _all_cases()[case][1]

    def chosen(self, limit: tuple[str, ...] | None) -> list[str]:
        """Return the cases of a test that a quirk may limit to a few."""
        return self.cases if limit is None else [case for case in self.cases if case in limit]

    def working(self, cases: list[str]) -> list[tuple[str, str]]:
        """Return the methods that can save and load, each with every case that it can."""
        return [
            (name, case)
            for name, method in self.methods.items()
            for case in cases
            if not is_broken(method, self.precision(case))
        ]

    def copies(self, name: str) -> Mapping[Role, int]:
        """Return how often a method writes the leaves of each role."""
        once = dict.fromkeys(Coverage(self.methods[name]["covers"]).roles, 1)
        return self.quirks.copies.get(name, once)

    def _refuses(self, case: str) -> bool:
        return self.framework_class.unsupported(self.workload(case), "cpu") is not None


def _all_cases() -> dict[str, tuple[str, str]]:
    """Return name and precision of every workload, by the name of the case."""
    cases = {}
    for name in workloads.names():
        for precision in workloads.precisions(name):
            cases[f"{name}-{precision}"] = (name, precision)
    return cases


def _class_at(path: str) -> Any:
    module, _, attribute = path.partition(":")
    return getattr(importlib.import_module(module), attribute)


def _quirks(name: str) -> Quirks[Any]:
    module = f"adapters.{name}.quirks"
    if importlib.util.find_spec(module) is None:
        return Quirks()
    quirks: Quirks[Any] = _class_at(f"{module}:Quirks")()
    return quirks


SUBJECT = Subject(os.environ["CKPTBENCH_CONFORMANCE_OF"])


def new_framework(folder: Path, **place: Any) -> Any:
    """Return the framework, started on a CPU as the only rank, or at the place that is given."""
    framework = SUBJECT.framework_class()
    alone = {"rank": 0, "world": 1, "device": "cpu", "temporary": folder, "io": IO}
    framework.start(Place(**{**alone, "memory": folder / "memory", **place}))
    return framework


def new_method(name: str, framework: Framework[Any], **options: Any) -> Method[Any]:
    """Return a method of the framework, with the options that are declared for it."""
    declared = SUBJECT.methods[name]
    method_class = _class_at(declared["class"])
    method: Method[Any] = method_class(
        framework.place, framework, declared.get("options", {}) | options
    )
    return method


@contextmanager
def opened_store(
    name: str, framework: Framework[Any], state: Any, folder: Path
) -> Iterator[Store[Any]]:
    """Open a store for a state and a folder, and close it in the end."""
    declared = SUBJECT.stores[name]
    store_class = _class_at(declared["class"])
    store: Store[Any] = store_class(framework.place, framework, dict(declared["options"]))
    store.open(state, folder)
    try:
        yield store
    finally:
        store.close()


@contextmanager
def opened(method: Method[Any], state: Any) -> Iterator[Method[Any]]:
    """Open a method for a state, and close it in the end."""
    method.open(state)
    try:
        yield method
    finally:
        method.close()


def train(framework: Framework[Any], state: Any, steps: int) -> list[float]:
    """Train a state, and return the loss of every step."""
    losses = []
    for _ in range(steps):
        framework.gradients(state)
        losses.append(framework.loss(state))
        framework.update(state)
    return losses


def trained(framework: Framework[Any], workload: Workload, seed: int, steps: int) -> Any:
    """Return a new state that has taken some steps."""
    state = framework.build(workload, seed)
    train(framework, state, steps)
    return state


def save(method: Method[Any], state: Any, path: Path) -> None:
    """Save as a script does that waits for the save."""
    pending = method.save(state, path)
    pending.staged()
    pending.finished()


def save_behind_a_step(
    framework: Framework[Any], method: Method[Any], state: Any, path: Path
) -> None:
    """Save while training goes on, and update only what is staged."""
    pending = method.save(state, path)
    framework.gradients(state)
    pending.staged()
    framework.update(state)
    pending.finished()


def saved_entries(method: Method[Any], state: Any, path: Path) -> list[Entry]:
    """Save a state, and return the entries of the checkpoint."""
    with opened(method, state):
        save(method, state, path)
        return list(method.entries(path))


def shape_of(leaf: Leaf) -> LeafShape:
    """Return all of a leaf but its values and its placement."""
    return leaf.name, leaf.role, leaf.dtype, leaf.shape


def copied_leaves(framework: Framework[Any], state: Any) -> dict[str, bytes]:
    """Return copies of the bytes of all leaves."""
    return {leaf.name: bytes(leaf.data) for leaf in framework.leaves(state)}


def digest(data: Any) -> str:
    """Return the SHA-256 of some bytes."""
    return hashlib.sha256(data).hexdigest()


def digests(framework: Framework[Any], state: Any) -> dict[str, str]:
    """Return the digests of all leaves."""
    return {leaf.name: digest(leaf.data) for leaf in framework.leaves(state)}


def same(first: Mapping[str, str], second: Mapping[str, str]) -> set[str]:
    """Return the names of the leaves that have the same digest in two states."""
    return {name for name in first if first[name] == second[name]}


def covered(name: str, framework: Framework[Any], state: Any) -> set[str]:
    """Return the names of the leaves that a method or store has to restore, as declared."""
    declared = SUBJECT.methods.get(name) or SUBJECT.stores[name]
    roles = Coverage(declared["covers"]).roles
    return {leaf.name for leaf in framework.leaves(state) if leaf.role in roles}
