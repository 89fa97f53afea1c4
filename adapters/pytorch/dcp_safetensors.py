"""torch.distributed.checkpoint with Hugging Face's layout, a folder of safetensors files."""

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
    """Tensors under canonical names.

    The format holds nothing but tensors, so random generators and position are saved as tensors.

    With the option `distributed`, every rank writes a file, and there is no index. Without it, as
    the writer is shipped, all ranks would write the same file, so rank 0 alone saves.

    With the option `consolidated`, rank 0 merges the files into one and adds an index. In PyTorch
    2.15 this fails for integers, and turns tensors without dimensions into zeros.
    """

    def save(self, state: State, path: Path) -> Pending:
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
        # These share the memory of the state, but for plain numbers such as the position.
        tensors = state.tensors()
        with ordinary_errors():
            dcp.load(tensors, storage_reader=HuggingFaceStorageReader(str(path)))
        state.take_numbers(tensors)

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield the tensors in all files."""
        for file in sorted(path.glob("*.safetensors")):
            yield from safetensors.tensors(file, role_of, file.name)
