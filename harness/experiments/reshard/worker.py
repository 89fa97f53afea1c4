"""Loads of a checkpoint by another number of ranks than saved it. Never timed.

The comparison is of what the ranks hold together: replicated leaves on every rank, and sharded
leaves put together. A leaf that belongs to one rank has no meaning in a world of another size, and
is left out.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from adapters.base import Leaf, Shard
from harness.experiments.reshard.records import ReshardRecord
from harness.wire.case import Case, Task
from harness.worker import verify
from harness.worker.bench import Bench, Entries
from harness.worker.saving import save_for_loaders
from harness.worker.verify import Digests, Mismatch
from harness.worker.world import World

_STEPS_BEFORE_SAVING = 2


def run_parts(bench: Bench, entries: Entries) -> None:
    """Save the state of these ranks across a training step."""
    with bench.phase("train"):
        bench.train(_STEPS_BEFORE_SAVING)

    def save(task: Task) -> None:
        method = bench.open_method(task.case)
        save_for_loaders(bench, task.case, method, expected=whole_digests(bench))

    bench.attempt(entries, save)


def run_reloads(bench: Bench, entries: Entries) -> None:
    """Load what another number of ranks saved, each time into a state that differs from it."""

    def load(task: Task) -> None:
        case = task.case
        (kept,) = bench.kept(case, rank=0)
        saved = kept.digests
        _make_target(bench, saved)
        method = bench.open_method(case)
        with bench.phase("load"):
            bench.forget_digests()
            method.load(bench.state, kept.path)
            bench.framework.synchronize(bench.state)
        with bench.phase("verify"):
            bench.write_common(_compare(bench, case, saved))
        bench.close_method(method)

    bench.attempt(entries, load)


def whole_digests(bench: Bench) -> Digests:
    """Return the digests of all leaves on this rank.

    The digest of a sharded leaf is that of the whole leaf, and the same on every rank.
    """
    digests = dict(bench.digests())
    for leaf in bench.framework.leaves(bench.state):
        if isinstance(leaf.placement, Shard):
            whole = put_together(leaf, leaf.placement, bench.world)
            sha256 = bench.world.agreed("" if whole is None else verify.sha256(whole))
            shape = leaf.placement.global_shape
            digests[leaf.name] = replace(digests[leaf.name], sha256=sha256, shape=shape)
    return digests


def put_together(leaf: Leaf, shard: Shard, world: World) -> memoryview | None:
    """Return the bytes of the whole leaf on rank 0, None on the others.

    Raise Mismatch where the ranks' parts are not all of it.
    """
    parts = world.gather((shard.offset, tuple(leaf.shape), bytes(leaf.data)))
    if parts is None:
        return None
    # An empty part does not say how large an element is.
    element_bytes = max(len(data) // max(1, int(np.prod(shape))) for _, shape, data in parts)
    held = sum(int(np.prod(shape)) for _, shape, _ in parts)
    wanted = int(np.prod(shard.global_shape))
    if held != wanted:
        raise Mismatch(f"the ranks hold {held} elements of {leaf.name}, which has {wanted}")
    whole = np.zeros((*shard.global_shape, element_bytes), dtype=np.uint8)
    for offset, shape, data in parts:
        bounds = zip(offset, shape, strict=True)
        part = tuple(slice(start, start + length) for start, length in bounds)
        whole[part] = np.frombuffer(data, dtype=np.uint8).reshape(*shape, element_bytes)
    return whole.reshape(-1).data


def _make_target(bench: Bench, saved: Digests) -> None:
    """Make the state differ from the saved one in every leaf that will be compared.

    A load into a leaf that has the saved value already proves nothing.
    """
    bench.rebuild_target()
    bench.assign_other_bytes(_equal_leaves(saved, whole_digests(bench)))
    equal = _equal_leaves(saved, whole_digests(bench))
    if equal:
        raise Mismatch(
            f"cannot be verified: {verify.listed(equal)} had the saved value before the load"
        )


def _equal_leaves(saved: Digests, target: Digests) -> list[str]:
    equal = verify.equal_leaves(saved, target)
    return [name for name in equal if _is_common(saved, target, name)]


def _is_common(saved: Digests, target: Digests, name: str) -> bool:
    """Return whether the ranks of both worlds hold a leaf together."""
    return not (saved[name].rank_local or (name in target and target[name].rank_local))


def _compare(bench: Bench, case: Case, saved: Digests) -> ReshardRecord:
    """Compare every covered leaf that the ranks hold together, and return the counts.

    Raise Mismatch where one is not what was saved.
    """
    loaded = whole_digests(bench)
    roles = bench.scope(case).covers.roles
    compared = [
        name
        for name, digest in saved.items()
        if digest.role in roles and _is_common(saved, loaded, name)
    ]
    missing = [name for name in compared if name not in loaded]
    if missing or not compared:
        raise Mismatch(f"leaves are missing: {verify.listed(missing) or 'all of them'}")
    wrong = [name for name in compared if loaded[name].sha256 != saved[name].sha256]
    if wrong:
        raise Mismatch(
            f"{len(wrong)} of {len(compared)} leaves differ from the saved state: "
            f"{verify.listed(wrong)}"
        )
    leaves = bench.framework.leaves(bench.state)
    sharded = {leaf.name for leaf in leaves if isinstance(leaf.placement, Shard)}
    return ReshardRecord(
        kind="reshard",
        **bench.identity(case),
        saved_ranks=case.world,
        loaded_ranks=bench.world.size,
        replicated_leaves=sum(name not in sharded for name in compared),
        sharded_leaves=sum(name in sharded for name in compared),
        left_out=len(saved) - len(compared),
    )


STAGES = {"part": run_parts, "reload": run_reloads}
