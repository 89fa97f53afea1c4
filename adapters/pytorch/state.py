"""A PyTorch training state, and the dictionaries with which scripts save and restore it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

import workloads.optimizers
from adapters.base import UnusableModel
from adapters.pytorch import shards
from adapters.pytorch.modules import translate
from adapters.pytorch.strategies import Strategy
from adapters.pytorch.training import Training, WorkloadTraining
from workloads import Workload

# PyTorch's name of each slot by its canonical name
SLOTS = {
    "momentum": "momentum_buffer",
    "exp_avg": "exp_avg",
    "exp_avg_sq": "exp_avg_sq",
    "step": "step",
}
# torch's checkpoint_wrapper has this in the names of its parameters and buffers, and its state_dict
# leaves it out.
_WRAPPED = "_checkpoint_wrapped_module."


class State:
    """Model, optimizers, random generators and position in the data.

    `trained` is the module whose parameters the optimizers change. It is the model, or in mixed
    precision a float32 copy of the model. `runner` computes the model and knows how the ranks train
    together. `optimizers` are by name, and a single one has the name "". The random generators of
    PyTorch belong to the process, so the state keeps their values, and several states do not share
    them.
    """

    def __init__(
        self,
        training: Training,
        strategy: Strategy,
        model: nn.Module,
        optimizers: Mapping[str, Optimizer],
        rng: dict[str, Tensor],
        master: nn.Module | None = None,
    ) -> None:
        """Take `master`, a float32 copy of the model, where the optimizers change that."""
        self.training = training
        self.model = model
        self.trained = master or model
        self.runner = strategy.runner(model)
        self.optimizers = dict(optimizers)
        self.rng = rng  # uint8 on the host: "cpu", and "cuda" on a GPU
        self.step = 0
        self.loss = torch.tensor(float("nan"))
        # Buffers that a state_dict leaves out are no part of the state.
        self._persistent = frozenset(self.model.state_dict())
        self.look_for_parts()

    @property
    def has_master(self) -> bool:
        """Return whether the optimizers change a float32 copy of the model."""
        return self.trained is not self.model

    def tree(self) -> dict[str, Any]:
        """Return the state as the nested dictionary that a script gives to torch.save.

        Its tensors share the memory of the state.
        """
        tree = {
            "model": self.model.state_dict(),
            "optimizer": self._optimizer_tree(),
            "rng": self.rng,
            "step": self.step,
        }
        if self.has_master:
            tree["master"] = self.trained.state_dict()
        return tree

    def restore(self, tree: Mapping[str, Any]) -> None:
        """Set the state to the values of a `tree`."""
        self.model.load_state_dict(tree["model"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(tree["optimizer"][name] if name else tree["optimizer"])
        if self.has_master:
            self.trained.load_state_dict(tree["master"])
        for name, generator in self.rng.items():
            generator.copy_(tree["rng"][name])
        self.step = tree["step"]

    def tensors(self) -> dict[str, Tensor]:
        """Return the state as tensors under canonical names."""
        return {name: in_memory_order(value.detach()) for name, value in self.values().items()}

    def values(self) -> dict[str, Tensor]:
        """Return the state as it is, under canonical names.

        These are the parameters themselves. Numbers are new tensors. This takes a third of the
        time of `tensors`, which a save would wait for.
        """
        values: dict[str, Tensor] = {place.name: place.tensor for place in self._places}
        for name, slots, key in self._optimizer_slots():
            value = slots[key]
            values[name] = value if isinstance(value, Tensor) else _as_tensor(value)
        for name, generator in self.rng.items():
            values[f"rng/{name}"] = generator
        values["position/step"] = torch.tensor(self.step)
        return values

    def local_tensors(self) -> dict[str, Tensor]:
        """Return this rank's parts of `tensors`.

        All but the position and the optimizers' plain numbers share the memory of the state.
        """
        return {name: shards.local(tensor) for name, tensor in self.tensors().items()}

    @torch.no_grad()
    def restore_tensors(
        self, tensors: Mapping[str, Tensor], present: Mapping[str, Tensor] | None = None
    ) -> None:
        """Set some or all `local_tensors` to these values.

        `present` has the `local_tensors` if the caller has them already.
        """
        present = self.local_tensors() if present is None else present
        for name, tensor in tensors.items():
            if name not in present:
                raise KeyError(f"the state to load into has no leaf {name}")
            present[name].copy_(tensor)
        self.take_numbers(present)

    def take_numbers(self, tensors: Mapping[str, Tensor]) -> None:
        """Set the position and the optimizers' plain numbers to those in `tensors`."""
        self.step = int(tensors["position/step"])
        for name, slots, key in self._optimizer_slots():
            if not isinstance(slots[key], Tensor):
                slots[key] = type(slots[key])(tensors[name].item())

    def look_for_parts(self) -> None:
        """Find the places of all tensors, some of which appear in a later step.

        Walking over the modules takes milliseconds, which a save would wait for.
        """
        weights = _parameter_places("weights/", self.model)
        buffers = _buffer_places("buffers/", self.model, self._persistent)
        masters = _parameter_places("optimizer/master/", self.trained) if self.has_master else []
        self._places = [*weights, *buffers, *masters]
        self._trained = masters or weights
        names = [place.own_name for place in self._trained]
        self._slots = [
            (optimizer, key, [f"optimizer/{slot}/{name}" for name in names])
            for optimizer, key, slot in _slots(self.optimizers)
        ]

    def write_back(self) -> None:
        """Round the master weights to the model's precision."""
        _copy_parameters(self.trained, self.model)

    @contextmanager
    def own_rng(self) -> Iterator[None]:
        """Run a block with the state's random generators, and keep their new values."""
        torch.set_rng_state(self.rng["cpu"])
        if "cuda" in self.rng:
            torch.cuda.set_rng_state(self.rng["cuda"])
        yield
        self.rng["cpu"].copy_(torch.get_rng_state())
        if "cuda" in self.rng:
            self.rng["cuda"].copy_(torch.cuda.get_rng_state())

    def _optimizer_tree(self) -> dict[str, Any]:
        """Return the optimizer's dictionary, or those of several optimizers by name."""
        trees = {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()}
        return trees.get("", trees)

    def _optimizer_slots(self) -> Iterator[tuple[str, dict[str, Any], str]]:
        """Yield the canonical name of every slot, the dictionary that holds it, and its key."""
        parameters = [place.tensor for place in self._trained]
        for optimizer, key, names in self._slots:
            for name, parameter in zip(names, parameters, strict=True):
                # Reading `state[parameter]` would make an empty entry.
                slots = optimizer.state.get(parameter)
                if slots is not None and key in slots:
                    yield name, slots, key


@dataclass(frozen=True, slots=True)
class _Place:
    """The place of a tensor in a module: its canonical name, and the dictionary that holds it.

    A module may put another tensor there, such as a part of it when the ranks divide it.
    `own_name` is the one that a state_dict has.
    """

    name: str
    own_name: str
    tensors: dict[str, Any]
    key: str

    @property
    def tensor(self) -> Tensor:
        tensor: Tensor = self.tensors[self.key]
        return tensor


def _parameter_places(prefix: str, module: nn.Module) -> list[_Place]:
    return _places(prefix, module, lambda part: part._parameters)


def _buffer_places(prefix: str, module: nn.Module, persistent: Set[str]) -> list[_Place]:
    places = _places(prefix, module, lambda part: part._buffers)
    return [place for place in places if place.own_name in persistent]


def _places(
    prefix: str, module: nn.Module, of: Callable[[nn.Module], dict[str, Any]]
) -> list[_Place]:
    """Return the places of all tensors, of which one with several names has its first."""
    places = []
    seen = set()
    for path, part in module.named_modules():
        for key, tensor in of(part).items():
            if tensor is not None and tensor not in seen:
                seen.add(tensor)
                own_name = (f"{path}.{key}" if path else key).replace(_WRAPPED, "")
                places.append(_Place(f"{prefix}{own_name}", own_name, of(part), key))
    return places


def named_parameters(
    module: nn.Module, remove_duplicate: bool = True
) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters of a module under the names that its state_dict has."""
    for name, parameter in module.named_parameters(remove_duplicate=remove_duplicate):
        yield name.replace(_WRAPPED, ""), parameter


def named_buffers(module: nn.Module, remove_duplicate: bool = True) -> Iterator[tuple[str, Tensor]]:
    """Yield the buffers of a module under the names that its state_dict has or would have."""
    for name, buffer in module.named_buffers(remove_duplicate=remove_duplicate):
        yield name.replace(_WRAPPED, ""), buffer


def in_memory_order(tensor: Tensor) -> Tensor:
    """Return a contiguous view of a tensor, with its axes in the order of the memory.

    In the memory format channels_last, the second axis is the last one. Raise UnusableModel where
    elements share memory or leave gaps.
    """
    if tensor.is_contiguous():
        return tensor
    axes = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
    view = tensor.permute(axes)
    if not view.is_contiguous():
        raise UnusableModel(
            f"a tensor of shape {list(tensor.shape)} and strides {list(tensor.stride())} "
            "shares memory with itself or leaves gaps; make it contiguous"
        )
    return view


def _as_tensor(number: bool | int | float) -> Tensor:
    """Return a number as a tensor that keeps all of its bits."""
    return torch.tensor(number, dtype=torch.float64 if isinstance(number, float) else None)


def _slots(optimizers: Mapping[str, Optimizer]) -> Iterator[tuple[Optimizer, str, str]]:
    """Yield each optimizer with the key and the canonical name of each of its slots.

    Several optimizers have their names in those of the slots.
    """
    for name, optimizer in optimizers.items():
        for key, slot in _slot_names(optimizer).items():
            yield optimizer, key, f"{name}.{slot}" if name else slot


def _slot_names(optimizer: Optimizer) -> dict[str, str]:
    """Return the canonical name of each slot that an optimizer has for any parameter.

    The project's own names come first, in their order.
    """
    present: dict[str, None] = {}
    for parameter, slots in optimizer.state.items():
        # Other entries are refused after the first step.
        if isinstance(parameter, Tensor) and isinstance(slots, Mapping):
            present |= dict.fromkeys(slots)
    names = {key: slot for slot, key in SLOTS.items() if key in present}
    return names | {key: key for key in present if key not in names}


def new_state(workload: Workload, seed: int, strategy: Strategy, rng: dict[str, Tensor]) -> State:
    """Return a state at step 0 that has the first values of the workload."""
    trained = _empty_module(workload, torch.float32, strategy)
    _fill(trained, workload, seed)
    training = WorkloadTraining(workload, strategy.place, strategy.device)
    optimizers = {"": _optimizer(workload, trained)}
    if not workload.master_weights:
        return State(training, strategy, trained, optimizers, rng)
    model = _empty_module(workload, torch.bfloat16, strategy)
    _copy_parameters(trained, model)
    return State(training, strategy, model, optimizers, rng, master=trained)


def _empty_module(workload: Workload, dtype: torch.dtype, strategy: Strategy) -> nn.Module:
    """Return the workload's model without values. The rank holds its part of it."""
    # The meta device takes no time and memory for PyTorch's first values and other ranks' parts.
    with torch.device("meta"):
        module = translate(workload.model).to(dtype)
    strategy.shard(module)
    return module.to_empty(device=strategy.device)


def _fill(module: nn.Module, workload: Workload, seed: int) -> None:
    """Set a module to the first values of the workload."""
    # These tensors share the memory of the module.
    tensors = module.state_dict()
    for variable in (*workload.parameters, *workload.buffers):
        tensor = tensors.pop(variable.name)
        values = shards.part_of(workload.initial(variable.name, seed), tensor)
        shards.local(tensor).copy_(torch.from_numpy(values))
    # PyTorch alone has `num_batches_tracked`, so the workload does not name it.
    for counter in tensors.values():
        counter.zero_()


def _copy_parameters(source: nn.Module, target: nn.Module) -> None:
    sources = [shards.local(parameter.detach()) for parameter in source.parameters()]
    targets = [shards.local(parameter.detach()) for parameter in target.parameters()]
    torch._foreach_copy_(targets, sources)


def _optimizer(workload: Workload, module: nn.Module) -> Optimizer:
    match workload.optimizer:
        case workloads.optimizers.Sgd(learning_rate, momentum, weight_decay):
            sgd = SGD(module.parameters(), learning_rate, momentum, weight_decay=weight_decay)
            return _with_momentum(sgd)
        case workloads.optimizers.Adam(learning_rate, beta1, beta2, epsilon):
            adam = Adam(module.parameters(), learning_rate, (beta1, beta2), epsilon)
            return _with_moments(adam)


# PyTorch makes the slots in the first step. A state that is loaded before its first step needs them
# at once. Zeros give the same first step.


def _with_momentum(optimizer: SGD) -> SGD:
    for parameter in optimizer.param_groups[0]["params"]:
        optimizer.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter)}
    return optimizer


def _with_moments(optimizer: Adam) -> Adam:
    for parameter in optimizer.param_groups[0]["params"]:
        optimizer.state[parameter] = {
            "step": torch.tensor(0.0),  # on the host, as in torch.optim
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer
