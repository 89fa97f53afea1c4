"""A Chainer training state, with what a user's script would have to save and restore it."""

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

SLOTS = {"momentum": "v", "exp_avg": "m", "exp_avg_sq": "v"}  # canonical -> Chainer


class State:
    """Model, optimizer, random generator and position in the data; an object that Chainer's serializers take as it is.

    Chainer draws from numpy's process-wide generator; the state keeps its value, so that several
    states do not share it.
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
        """Give everything to a serializer, or take everything over from a deserializer, arrays in place."""
        self.model.serialize(serializer["model"])
        self.optimizer.serialize(serializer["optimizer"])
        self.rng = serializer("rng", self.rng)
        self.step = serializer("step", self.step)

    def arrays(self) -> dict[str, Array]:
        """Return everything as arrays under canonical names; weights, buffers and slots are the state's own."""
        return dict(self._arrays())

    def assign(self, leaves: Mapping[str, memoryview]) -> None:
        """Give the named arrays these bytes. Raises KeyError for an unknown name."""
        arrays, counters = (
            self.arrays(),
            {name: place for name, *place in self._counters(parameters(self.model))},
        )
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
        """Run with the state's random generator and keep what it has become."""
        np.random.set_state(("MT19937", self.rng[:-1], int(self.rng[-1])))
        # CuPy's generator cannot be saved: every step seeds it from the one that can
        if self.model.xp is not np:
            self.model.xp.random.seed(int(np.random.randint(1 << 32, dtype=np.uint32)))
        yield
        _, words, position, *_ = np.random.get_state()
        self.rng[:-1], self.rng[-1] = words, position

    def _arrays(self) -> Iterator[tuple[str, Array]]:
        trained = parameters(self.model)  # a walk through the model, which takes a millisecond
        yield from ((f"weights/{name}", parameter.array) for name, parameter in trained.items())
        for name, link, attribute in buffers(self.model):
            yield f"buffers/{name}", getattr(link, attribute)
        for slot in self.workload.optimizer.slots:
            yield from (
                (f"optimizer/{slot}/{name}", parameter.update_rule.state[SLOTS[slot]])
                for name, parameter in trained.items()
            )
        yield "rng/numpy", self.rng
        yield from (
            (name, np.array(getattr(owner, attribute)))
            for name, owner, attribute in self._counters(trained)
        )

    def _counters(
        self, trained: Mapping[str, chainer.Parameter]
    ) -> Iterator[tuple[str, object, str]]:
        """Yield canonical name, owner and attribute of every number of steps."""
        yield from (
            (f"optimizer/step/{name}", parameter.update_rule, "t")
            for name, parameter in trained.items()
        )
        yield "optimizer/step", self.optimizer, "t"
        yield "position/step", self, "step"


def entry_role(path: str) -> Role | None:
    """Return the role of what `State.serialize` puts under the path; of a path of the model, its last part tells."""
    part, _, inside = path.partition("/")
    if part != "model":
        return {"optimizer": Role.OPTIMIZER, "rng": Role.RNG, "step": Role.POSITION}.get(part)
    own = inside.rpartition("/")[2]
    if own in PARAMETERS:
        return Role.WEIGHT
    # None: the count of batches that only fine-tuning a norm's statistics uses
    return Role.BUFFER if own in BUFFERS else None


def _generator(seed: int, rank: int) -> NDArray[np.uint32]:
    """Return the 624 words of a Mersenne twister and the position in them.

    Only uniforms are drawn: no normal is held back.
    """
    state: Any = np.random.MT19937(np.random.SeedSequence((seed, rank))).state["state"]
    return np.append(state["key"], np.uint32(state["pos"]))
