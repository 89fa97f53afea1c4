"""Tensor bundles: an index and one data file, as tf.train.Checkpoint and SavedModels have them.

Says what lies in one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import tensorflow as tf
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

from adapters.base import Entry
from workloads import Role

# the one tensor that is no variable's: a text that describes all others
_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


def tensors(path: Path, prefix: str, role_of: Callable[[str], Role | None]) -> Iterator[Entry]:
    """Yield the tensors of the bundle at `prefix` inside the checkpoint `path`, all of which lie in its data file.

    `role_of` takes a variable's path through the saved objects. The bundle tells types and shapes,
    which give the sizes: nothing in it is compressed. A text's length does not follow from them, so
    that the graph is read.
    """
    reader = tf.train.load_checkpoint(path / prefix)
    dtypes = reader.get_variable_to_dtype_map()
    file = f"{prefix}.data-00000-of-00001"
    for name, shape in sorted(reader.get_variable_to_shape_map().items()):
        if name == _GRAPH:
            role, size = None, len(reader.get_tensor(name))
        else:
            role, size = role_of(name.removesuffix(_VALUE)), dtypes[name].size * math.prod(shape)
        yield Entry(file, name, role, size, size)


def variable_names(path: Path, prefix: str) -> dict[str, str]:
    """Return what every variable of the bundle was called in the program, by its path through the saved objects."""
    graph = TrackableObjectGraph.FromString(
        tf.train.load_checkpoint(path / prefix).get_tensor(_GRAPH)
    )
    attributes = (attribute for node in graph.nodes for attribute in node.attributes)
    return {
        attribute.checkpoint_key.removesuffix(_VALUE): attribute.full_name
        for attribute in attributes
    }
