"""A state without a framework: every leaf of the workload in one aligned arena.

Nothing is learnt here. `gradients` and `update` move exactly the leaves that a real forward pass
and a real optimizer step move, so that the same verification holds; the arithmetic is arbitrary.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from adapters.base import Framework, Leaf, Place, RankLocal, Replicated
from adapters.shared.directio import ALIGNMENT, aligned_buffer, round_up
from workloads import LeafSpec, Role, Workload

_LEAF_ALIGNMENT = 64
_STORED_AS = {"bfloat16": "uint16"}  # numpy has no bfloat16: the bits are what counts
_RNG = LeafSpec("rng/numpy", Role.RNG, "uint64", (4,))
_POSITION = LeafSpec("position/step", Role.POSITION, "int64", (1,))

Array = Any  # numpy.ndarray, or cupy.ndarray on a GPU


@dataclass
class State:
    """The leaves, each a view into the arena: first what all ranks share, from `local_start` on what each has of its own."""

    specs: dict[str, LeafSpec]
    leaves: dict[str, Array]
    arena: Array  # uint8, a whole number of ALIGNMENT blocks
    host: memoryview  # the arena itself on the CPU; pinned staging memory of the same size on a GPU
    local_start: int  # bytes, a multiple of ALIGNMENT

    def of_role(self, *roles: Role) -> Iterator[Array]:
        """The leaves of some roles."""
        return (self.leaves[name] for name, spec in self.specs.items() if spec.role in roles)

    def to_host(self) -> memoryview:
        """Return the state's bytes on the host."""
        if not isinstance(self.arena, np.ndarray):
            self.arena.get(out=np.frombuffer(self.host, dtype=np.uint8))
        return self.host

    def from_host(self) -> None:
        """Bring to the device what a load has put into `host`."""
        if not isinstance(self.arena, np.ndarray):
            self.arena.set(np.frombuffer(self.host, dtype=np.uint8))


class Raw(Framework[State]):
    """Makes and moves states of plain arrays."""

    def start(self, place: Place) -> None:
        super().start(place)
        self._arrays = _array_module(place.device)

    def build(self, workload: Workload, seed: int) -> State:
        state = self._empty(workload)
        for name, leaf in state.leaves.items():
            spec = state.specs[name]
            if spec.role in (Role.WEIGHT, Role.BUFFER):
                values = workload.initial(name.split("/", 1)[1], seed)
                leaf[...] = self._arrays.asarray(_encoded(values, spec.dtype))
        state.leaves[_RNG.name][...] = self._arrays.asarray(
            _rng_words(np.random.PCG64([seed, self.place.rank]))
        )
        return state

    def gradients(self, state: State) -> None:
        for buffer in state.of_role(Role.BUFFER):
            _move(buffer)
        generator = _rng_from(_to_numpy(state.leaves[_RNG.name]))
        generator.random_raw(1)
        state.leaves[_RNG.name][...] = self._arrays.asarray(_rng_words(generator))

    def update(self, state: State) -> None:
        for leaf in state.of_role(Role.WEIGHT, Role.OPTIMIZER):
            _move(leaf)
        state.leaves[_POSITION.name][...] += 1

    def loss(self, state: State) -> float:
        """The mean of the first leaf: a number that moves, and nothing more."""
        return float(next(state.of_role(Role.WEIGHT)).mean())

    def leaves(self, state: State) -> Iterator[Leaf]:
        for name, spec in state.specs.items():
            found = state.leaves[name]
            data = _to_numpy(found).reshape(-1).view(np.uint8).data
            dtype = (
                spec.dtype
                if str(found.dtype) == _STORED_AS.get(spec.dtype, spec.dtype)
                else str(found.dtype)
            )
            placement = RankLocal() if _is_local(spec) and self.place.world > 1 else Replicated()
            yield Leaf(name, spec.role, dtype, tuple(found.shape), data, placement)

    def assign(self, state: State, leaves: Mapping[str, memoryview]) -> None:
        for name, data in leaves.items():
            leaf = state.leaves[name]
            leaf[...] = self._arrays.asarray(
                np.frombuffer(data, dtype=leaf.dtype).reshape(leaf.shape)
            )

    def synchronize(self, state: State) -> None:
        if self._arrays is not np:
            self._arrays.cuda.Device().synchronize()

    def copy_to_host(self, state: State) -> int:
        if self._arrays is np:
            return 0
        return len(state.to_host())

    @staticmethod
    def unsupported(workload: Workload, device: str) -> str | None:
        if device != "cuda":
            return None
        if importlib.util.find_spec("cupy") is None:
            return "CuPy is not installed in this interpreter"
        try:
            _array_module(device).cuda.runtime.getDeviceCount()
        except Exception as error:  # CuPy's own, for a missing driver or device
            return f"CuPy finds no CUDA device: {' '.join(str(error).split())}"
        return None

    def _empty(self, workload: Workload) -> State:
        """Lay the leaves out in a zeroed arena."""
        specs = sorted([*workload.leaf_specs(), _RNG, _POSITION], key=_is_local)
        offsets: dict[str, int] = {}
        position, local_start = 0, None
        for spec in specs:
            if _is_local(spec) and local_start is None:
                position = local_start = round_up(position, ALIGNMENT)
            offsets[spec.name] = position
            position = round_up(position + _size_bytes(spec), _LEAF_ALIGNMENT)
        arena, host = self._arena(round_up(position, ALIGNMENT))
        views = {spec.name: _view(arena, offsets[spec.name], spec) for spec in specs}
        return State(
            {spec.name: spec for spec in specs}, views, arena, host, local_start or position
        )

    def _arena(self, size_bytes: int) -> tuple[Array, memoryview]:
        if self._arrays is np:
            host = aligned_buffer(size_bytes)
            return np.frombuffer(host, dtype=np.uint8), host
        pinned = self._arrays.cuda.alloc_pinned_memory(size_bytes + ALIGNMENT)
        padding = -pinned.ptr % ALIGNMENT
        return self._arrays.zeros(size_bytes, dtype=np.uint8), memoryview(pinned).cast("B")[
            padding : padding + size_bytes
        ]


def _array_module(device: str) -> ModuleType:
    if device == "cpu":
        return np
    import cupy  # only where there is a GPU

    module: ModuleType = cupy
    return module


def _is_local(spec: LeafSpec) -> bool:
    return spec.role in (Role.BUFFER, Role.RNG)


def _stored_dtype(spec: LeafSpec) -> np.dtype[Any]:
    return np.dtype(_STORED_AS.get(spec.dtype, spec.dtype))


def _size_bytes(spec: LeafSpec) -> int:
    return _stored_dtype(spec).itemsize * math.prod(spec.shape)


def _view(arena: Array, offset: int, spec: LeafSpec) -> Array:
    return arena[offset : offset + _size_bytes(spec)].view(_stored_dtype(spec)).reshape(spec.shape)


def _encoded(values: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """Float32 values as the leaf stores them: bfloat16 is the upper half of the bits."""
    if dtype == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype, copy=False)


def _move(leaf: Array) -> None:
    """Change every element, in place."""
    if leaf.dtype.kind == "f":
        leaf *= 0.99
        leaf += 0.003
    else:
        leaf += 1


def _to_numpy(array: Array) -> np.ndarray[Any, Any]:
    return array if isinstance(array, np.ndarray) else array.get()


def _rng_words(generator: np.random.PCG64) -> np.ndarray[Any, Any]:
    """The generator's 128-bit state and increment as four words."""
    state = generator.state["state"]
    values = (state["state"], state["inc"])
    return np.array(
        [word for value in values for word in (value & (2**64 - 1), value >> 64)], dtype=np.uint64
    )


def _rng_from(words: np.ndarray[Any, Any]) -> np.random.PCG64:
    low_state, high_state, low_inc, high_inc = (int(word) for word in words)
    generator = np.random.PCG64()
    generator.state = generator.state | {
        "state": {"state": high_state << 64 | low_state, "inc": high_inc << 64 | low_inc}
    }
    return generator
