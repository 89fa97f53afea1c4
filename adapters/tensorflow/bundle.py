"""The content of tensor bundles, which tf.train.Checkpoint and SavedModels write.

A bundle is an index and one data file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import tensorflow as tf
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

from adapters.base import Entry
from workloads import Role

# This tensor is no variable. It is a text that describes all others.
_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


def tensors(path: Path, prefix: str, role_of: Callable[[str], Role | None]) -> Iterator[Entry]:
    """Yield the tensors of the bundle at `prefix` inside the checkpoint `path`.

    All of them lie in the data file. `role_of` takes the path of a variable through the saved
    objects. Types and shapes give the sizes, because nothing is compressed. The length of a text
    does not follow from its type and shape, so the graph is read.
    """
    reader = tf.train.load_checkpoint(path / prefix)
    dtypes = reader.get_variable_to_dtype_map()
    file = f"{prefix}.data-00000-of-00001"
    for name, shape in sorted(reader.get_variable_to_shape_map().items()):
        if name == _GRAPH:
            role = None
            size_bytes = len(reader.get_tensor(name))
        else:
            role = role_of(name.removesuffix(_VALUE))
            size_bytes = dtypes[name].size * math.prod(shape)
        yield Entry(file, name, role, size_bytes, size_bytes)


def variable_names(path: Path, prefix: str) -> dict[str, str]:
    """Return each variable's name in the program by its path through the saved objects."""
    text = tf.train.load_checkpoint(path / prefix).get_tensor(_GRAPH)
    names = {}
    for node in TrackableObjectGraph.FromString(text).nodes:
        for attribute in node.attributes:
            variable_path = attribute.checkpoint_key.removesuffix(_VALUE)
            names[variable_path] = attribute.full_name
    return names
