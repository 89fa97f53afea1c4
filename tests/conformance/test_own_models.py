"""Every method saves and loads a model of the user's own, and what cannot be measured is refused.

The quirks of a framework give the user's scripts.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from declarations import has_a_race
from rank_cases import methods_for, rank_workload
from subject import (
    SUBJECT,
    copied_leaves,
    covered,
    digests,
    new_method,
    opened,
    opened_store,
    same,
    save,
    save_behind_a_step,
    train,
)
from test_ranks import needs_mpirun, reports_of_ranks, right

from harness.worker import look, own_models
from workloads import Role

QUIRKS = SUBJECT.quirks
FLOAT32_CASE = next(case for case in SUBJECT.cases if SUBJECT.precision(case) == "float32")
METHODS = [name for name, _ in SUBJECT.working([FLOAT32_CASE])]
POSITION = "position/step"
RANKS = Path(__file__).parent / "own_model_ranks.py"
DEFAULT_STRATEGY = next(
    (name for name, each in SUBJECT.strategies.items() if each.get("default")), "none"
)

needs_own_models = pytest.mark.skipif(
    not QUIRKS.own_model, reason="the framework takes no models of the user's own"
)


def script(folder: Path, text: str) -> Path:
    """Write a user's script, and return its file."""
    file = folder / "train.py"
    file.write_text(textwrap.dedent(text), encoding="utf-8")
    return file


@pytest.fixture(scope="session")
def adopted(
    lasting_framework: Any, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], Any]:
    """Return a function that returns a state of the user's model that has taken some steps.

    The states for 1 and for 3 steps are made once. Each call sets their leaves back.
    """
    file = script(tmp_path_factory.mktemp("own"), QUIRKS.own_model)
    made: dict[int, tuple[Any, dict[str, bytes]]] = {}

    def state_after(steps: int) -> Any:
        if steps not in made:
            state = own_models.adopted(lasting_framework, own_models.load(file, "make"), steps)
            train(lasting_framework, state, steps)
            made[steps] = state, copied_leaves(lasting_framework, state)
        state, leaves = made[steps]
        values = {name: memoryview(data) for name, data in leaves.items()}
        lasting_framework.assign(state, values)
        return state

    return state_after


@pytest.fixture(autouse=True)
def _nothing_imported() -> Iterator[None]:
    """Forget the user's script, which a process imports once, and its folder."""
    path = list(sys.path)
    sys.modules.pop(own_models.MODULE, None)
    yield
    sys.modules.pop(own_models.MODULE, None)
    sys.path[:] = path


@needs_own_models
def test_a_users_model_has_weights_that_every_step_changes(
    lasting_framework: Any, adopted: Callable[[int], Any]
) -> None:
    state = adopted(3)
    before = digests(lasting_framework, state)
    roles = {leaf.name: leaf.role for leaf in lasting_framework.leaves(state)}
    train(lasting_framework, state, 1)
    unchanged = same(before, digests(lasting_framework, state))
    assert {Role.WEIGHT, Role.POSITION} <= set(roles.values())
    assert [name for name in unchanged if roles[name] is Role.WEIGHT] == []
    assert POSITION not in unchanged


@needs_own_models
@pytest.mark.parametrize("name", METHODS)
def test_every_method_restores_a_users_model(
    lasting_framework: Any, adopted: Callable[[int], Any], name: str, tmp_path: Path
) -> None:
    state = adopted(3)
    target = adopted(1)
    saved = digests(lasting_framework, state)
    method = new_method(name, lasting_framework)
    with opened(method, state):
        if has_a_race(SUBJECT.methods[name]):
            save(method, state, tmp_path / "checkpoint")
            train(lasting_framework, state, 1)
        else:
            save_behind_a_step(lasting_framework, method, state, tmp_path / "checkpoint")
        method.load(target, tmp_path / "checkpoint")
    restored = same(digests(lasting_framework, target), saved)
    expected = covered(name, lasting_framework, target)
    assert expected <= restored
    assert (POSITION in restored) == (POSITION in expected)
    train(lasting_framework, target, 1)
    if expected == saved.keys():
        assert digests(lasting_framework, target) == digests(lasting_framework, state)


@needs_own_models
@pytest.mark.parametrize("name", list(SUBJECT.stores))
def test_every_store_restores_a_users_model(
    lasting_framework: Any, adopted: Callable[[int], Any], name: str, tmp_path: Path
) -> None:
    state = adopted(3)
    saved = digests(lasting_framework, state)
    with opened_store(name, lasting_framework, state, tmp_path) as store:
        pending = store.save(state, 3)
        pending.staged()
        pending.finished()
    target = adopted(1)
    with opened_store(name, lasting_framework, target, tmp_path) as store:
        assert store.restore_latest(target) == 3
    restored = same(digests(lasting_framework, target), saved)
    assert covered(name, lasting_framework, target) <= restored


@pytest.mark.slow
@needs_mpirun
@needs_own_models
def test_two_ranks_restore_a_users_model(tmp_path: Path) -> None:
    script(tmp_path, QUIRKS.own_model)
    told = reports_of_ranks(2, tmp_path, (DEFAULT_STRATEGY,), [], RANKS)
    methods = methods_for(DEFAULT_STRATEGY, rank_workload("resnet50-float32"))
    assert sorted(told) == right(["replicas", *methods])


@pytest.mark.skipif(
    "make_without_step" not in QUIRKS.own_model, reason="the framework needs a step function"
)
def test_random_gradients_train_a_model_without_a_step(
    lasting_framework: Any, tmp_path: Path
) -> None:
    make = own_models.load(script(tmp_path, QUIRKS.own_model), "make_without_step")
    state = own_models.adopted(lasting_framework, make, 1)
    again = own_models.adopted(lasting_framework, make, 1)
    first = digests(lasting_framework, state)
    train(lasting_framework, state, 1)
    train(lasting_framework, again, 1)
    second = digests(lasting_framework, state)
    roles = {leaf.name: leaf.role for leaf in lasting_framework.leaves(state)}
    assert [name for name in same(first, second) if roles[name] is Role.WEIGHT] == []
    assert digests(lasting_framework, again) == second


@needs_own_models
def test_every_call_of_make_draws_the_same_random_numbers(
    lasting_framework: Any, tmp_path: Path
) -> None:
    text = f"""{QUIRKS.own_model}
import random as python_random, numpy as np
drawn = []
plain_make = make
def make():
    drawn.append((python_random.random(), np.random.rand()))
    return plain_make()
"""
    file = script(tmp_path, text)
    make = own_models.load(file, "make")
    for seed in (1, 1, 2):
        own_models.adopted(lasting_framework, make, seed)
    first, again, other = sys.modules[own_models.MODULE].drawn
    assert first == again
    assert not set(first) & set(other)


def answer(file: Path, folder: Path) -> dict[str, Any]:
    """Return what the harness finds out about a user's model before it measures anything."""
    request = {
        "file": str(file),
        "function": "make",
        "framework": f"{SUBJECT.framework_class.__module__}:{SUBJECT.framework_class.__name__}",
        "device": "cpu",
        "folder": str(folder),
        "methods": {name: method["class"] for name, method in SUBJECT.methods.items()},
    }
    asked = folder / "request.json"
    asked.write_text(json.dumps(request), encoding="utf-8")
    look.main(str(asked), str(folder / "answer.json"))
    answered: dict[str, Any] = json.loads((folder / "answer.json").read_text(encoding="utf-8"))
    return answered


@needs_own_models
def test_a_look_at_a_users_model_tells_its_size(
    lasting_framework: Any, adopted: Callable[[int], Any], tmp_path: Path
) -> None:
    leaves = list(copied_leaves(lasting_framework, adopted(1)).values())
    told = answer(script(tmp_path, QUIRKS.own_model), tmp_path)
    assert told.pop("import_s") > 0
    assert told == {
        "state_bytes": sum(map(len, leaves)),
        "leaves": len(leaves),
        "modules": [],
        "lacking": {},
    }


@pytest.mark.parametrize("wrong", list(QUIRKS.broken_models))
def test_a_broken_script_is_refused_in_one_sentence(wrong: str, tmp_path: Path) -> None:
    text, sentence = QUIRKS.broken_models[wrong]
    told = answer(script(tmp_path, text), tmp_path)
    assert list(told) == ["error"]
    assert "\n" not in told["error"]
    assert told["error"].startswith("train.py:")
    assert re.search(sentence, told["error"]), told["error"]
