"""Whether a checkpoint of one number of ranks is whole for another. Never timed.

Compared is what the ranks hold together: replicated leaves on every rank, sharded ones put
together. What a rank has of its own has no meaning in a world of another size, and is left out.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from adapters.base import Leaf, Shard
from harness.experiments.reshard.records import ReshardRecord
from harness.wire.case import Case, Task
from harness.wire.records import KeptRecord
from harness.worker import verify
from harness.worker.bench import Bench, Entries
from harness.worker.saving import save_for_another
from harness.worker.verify import Digests
from harness.worker.world import World

_STEPS_BEFORE_SAVING = 2


def run_parts(bench: Bench, entries: Entries) -> None:
    """Save the state of these ranks behind a step."""
    bench.output.enter("train")
    bench.train(_STEPS_BEFORE_SAVING)

    def save(task: Task) -> None:
        method = bench.method(task.case)
        whole = whole_digests(bench)
        save_for_another(bench, task.case, method)
        expected = bench.folders.digests(task.case, bench.world.rank)
        expected.parent.mkdir(exist_ok=True)
        verify.write_digests(expected, whole)
        bench.write_alike(
            KeptRecord("kept", task.case.id, bench.job.process, bench.world.rank, len(whole))
        )

    bench.attempt(entries, save)


def run_reloads(bench: Bench, entries: Entries) -> None:
    """Load what another number of ranks saved, each into a state that differs from it."""

    def load(task: Task) -> None:
        case = task.case
        saved = verify.read_digests(bench.folders.digests(case, 0))
        _make_target(bench, saved)
        method = bench.method(case)
        bench.output.enter("load")
        bench.forget_digests()
        method.load(bench.state, bench.folders.kept(case) / "checkpoint")
        bench.framework.synchronize(bench.state)
        bench.output.enter("verify")
        bench.write_alike(_compared(bench, case, saved))
        bench.output.enter("close")
        method.close()

    bench.attempt(entries, load)


def whole_digests(bench: Bench) -> Digests:
    """The digests of all leaves on this rank; those of sharded leaves are of the whole, and the same on every rank."""
    digests = dict(bench.digests())
    for leaf in bench.framework.leaves(bench.state):
        if isinstance(leaf.placement, Shard):
            whole = put_together(leaf, leaf.placement, bench.world)
            sha256 = bench.world.agreed(verify.sha256(whole) if whole is not None else "")
            digests[leaf.name] = replace(
                digests[leaf.name], sha256=sha256, shape=leaf.placement.global_shape
            )
    return digests


def put_together(leaf: Leaf, shard: Shard, world: World) -> memoryview | None:
    """Return the bytes of the whole leaf on rank 0, None on the others.

    Mismatch where the ranks' parts are not all of it.
    """
    parts = world.gather((shard.offset, tuple(leaf.shape), bytes(leaf.data)))
    if parts is None:
        return None
    item_bytes = max(len(data) // max(1, int(np.prod(shape))) for _, shape, data in parts)
    held, wanted = (
        sum(int(np.prod(shape)) for _, shape, _ in parts),
        int(np.prod(shard.global_shape)),
    )
    if held != wanted:
        raise verify.Mismatch(f"the ranks hold {held} elements of {leaf.name}, which has {wanted}")
    whole = np.zeros((*shard.global_shape, item_bytes), dtype=np.uint8)
    for offset, shape, data in parts:
        place = tuple(
            slice(start, start + length) for start, length in zip(offset, shape, strict=True)
        )
        whole[place] = np.frombuffer(data, dtype=np.uint8).reshape(*shape, item_bytes)
    return whole.reshape(-1).data


def _make_target(bench: Bench, saved: Digests) -> None:
    """Have a state that differs from the saved one in every leaf that is going to be compared: else a load could prove nothing."""
    bench.rebuild_target()
    bench.move(_standing(saved, whole_digests(bench)))
    same = _standing(saved, whole_digests(bench))
    if same:
        raise verify.Mismatch(
            f"cannot be verified: {verify.listed(same)} had the saved value before the load"
        )


def _standing(saved: Digests, target: Digests) -> list[str]:
    return [name for name in verify.standing(saved, target) if _is_common(saved, target, name)]


def _is_common(saved: Digests, target: Digests, name: str) -> bool:
    """Whether the ranks of both worlds hold a leaf together."""
    return not (saved[name].rank_local or (name in target and target[name].rank_local))


def _compared(bench: Bench, case: Case, saved: Digests) -> ReshardRecord:
    """Raise Mismatch unless every covered leaf that the ranks hold together is what was saved."""
    loaded = whole_digests(bench)
    roles = bench.scope(case).covers.roles
    compared = [
        name for name in saved if saved[name].role in roles and _is_common(saved, loaded, name)
    ]
    missing = [name for name in compared if name not in loaded]
    if missing or not compared:
        raise verify.Mismatch(f"leaves are missing: {verify.listed(missing) or 'all of them'}")
    wrong = [name for name in compared if loaded[name].sha256 != saved[name].sha256]
    if wrong:
        raise verify.Mismatch(
            f"{len(wrong)} of {len(compared)} leaves differ from the saved state: {verify.listed(wrong)}"
        )
    sharded = {
        leaf.name
        for leaf in bench.framework.leaves(bench.state)
        if isinstance(leaf.placement, Shard)
    }
    return ReshardRecord(
        kind="reshard",
        case=case.id,
        process=bench.job.process,
        rank=bench.world.rank,
        saved_ranks=case.world,
        loaded_ranks=bench.world.size,
        replicated_leaves=sum(name not in sharded for name in compared),
        sharded_leaves=sum(name in sharded for name in compared),
        left_out=len(saved) - len(compared),
    )


STAGES = {
    "part": run_parts,
    "reload": run_reloads,
}
