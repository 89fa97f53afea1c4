"""The points in which JAX differs from what the conformance suite expects."""

from __future__ import annotations

from adapters.jax.state import State, WorkloadState
from adapters.shared import quirks
from adapters.shared.quirks import Obstacle


class Quirks(quirks.Quirks[State]):
    """JAX compiles the step and gives the memory of old arrays to new ones."""

    added_leaves = ("rng/key", "position/step", "optimizer/count")
    required_leaves = ("rng/key", "position/step")
    dtypes = frozenset({"bfloat16", "float32", "int32", "uint32"})
    without_gpu = "finds no CUDA device"
    # After a missing folder, Orbax's threads wait for 300 s, and the interpreter waits for them.
    obstacle = Obstacle.NO_ROOM
    obstacle_message = r"(?i)too large|writ"
    # Orbax widens the position to 64 bits, and msgpack packs it.
    position_bytes = dict.fromkeys(("ocdbt", "zarr2", "msgpack"), range(1, 9))
    # OCDBT always compresses the nodes of its tree, which hold the small values.
    compressed_up_to_bytes = {"ocdbt": 1024}
    # TensorStore does not write chunks of zeros.
    leaves_out_zeros = True
    entry_names_are_unique = True
    safetensors_name = "flax"

    # jax.distributed cannot be started twice in a process.
    can_be_started_again = False
    trained_cases = ("resnet50-float32", "llm-slice-bf16-mixed")

    def averaged_dropout(self, strategy: str) -> float:
        # A batch that is divided has one mask, whatever the number of ranks.
        return 0.1 if strategy == "sharded" else 0.0

    def leaves_rank_local_leaves_alone(self, method: str) -> bool:
        return method.startswith("orbax")

    def weight_tolerance(self, steps: int) -> float:
        return 0.1

    def moment_tolerance(self, steps: int) -> float:
        return 1e-5 if steps == 1 else 1e-4

    def compiled_programs(self, state: State) -> tuple[int, ...]:
        assert isinstance(state, WorkloadState)
        training = state.training
        return training.gradients._cache_size(), training.update._cache_size()

    def addresses(self, state: State) -> dict[str, int]:
        return {
            name: array.unsafe_buffer_pointer()
            for name, array in state.tensors().items()
            if name.startswith(("weights/", "optimizer/momentum/", "optimizer/exp_avg"))
        }
