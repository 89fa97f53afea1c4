"""torch.distributed.checkpoint (DCP), with which every rank writes a share of one folder."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemReader, Metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)

from adapters.base import Entry, Method, Pending
from adapters.pytorch.modules import is_buffer
from adapters.pytorch.state import State
from workloads import Role


class Dcp(Method[State]):
    """`dcp.save` as shipped."""

    def save(self, state: State, path: Path) -> Pending:
        with ordinary_errors():
            dcp.save(tree(state), checkpoint_id=path)
        return Pending()

    def load(self, state: State, path: Path) -> None:
        target = tree(state)
        with ordinary_errors():
            dcp.load(target, checkpoint_id=path)
        restore(state, target)

    def entries(self, path: Path) -> Iterator[Entry]:
        """Yield the items that the file `.metadata` lists.

        DCP writes each item as an archive of torch.save, so an item is larger than its tensor.
        """
        metadata = FileSystemReader(path).read_metadata()
        mixed = any(name.startswith("model.") for name in metadata.state_dict_metadata)
        for index, stored in metadata.storage_data.items():
            yield Entry(
                file=stored.relative_path,
                name=index.fqn,
                role=_role(index.fqn, mixed),
                stored_bytes=stored.length,
                raw_bytes=_raw_bytes(metadata, index),
            )


@contextmanager
def ordinary_errors() -> Iterator[None]:
    """Raise DCP's error as a RuntimeError.

    DCP's own error is a `BaseException` like KeyboardInterrupt, and would end the program.
    """
    try:
        yield
    except CheckpointException as error:
        rank, (cause, _) = next(iter(error.failures.items()))
        raise RuntimeError(f"{type(cause).__name__} on rank {rank}: {cause}") from error


def tree(state: State) -> dict[str, Any]:
    """Return the state as a dictionary whose names do not depend on the number of ranks.

    Its tensors share the memory of the state.
    """
    trained, optimizer = get_state_dict(state.trained, tuple(state.optimizers.values()))
    parts = {"trained": trained, "optimizer": optimizer, "rng": dict(state.rng), "step": state.step}
    if state.has_master:
        parts["model"] = get_model_state_dict(state.model)
    return parts


def restore(state: State, loaded: dict[str, Any]) -> None:
    """Set the state to the values of a `tree` that `dcp.load` has filled."""
    set_state_dict(
        state.trained,
        tuple(state.optimizers.values()),
        model_state_dict=loaded["trained"],
        optim_state_dict=loaded["optimizer"],
    )
    if state.has_master:
        set_model_state_dict(state.model, loaded["model"])
    for name, generator in state.rng.items():
        generator.copy_(loaded["rng"][name])
    state.step = loaded["step"]


def _raw_bytes(metadata: Metadata, index: MetadataIndex) -> int:
    """Return the size of an item's tensor, or of the pickle if the item is no tensor."""
    item = metadata.state_dict_metadata[index.fqn]
    if not isinstance(item, TensorStorageMetadata):
        length: int = metadata.storage_data[index].length
        return length
    chunk = next(chunk for chunk in item.chunks if chunk.offsets == index.offset)
    return math.prod(chunk.sizes) * item.properties.dtype.itemsize


def _role(name: str, mixed: bool) -> Role | None:
    """Return the role of an item of `tree`.

    It is None for the settings of the optimizer, because training does not change them.
    """
    match name.split("."):
        case ["optimizer", "param_groups", *_]:
            return None
        case ["optimizer", *_]:
            return Role.OPTIMIZER
        case ["trained", *_] if mixed:
            # the master weights
            return Role.OPTIMIZER
        case ["rng", *_]:
            return Role.RNG
        case ["step"]:
            return Role.POSITION
    return Role.BUFFER if is_buffer(name) else Role.WEIGHT
