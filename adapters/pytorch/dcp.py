"""torch.distributed.checkpoint (DCP): every rank writes a share of one folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_state_dict, set_model_state_dict, set_state_dict

from adapters.base import Method, Pending
from adapters.pytorch.state import State


class Dcp(Method[State]):
    """`dcp.save` as shipped."""

    def save(self, state: State, path: Path) -> Pending:
        """Write one folder."""
        with ordinary_errors():
            dcp.save(tree(state), checkpoint_id=path)
        return Pending()

    def load(self, state: State, path: Path) -> None:
        """Read into the state's own tensors."""
        target = tree(state)
        with ordinary_errors():
            dcp.load(target, checkpoint_id=path)
        restore(state, target)


@contextmanager
def ordinary_errors() -> Iterator[None]:
    """Raise DCP's error as a RuntimeError: it is no `Exception` but a `BaseException`, like the wish to end the program."""
    try:
        yield
    except CheckpointException as error:
        raise RuntimeError(str(error)) from error


def tree(state: State) -> dict[str, Any]:
    """Return the state under names that do not depend on the number of ranks. Its tensors are the state's own."""
    trained, optimizer = get_state_dict(state.trained, state.optimizer)
    parts = {"trained": trained, "optimizer": optimizer, "rng": dict(state.rng), "step": state.step}
    return parts | {"model": get_model_state_dict(state.model)} if state.workload.master_weights else parts


def restore(state: State, loaded: dict[str, Any]) -> None:
    """Take over the values of a `tree` that `dcp.load` has filled."""
    set_state_dict(
        state.trained,
        state.optimizer,
        model_state_dict=loaded["trained"],
        optim_state_dict=loaded["optimizer"],
    )
    if state.workload.master_weights:
        set_model_state_dict(state.model, loaded["model"])
    for name, generator in state.rng.items():
        generator.copy_(loaded["rng"][name])
    state.step = loaded["step"]
