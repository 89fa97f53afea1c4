"""A PyTorch training state, with what a user's script would have to save and restore it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

import workloads.optimizers
from adapters.pytorch import shards
from adapters.pytorch.modules import translate
from adapters.pytorch.strategies import Strategy
from workloads import Workload

SLOTS = {
    "momentum": "momentum_buffer",
    "exp_avg": "exp_avg",
    "exp_avg_sq": "exp_avg_sq",
    "step": "step",
}  # canonical -> torch


class State:
    """Model, optimizer, random generators and position in the data.

    `trained` is the module whose parameters the optimizer owns: the model itself, or in mixed
    precision its float32 master copy. Neither knows how the ranks train together; `runner`, which
    computes the model, does. The random generators are process-wide in PyTorch; the state keeps
    their values, so that several states do not share them.
    """

    def __init__(
        self,
        workload: Workload,
        strategy: Strategy,
        trained: nn.Module,
        model: nn.Module,
        rng: dict[str, Tensor],
    ) -> None:
        self.workload = workload
        self.trained = trained
        self.model = model
        self.runner = strategy.runner(model)
        self.optimizer = _optimizer(workload, trained)
        self.rng = rng  # "cpu", and "cuda" where it is used: uint8, on the host
        self.step = 0
        self.loss = torch.tensor(float("nan"))

    def tree(self) -> dict[str, Any]:
        """Return the state as the nested dictionary that a script hands to torch.save.

        Its tensors are the state's own.
        """
        tree = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rng": self.rng,
            "step": self.step,
        }
        return (
            tree | {"master": self.trained.state_dict()} if self.workload.master_weights else tree
        )

    def restore(self, tree: Mapping[str, Any]) -> None:
        """Take over the values of a `tree`."""
        self.model.load_state_dict(tree["model"])
        self.optimizer.load_state_dict(tree["optimizer"])
        if self.workload.master_weights:
            self.trained.load_state_dict(tree["master"])
        for name, generator in self.rng.items():
            generator.copy_(tree["rng"][name])
        self.step = tree["step"]

    def tensors(self) -> dict[str, Tensor]:
        """Return everything as tensors under canonical names, for formats that hold nothing else."""
        return dict(self._tensors())

    def local_tensors(self) -> dict[str, Tensor]:
        """Return what this rank holds of `tensors`, in the state's own memory but for the position."""
        return {name: shards.local(tensor) for name, tensor in self._tensors()}

    @torch.no_grad()
    def restore_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over the values of some or all `local_tensors`."""
        own = self.local_tensors()
        for name, tensor in tensors.items():
            own[name].copy_(tensor)
        self.step = int(own["position/step"])

    def write_back(self) -> None:
        """Round the master weights to the model's precision."""
        _copy_parameters(self.trained, self.model)

    @contextmanager
    def own_rng(self) -> Iterator[None]:
        """Run with the state's random generators and keep what they have become."""
        torch.set_rng_state(self.rng["cpu"])
        if "cuda" in self.rng:
            torch.cuda.set_rng_state(self.rng["cuda"])
        yield
        self.rng["cpu"].copy_(torch.get_rng_state())
        if "cuda" in self.rng:
            self.rng["cuda"].copy_(torch.cuda.get_rng_state())

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        weights = dict(self.model.named_parameters())
        # each walk takes a millisecond
        trained = weights if self.trained is self.model else dict(self.trained.named_parameters())
        yield from ((f"weights/{name}", parameter.detach()) for name, parameter in weights.items())
        for name, buffer in self.model.named_buffers():
            yield f"buffers/{name}", buffer
        yield from self._optimizer_tensors(trained)
        for name, generator in self.rng.items():
            yield f"rng/{name}", generator
        yield "position/step", torch.tensor(self.step)

    def _optimizer_tensors(
        self, trained: Mapping[str, nn.Parameter]
    ) -> Iterator[tuple[str, Tensor]]:
        if self.workload.master_weights:
            yield from (
                (f"optimizer/master/{name}", parameter.detach())
                for name, parameter in trained.items()
            )
        for slot, torch_name in SLOTS.items():
            for name, parameter in trained.items():
                if torch_name in self.optimizer.state[parameter]:
                    yield f"optimizer/{slot}/{name}", self.optimizer.state[parameter][torch_name]


def new_state(workload: Workload, seed: int, strategy: Strategy, rng: dict[str, Tensor]) -> State:
    """Return a state at step 0 with the workload's first values."""
    trained = _empty_module(workload, torch.float32, strategy)
    _fill(trained, workload, seed)
    if not workload.master_weights:
        return State(workload, strategy, trained, trained, rng)
    model = _empty_module(workload, torch.bfloat16, strategy)
    _copy_parameters(trained, model)
    return State(workload, strategy, trained, model, rng)


def _empty_module(workload: Workload, dtype: torch.dtype, strategy: Strategy) -> nn.Module:
    """Return the workload's model, of which this rank holds its part, without values."""
    # no time and memory for first values that are replaced, nor for other ranks' parts
    with torch.device("meta"):
        module = translate(workload.model).to(dtype)
    strategy.shard(module)
    return module.to_empty(device=strategy.device)


def _fill(module: nn.Module, workload: Workload, seed: int) -> None:
    state = module.state_dict()  # the module's own tensors
    for variable in (*workload.parameters, *workload.buffers):
        tensor = state.pop(variable.name)
        shards.local(tensor).copy_(
            torch.from_numpy(shards.part_of(workload.initial(variable.name, seed), tensor))
        )
    # num_batches_tracked is PyTorch's own, so the workload does not name it
    for counter in state.values():
        counter.zero_()


def _copy_parameters(source: nn.Module, target: nn.Module) -> None:
    ours, theirs = (
        [shards.local(parameter.detach()) for parameter in module.parameters()]
        for module in (source, target)
    )
    torch._foreach_copy_(theirs, ours)


def _optimizer(workload: Workload, module: nn.Module) -> Optimizer:
    match workload.optimizer:
        case workloads.optimizers.Sgd(learning_rate, momentum, weight_decay):
            return _with_momentum(
                SGD(module.parameters(), learning_rate, momentum, weight_decay=weight_decay)
            )
        case workloads.optimizers.Adam(learning_rate, beta1, beta2, epsilon):
            return _with_moments(Adam(module.parameters(), learning_rate, (beta1, beta2), epsilon))


# PyTorch makes the slots in the first step. A state that must be loaded before it has taken one
# needs them at once; zeros give the same first step.


def _with_momentum(optimizer: SGD) -> SGD:
    for parameter in optimizer.param_groups[0]["params"]:
        optimizer.state[parameter] = {"momentum_buffer": torch.zeros_like(parameter)}
    return optimizer


def _with_moments(optimizer: Adam) -> Adam:
    for parameter in optimizer.param_groups[0]["params"]:
        optimizer.state[parameter] = {
            "step": torch.tensor(0.0),  # on the host, as torch.optim keeps it
            "exp_avg": torch.zeros_like(parameter),
            "exp_avg_sq": torch.zeros_like(parameter),
        }
    return optimizer
