"""torch.distributed.checkpoint.async_save: a snapshot in host memory, written in the background."""

from __future__ import annotations

import os
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, AsyncSaveResponse

from adapters.base import Pending
from adapters.pytorch.daemon import end_checkpoint_daemon
from adapters.pytorch.dcp import Dcp, ordinary_errors, tree
from adapters.pytorch.state import State


class AsyncSave(Pending):
    """What `async_save` has under way. Its errors are raised here."""

    def __init__(self, response: Future[Any] | AsyncSaveResponse) -> None:
        self._response = response

    def staged(self) -> None:
        """Return when the snapshot has been taken; a bare future stands for one that had been when `async_save` returned."""
        if isinstance(self._response, AsyncSaveResponse):
            self._response.staging_completion.result()

    def finished(self) -> None:
        """Return when DCP has written everything."""
        upload = (
            self._response.upload_completion
            if isinstance(self._response, AsyncSaveResponse)
            else self._response
        )
        with ordinary_errors():
            upload.result()


class DcpAsync(Dcp):
    """`async_save` as shipped: a new snapshot for every save, written by a thread."""

    group: dist.ProcessGroup | None = None

    def open(self, state: State) -> None:
        """Give the background thread a process group of its own: its collectives must not mix with those of the training."""
        if self.place.world > 1:
            self.group = dist.new_group(backend="gloo")

    def save(self, state: State, path: Path) -> Pending:
        """Take the snapshot and start to write one folder."""
        return AsyncSave(dcp.async_save(tree(state), checkpoint_id=path, process_group=self.group))

    def close(self) -> None:
        """Leave the group."""
        if self.group is not None:
            dist.destroy_process_group(self.group)
            self.group = None


class DcpAsyncTuned(DcpAsync):
    """`async_save` with its remedies: a reused snapshot in shared memory, written by a daemon process that keeps its plans.

    On a GPU the snapshot is pinned, and is taken by a thread while the training goes on.
    """

    def open(self, state: State) -> None:
        """Make the stager. The daemon starts with the first save, as DCP has it."""
        # DCP asks the default group for its rank and size before it starts the daemon
        if self.place.world == 1:
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        super().open(state)
        # The daemons meet here; without it DCP takes the host's name, which need not resolve.
        self._master = os.environ.get("MASTER_ADDR")
        os.environ["MASTER_ADDR"] = (
            self.place.rendezvous[0] if self.place.rendezvous else "127.0.0.1"
        )
        cuda = self.place.device == "cuda"
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=cuda,
                use_shared_memory=True,
                use_async_staging=cuda,
                use_non_blocking_copy=cuda,
            )
        )
        self._planner = DefaultSavePlanner(enable_plan_caching=True)
        self._frozen = _Frozen(state)

    def save(self, state: State, path: Path) -> Pending:
        """Start the snapshot and the writing of one folder."""
        response = dcp.async_save(
            self._frozen.freeze(state, tree(state)),
            checkpoint_id=path,
            process_group=self.group,
            planner=self._planner,
            async_checkpointer_type=AsyncCheckpointerType.PROCESS,
            async_stager=self._stager,
        )
        return AsyncSave(response)

    def close(self) -> None:
        """End the daemon and give the shared memory back."""
        end_checkpoint_daemon()
        self._stager.close()
        super().close()
        if self.place.world == 1:
            dist.destroy_process_group()
        if self._master is None:
            del os.environ["MASTER_ADDR"]
        else:
            os.environ["MASTER_ADDR"] = self._master


class _Frozen:
    """Copies of what the forward pass changes: batch-norm statistics and random generators.

    The training may run forward before the snapshot has been taken, and would then put later values
    into it. The copies keep their memory from save to save, so that the stager can keep its own.
    """

    def __init__(self, state: State) -> None:
        self._buffers = {name: buffer.clone() for name, buffer in state.trained.named_buffers()}
        self._rng = {name: generator.clone() for name, generator in state.rng.items()}

    def freeze(self, state: State, parts: dict[str, Any]) -> dict[str, Any]:
        """Return `parts` with the copies, brought up to date, in place of the state's own."""
        for name, buffer in state.trained.named_buffers():
            self._buffers[name].copy_(buffer)
        for name, generator in state.rng.items():
            self._rng[name].copy_(generator)
        if "cuda" in self._rng:  # the stager's stream does not wait for the one that computes
            torch.cuda.current_stream().synchronize()
        return parts | {"trained": parts["trained"] | self._buffers, "rng": self._rng}
