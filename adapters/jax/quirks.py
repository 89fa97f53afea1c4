"""The points in which JAX differs from what the conformance suite expects."""

from __future__ import annotations

from adapters.jax.state import State, WorkloadState
from adapters.shared import quirks
from adapters.shared.quirks import Obstacle

OWN_MODEL = """
import functools
import jax, jax.numpy as jnp, optax
from flax.training.train_state import TrainState

def make():
    params = {"mlp/~/a": {"w": jnp.ones((8, 4)), "b": jnp.zeros(4, jnp.bfloat16)}, "t": 2.0}
    state = TrainState.create(apply_fn=None, params=params, tx=optax.adam(1e-2))
    return {"state": state, "rng": jax.random.key(1), "ema": (params, [None, 3])}, step

@functools.partial(jax.jit, donate_argnums=0)
def step(tree, number):
    rng, noise = jax.random.split(tree["rng"])
    x = jax.random.normal(noise, (2, 8))
    def loss(params):
        y = x @ params["mlp/~/a"]["w"] + params["mlp/~/a"]["b"].astype(jnp.float32)
        return (params["t"] * y - number).mean()
    state = tree["state"]
    state = state.apply_gradients(grads=jax.grad(loss)(state.params))
    ema = jax.tree.map(lambda old, new: 0.9 * old + 0.1 * new, tree["ema"][0], state.params)
    return {"state": state, "rng": rng, "ema": (ema, [None, tree["ema"][1][1] + 1])}
"""


def _script(made: str, body: str = "return {'w': tree['w'] * 2}") -> str:
    """Return a script whose `make` returns this, with a step of this body."""
    return f"""
import jax, jax.numpy as jnp
tree = {{"w": jnp.ones(3)}}
def step(tree, number):
    {body}
def make():
    {made}
"""


BROKEN_MODELS = {
    "no return": (_script("pass"), "a pytree and a step function.*it returned None$"),
    "no step": (_script("return tree"), r"step\(tree, number\) -> tree.*it returned a dict"),
    "wrong order": (_script("return step, tree"), "in this order; the first value is a function"),
    "step is no function": (_script("return tree, 3"), "second value.*not an int"),
    "step of one argument": (
        _script("return tree, lambda tree: tree"),
        "must take two arguments, the pytree and the number",
    ),
    "empty tree": (_script("return {}, step"), "holds no arrays"),
    "integers only": (_script("return {'w': 3}, step"), "no array of floating-point numbers"),
    "no weights": (
        _script("return {'opt_state': {'mu': jnp.ones(3)}, 'step': 0}, step"),
        "has no weights.*such as 'opt_state.mu'; put the weights below 'params' or 'weights'",
    ),
    "function as a leaf": (
        _script("return {'w': tree['w'], 'f': [jax.nn.relu]}, step"),
        "f.0 is a .*, and only arrays and numbers",
    ),
    "array of text": (
        _script("import numpy as np; return {'w': tree['w'], 's': np.array('a')}, step"),
        "s is an array of <U1",
    ),
    "step returns nothing": (_script("return tree, step", "pass"), "like the one.*returned None"),
    "step returns a loss too": (
        _script("return tree, step", "return tree, 0.5"),
        "alone; it returned 2 values",
    ),
    "step drops a leaf": (
        _script("return {**tree, 'm': jnp.ones(2)}, step"),
        "the one that it returned lacks 'm'",
    ),
    "step adds a leaf": (
        _script("return tree, step", "return {'w': tree['w'] * 2, 'x': 1}"),
        "also has 'x'",
    ),
    "step changes a type": (
        _script("return tree, step", "return {'w': tree['w'].astype(jnp.bfloat16)}"),
        r"changes weights/w from float32\[3\] to bfloat16\[3\]",
    ),
    "step changes nothing": (_script("return tree, step", "return tree"), "changes none of the 1"),
    "step raises": (
        _script("return tree, jax.jit(step)", "return {'w': tree['w'] @ jnp.ones(2)}"),
        "^train.py:5: .*dot_general",
    ),
}


class Quirks(quirks.Quirks[State]):
    """JAX compiles the step and gives the memory of old arrays to new ones."""

    added_leaves = ("rng/key", "position/step", "optimizer/count")
    required_leaves = ("rng/key", "position/step")
    dtypes = frozenset({"bfloat16", "float32", "int32", "uint32"})
    without_gpu = "finds no CUDA device"
    # After a missing folder, Orbax's threads wait for 300 s, and the interpreter waits for them.
    obstacle = Obstacle.NO_ROOM
    obstacle_message = r"(?i)too large|writ"
    # Orbax widens the position to 64 bits, and msgpack packs it.
    position_bytes = dict.fromkeys(("ocdbt", "zarr2", "msgpack"), range(1, 9))
    # OCDBT always compresses the nodes of its tree, which hold the small values.
    compressed_up_to_bytes = {"ocdbt": 1024}
    # TensorStore does not write chunks of zeros.
    leaves_out_zeros = True
    entry_names_are_unique = True
    safetensors_name = "flax"
    own_model = OWN_MODEL
    broken_models = BROKEN_MODELS

    # jax.distributed cannot be started twice in a process.
    can_be_started_again = False
    trained_cases = ("resnet50-float32", "llm-slice-bf16-mixed")

    def averaged_dropout(self, strategy: str) -> float:
        # A batch that is divided has one mask, whatever the number of ranks.
        return 0.1 if strategy == "sharded" else 0.0

    def leaves_rank_local_leaves_alone(self, method: str) -> bool:
        return method.startswith("orbax")

    def weight_tolerance(self, steps: int) -> float:
        return 0.1

    def moment_tolerance(self, steps: int) -> float:
        return 1e-5 if steps == 1 else 1e-4

    def compiled_programs(self, state: State) -> tuple[int, ...]:
        assert isinstance(state, WorkloadState)
        training = state.training
        return training.gradients._cache_size(), training.update._cache_size()

    def addresses(self, state: State) -> dict[str, int]:
        return {
            name: array.unsafe_buffer_pointer()
            for name, array in state.tensors().items()
            if name.startswith(("weights/", "optimizer/momentum/", "optimizer/exp_avg"))
        }
