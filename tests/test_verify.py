"""The comparison with the saved state names every difference, and every leaf restored too much."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from adapters.base import Coverage, Leaf, Placement, RankLocal, Replicated, Shard
from harness.worker import verify
from harness.worker.verify import Digests, Mismatch, Scope
from workloads import Role

MIB = 1 << 20
FULL, WEIGHTS = Coverage.FULL, Coverage.WEIGHTS


EVERYWHERE = Replicated()


def leaf(
    name: str,
    values: object = 1.0,
    dtype: str = "float32",
    role: Role = Role.WEIGHT,
    where: Placement = EVERYWHERE,
) -> Leaf:
    array = np.atleast_1d(np.asarray(values, dtype=dtype))
    return Leaf(name, role, dtype, array.shape, memoryview(array.tobytes()), where)


def state(value: float, names: Iterable[str] = ("weights/a", "weights/b")) -> list[Leaf]:
    """Return leaves of every role, all with this value."""
    return [
        *(leaf(name, value) for name in names),
        leaf("optimizer/a", value, role=Role.OPTIMIZER),
        leaf("buffers/a", value, role=Role.BUFFER, where=RankLocal()),
        leaf("rng/a", value, role=Role.RNG, where=RankLocal()),
    ]


def mixed(saved: Digests, other: Digests, restored: Iterable[str]) -> Digests:
    """Return `other` with the saved value in the leaves that were restored."""
    return other | {name: saved[name] for name in restored}


SAVED, OTHER = verify.digests(state(1.0)), verify.digests(state(2.0))


def complaint(saved: Digests, loaded: Digests, scope: Scope) -> str:
    """Return the error of `check_restored`, or "" if it raises none."""
    try:
        verify.check_restored(saved, loaded, scope)
    except Mismatch as error:
        return str(error)
    return ""


ALONE = Scope(FULL, rank_local=True, world=1)


# Digests


def test_a_digest_says_what_the_leaf_is() -> None:
    found = verify.digests(
        [leaf("a", np.zeros((2, 3)), "float64", Role.OPTIMIZER), leaf("b", where=RankLocal())]
    )
    assert (found["a"].dtype, found["a"].shape, found["a"].role, found["a"].bytes) == (
        "float64",
        (2, 3),
        "optimizer",
        48,
    )
    assert [found[name].rank_local for name in "ab"] == [False, True]


def test_a_shard_is_not_a_ranks_own() -> None:
    assert not verify.digests([leaf("a", where=Shard((4,), (2,)))])["a"].rank_local


def test_the_same_values_have_the_same_digest_wherever_they_lie() -> None:
    assert verify.digests(state(1.0)) == SAVED
    assert verify.digests(reversed(state(1.0))) == SAVED, "the order of the leaves does not matter"


def test_equal_bytes_of_another_type_or_shape_are_not_equal() -> None:
    digests = [
        verify.digests([leaf("a", np.zeros(shape), dtype)])["a"]
        for dtype, shape in (("float32", 4), ("int32", 4), ("float64", 2), ("float32", (2, 2)))
    ]
    assert len({digest.sha256 for digest in digests}) == 1
    assert len(set(digests)) == 4


@pytest.mark.parametrize("position", [0, 8 * MIB - 1, 8 * MIB, 17 * MIB])
def test_one_bit_of_a_large_leaf_changes_its_digest(position: int) -> None:
    content = bytearray(17 * MIB + 1)
    large = Leaf("a", Role.WEIGHT, "uint8", (len(content),), memoryview(content))
    before = verify.digests([large])
    content[position] ^= 1
    assert verify.digests([large])["a"].sha256 != before["a"].sha256


def test_parts_of_a_large_leaf_that_changed_places_are_seen() -> None:
    parts = [bytes([number]) * (8 * MIB) for number in range(2)]
    found = {
        verify.digests([Leaf("a", Role.WEIGHT, "uint8", (16 * MIB,), memoryview(b"".join(order)))])[
            "a"
        ].sha256
        for order in (parts, parts[::-1])
    }
    assert len(found) == 2


def test_minus_zero_and_nan_are_compared_by_their_bits() -> None:
    assert verify.digests([leaf("a", 0.0)]) != verify.digests([leaf("a", -0.0)])
    assert verify.digests([leaf("a", np.nan)]) == verify.digests([leaf("a", np.nan)])


def test_two_leaves_of_one_name_are_refused() -> None:
    with pytest.raises(
        Mismatch, match="^two leaves are called weights/a; each leaf needs a name of its own$"
    ):
        verify.digests([leaf("weights/a", 1), leaf("weights/b", 1), leaf("weights/a", 2)])


def test_a_leaf_may_be_empty() -> None:
    assert verify.digests([leaf("a", np.zeros(0))])["a"].bytes == 0


def test_digests_come_back_from_json() -> None:
    found = SAVED | verify.digests(
        [leaf("scalar", np.float32(1)), leaf("deep/ä", np.zeros((2, 0, 3)), "int64")]
    )
    written = json.dumps(verify.digests_to_json(found))
    read = verify.digests_from_json(json.loads(written))
    assert read == found
    assert complaint(read, found, ALONE) == ""


# Before the load


def test_a_target_that_differs_everywhere_can_prove_something() -> None:
    verify.check_all_differ(SAVED, OTHER)


def test_a_leaf_that_has_the_saved_value_before_the_load_is_named() -> None:
    with pytest.raises(
        Mismatch, match="^cannot be verified: weights/b, rng/a had the saved value before the load$"
    ):
        verify.check_all_differ(SAVED, mixed(SAVED, OTHER, ["weights/b", "rng/a"]))


def test_a_target_of_another_structure_is_no_target() -> None:
    with pytest.raises(Mismatch, match="^leaves are missing: rng/a$"):
        verify.check_all_differ(
            SAVED, {name: digest for name, digest in OTHER.items() if name != "rng/a"}
        )
    with pytest.raises(Mismatch, match="^leaves appeared: weights/z$"):
        verify.check_all_differ(SAVED, OTHER | verify.digests([leaf("weights/z")]))


def test_an_empty_shard_is_neither_equal_before_a_load_nor_restored_by_it() -> None:
    nothing = leaf(
        "optimizer/empty", np.zeros((0, 3)), role=Role.OPTIMIZER, where=Shard((9, 3), (9, 0))
    )
    saved, other = verify.digests([*state(1.0), nothing]), verify.digests([*state(2.0), nothing])
    verify.check_all_differ(saved, other)
    assert complaint(saved, verify.digests([*state(1.0), nothing]), ALONE) == ""
    restored = mixed(saved, other, ["weights/a", "weights/b", "buffers/a"])
    assert complaint(saved, restored, Scope(WEIGHTS, rank_local=True, world=4)) == ""


# After it


def test_a_state_that_is_all_as_it_was_saved_is_right() -> None:
    assert complaint(SAVED, verify.digests(state(1.0)), ALONE) == ""


def test_leaves_that_differ_are_counted_and_named() -> None:
    loaded = mixed(SAVED, OTHER, ["weights/a", "optimizer/a", "buffers/a"])
    assert (
        complaint(SAVED, loaded, ALONE)
        == "2 of 5 leaves differ from the saved state: weights/b, rng/a"
    )


@pytest.mark.parametrize(("count", "rest"), [(4, ""), (5, " and 1 more"), (9, " and 5 more")])
def test_of_many_leaves_four_are_named(count: int, rest: str) -> None:
    saved, loaded = (
        verify.digests(leaf(f"w{number}", value) for number in range(count)) for value in (1.0, 2.0)
    )
    assert (
        complaint(saved, loaded, ALONE)
        == f"{count} of {count} leaves differ from the saved state: w0, w1, w2, w3{rest}"
    )


@pytest.mark.parametrize("change", [{"dtype": "int32"}, {"shape": (1, 1)}])
def test_a_leaf_of_another_type_or_shape_is_described(change: dict[str, object]) -> None:
    loaded = SAVED | {"weights/a": replace(SAVED["weights/a"], **change)}
    now = f"{loaded['weights/a'].dtype}{list(loaded['weights/a'].shape)}"
    assert complaint(SAVED, loaded, ALONE) == f"weights/a is {now} and was saved as float32[1]"


def test_leaves_that_vanished_or_appeared_are_named() -> None:
    fewer = {name: digest for name, digest in SAVED.items() if not name.startswith("weights/")}
    assert complaint(SAVED, fewer, ALONE) == "leaves are missing: weights/a, weights/b"
    assert complaint(fewer, SAVED, ALONE) == "leaves appeared: weights/a, weights/b"


@pytest.mark.parametrize(
    ("covers", "restored"),
    [
        (WEIGHTS, ["weights/a", "weights/b", "buffers/a"]),
        (Coverage.WEIGHTS_AND_OPTIMIZER, ["weights/a", "weights/b", "buffers/a", "optimizer/a"]),
        (FULL, list(SAVED)),
    ],
)
def test_a_method_restores_what_it_covers_and_nothing_else(
    covers: Coverage, restored: list[str]
) -> None:
    scope = Scope(covers, rank_local=True, world=1)
    assert complaint(SAVED, mixed(SAVED, OTHER, restored), scope) == ""
    assert re.search(
        r"^1 of 5 leaves differ .*: weights/a$",
        complaint(SAVED, mixed(SAVED, OTHER, restored[1:]), scope),
    )


def test_a_leaf_outside_the_coverage_that_came_back_is_a_wrong_declaration() -> None:
    scope = Scope(WEIGHTS, rank_local=True, world=1)
    assert (
        complaint(SAVED, SAVED, scope)
        == "the method declares 'weights' but restored more: optimizer/a, rng/a"
    )


def test_what_differs_is_told_before_what_came_back_too_much() -> None:
    scope = Scope(WEIGHTS, rank_local=True, world=1)
    assert complaint(
        SAVED, mixed(SAVED, OTHER, ["rng/a", "weights/a", "buffers/a"]), scope
    ).startswith("1 of 5 leaves differ")


# Two ranks, each with leaves of its own

EVERY_RANKS = Scope(FULL, rank_local=True, world=2)
ONE_VIEW = Scope(FULL, rank_local=False, world=2)
SHARED = ["weights/a", "weights/b", "optimizer/a"]
OWN = ["buffers/a", "rng/a"]


def test_a_method_that_saves_every_ranks_leaves_gives_each_its_own_back() -> None:
    assert complaint(SAVED, SAVED, EVERY_RANKS) == ""
    said = "2 of 5 leaves differ from the saved state: buffers/a, rng/a"
    assert complaint(SAVED, mixed(SAVED, OTHER, SHARED), EVERY_RANKS) == said


@pytest.mark.parametrize("own", [[], OWN], ids=["another rank's view", "this rank's view"])
def test_of_one_view_a_rank_may_get_its_own_leaves_back_or_not(own: list[str]) -> None:
    loaded = mixed(SAVED, OTHER, [*SHARED, *own])
    assert complaint(SAVED, loaded, ONE_VIEW) == ""


def test_of_one_view_every_rank_gets_back_what_all_have() -> None:
    said = "1 of 5 leaves differ from the saved state: weights/a"
    assert complaint(SAVED, mixed(SAVED, OTHER, [*SHARED[1:], *OWN]), ONE_VIEW) == said


def test_only_covered_leaves_have_a_view() -> None:
    weights = Scope(WEIGHTS, rank_local=False, world=2)
    viewed = [name for name, digest in SAVED.items() if weights.one_view(digest)]
    assert viewed == ["buffers/a"]
    said = "the method declares 'weights' but restored more: rng/a"
    assert (
        complaint(SAVED, mixed(SAVED, OTHER, ["weights/a", "weights/b", "rng/a"]), weights) == said
    )


@pytest.mark.parametrize("scope", [EVERY_RANKS, ALONE, Scope(FULL, rank_local=False, world=1)])
def test_where_every_ranks_leaves_are_covered_there_is_no_one_view(scope: Scope) -> None:
    assert not any(scope.one_view(digest) for digest in SAVED.values())


def test_alone_one_view_is_everything() -> None:
    alone = Scope(FULL, rank_local=False, world=1)
    assert complaint(SAVED, SAVED, alone) == ""
    assert "buffers/a, rng/a" in complaint(SAVED, mixed(SAVED, OTHER, SHARED), alone)
