"""Making, training and inspecting PyTorch's training states."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.utils.deterministic
from torch import Tensor, nn

from adapters.base import (
    ALL_ROLES,
    Framework,
    Leaf,
    Place,
    Placement,
    RankLocal,
    Replicated,
    own_gpu,
)
from adapters.pytorch import own_model, shards, strategies
from adapters.pytorch.state import State, new_state
from adapters.pytorch.training import WorkloadTraining
from workloads import Batch, Role, Workload, role_of

PINNED_BYTES = 64 << 20


class PyTorch(Framework[State]):
    """Plain PyTorch with one process per rank, whose ranks train by one of the `strategies`."""

    def start(self, place: Place) -> None:
        super().start(place)
        self.device = _device(place)
        _be_deterministic()
        if place.rendezvous is not None:
            host, port = place.rendezvous
            backend = "cpu:gloo,cuda:nccl" if place.device == "cuda" else "gloo"
            dist.init_process_group(
                backend, f"tcp://{host}:{port}", rank=place.rank, world_size=place.world
            )
        self.strategy = strategies.make(place, self.device)

    def build(self, workload: Workload, seed: int) -> State:
        """Return a state at step 0. The ranks have the same weights and different dropout."""
        return new_state(workload, seed, self.strategy, self._rng(seed))

    def adopt(self, make: Callable[[], Any], seed: int) -> State:
        """Return the state of a user's modules and optimizers after its first step.

        The ranks have the same weights and different dropout.
        """
        torch.manual_seed(seed)
        state = own_model.new_state(make(), self.strategy, self._rng(seed))
        self.gradients(state)
        self.update(state)
        own_model.require_comparable(state)
        return state

    def gradients(self, state: State) -> None:
        """Run the forward and the backward pass on the batch at the state's position.

        DDP and FSDP average over the ranks inside the backward pass.
        """
        state.runner.zero_grad()
        with state.own_rng():
            state.loss = state.training.backward(state.runner, state.step)

    def gradients_of(self, state: State, batch: Batch) -> memoryview:
        state.runner.zero_grad()
        assert isinstance(state.training, WorkloadTraining)
        with state.own_rng():
            state.loss = state.training.backward_on(state.runner, batch)
        parts = [_gradient(parameter).flatten() for parameter in state.model.parameters()]
        flat = torch.cat(parts).float().cpu()
        return memoryview(flat.numpy())

    def update_with(self, state: State, gradients: memoryview) -> None:
        flat = torch.frombuffer(gradients, dtype=torch.float32).to(self.device)
        parameters = list(state.trained.parameters())
        parts = flat.split([parameter.numel() for parameter in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = part.view_as(parameter)
        self._step(state)

    def update(self, state: State) -> None:
        """Average the gradients if the backward pass has not, and take a step of the optimizers.

        The position in the data advances by one batch.
        """
        if state.has_master:
            _cast_gradients(state.model, state.trained)
        self.strategy.average(state.trained)
        self._step(state)

    def _step(self, state: State) -> None:
        for optimizer in state.optimizers.values():
            optimizer.step()
        if state.has_master:
            state.write_back()
        state.step += 1
        if not isinstance(state.training, WorkloadTraining):
            # Some optimizers make slots in later steps, or for parameters that come into use.
            state.look_for_parts()

    def loss(self, state: State) -> float:
        return state.loss.item()

    def leaves(self, state: State, roles: Collection[Role] = ALL_ROLES) -> Iterator[Leaf]:
        """Yield this rank's part of every tensor. On a CPU nothing is copied."""
        for name, tensor in state.tensors().items():
            role = role_of(name)
            if role not in roles:
                continue
            part = shards.local(tensor)
            dtype = str(part.dtype).removeprefix("torch.")
            placement = shards.shard(tensor) or self._placement(name, role)
            yield Leaf(name, role, dtype, tuple(part.shape), _host_bytes(part), placement)

    def settings(self, state: State) -> list[dict[str, Any]]:
        """Return the groups of all optimizers, with their parameters."""
        return [group for each in state.optimizers.values() for group in each.param_groups]

    def assign(self, state: State, leaves: Mapping[str, memoryview]) -> None:
        """Set the named leaves to these bytes.

        Raises KeyError for an unknown name, and ValueError for a wrong number of bytes.
        """
        present = state.local_tensors()
        values = {name: _from_bytes(data, present[name]) for name, data in leaves.items()}
        state.restore_tensors(values, present)

    def synchronize(self, state: State) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def copy_to_host(self, state: State) -> int:
        """Copy the tensors on the GPU through one pinned buffer, and return their size in bytes."""
        on_device = [_bytes(tensor) for tensor in state.local_tensors().values() if tensor.is_cuda]
        for tensor in on_device:
            for part in tensor.split(PINNED_BYTES):
                self._pinned[: part.numel()].copy_(part, non_blocking=True)
        self.synchronize(state)
        return sum(tensor.numel() for tensor in on_device)

    def watch_device_memory(self) -> Callable[[], int] | None:
        """Begin to watch the memory that PyTorch's allocator has handed out on the GPU."""
        if self.device.type != "cuda":
            return None
        before_bytes = torch.cuda.memory_allocated(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        return lambda: torch.cuda.max_memory_allocated(self.device) - before_bytes

    def stop(self) -> None:
        """Leave the process group together with all other ranks."""
        if dist.is_initialized():
            # A rank that closes its connections before the others are done aborts them.
            dist.barrier()
            dist.destroy_process_group()

    @staticmethod
    def unsupported(workload: Workload | None, device: str) -> str | None:
        if device == "cuda" and not torch.cuda.is_available():
            return f"PyTorch {torch.__version__} finds no CUDA device"
        return None

    def _rng(self, seed: int) -> dict[str, Tensor]:
        """Return the values of the rank's random generators, each from a seed of its own."""
        own_seed = int(np.random.SeedSequence((seed, self.place.rank)).generate_state(1)[0])
        states = {"cpu": torch.Generator().manual_seed(own_seed).get_state()}
        if self.device.type == "cuda":
            states["cuda"] = torch.Generator(self.device).manual_seed(own_seed).get_state()
        return states

    @functools.cached_property
    def _pinned(self) -> Tensor:
        return torch.empty(PINNED_BYTES, dtype=torch.uint8, pin_memory=True)

    def _placement(self, name: str, role: Role) -> Placement:
        # A counter of batches is the same on every rank, because all have run as many.
        is_counter = name.endswith("num_batches_tracked")
        is_local = role in (Role.BUFFER, Role.RNG) and not is_counter
        return RankLocal() if is_local and self.place.world > 1 else Replicated()


def _device(place: Place) -> torch.device:
    if place.device != "cuda":
        return torch.device(place.device)
    device = torch.device("cuda", own_gpu(place, torch.cuda.device_count()))
    torch.cuda.set_device(device)
    return device


def _be_deterministic() -> None:
    # cuBLAS reads this when it starts.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    # Convolutions compute in float32, as in the other frameworks and on a CPU.
    torch.backends.cudnn.allow_tf32 = False
    # The deterministic mode also fills every new tensor. That would slow down saves and loads,
    # because they allocate buffers.
    torch.utils.deterministic.fill_uninitialized_memory = False


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad


def _cast_gradients(model: nn.Module, trained: nn.Module) -> None:
    for low, master in zip(model.parameters(), trained.parameters(), strict=True):
        assert low.grad is not None
        master.grad = low.grad.float()


def _bytes(tensor: Tensor) -> Tensor:
    # A tensor without dimensions cannot change its item size, so it gets a dimension first.
    return tensor.reshape(-1).view(torch.uint8)


def _host_bytes(tensor: Tensor) -> memoryview:
    return memoryview(_bytes(tensor).cpu().numpy())


def _from_bytes(data: memoryview, like: Tensor) -> Tensor:
    """Return a tensor on the host with these bytes, and the type and shape of another tensor."""
    tensor = torch.empty(like.shape, dtype=like.dtype)
    _host_bytes(tensor)[:] = data
    return tensor
