"""The points in which Chainer differs from what the conformance suite expects."""

from __future__ import annotations

from collections.abc import Mapping

from adapters.chainer.state import State
from adapters.shared import quirks
from adapters.shared.quirks import Obstacle
from workloads import Role

# Chainer saves the number of the epoch with the optimizer. No leaf stands for it.
_EPOCH_BYTES = 8


class Quirks(quirks.Quirks[State]):
    """Chainer has no bfloat16, and its optimizer counts the steps of every parameter."""

    added_leaves = ("rng/numpy", "position/step", "optimizer/step", "optimizer/step/.*")
    required_leaves = (
        "rng/numpy",
        "position/step",
        "optimizer/step",
        "optimizer/step/{parameter}",
    )
    refused_precisions = {"bf16-mixed": "Chainer has no bfloat16"}
    without_gpu = "finds no CUDA device"
    obstacle = Obstacle.NO_FOLDER
    obstacle_message = "No such file or directory|Not a directory"
    # numpy writes a header before every array of an archive.
    header_bytes = {"npz": 128}
    extra_bytes = {
        "npz": {Role.OPTIMIZER: _EPOCH_BYTES},
        "hdf5": {Role.OPTIMIZER: _EPOCH_BYTES},
    }
    # The count of batches that only fine-tuning the statistics of a norm uses.
    entries_without_role = r"(.*/)?N(\.npy)?"

    # Its version of numpy has no bfloat16.
    reads_bfloat16 = False

    # The damaged bytes are in the state already. If they are the position in the words of numpy's
    # random generator, the next draw reads beyond the words, and the process crashes.
    trains_after_damage = False

    def lost_updates(self, strategy: str) -> int:
        # ChainerMN's first update only broadcasts the weights.
        return 1 if strategy == "chainermn" else 0

    def lasting_objects(self, state: State) -> Mapping[str, object]:
        return {
            name: array
            for name, array in state.arrays().items()
            if name.startswith(("weights", "buffers", "rng"))
        }
