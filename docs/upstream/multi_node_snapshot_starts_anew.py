"""Let a rank of multi_node_snapshot resume where its own snapshot is missing."""

import tempfile
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import chainer
from chainer.training.extensions import snapshot_object
from chainermn.extensions import multi_node_snapshot


@dataclass
class Rank:
    """A communicator of one set of replicas, which has one rank."""

    rank: int = 0
    size: int = 1


@dataclass
class Trainer:
    """The part of a trainer that the extension uses."""

    out: str


def snapshot_of(model: chainer.Link) -> Any:
    """Return the extension for a model."""
    snapshot = snapshot_object(model, "snapshot", autoload=True)
    return multi_node_snapshot(Rank(), snapshot, [])


model = chainer.links.Linear(2, 1)
print("chainer", version("chainer"))
with tempfile.TemporaryDirectory() as folder:
    model.W.data[...] = 7
    snapshot_of(model)(Trainer(folder))
    (file,) = Path(folder).iterdir()
    print("the snapshot of rank 0:", file.name)
    # The rank was killed before it had written the file, and the other ranks have theirs.
    file.unlink()
    model.W.data[...] = 0
    snapshot_of(model).initialize(Trainer(folder))
    print("no error, and its weights are", model.W.data.tolist())
