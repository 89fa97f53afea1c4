"""A Chainer training state that Chainer's serializers save and restore."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import chainer
import numpy as np
from chainer import GradientMethod, Link
from chainer.backend import get_array_module
from numpy.typing import NDArray

from adapters.base import Place
from adapters.chainer.modules import BUFFERS, Array, buffers, new_model, parameters
from adapters.chainer.optimizers import new_optimizer
from adapters.chainer.strategies import Strategy
from adapters.chainer.training import Training, WorkloadTraining
from workloads import Role, Workload

# Chainer's name of each slot by its canonical name
SLOTS = {"momentum": "v", "exp_avg": "m", "exp_avg_sq": "v"}


class State(ABC):
    """Model, optimizer, random generator and position in the data.

    Chainer's serializers take this object as it is. Chainer draws from numpy's generator, which
    belongs to the process, so the state keeps its value, and several states do not share it.
    """

    def __init__(
        self,
        training: Training,
        model: Link,
        optimizer: GradientMethod,
        strategy: Strategy,
        rng: NDArray[np.uint32],
    ) -> None:
        """Take a model, and an optimizer that was set up for it."""
        self.training = training
        self.model = model
        self.optimizer = optimizer
        self.stepper = strategy.stepper(optimizer)
        self.rng = rng
        self.step = 0
        self.loss: Array = np.float32("nan")

    @abstractmethod
    def _arrays(self) -> Iterator[tuple[str, Array]]:
        """Yield the arrays of the state under canonical names."""

    @abstractmethod
    def _numbers(self) -> Iterator[tuple[str, object, str]]:
        """Yield the canonical name, the owner and the attribute of every plain number."""

    def serialize(self, serializer: chainer.AbstractSerializer) -> None:
        """Give the state to a serializer, or set it in place to the values of a deserializer."""
        self.model.serialize(serializer["model"])
        self.optimizer.serialize(serializer["optimizer"])
        self.rng = serializer("rng", self.rng)
        self.step = serializer("step", self.step)

    def arrays(self) -> dict[str, Array]:
        """Return the state as arrays under canonical names.

        All but the plain numbers share the memory of the state.
        """
        arrays = dict(self._arrays())
        for name, owner, attribute in self._numbers():
            arrays[name] = np.array(getattr(owner, attribute))
        return arrays

    def assign(self, leaves: Mapping[str, memoryview]) -> None:
        """Set the named arrays to these bytes. Raises KeyError for an unknown name."""
        arrays = self.arrays()
        for name, data in leaves.items():
            array = arrays[name]
            values = np.frombuffer(data, dtype=array.dtype).reshape(array.shape)
            array[...] = get_array_module(array).asarray(values)
        self.take_numbers(arrays)

    def take_numbers(self, arrays: Mapping[str, Array]) -> None:
        """Set the plain numbers to those in `arrays`."""
        for name, owner, attribute in self._numbers():
            kind = type(getattr(owner, attribute))
            setattr(owner, attribute, kind(arrays[name].item()))

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


class WorkloadState(State):
    """The state of a workload of this project. Leaves have the names that the workload gives."""

    training: WorkloadTraining

    def __init__(
        self,
        workload: Workload,
        seed: int,
        place: Place,
        device: chainer.device.Device,
        strategy: Strategy,
    ) -> None:
        model = new_model(workload.model, lambda name: workload.initial(name, seed), device)
        optimizer = new_optimizer(workload.optimizer, model)
        training = WorkloadTraining(workload, place, device)
        super().__init__(training, model, optimizer, strategy, generator(seed, place.rank))

    @property
    def workload(self) -> Workload:
        """The workload that is trained."""
        return self.training.workload

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

    def _numbers(self) -> Iterator[tuple[str, object, str]]:
        for name, parameter in parameters(self.model).items():
            yield f"optimizer/step/{name}", parameter.update_rule, "t"
        yield "optimizer/step", self.optimizer, "t"
        yield "position/step", self, "step"


def entry_role(path: str) -> Role | None:
    """Return the role of the array that `State.serialize` puts under a path.

    In the model, the last part of the path decides. A name that only a model of the user's own has
    counts as a weight.
    """
    part, _, inside = path.partition("/")
    if part != "model":
        return {"optimizer": Role.OPTIMIZER, "rng": Role.RNG, "step": Role.POSITION}.get(part)
    attribute = inside.rpartition("/")[2]
    if attribute in BUFFERS:
        return Role.BUFFER
    # This is a count of batches, which Chainer needs to fine-tune the statistics of a norm alone.
    return None if attribute == "N" else Role.WEIGHT


def generator(seed: int, rank: int) -> NDArray[np.uint32]:
    """Return the 624 words of a Mersenne twister, and the position in them.

    numpy also keeps a drawn normal for later. There is none, because only uniforms are drawn.
    """
    state: Any = np.random.MT19937(np.random.SeedSequence((seed, rank))).state["state"]
    return np.append(state["key"], np.uint32(state["pos"]))
