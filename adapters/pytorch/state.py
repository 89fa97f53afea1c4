"""A PyTorch training state, and the dictionaries with which scripts save and restore it."""

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

# PyTorch's name of each slot by its canonical name
SLOTS = {
    "momentum": "momentum_buffer",
    "exp_avg": "exp_avg",
    "exp_avg_sq": "exp_avg_sq",
    "step": "step",
}


class State:
    """Model, optimizer, random generators and position in the data.

    `trained` is the module whose parameters the optimizer changes. It is the model, or in mixed
    precision a float32 copy of the model. `runner` computes the model and knows how the ranks train
    together. The random generators of PyTorch belong to the process, so the state keeps their
    values, and several states do not share them.
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
        self.rng = rng  # uint8 on the host: "cpu", and "cuda" on a GPU
        self.step = 0
        self.loss = torch.tensor(float("nan"))

    def tree(self) -> dict[str, Any]:
        """Return the state as the nested dictionary that a script gives to torch.save.

        Its tensors share the memory of the state.
        """
        tree = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rng": self.rng,
            "step": self.step,
        }
        if self.workload.master_weights:
            tree["master"] = self.trained.state_dict()
        return tree

    def restore(self, tree: Mapping[str, Any]) -> None:
        """Set the state to the values of a `tree`."""
        self.model.load_state_dict(tree["model"])
        self.optimizer.load_state_dict(tree["optimizer"])
        if self.workload.master_weights:
            self.trained.load_state_dict(tree["master"])
        for name, generator in self.rng.items():
            generator.copy_(tree["rng"][name])
        self.step = tree["step"]

    def tensors(self) -> dict[str, Tensor]:
        """Return the state as tensors under canonical names."""
        return dict(self._tensors())

    def local_tensors(self) -> dict[str, Tensor]:
        """Return this rank's parts of `tensors`.

        All but the position share the memory of the state.
        """
        return {name: shards.local(tensor) for name, tensor in self._tensors()}

    @torch.no_grad()
    def restore_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Set some or all `local_tensors` to these values."""
        present = self.local_tensors()
        for name, tensor in tensors.items():
            present[name].copy_(tensor)
        self.step = int(present["position/step"])

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

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        weights = dict(self.model.named_parameters())
        # Walking over the parameters takes a millisecond, so it is done twice only if it must be.
        trained = weights if self.trained is self.model else dict(self.trained.named_parameters())
        for name, parameter in weights.items():
            yield f"weights/{name}", parameter.detach()
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
            for name, parameter in trained.items():
                yield f"optimizer/master/{name}", parameter.detach()
        for slot, torch_name in SLOTS.items():
            for name, parameter in trained.items():
                slots = self.optimizer.state[parameter]
                if torch_name in slots:
                    yield f"optimizer/{slot}/{name}", slots[torch_name]


def new_state(workload: Workload, seed: int, strategy: Strategy, rng: dict[str, Tensor]) -> State:
    """Return a state at step 0 that has the first values of the workload."""
    trained = _empty_module(workload, torch.float32, strategy)
    _fill(trained, workload, seed)
    if not workload.master_weights:
        return State(workload, strategy, trained, trained, rng)
    model = _empty_module(workload, torch.bfloat16, strategy)
    _copy_parameters(trained, model)
    return State(workload, strategy, trained, model, rng)


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
