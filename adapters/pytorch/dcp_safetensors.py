"""torch.distributed.checkpoint in Hugging Face's layout: a folder of safetensors files under their canonical names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter

from adapters.base import Entry, Method, Pending
from adapters.pytorch.dcp import ordinary_errors
from adapters.pytorch.state import State
from adapters.shared.formats import safetensors
from workloads import role_of


class DcpSafetensors(Method[State]):
    """The format holds tensors only, so the random generators and the position are saved as tensors.

    Options: `distributed`. Without it, as the writer is shipped, all ranks would write the same
    file, so only rank 0 saves; with it every rank writes a file of its own, and there is no index.
    `consolidated`: rank 0 then merges those files into one with an index. In PyTorch 2.13 that
    fails for integers, and turns tensors without dimensions into zeros.
    """

    def save(self, state: State, path: Path) -> Pending:
        """Write one folder."""
        distributed = self.options["distributed"]
        if distributed or self.place.rank == 0:
            merge = self.options["consolidated"]
            writer = HuggingFaceStorageWriter(
                str(path), save_distributed=distributed, enable_consolidation=merge
            )
            with ordinary_errors():
                dcp.save(state.tensors(), storage_writer=writer, no_dist=not distributed)
        return Pending()

    def load(self, state: State, path: Path) -> None:
        """Read into the state's own tensors; the position is the only one that is not."""
        tensors = state.tensors()
        with ordinary_errors():
            dcp.load(tensors, storage_reader=HuggingFaceStorageReader(str(path)))
        state.step = int(tensors["position/step"])

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield the tensors of every file."""
        for file in sorted(path.glob("*.safetensors")):
            yield from safetensors.tensors(file, role_of, file.name)
