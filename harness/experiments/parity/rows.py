"""The rows of the parity experiment say how far frameworks are from each other.

Each framework is held against the median of all, so that one that is wrong stands alone; of two,
each against the other.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from harness.analysis import text
from harness.analysis.columns import column, column_of_list
from harness.analysis.records import RunRecords
from harness.analysis.row import Row, Wanted, group_title, identity, verified_column
from harness.experiments.parity.records import LeafSample, TrajectoryRecord

# Largest differences that pass. Losses are relative to the loss, leaves to the leaf's root mean
# square. In float32 a few hundred roundings of 6e-8 add up in another order; bfloat16 rounds every
# activation by up to 4e-3.
FORWARD_TOLERANCE = {"float32": 1e-5, "bf16-mixed": 1e-3}
STEP_TOLERANCE = {"float32": 1e-4, "bf16-mixed": 0.25}
LOSSES_TOLERANCE = {"float32": 5e-5, "bf16-mixed": 5e-3}


def _leaves_text(row: ParityRow) -> str:
    if row.leaves is None:
        return text.NOTHING
    return f"{row.leaves} + {len(row.extra_leaves)}"


def _within(difference: float | None, tolerance: float | None) -> str:
    if difference is None or tolerance is None:
        return text.NOTHING
    return f"{difference:.0e} of {tolerance:g}"


def _loss_text(loss: float | None) -> str:
    return text.NOTHING if loss is None else f"{loss:.6f}"


@dataclass(kw_only=True)
class ParityRow(Row):
    """The distance of one framework from the others on one workload."""

    first_heading: ClassVar[str] = "framework"
    first_meaning: ClassVar[str] = "the framework that trains"

    compared_with: list[str] = column_of_list("the frameworks that it is compared with")
    leaves: int | None = column(
        "how many tensors all frameworks have, and how many are the framework's own",
        heading="leaves",
        text=_leaves_text,
    )
    extra_leaves: list[str] = column_of_list("the tensors that are the framework's own")
    forward_difference: float | None = column(
        "how far the first loss and the buffers are from the median framework's, and what is "
        "tolerated",
        heading="forward",
        text=lambda row: _within(row.forward_difference, row.forward_tolerance),
    )
    step_difference: float | None = column(
        "the same for every weight and optimizer slot after one step",
        heading="one step",
        text=lambda row: _within(row.step_difference, row.step_tolerance),
    )
    step_worst_leaf: str = column("the tensor that is farthest after one step", default="")
    losses_difference: float | None = column(
        "the largest difference of ten losses",
        heading="ten losses",
        text=lambda row: _within(row.losses_difference, row.losses_tolerance),
    )
    forward_tolerance: float | None = column("the largest first difference that passes")
    step_tolerance: float | None = column("the largest difference after a step that passes")
    losses_tolerance: float | None = column("the largest difference of losses that passes")
    first_loss: float | None = column(
        "the loss of the first step",
        heading="first loss",
        text=lambda row: _loss_text(row.first_loss),
    )
    last_loss: float | None = column(
        "the loss of the tenth step",
        heading="last loss",
        text=lambda row: _loss_text(row.last_loss),
    )
    verified: bool = verified_column("whether all differences are tolerated", "same state")

    @property
    def is_unfinished(self) -> bool:
        """Return False: a row is also skipped where it has nothing to be compared with."""
        return False

    def title(self, several_frameworks: bool) -> str:
        """Return the text of a table's first column."""
        return self.framework


def rows(items: Sequence[Wanted], records: RunRecords) -> list[ParityRow]:
    """Derive the row of every case from the frameworks of one workload and precision."""
    built = [ParityRow(**identity(item)) for item in items]
    trajectories = {item.case.id: trajectory(item, records) for item in items}
    for row, item in zip(built, items, strict=True):
        if row.fail(records.failures(item.case.id)):
            continue
        own = trajectories[item.case.id]
        if own is None:
            row.status = "skipped"
            row.reason = "not measured: the run was interrupted"
            continue
        others = {}
        for other, peer in zip(built, items, strict=True):
            theirs = trajectories[peer.case.id]
            if other is not row and group_title(other) == group_title(row) and theirs is not None:
                others[other.framework] = theirs
        _describe(row, own)
        compare(row, own, others)
    return built


def trajectory(item: Wanted, records: RunRecords) -> TrajectoryRecord | None:
    """Return rank 0's record of a case; None where there is none."""
    of_case = records.of(TrajectoryRecord, item.case.id)
    of_rank_0 = [record for record in of_case if record.rank == 0]
    return of_rank_0[-1] if of_rank_0 else None


def _describe(row: ParityRow, own: TrajectoryRecord) -> None:
    row.leaves = own.leaves
    row.extra_leaves = [f"{leaf.name} {leaf.dtype}{list(leaf.shape)}" for leaf in own.extra]
    row.first_loss, row.last_loss = own.losses[0], own.losses[-1]
    row.forward_tolerance = FORWARD_TOLERANCE[row.precision]
    row.step_tolerance = STEP_TOLERANCE[row.precision]
    row.losses_tolerance = LOSSES_TOLERANCE[row.precision]


def compare(row: ParityRow, own: TrajectoryRecord, others: dict[str, TrajectoryRecord]) -> None:
    """Fill a row with the distance of a trajectory from the others, which are known by names."""
    if not others:
        row.status, row.reason = (
            "skipped",
            "there is no other framework in this run to compare with",
        )
        return
    row.compared_with = list(others)
    peers = list(others.values())
    losses = _loss_differences(own, peers)
    buffers, worst_buffer = _worst(own.forward, [peer.forward for peer in peers])
    step, worst_leaf = _worst(own.updated, [peer.updated for peer in peers])
    row.forward_difference = max(losses[0], buffers)
    row.step_difference, row.step_worst_leaf = step, worst_leaf
    row.losses_difference = max(losses)
    faults = []
    if row.forward_difference > FORWARD_TOLERANCE[row.precision]:
        where = f" in {worst_buffer}" if worst_buffer else ""
        forward_text = _difference_text(row.forward_difference)
        faults.append(f"the first forward pass differs by {forward_text}{where}")
    if step > STEP_TOLERANCE[row.precision]:
        faults.append(f"{worst_leaf} differs by {_difference_text(step)} after one step")
    if row.losses_difference > LOSSES_TOLERANCE[row.precision]:
        losses_text = _difference_text(row.losses_difference)
        faults.append(f"the losses of {len(own.losses)} steps differ by up to {losses_text}")
    row.verified = not faults
    if faults:
        row.status, row.phase, row.reason = "failed", "comparison", "; ".join(faults)


def _difference_text(difference: float) -> str:
    if math.isinf(difference):
        return "infinity, because a value is not finite or the others are zero"
    return f"{difference:.1e}"


def _loss_differences(own: TrajectoryRecord, peers: Sequence[TrajectoryRecord]) -> list[float]:
    """Return how far each step's loss is from those of the peers that took the step."""
    differences = []
    for step, loss in enumerate(own.losses):
        theirs = [peer.losses[step] for peer in peers if step < len(peer.losses)]
        differences.append(_relative(loss, theirs))
    return differences


def _worst(own: Sequence[LeafSample], peers: Sequence[Sequence[LeafSample]]) -> tuple[float, str]:
    """Return the largest difference of a leaf, and the leaf's name.

    The sampled elements and the root mean square are compared, relative to the latter.
    """
    known = [_by_name(peer) for peer in peers]
    worst, worst_name = 0.0, ""
    for sample in own:
        others = [peer[sample.name] for peer in known if sample.name in peer]
        difference = _leaf_difference(sample, others)
        if difference > worst:
            worst, worst_name = difference, sample.name
    return worst, worst_name


def _by_name(samples: Sequence[LeafSample]) -> dict[str, LeafSample]:
    return {sample.name: sample for sample in samples}


def _leaf_difference(own: LeafSample, others: Sequence[LeafSample]) -> float:
    """Return how far a leaf is from that of the peers, relative to its root mean square."""
    if not others:
        return 0.0
    rms_of_others = [other.rms for other in others]
    differences = [_distance(own.rms, rms_of_others)]
    for place, value in enumerate(own.values):
        theirs = [other.values[place] for other in others]
        differences.append(_distance(value, theirs))
    largest = max(differences)
    if largest in (0.0, math.inf):
        return largest
    finite = [rms for rms in (own.rms, *rms_of_others) if math.isfinite(rms)]
    # Where the leaf of most peers is zero, any other value is infinitely far from it.
    scale = statistics.median(finite)
    return largest / scale if scale else math.inf


def _relative(value: float, others: Sequence[float]) -> float:
    """Return how far a loss is from those of the peers, relative to it."""
    distance = _distance(value, others)
    if distance in (0.0, math.inf):
        return distance
    middle = _middle(value, others)
    return distance / abs(middle) if middle else abs(value)


def _distance(value: float, others: Sequence[float]) -> float:
    """Return how far a value is from the peers' median, and infinity where it is no number.

    A comparison with "not a number" is always false, so such a value would be forgotten as soon as
    another one follows it.
    """
    if not math.isfinite(value):
        return math.inf
    return abs(value - _middle(value, others))


def _middle(value: float, others: Sequence[float]) -> float:
    """Return the value that another one is held against. Peers without a finite number have no say.

    With several peers, it is the median of all, so that one framework that is wrong stands alone.
    """
    finite = [other for other in others if math.isfinite(other)]
    return statistics.median([value, *finite] if len(finite) > 1 else finite or [value])
