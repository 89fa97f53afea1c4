"""Leaves that ranks hold in parts, and the row of a load by another number of ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import records
from conftest import planned

from adapters.base import Leaf, Shard
from harness.analysis.row import Wanted
from harness.analysis.rows import rows
from harness.experiments.reshard.rows import ReshardRow
from harness.experiments.reshard.worker import put_together
from harness.worker import verify
from harness.worker.world import World

WHOLE = np.arange(5 * 3, dtype=np.float32).reshape(5, 3)
CASE = replace(planned().case, experiment="reshard", world=2, launcher="mpirun", load_world=2)


class Gathered(World):
    """A rank 0 that gathers the parts of made-up other ranks."""

    def __init__(self, others: list[Any]) -> None:
        super().__init__()
        self.others = others

    def gather(self, value: Any) -> list[Any]:
        return [value, *self.others]


def part_of(begin: int, end: int) -> Leaf:
    """Return some rows of the whole as the leaf of the rank that holds them."""
    rows_ = WHOLE[begin:end]
    return Leaf(
        "weight",
        "weights",
        "float32",
        rows_.shape,
        memoryview(rows_.tobytes()),
        Shard(WHOLE.shape, (begin, 0)),
    )


def whole(*parts: Leaf) -> memoryview | None:
    others = [
        (part.placement.offset, part.shape, bytes(part.data))
        for part in parts
        if isinstance(part.placement, Shard)
    ]
    first = parts[0]
    assert isinstance(first.placement, Shard)
    return put_together(first, first.placement, Gathered(others[1:]))


@pytest.mark.parametrize(
    "cuts",
    [(0, 5), (0, 3, 5), (0, 2, 4, 5), (0, 5, 5), (0, 0, 5)],
    ids=["one", "two", "uneven", "an empty one", "an empty first"],
)
def test_parts_give_the_whole(cuts: tuple[int, ...]) -> None:
    parts = [part_of(begin, end) for begin, end in zip(cuts, cuts[1:], strict=False)]
    assert whole(*parts) == WHOLE.tobytes()


@pytest.mark.parametrize("parts", [[(0, 2), (3, 5)], [(0, 3), (2, 5)]], ids=["a gap", "held twice"])
def test_parts_that_are_not_the_whole_are_refused(parts: list[tuple[int, int]]) -> None:
    with pytest.raises(verify.Mismatch, match="elements of weight, which has 15"):
        whole(*(part_of(begin, end) for begin, end in parts))


def test_what_another_number_of_ranks_has_loaded_is_counted() -> None:
    loaded = [replace(records.reshard(rank=rank), case=CASE.id) for rank in (0, 1)]
    (whole_row,) = rows([Wanted(CASE, 1, 1)], loaded)
    assert isinstance(whole_row, ReshardRow)
    assert (
        whole_row.status,
        whole_row.replicated_leaves,
        whole_row.sharded_leaves,
        whole_row.left_out,
    ) == ("ok", 8, 2, 3)
    (part,) = rows([Wanted(CASE, 1, 1)], loaded[:1])
    assert part.status == "skipped"


@pytest.mark.parametrize(("ranks", "oversubscribed"), [(2, False), (4, True)])
def test_ranks_that_only_load_count_as_well(ranks: int, oversubscribed: bool) -> None:
    case = replace(CASE, load_world=ranks)
    workers = [records.worker(world=world, ranks_here=world, cpus=2) for world in (2, ranks)]
    (row,) = rows([Wanted(case, 1, 1)], workers)
    assert row.oversubscribed is oversubscribed
