"""A workload: an architecture, its optimizer, its precision and its data.

It is the same in every framework.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from workloads import layers
from workloads.datasets import Batch, Data
from workloads.layers import Constant, Layer, Normal, Uniform, Variable
from workloads.optimizers import Optimizer
from workloads.roles import LeafSpec, Role

Loss = Literal["cross-entropy", "mean-squared-error"]

FLOAT32 = "float32"
# bfloat16 weights, float32 master weights and float32 optimizer slots
BF16_MIXED = "bf16-mixed"
DATA_SEED = 0
ITEM_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class Workload:
    """The definition of one training task.

    The loss is the mean over all predictions, or over the classes at every position.
    """

    name: str
    preset: str
    precision: str
    dropout: float
    model: Layer
    optimizer: Optimizer
    loss: Loss
    # examples in a step of all ranks together; more where a rank would get less than `least_share`
    batch_size: int
    data: Data
    # the smallest number of examples that a rank can train on in a step
    least_share: int = 1

    @functools.cached_property
    def parameters(self) -> tuple[Variable, ...]:
        """The variables that the optimizer changes, in the model's order."""
        return tuple(layers.parameters(self.model))

    @functools.cached_property
    def buffers(self) -> tuple[Variable, ...]:
        """The variables that the forward pass changes, in the model's order."""
        return tuple(layers.buffers(self.model))

    @property
    def parameter_count(self) -> int:
        """The number of elements in all parameters."""
        return sum(variable.size for variable in self.parameters)

    @property
    def master_weights(self) -> bool:
        """Return whether the optimizer keeps float32 copies of weights in lower precision."""
        return self.precision == BF16_MIXED

    def leaf_specs(self) -> tuple[LeafSpec, ...]:
        """Return the tensors that the state of every framework has.

        Each framework adds its random generators, counters and position.
        """
        return tuple(self._leaf_specs())

    @property
    def state_bytes(self) -> int:
        """The size of all tensors in `leaf_specs`."""
        return sum(ITEM_BYTES[spec.dtype] * math.prod(spec.shape) for spec in self.leaf_specs())

    def initial(self, name: str, seed: int) -> NDArray[np.float32]:
        """Return the values with which a parameter or buffer starts.

        Each name has its own random stream for each seed.
        """
        variable = self._variables[name]
        match variable.initial:
            case Constant(value):
                return np.full(variable.shape, value, dtype=np.float32)
            case Normal(deviation):
                values = _generator(seed, name).standard_normal(variable.shape, dtype=np.float32)
                # In place, because a second array of a large tensor would double the peak memory.
                values *= deviation
                return values
            case Uniform(low, high):
                values = _generator(seed, name).random(variable.shape, dtype=np.float32)
                values *= high - low
                values += low
                return values

    def batch(self, step: int, rank: int, world: int, seed: int = DATA_SEED) -> Batch:
        """Return a rank's share of the batch of a step.

        The same arguments always give the same examples. The batch of all ranks is contiguous, and
        all shares are equal. The batch is larger than `batch_size` where equal shares need that.

        `seed` decides the order of the data. States of every seed use the default. So training
        after a load goes on with the batches that the saved state would have got.
        """
        share = max(self.least_share, -(-self.batch_size // world))
        return self.data.examples((step * world + rank) * share, share, seed)

    @functools.cached_property
    def _variables(self) -> dict[str, Variable]:
        return {variable.name: variable for variable in (*self.parameters, *self.buffers)}

    def _leaf_specs(self) -> Iterator[LeafSpec]:
        weight_dtype = "bfloat16" if self.master_weights else "float32"
        for variable in self.parameters:
            yield LeafSpec(f"weights/{variable.name}", Role.WEIGHT, weight_dtype, variable.shape)
        for variable in self.buffers:
            yield LeafSpec(f"buffers/{variable.name}", Role.BUFFER, "float32", variable.shape)
        masters = ("master",) if self.master_weights else ()
        for slot in (*masters, *self.optimizer.slots):
            for variable in self.parameters:
                yield LeafSpec(
                    f"optimizer/{slot}/{variable.name}", Role.OPTIMIZER, "float32", variable.shape
                )


def _generator(seed: int, name: str) -> np.random.Generator:
    # Python's own hash of a text differs from process to process.
    digest = hashlib.sha256(name.encode()).digest()
    words: list[Any] = [seed, *np.frombuffer(digest[:16], dtype="<u4").tolist()]
    return np.random.Generator(np.random.SFC64(np.random.SeedSequence(words)))
