"""A model of the user's own as a PyTorch state: what `make` may return, and what is refused."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from adapters.base import UnusableModel
from adapters.pytorch.state import State, named_buffers, named_parameters
from adapters.pytorch.strategies import FullySharded, Strategy
from adapters.pytorch.training import OwnTraining, RandomTraining
from adapters.shared.own_models import in_words, taken_apart


def new_state(made: object, strategy: Strategy, rng: dict[str, Tensor]) -> State:
    """Return the state of what a user's `make` returned, before its first step.

    `made` is a module and an optimizer, or a dictionary of optimizers, and a step function if
    wanted. Without one, random gradients train the module. Raise UnusableModel where it cannot be
    measured.
    """
    model, optimizers, step = taken_apart(made, nn.Module, Optimizer)
    _require_parameters(model)
    _require_tensors(model)
    _require_device(model, strategy.device)
    _require_sharding(model, strategy)
    _require_own_parameters(model, optimizers.values())
    _require_plain_steps(optimizers.values())
    model.train()
    training = OwnTraining(step) if step is not None else RandomTraining()
    return State(training, strategy, model, optimizers, rng)


def require_comparable(state: State) -> None:
    """Raise UnusableModel where the optimizers keep what no leaf of the state would hold."""
    own = {id(parameter) for parameter in state.model.parameters()}
    for optimizer in state.optimizers.values():
        for owner, slots in optimizer.state.items():
            if id(owner) not in own or not isinstance(slots, Mapping):
                raise _belongs_to_no_parameter(optimizer, owner, slots)
            for key, value in slots.items():
                if not isinstance(value, Tensor | bool | int | float):
                    raise UnusableModel(
                        f"{type(optimizer).__name__} keeps {key!r} as {in_words(value)}, and only "
                        "tensors and numbers can be compared bit by bit; measure with another "
                        "optimizer, such as AdamW"
                    )


def _belongs_to_no_parameter(optimizer: Optimizer, owner: object, slots: object) -> UnusableModel:
    """Return the refusal of an entry of an optimizer's state that is not a parameter's.

    It would be called verified although nothing compares it.
    """
    if isinstance(owner, Tensor):
        shown = f"{in_words(slots)} for a tensor of shape {list(owner.shape)}"
    else:
        shown = f"the entry {owner!r} ({in_words(slots)})"
    return UnusableModel(
        f"the state of {type(optimizer).__name__} holds {shown}, and only a dictionary that "
        "belongs to a parameter of the model can be compared bit by bit; keep the value in "
        "state[parameter], or measure with another optimizer, such as AdamW"
    )


def _require_parameters(model: nn.Module) -> None:
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UnusableModel(
            "the model has no parameters that can be trained; set requires_grad on at least one"
        )


def _require_tensors(model: nn.Module) -> None:
    """Refuse a model whose state_dict holds other things than parameters and buffers."""
    own: dict[str, Tensor] = dict(named_parameters(model, remove_duplicate=False))
    own |= dict(named_buffers(model, remove_duplicate=False))
    for name, value in model.state_dict().items():
        if name not in own:
            raise UnusableModel(
                f"the model's state_dict holds {name!r} ({in_words(value)}), and only parameters "
                "and buffers can be compared bit by bit; register it as a buffer"
            )
        if value.layout is not torch.strided or value.is_quantized:
            raise UnusableModel(
                f"{name} is a sparse or quantized tensor, whose bytes cannot be compared"
            )


def _require_device(model: nn.Module, device: torch.device) -> None:
    """Refuse a model that does not lie on the device of the run."""
    for name, tensor in _tensors(model):
        if tensor.device.type != device.type:
            raise UnusableModel(
                f"{name} is on device {tensor.device.type!r}, and the run is on {device.type!r}; "
                "make the model there or move it there before it is returned (from 'meta' by "
                "to_empty and new values), or give another --device"
            )


def _require_sharding(model: nn.Module, strategy: Strategy) -> None:
    """Refuse a model that is sharded where the ranks' strategy is not, or the other way round."""
    is_sharded = any(isinstance(parameter, DTensor) for parameter in model.parameters())
    if is_sharded and not isinstance(strategy, FullySharded):
        raise UnusableModel("it shards the model, so give --strategy fsdp")
    if not is_sharded and isinstance(strategy, FullySharded):
        raise UnusableModel(
            "with --strategy fsdp it must call fully_shard on the model before it makes the "
            "optimizer, if torch.distributed.is_initialized()"
        )


def _require_own_parameters(model: nn.Module, optimizers: Iterable[Optimizer]) -> None:
    """Refuse optimizers that change other tensors than the model's parameters."""
    own = {id(parameter) for parameter in model.parameters()}
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in own:
                    raise UnusableModel(
                        f"{type(optimizer).__name__} changes a parameter of shape "
                        f"{list(parameter.shape)} that is not the model's; was the model "
                        "converted or copied after the optimizer was made?"
                    )


def _require_plain_steps(optimizers: Iterable[Optimizer]) -> None:
    """Refuse optimizers whose step has to compute the loss again."""
    for optimizer in optimizers:
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is closure.empty:
            raise UnusableModel(
                f"{type(optimizer).__name__} needs a closure, which ckptbench cannot give, because "
                "it runs the backward pass itself, once before each step; measure with another "
                "optimizer, such as AdamW"
            )


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from named_parameters(model)
    yield from named_buffers(model)
