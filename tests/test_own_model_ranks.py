"""Models of the user's own on two ranks, from the command line to the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT
from stubs import Ended, command

pytestmark = pytest.mark.slow

FSDP = """
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


def make():
    model = nn.Sequential(nn.Linear(64, 97), nn.ReLU(), nn.Linear(97, 3))
    if torch.distributed.is_initialized():
        fully_shard(model[0])
        fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), 1e-3), step


def step(model, number):
    generator = torch.Generator().manual_seed(number)
    inputs = torch.randn(8, 64, generator=generator)
    return model(inputs).square().mean()
"""
JAX = """
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

optimizer = optax.adam(1e-3)


def make():
    mesh = Mesh(np.array(jax.devices()), ("ranks",))
    rows = NamedSharding(mesh, PartitionSpec("ranks"))
    same = NamedSharding(mesh, PartitionSpec())

    def of(array):
        return rows if array.ndim == 2 else same

    params = {"kernel": np.random.rand(64, 32).astype("float32"), "bias": np.zeros(32, "float32")}
    state = {"params": params, "opt_state": optimizer.init(params)}
    return jax.device_put(state, jax.tree.map(of, state)), step


def loss(params, number):
    inputs = jax.random.normal(jax.random.key(number), (8, 64))
    return jnp.square(inputs @ params["kernel"] + params["bias"]).mean()


@jax.jit
def step(tree, number):
    gradients = jax.grad(loss)(tree["params"], number)
    updates, opt_state = optimizer.update(gradients, tree["opt_state"])
    return {"params": optax.apply_updates(tree["params"], updates), "opt_state": opt_state}
"""
# Each rank trains on a batch of its own, and nothing averages.
APART = """
import jax


def make():
    return {"params": {"kernel": jax.numpy.ones(8)}, "batch_stats": jax.numpy.zeros(2)}, step


def step(tree, number):
    rank = jax.process_index()
    statistics = tree["batch_stats"] + number + rank
    kernel = tree["params"]["kernel"] * (0.9 - 0.1 * rank)
    return {"params": {"kernel": kernel}, "batch_stats": statistics}
"""


def run(folder: Path, framework: str, text: str, *words: str) -> tuple[Ended, list[dict[str, Any]]]:
    """Measure a user's text on two ranks. Return the command's end and the rows."""
    if not (ROOT / ".venvs" / framework / "bin" / "python").exists():
        pytest.skip(f"the environment of {framework} is not made")
    file = folder / "train.py"
    file.write_text(text)
    results = ("--results", str(folder / "results"))
    ended = command(
        *("run", "smoke", "--framework", framework, "--model", f"{file}:make", "--world", "2"),
        *("--dir", str(folder), *results, *words),
    )
    shown = command("show", "latest", *results, "--format", "json")
    return ended, json.loads(shown.output)


def verdicts(rows: list[dict[str, Any]]) -> dict[str, tuple[str, bool]]:
    return {row["method"]: (row["status"], row["verified"]) for row in rows}


def test_a_model_that_fsdp_shards_is_verified_by_what_takes_shards(scratch: Path) -> None:
    methods = ("dcp", "dcp-hf-safetensors-sharded", "torch-save")
    named = [word for name in methods for word in ("--method", name)]
    ended, rows = run(scratch, "pytorch", FSDP, "--strategy", "fsdp", *named)
    assert ended.status == 0, ended.errors
    assert verdicts(rows) == {
        "dcp": ("ok", True),
        "dcp-hf-safetensors-sharded": ("ok", True),
        "torch-save": ("unsupported", False),
    }
    remarks = {row["method"]: row["remarks"] for row in rows}
    # AdamW's other settings are no floating-point numbers.
    lost = "a load does not bring back the optimizer's settings (eps, lr, weight_decay), so a"
    assert [text.startswith(lost) for text in remarks["dcp-hf-safetensors-sharded"]] == [True]
    assert remarks["dcp"] == []


def test_a_model_that_is_not_sharded_is_refused_with_fsdp(scratch: Path) -> None:
    plain = FSDP.replace("is_initialized()", "is_initialized() and False")
    words = ("--strategy", "fsdp", "--method", "dcp")
    ended, (row,) = run(scratch, "pytorch", plain, *words)
    assert ended.status == 1
    assert "with --strategy fsdp it must call fully_shard on the model" in row["reason"]


def test_arrays_of_jax_on_a_mesh_of_all_ranks_are_verified(scratch: Path) -> None:
    named = ("--method", "orbax", "--method", "safetensors-per-rank")
    ended, rows = run(scratch, "jax", JAX, "--strategy", "sharded", *named)
    assert ended.status == 0, ended.errors
    assert verdicts(rows) == {"orbax": ("ok", True), "safetensors-per-rank": ("ok", True)}


def test_ranks_of_jax_that_do_not_average_are_refused(scratch: Path) -> None:
    ended, (row,) = run(scratch, "jax", APART, "--method", "orbax")
    assert ended.status == 1
    # Statistics may differ from rank to rank, as those of batch norm do.
    assert "the 2 ranks have different values of weights/params.kernel, which" in row["reason"]
