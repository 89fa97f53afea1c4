"""Choose the framework that the suite is run for, and prepare its states."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from declarations import ADAPTERS, frameworks

VARIABLE = "CKPTBENCH_CONFORMANCE_OF"
ONE_FRAMEWORK = Path(__file__).parent / "frameworks"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--framework",
        default=os.environ.get(VARIABLE),
        help=f"the folder under {ADAPTERS} to test (default: the variable {VARIABLE})",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Name the framework in the environment, where modules and child processes read it."""
    chosen = config.getoption("--framework")
    if chosen not in frameworks():
        known = ", ".join(frameworks())
        raise pytest.UsageError(f"name a framework with --framework ({known}), not {chosen!r}")
    os.environ[VARIABLE] = chosen


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Skip the folders of the other frameworks."""
    if collection_path.parent != ONE_FRAMEWORK:
        return None
    return True if collection_path.name != os.environ[VARIABLE] else None


@pytest.fixture
def framework(tmp_path: Path) -> Iterator[Any]:
    """Return a framework that is started for one test."""
    from subject import new_framework

    framework = new_framework(tmp_path)
    yield framework
    framework.stop()


@pytest.fixture(scope="session")
def lasting_framework(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return a framework that is started once, for the states of `prepared`."""
    from subject import new_framework

    framework = new_framework(tmp_path_factory.mktemp("temporary"))
    yield framework
    framework.stop()


@pytest.fixture(scope="session")
def prepared(lasting_framework: Any) -> Callable[[str, int], Any]:
    """Return a function that returns the trained state of a case and a seed.

    A state of seed 1 has taken 3 steps, and a state of seed 2 one step. Every state is made once,
    because some frameworks take seconds to compile it. Each call sets its leaves back.
    """
    from subject import SUBJECT, copied_leaves, trained

    @functools.cache
    def made_once(case: str, seed: int) -> tuple[Any, dict[str, bytes]]:
        workload = SUBJECT.workload(case)
        state = trained(lasting_framework, workload, seed, steps=5 - 2 * seed)
        return state, copied_leaves(lasting_framework, state)

    def prepare(case: str, seed: int) -> Any:
        state, leaves = made_once(case, seed)
        values = {name: memoryview(data) for name, data in leaves.items()}
        lasting_framework.assign(state, values)
        return state

    return prepare
