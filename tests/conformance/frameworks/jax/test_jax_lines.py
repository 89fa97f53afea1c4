"""The lines that JAX's methods declare for training scripts save and load bit by bit."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from script_lines import DECLARED, STEP, Names, run

pytestmark = pytest.mark.slow


def trained(seed: int) -> Names:
    """Return weights and slots, both pytrees, that have taken some steps."""
    random = np.random.default_rng(seed)
    model = {
        "dense": {"kernel": random.normal(size=(5, 3)), "bias": random.normal(size=3)},
        "scale": random.normal(size=()),
    }
    model = jax.tree.map(lambda array: jax.numpy.asarray(array, "float32"), model)
    update = optax.adam(0.01)
    optimizer = update.init(model)
    for _ in range(STEP):
        changes, optimizer = update.update(model, optimizer)
        model = optax.apply_updates(model, changes)
    return {"model": model, "optimizer": optimizer}


def values(names: Names) -> list[bytes]:
    """Return the bytes of all leaves."""
    leaves = jax.tree.leaves((names["model"], names["optimizer"]))
    return [np.asarray(leaf).tobytes() for leaf in leaves]


@pytest.mark.parametrize("method", DECLARED)
def test_the_lines_of_a_method_save_and_load(method: str, tmp_path: Path) -> None:
    names = trained(seed=1)
    run(method, "save", names, tmp_path)
    other = trained(seed=2)
    assert values(other) != values(names)
    restored = run(method, "load", other, tmp_path)
    assert values(restored) == values(names)
    same_tree = jax.tree.structure(names["optimizer"])
    assert jax.tree.structure(restored["optimizer"]) == same_tree
