"""PyTorch's training state, made, trained and inspected."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping

import numpy as np
import torch
import torch.distributed as dist
import torch.utils.deterministic
from torch import Tensor, nn
from torch.nn import functional

from adapters.base import Framework, Leaf, Place, Placement, RankLocal, Replicated, own_gpu
from adapters.pytorch import shards, strategies
from adapters.pytorch.state import State, new_state
from workloads import Role, Workload, role_of

PINNED_BYTES = 64 << 20


class PyTorch(Framework[State]):
    """Plain PyTorch: one process per rank, data-parallel training by one of the `strategies`."""

    def start(self, place: Place) -> None:
        """Choose the device, make the run deterministic and join the process group."""
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
        """Return a state at step 0; dropout differs from rank to rank, the weights do not."""
        rng_seed = int(np.random.SeedSequence((seed, self.place.rank)).generate_state(1)[0])
        return new_state(workload, seed, self.strategy, _rng(rng_seed, self.device))

    def gradients(self, state: State) -> None:
        """Run forward and backward on the batch at the state's position.

        DDP and FSDP average over the ranks inside backward.
        """
        batch = state.workload.batch(state.step, self.place.rank, self.place.world)
        inputs, targets = (
            torch.from_numpy(array).to(self.device) for array in (batch.inputs, batch.targets)
        )
        state.model.zero_grad()
        with state.own_rng():
            loss = _loss(state.workload, state.runner(inputs), targets)
            loss.backward()
        state.loss = loss.detach()

    def update(self, state: State) -> None:
        """Average the gradients over the ranks where that is still to do, take the optimizer's step and move on by one batch."""
        if state.workload.master_weights:
            _cast_gradients(state.model, state.trained)
        self.strategy.average(state.trained)
        state.optimizer.step()
        if state.workload.master_weights:
            state.write_back()
        state.step += 1

    def loss(self, state: State) -> float:
        """Return the loss of the last `gradients` call on this rank's batch."""
        return state.loss.item()

    def leaves(self, state: State) -> Iterator[Leaf]:
        """Yield what this rank holds of the state's tensors, on the host without a copy."""
        for name, tensor in state.tensors().items():
            part = shards.local(tensor)
            role = role_of(name)
            dtype = str(part.dtype).removeprefix("torch.")
            placement = shards.shard(tensor) or self._placement(name, role)
            yield Leaf(name, role, dtype, tuple(part.shape), _host_bytes(part), placement)

    def assign(self, state: State, leaves: Mapping[str, memoryview]) -> None:
        """Give the named leaves these values.

        Raises KeyError for an unknown name, ValueError for a wrong number of bytes.
        """
        own = state.local_tensors()
        state.restore_tensors({name: _from_bytes(data, own[name]) for name, data in leaves.items()})

    def synchronize(self, state: State) -> None:
        """Return when the device has nothing left to do."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def copy_to_host(self, state: State) -> int:
        """Copy what is on the GPU through one pinned buffer, and return the bytes."""
        on_device = [_bytes(tensor) for tensor in state.local_tensors().values() if tensor.is_cuda]
        for part in (part for tensor in on_device for part in tensor.split(PINNED_BYTES)):
            self._pinned[: part.numel()].copy_(part, non_blocking=True)
        self.synchronize(state)
        return sum(tensor.numel() for tensor in on_device)

    def stop(self) -> None:
        """Leave the process group once every rank has come here."""
        if dist.is_initialized():
            dist.barrier()  # a rank that tears its connections down early aborts the others
            dist.destroy_process_group()

    @staticmethod
    def unsupported(workload: Workload, device: str) -> str | None:
        """Say why the state cannot be held on the device, or None."""
        if device == "cuda" and not torch.cuda.is_available():
            return f"PyTorch {torch.__version__} finds no CUDA device"
        return None

    @functools.cached_property
    def _pinned(self) -> Tensor:
        return torch.empty(PINNED_BYTES, dtype=torch.uint8, pin_memory=True)

    def _placement(self, name: str, role: Role) -> Placement:
        # every rank has run the same number of batches
        counter = name.endswith("num_batches_tracked")
        own = role in (Role.BUFFER, Role.RNG) and not counter
        return RankLocal() if own and self.place.world > 1 else Replicated()


def _device(place: Place) -> torch.device:
    if place.device != "cuda":
        return torch.device(place.device)
    device = torch.device("cuda", own_gpu(place, torch.cuda.device_count()))
    torch.cuda.set_device(device)
    return device


def _be_deterministic() -> None:
    # must be there before cuBLAS starts
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    # convolutions in float32, as in the other frameworks and on a CPU
    torch.backends.cudnn.allow_tf32 = False
    # The deterministic mode also fills every new tensor, which would slow down the buffers that
    # saves and loads allocate.
    torch.utils.deterministic.fill_uninitialized_memory = False


def _rng(seed: int, device: torch.device) -> dict[str, Tensor]:
    states = {"cpu": torch.Generator().manual_seed(seed).get_state()}
    if device.type == "cuda":
        states["cuda"] = torch.Generator(device).manual_seed(seed).get_state()
    return states


def _loss(workload: Workload, outputs: Tensor, targets: Tensor) -> Tensor:
    if workload.loss == "mean-squared-error":
        return functional.mse_loss(outputs, targets)
    return functional.cross_entropy(outputs.flatten(0, -2).float(), targets.flatten().long())


def _cast_gradients(model: nn.Module, trained: nn.Module) -> None:
    for low, master in zip(model.parameters(), trained.parameters(), strict=True):
        assert low.grad is not None
        master.grad = low.grad.float()


def _bytes(tensor: Tensor) -> Tensor:
    # flat first: a tensor without dimensions cannot change its item size
    return tensor.reshape(-1).view(torch.uint8)


def _host_bytes(tensor: Tensor) -> memoryview:
    return memoryview(_bytes(tensor).cpu().numpy())


def _from_bytes(data: memoryview, like: Tensor) -> Tensor:
    """Return a tensor on the host with this content and the type and shape of another."""
    tensor = torch.empty(like.shape, dtype=like.dtype)
    _host_bytes(tensor)[:] = data
    return tensor
