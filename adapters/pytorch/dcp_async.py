"""torch.distributed.checkpoint.async_save, which writes a snapshot in the background."""

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
from adapters.pytorch.state import State, named_buffers


class AsyncSave(Pending):
    """A save in progress of `async_save`."""

    def __init__(self, response: Future[Any] | AsyncSaveResponse) -> None:
        self._response = response

    def staged(self) -> None:
        """Wait until the snapshot has been taken.

        `async_save` returns a bare future if it has taken the snapshot already.
        """
        if isinstance(self._response, AsyncSaveResponse):
            self._response.staging_completion.result()

    def finished(self) -> None:
        upload = self._response
        if isinstance(upload, AsyncSaveResponse):
            upload = upload.upload_completion
        with ordinary_errors():
            upload.result()


class DcpAsync(Dcp):
    """`async_save` as shipped, whose thread writes a new snapshot for every save."""

    group: dist.ProcessGroup | None = None

    def open(self, state: State) -> None:
        """Make a process group for the background thread.

        Its collectives must not mix with the collectives of the training.
        """
        if self.place.world > 1:
            self.group = dist.new_group(backend="gloo")

    def save(self, state: State, path: Path) -> Pending:
        return AsyncSave(dcp.async_save(tree(state), checkpoint_id=path, process_group=self.group))

    def close(self) -> None:
        if self.group is not None:
            dist.destroy_process_group(self.group)
            self.group = None


class DcpAsyncTuned(DcpAsync):
    """`async_save` with the options that PyTorch has against its costs.

    The snapshot lies in shared memory and is used again. A daemon process writes it and keeps its
    plans. On a GPU the snapshot is pinned, and a thread takes it while training goes on.
    """

    def open(self, state: State) -> None:
        """Make the stager. DCP starts the daemon in the first save."""
        # DCP asks the default group for its rank and size before it starts the daemon.
        if self.place.world == 1:
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        super().open(state)
        # The daemons meet at this address. Without it, DCP takes the host's name, which may not
        # resolve.
        self._master = os.environ.get("MASTER_ADDR")
        rendezvous = self.place.rendezvous
        os.environ["MASTER_ADDR"] = rendezvous[0] if rendezvous else "127.0.0.1"
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
        """End the daemon and release the shared memory."""
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
    """Copies of batch-norm statistics and random generators, which a forward pass changes.

    Training may run a forward pass before the snapshot has been taken. Without the copies, the
    snapshot would hold later values. The copies keep their memory from save to save, so that the
    stager can keep its memory too.
    """

    def __init__(self, state: State) -> None:
        self._buffers = {name: buffer.clone() for name, buffer in named_buffers(state.trained)}
        self._rng = {name: generator.clone() for name, generator in state.rng.items()}

    def freeze(self, state: State, parts: dict[str, Any]) -> dict[str, Any]:
        """Update the copies, and return `parts` with them in place of the state's tensors."""
        # Some buffers are not in a state_dict, and so no part of a checkpoint.
        saved = parts["trained"].keys() & self._buffers.keys()
        for name, buffer in named_buffers(state.trained):
            if name in saved:
                self._buffers[name].copy_(buffer)
        for name, generator in state.rng.items():
            self._rng[name].copy_(generator)
        if "cuda" in self._rng:
            # The stager's stream does not wait for the stream that makes the copies.
            torch.cuda.current_stream().synchronize()
        frozen = {name: self._buffers[name] for name in saved}
        return parts | {"trained": parts["trained"] | frozen, "rng": self._rng}
