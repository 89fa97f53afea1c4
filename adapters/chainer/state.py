"""A Chainer training state that Chainer's serializers save and restore."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import chainer
import numpy as np
from chainer.backend import get_array_module
from numpy.typing import NDArray

from adapters.chainer.modules import BUFFERS, PARAMETERS, Array, buffers, new_model, parameters
from adapters.chainer.optimizers import new_optimizer
from adapters.chainer.strategies import Strategy
from workloads import Role, Workload

# Chainer's name of each slot by its canonical name
SLOTS = {"momentum": "v", "exp_avg": "m", "exp_avg_sq": "v"}


class State:
    """Model, optimizer, random generator and position in the data.

    Chainer's serializers take this object as it is. Chainer draws from numpy's generator, which
    belongs to the process, so the state keeps its value, and several states do not share it.
    """

    def __init__(
        self,
        workload: Workload,
        seed: int,
        rank: int,
        device: chainer.device.Device,
        strategy: Strategy,
    ) -> None:
        self.workload = workload
        self.model = new_model(workload.model, lambda name: workload.initial(name, seed), device)
        self.optimizer = new_optimizer(workload.optimizer, self.model)
        self.stepper = strategy.stepper(self.optimizer)
        self.rng = _generator(seed, rank)
        self.step = 0
        self.loss: Array = np.float32("nan")

    def serialize(self, serializer: chainer.AbstractSerializer) -> None:
        """Give the state to a serializer, or set it in place to the values of a deserializer."""
        self.model.serialize(serializer["model"])
        self.optimizer.serialize(serializer["optimizer"])
        self.rng = serializer("rng", self.rng)
        self.step = serializer("step", self.step)

    def arrays(self) -> dict[str, Array]:
        """Return the state as arrays under canonical names.

        Weights, buffers and slots share the memory of the state.
        """
        return dict(self._arrays())

    def assign(self, leaves: Mapping[str, memoryview]) -> None:
        """Set the named arrays to these bytes. Raises KeyError for an unknown name."""
        arrays = self.arrays()
        counters = {}
        for name, owner, attribute in self._counters(parameters(self.model)):
            counters[name] = (owner, attribute)
        for name, data in leaves.items():
            array = arrays[name]
            values = np.frombuffer(data, dtype=array.dtype).reshape(array.shape)
            if name in counters:
                owner, attribute = counters[name]
                setattr(owner, attribute, int(values))
            else:
                array[...] = get_array_module(array).asarray(values)

    @contextmanager
    def own_rng(self) -> Iterator[None]:
        """Run a block with the state's random generator, and keep its new value."""
        np.random.set_state(("MT19937", self.rng[:-1], int(self.rng[-1])))
        # CuPy's generator cannot be saved, so every step seeds it from numpy's.
        if self.model.xp is not np:
            self.model.xp.random.seed(int(np.random.randint(1 << 32, dtype=np.uint32)))
        yield
        _, words, position, *_ = np.random.get_state()
        self.rng[:-1] = words
        self.rng[-1] = position

    def _arrays(self) -> Iterator[tuple[str, Array]]:
        # Walking over the parameters takes a millisecond, so it is done once.
        trained = parameters(self.model)
        for name, parameter in trained.items():
            yield f"weights/{name}", parameter.array
        for name, link, attribute in buffers(self.model):
            yield f"buffers/{name}", getattr(link, attribute)
        for slot in self.workload.optimizer.slots:
            for name, parameter in trained.items():
                yield f"optimizer/{slot}/{name}", parameter.update_rule.state[SLOTS[slot]]
        yield "rng/numpy", self.rng
        for name, owner, attribute in self._counters(trained):
            yield name, np.array(getattr(owner, attribute))

    def _counters(
        self, trained: Mapping[str, chainer.Parameter]
    ) -> Iterator[tuple[str, object, str]]:
        """Yield the canonical name, the owner and the attribute of every number of steps."""
        for name, parameter in trained.items():
            yield f"optimizer/step/{name}", parameter.update_rule, "t"
        yield "optimizer/step", self.optimizer, "t"
        yield "position/step", self, "step"


def entry_role(path: str) -> Role | None:
    """Return the role of the array that `State.serialize` puts under a path.

    In the model, the last part of the path decides.
    """
    part, _, inside = path.partition("/")
    if part != "model":
        return {"optimizer": Role.OPTIMIZER, "rng": Role.RNG, "step": Role.POSITION}.get(part)
    attribute = inside.rpartition("/")[2]
    if attribute in PARAMETERS:
        return Role.WEIGHT
    if attribute in BUFFERS:
        return Role.BUFFER
    # This is a count of batches, which Chainer needs to fine-tune the statistics of a norm alone.
    return None


def _generator(seed: int, rank: int) -> NDArray[np.uint32]:
    """Return the 624 words of a Mersenne twister, and the position in them.

    numpy also keeps a drawn normal for later. There is none, because only uniforms are drawn.
    """
    state: Any = np.random.MT19937(np.random.SeedSequence((seed, rank))).state["state"]
    return np.append(state["key"], np.uint32(state["pos"]))
