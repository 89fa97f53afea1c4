"""The points in which a framework may differ from what the conformance suite expects of all.

The suite lies in tests/conformance. `adapters/<framework>/quirks.py` may define a class `Quirks`
that derives from this one and overrides what is different. A folder without that file has no
quirks. The harness never reads any of this.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Generic, TypeVar

import numpy as np

from workloads import Role

StateT = TypeVar("StateT")

DTYPES = frozenset({"bfloat16", "float32", "int32", "int64", "uint8", "uint32", "uint64"})


class Obstacle(StrEnum):
    """The way in which the suite makes a save fail."""

    FILE_AS_FOLDER = "a file where the checkpoint's folder should be"
    NO_FOLDER = "the checkpoint's folder does not exist"
    NO_ROOM = "files may not grow"


class Quirks(Generic[StateT]):
    """The peculiarities of one framework. By default it has none."""

    # --- leaves ---

    # Regular expressions of the leaves that a state has beyond those of the workload.
    added_leaves: tuple[str, ...] = ("rng/.+", "position/.+", "optimizer/.+")
    # Leaves that a state must have. "{parameter}" stands for every parameter of the workload.
    required_leaves: tuple[str, ...] = ()
    dtypes: frozenset[str] = DTYPES
    # The float32 copies of bfloat16 weights have the workload's first values.
    fills_master_weights = True
    # The loss falls when a state is trained.
    learns = True

    # --- support ---

    # A regular expression of the reason why a workload of a precision cannot be held.
    refused_precisions: Mapping[str, str] = {}
    # A regular expression of the reason why a machine without a GPU cannot be used as one.
    without_gpu = "CUDA"

    # --- time: the cases, such as "resnet50-float32", to which a slow test is limited ---

    cases_from_scratch: tuple[str, ...] | None = None
    cases_behind_a_save: tuple[str, ...] | None = None
    cases_of_entries: tuple[str, ...] | None = None

    # --- saves that fail ---

    obstacle = Obstacle.FILE_AS_FOLDER
    # A regular expression of the error of a save that meets the obstacle.
    obstacle_message = "file|directory"
    # Methods with a declared failure that already hits the first save of a process.
    cannot_save: frozenset[str] = frozenset()

    # --- entries ---

    # Formats whose checkpoints have no named parts.
    formats_without_entries: frozenset[str] = frozenset()
    # The bytes by which the raw size of every entry of a format exceeds its tensor.
    header_bytes: Mapping[str, int] = {}
    # The bytes by which the entries of a role exceed its leaves, by format.
    extra_bytes: Mapping[str, Mapping[Role, int]] = {}
    # How often a method writes the leaves of a role, where that is not once for what it covers.
    copies: Mapping[str, Mapping[Role, int]] = {}
    # The sizes that the entries of the position may have, where they are not those of its leaves,
    # by format.
    position_bytes: Mapping[str, range] = {}
    # A format leaves out the zeros of slots that no step has changed yet.
    leaves_out_zeros = False
    # The entries of a state on one rank have different names, whichever files they are in.
    entry_names_are_unique = False
    # A regular expression of the entries that have no role.
    entries_without_role = ".*"
    # The bytes by which the stored size of an entry may exceed its raw size, by format.
    padding_bytes: Mapping[str, int] = {}
    # The size up to which a format compresses even the entries of an uncompressed method.
    compressed_up_to_bytes: Mapping[str, int] = {}
    # The largest number of bytes outside of entries in files with a name that has this part.
    unaccounted_bytes: Mapping[str, int] = {}

    def lasting_objects(self, state: StateT) -> Mapping[str, object]:
        """Return objects of a state that neither `assign` nor a load may replace."""
        return {}

    def compiled_programs(self, state: StateT) -> tuple[int, ...]:
        """Return the numbers of programs that were compiled for a state's step."""
        return ()

    # --- several ranks ---

    # One process can join the other ranks, leave them, and join them again.
    can_be_started_again = True
    # The numbers of ranks that train.
    training_worlds: tuple[int, ...] = (4,)
    # The cases that ranks train. "uneven" has tensors that ranks cannot share evenly.
    trained_cases: tuple[str, ...] = ("resnet50-float32",)
    # The cases that ranks train for a comparison with one rank that has the whole batch.
    averaged_cases: tuple[str, ...] = ("candle-mlp-float32", "llm-slice-float32")
    # The cases that ranks save under a strategy that divides the state.
    sharded_cases: tuple[str, ...] = ("llm-slice-bf16-mixed",)
    buffers_differ_between_ranks = True
    # Each rank that writes a checkpoint writes one file with entries.
    writes_one_file_per_rank = False
    # The error of a method that cannot load what another number of ranks has saved.
    refusal: type[Exception] | None = None

    def averaged_dropout(self, strategy: str) -> float:
        """Return the dropout with which several ranks compute the same as one."""
        return 0.0

    def lost_updates(self, strategy: str) -> int:
        """Return the number of updates that ranks lose before they train."""
        return 0

    def steps_before_assigning(self, strategy: str) -> int:
        """Return the steps of a state that can be made equal to another one by `assign`."""
        return 1

    def part_that_dies(self, state: StateT) -> object | None:
        """Return a part of a state that must be freed with it, if a weak reference can tell."""
        return None

    def leaves_rank_local_leaves_alone(self, method: str) -> bool:
        """Return whether a load with other ranks leaves what belongs to a rank as it is."""
        return False

    def weight_tolerance(self, steps: int) -> float:
        """Return how far several ranks may be from one, as a share of the learning rate."""
        return 5e-2

    def moment_tolerance(self, steps: int) -> float:
        """Return how far a moment may be off, as a share of its largest number."""
        return 1e-4

    # --- models of the user's own ---

    # The text of a script whose `make` returns a model. Empty where the framework takes none. Its
    # `make_without_step` returns a model without a step function, where the framework takes that.
    own_model = ""
    # Scripts that are refused, by what is wrong with them, each with a regular expression of the
    # sentence.
    broken_models: Mapping[str, tuple[str, str]] = {}

    # --- DeepFreeze ---

    # The name by which safetensors.safe_open knows the framework.
    safetensors_name = "np"
    # The cases whose tensors safetensors can hand to the framework.
    cases_of_safetensors: tuple[str, ...] | None = ("resnet50-float32", "llm-slice-bf16-mixed")
    # safetensors can read a tensor of type bfloat16, because the framework knows the type.
    reads_bfloat16 = True
    # The cases whose step changes all tensors of `addresses` in place, without a save.
    cases_in_place: tuple[str, ...] = ("resnet50-float32", "candle-mlp-float32")
    # A state trains on although a load into it has found damage.
    trains_after_damage = True
    # A load uses the memory of the state even while a save is under way.
    loads_in_place_during_a_save = False

    def addresses(self, state: StateT) -> Mapping[str, int]:
        """Return the addresses of tensors that an optimizer's step changes in place."""
        return {}

    def saved_tensors(self, state: StateT) -> Mapping[str, Any] | None:
        """Return the tensors as DeepFreeze saves them, or None if they are the leaves."""
        return None

    def described(self, tensor: Any) -> tuple[str, tuple[int, ...], bytes]:
        """Return the type, shape and bytes of a tensor that safetensors has read."""
        array = np.asarray(tensor)
        return str(array.dtype), array.shape, array.tobytes()
