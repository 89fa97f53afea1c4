"""States without a framework: every leaf of the workload lies in one aligned arena.

Nothing is learnt here. `gradients` and `update` change the leaves that a real forward pass and a
real step of an optimizer change, so that the same verification holds. Their arithmetic is
arbitrary.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from adapters.base import ALL_ROLES, Framework, Leaf, Place, RankLocal, Replicated, UnusableModel
from adapters.shared.directio import ALIGNMENT, aligned_buffer, round_up
from adapters.shared.own_models import in_words
from workloads import Batch, LeafSpec, Role, Workload

_LEAF_ALIGNMENT = 64
_TOY_RATE = 0.1
_TOY_STRIDES = 1000
_TOY_TYPES = {"float32": "float32", "uint16": "bfloat16"}  # a weight's type by that of its array
_KINDS = "fiu"  # floating point, and integers with and without a sign
_STORED_AS = {"bfloat16": "uint16"}  # as bits, because numpy has no bfloat16
_RNG = LeafSpec("rng/numpy", Role.RNG, "uint64", (4,))
_POSITION = LeafSpec("position/step", Role.POSITION, "int64", (1,))

Array = Any  # numpy.ndarray, or cupy.ndarray on a GPU


@dataclass
class State:
    """The leaves of a rank, each a view into the arena.

    The leaves that all ranks share come first, and from `local_start` on the rank-local ones.
    """

    workload: Workload | None  # None for arrays of the user's own
    specs: dict[str, LeafSpec]
    leaves: dict[str, Array]
    arena: Array  # uint8, a whole number of ALIGNMENT blocks
    # the arena itself on a CPU; on a GPU pinned host memory of the same size
    host: memoryview
    local_start: int  # bytes, a multiple of ALIGNMENT

    def of_role(self, *roles: Role) -> Iterator[Array]:
        """Return the leaves of some roles."""
        return (self.leaves[name] for name, spec in self.specs.items() if spec.role in roles)

    def to_host(self) -> memoryview:
        """Return the state's bytes in host memory, copied from the device if there is one."""
        if not isinstance(self.arena, np.ndarray):
            self.arena.get(out=np.frombuffer(self.host, dtype=np.uint8))
        return self.host

    def from_host(self) -> None:
        """Copy `host` to the device, if there is one, after a load has filled it."""
        if not isinstance(self.arena, np.ndarray):
            self.arena.set(np.frombuffer(self.host, dtype=np.uint8))


class Raw(Framework[State]):
    """States of plain arrays."""

    def start(self, place: Place) -> None:
        super().start(place)
        self._arrays = _array_module(place.device)

    def build(self, workload: Workload, seed: int) -> State:
        state = self._empty(workload.leaf_specs(), workload)
        for name, leaf in state.leaves.items():
            spec = state.specs[name]
            if spec.role in (Role.WEIGHT, Role.BUFFER):
                values = workload.initial(name.split("/", 1)[1], seed)
                leaf[...] = self._arrays.asarray(_encoded(values, spec.dtype))
        self._seed(state, seed)
        return state

    def adopt(self, make: Callable[[], Any], seed: int) -> State:
        """Return a state of the arrays that `make` returns by name, after its first step.

        All of them are weights. Plain files of such a state are the floor for a framework's.
        """
        arrays = make()
        _require_arrays(arrays)
        specs = [
            LeafSpec(f"weights/{name}", Role.WEIGHT, str(array.dtype), array.shape)
            for name, array in arrays.items()
        ]
        state = self._empty(specs)
        for spec, array in zip(specs, arrays.values(), strict=True):
            state.leaves[spec.name][...] = self._arrays.asarray(array)
        self._seed(state, seed)
        self.gradients(state)
        self.update(state)
        return state

    def gradients(self, state: State) -> None:
        generator = _rng_from(_to_numpy(state.leaves[_RNG.name]))
        # Every rank has a random generator of its own, and so it has statistics of its own.
        strides = 1 + generator.random_raw() % _TOY_STRIDES
        for buffer in state.of_role(Role.BUFFER):
            _move(buffer, strides)
        state.leaves[_RNG.name][...] = self._arrays.asarray(_rng_words(generator))

    def update(self, state: State) -> None:
        for leaf in state.of_role(Role.WEIGHT, Role.OPTIMIZER):
            _move(leaf)
        state.leaves[_POSITION.name][...] += 1

    def gradients_of(self, state: State, batch: Batch) -> memoryview:
        """Return the gradients of a toy: every weight moves towards the mean of the batch."""
        self.gradients(state)
        mean = float(batch.inputs.mean())
        parts = [_numbers(leaf).reshape(-1) - mean for leaf in state.of_role(Role.WEIGHT)]
        return np.concatenate(parts).astype(np.float32, copy=False).data

    def update_with(self, state: State, gradients: memoryview) -> None:
        flat = np.frombuffer(gradients, np.float32)
        start = 0
        for leaf in state.of_role(Role.WEIGHT):
            part = flat[start : start + leaf.size].reshape(leaf.shape)
            moved = _numbers(leaf) - np.float32(_TOY_RATE) * part
            leaf[...] = self._arrays.asarray(_encoded(moved, _TOY_TYPES[str(leaf.dtype)]))
            start += leaf.size
        for leaf in state.of_role(Role.OPTIMIZER):
            _move(leaf)
        state.leaves[_POSITION.name][...] += 1

    def loss(self, state: State) -> float:
        """Return the mean of the first leaf, which stands for a loss because it changes."""
        return float(next(state.of_role(Role.WEIGHT)).mean())

    def leaves(self, state: State, roles: Collection[Role] = ALL_ROLES) -> Iterator[Leaf]:
        for name, spec in state.specs.items():
            if spec.role not in roles:
                continue
            array = state.leaves[name]
            data = _to_numpy(array).reshape(-1).view(np.uint8).data
            is_local = _is_local(spec) and self.place.world > 1
            yield Leaf(
                name=name,
                role=spec.role,
                dtype=_dtype_of(array, spec),
                shape=tuple(array.shape),
                data=data,
                placement=RankLocal() if is_local else Replicated(),
            )

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
    def unsupported(workload: Workload | None, device: str) -> str | None:
        if device != "cuda":
            return None
        if importlib.util.find_spec("cupy") is None:
            return "CuPy is not installed in this interpreter"
        try:
            _array_module(device).cuda.runtime.getDeviceCount()
        except Exception as error:  # CuPy has errors of its own for a missing driver or device
            return f"CuPy finds no CUDA device: {' '.join(str(error).split())}"
        return None

    def _seed(self, state: State, seed: int) -> None:
        """Give the rank a random generator of its own."""
        words = _rng_words(np.random.PCG64([seed, self.place.rank]))
        state.leaves[_RNG.name][...] = self._arrays.asarray(words)

    def _empty(self, parts: Iterable[LeafSpec], workload: Workload | None = None) -> State:
        """Return a state of these leaves, a random generator and a position, all of them zero."""
        specs = [*parts, _RNG, _POSITION]
        offsets, end = _laid_out([spec for spec in specs if not _is_local(spec)], 0)
        local_start = round_up(end, ALIGNMENT)
        local_offsets, end = _laid_out([spec for spec in specs if _is_local(spec)], local_start)
        offsets |= local_offsets
        arena, host = self._arena(round_up(end, ALIGNMENT))
        by_name = {spec.name: spec for spec in specs}
        return State(
            workload=workload,
            specs={name: by_name[name] for name in offsets},
            leaves={name: _view(arena, offsets[name], by_name[name]) for name in offsets},
            arena=arena,
            host=host,
            local_start=local_start,
        )

    def _arena(self, size_bytes: int) -> tuple[Array, memoryview]:
        """Return zeroed memory on the device, and aligned host memory of the same size."""
        if self._arrays is np:
            host = aligned_buffer(size_bytes)
            return np.frombuffer(host, dtype=np.uint8), host
        pinned = self._arrays.cuda.alloc_pinned_memory(size_bytes + ALIGNMENT)
        padding = -pinned.ptr % ALIGNMENT
        host = memoryview(pinned).cast("B")[padding : padding + size_bytes]
        return self._arrays.zeros(size_bytes, dtype=np.uint8), host


def _require_arrays(arrays: object) -> None:
    """Raise UnusableModel unless these are arrays of numbers by name."""
    if not isinstance(arrays, Mapping) or not arrays:
        raise UnusableModel(f"it must return a dictionary of numpy arrays, not {in_words(arrays)}")
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or array.dtype.kind not in _KINDS:
            raise UnusableModel(f"{name!r} must be a numpy array of numbers, not {_kind(array)}")


def _kind(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}"
    return in_words(value)


def _array_module(device: str) -> ModuleType:
    if device == "cpu":
        return np
    import cupy  # is installed only where there is a GPU

    module: ModuleType = cupy
    return module


def _laid_out(specs: list[LeafSpec], start: int) -> tuple[dict[str, int], int]:
    """Return the offset of each leaf from `start` on, and the end of the last one, in bytes."""
    offsets = {}
    end = start
    for spec in specs:
        offsets[spec.name] = end
        end = round_up(end + _size_bytes(spec), _LEAF_ALIGNMENT)
    return offsets, end


def _is_local(spec: LeafSpec) -> bool:
    return spec.role in (Role.BUFFER, Role.RNG)


def _dtype_of(array: Array, spec: LeafSpec) -> str:
    """Return the type of an array, or the type for which its bits stand."""
    dtype = str(array.dtype)
    return spec.dtype if dtype == _STORED_AS.get(spec.dtype, spec.dtype) else dtype


def _stored_dtype(spec: LeafSpec) -> np.dtype[Any]:
    return np.dtype(_STORED_AS.get(spec.dtype, spec.dtype))


def _size_bytes(spec: LeafSpec) -> int:
    return _stored_dtype(spec).itemsize * math.prod(spec.shape)


def _view(arena: Array, offset: int, spec: LeafSpec) -> Array:
    return arena[offset : offset + _size_bytes(spec)].view(_stored_dtype(spec)).reshape(spec.shape)


def _encoded(values: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """Return float32 values as a leaf stores them. Bfloat16 is the upper half of the bits."""
    if dtype == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype, copy=False)


def _numbers(array: Array) -> np.ndarray[Any, Any]:
    """Return the values of a weight as float32 on the host. Bfloat16 is the upper half of them."""
    values = _to_numpy(array)
    if values.dtype == np.uint16:
        return (values.astype(np.uint32) << 16).view(np.float32)
    return values


def _move(leaf: Array, strides: int = 1) -> None:
    """Change every element in place."""
    if leaf.dtype.kind == "f":
        leaf *= 0.99
        leaf += 0.003 * strides
    else:
        leaf += strides


def _to_numpy(array: Array) -> np.ndarray[Any, Any]:
    return array if isinstance(array, np.ndarray) else array.get()


def _rng_words(generator: np.random.PCG64) -> np.ndarray[Any, Any]:
    """Return the generator's 128-bit state and increment as four words of 64 bits."""
    words: list[int] = []
    for value in (generator.state["state"]["state"], generator.state["state"]["inc"]):
        words += [value & (2**64 - 1), value >> 64]
    return np.array(words, dtype=np.uint64)


def _rng_from(words: np.ndarray[Any, Any]) -> np.random.PCG64:
    """Return the generator whose state and increment `_rng_words` has split."""
    low_state, high_state, low_increment, high_increment = (int(word) for word in words)
    state = high_state << 64 | low_state
    increment = high_increment << 64 | low_increment
    generator = np.random.PCG64()
    generator.state = generator.state | {"state": {"state": state, "inc": increment}}
    return generator
