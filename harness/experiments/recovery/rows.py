"""The rows of experiment `recovery`: what each way back costs, part by part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from harness.analysis.columns import column, column_of_list, identity_column
from harness.analysis.records import RunRecords
from harness.analysis.row import Row, Wanted
from harness.analysis.statistics import Estimate
from harness.experiments.recovery import WAYS
from harness.experiments.recovery.cells import (
    back_text,
    came_back_text,
    milliseconds,
    own_state_text,
    percent_text,
    ranks_after_text,
    ratio_text,
    restore_text,
)
from harness.experiments.recovery.script import Script

PARTS = ("detect", "reconfigure", "restart", "restore", "recompute")
"""The parts of the way back, in the order of time of most ways."""
_PARTS_WITH_SPAWN = ("detect", "restart", "reconfigure", "restore", "recompute")
_STEADY = "What a step costs without a failure"


@dataclass(kw_only=True)
class RecoveryRow(Row):
    """One way back, as the median of its kills with their full range, in seconds.

    Each part ends when the last rank has come to its end, so the parts of a kill add up to `back`.
    """

    first_heading = "way back"
    first_meaning = "how training comes back after a failure"

    covers: str = identity_column("what comes back")
    way: str = column("how training comes back after a kill", default="")
    mirror: bool = column(
        "whether a neighbour keeps a copy of what a rank alone has", default=False
    )
    cold: bool = column(
        "whether the checkpoint's files were dropped from the page cache before each restart",
        default=False,
    )
    heartbeats: bool = column(
        "whether the ranks send each other heartbeats, which find one that hangs", default=False
    )
    spare_sleeps_s: float | None = column(
        "the seconds that a waiting spare sleeps between two looks for a failure"
    )
    kills: int | None = column("how many ranks were to be killed")
    came_back: int | None = column(
        "after how many kills every rank did the killed step",
        heading="came back",
        text=came_back_text,
    )
    detect: Estimate | None = column(
        "the seconds from the kill until the last survivor has noticed it, or the launcher has "
        "ended",
        heading="detect",
        unit="s",
    )
    reconfigure: Estimate | None = column(
        "the seconds from the end of the part before until the survivors have a world again",
        heading="reconfigure",
        unit="s",
    )
    restart: Estimate | None = column(
        "the seconds from the end of the part before until all new processes have started, "
        "imported, compiled a step and opened the method",
        heading="restart",
        unit="s",
    )
    opening: Estimate | None = column(
        "the seconds of `restart` in which the slowest rank opened the method",
        heading="of it, opening",
        unit="s",
        shown=lambda rows: any(row.opening for row in rows),
    )
    cached: float | None = column(
        "the largest share of the checkpoint's files that was in the page cache before a restart "
        "loaded them",
    )
    restore: Estimate | None = column(
        "the seconds from the end of the part before until every rank has its values. In brackets "
        "is how many times sooner that is than in a restart from the default method's warm "
        "checkpoint",
        heading="restore",
        unit="s",
        text=restore_text,
    )
    recompute: Estimate | None = column(
        "the seconds from the end of the part before until every rank has done the killed step",
        heading="recompute",
        unit="s",
    )
    back: Estimate | None = column(
        "the seconds from the kill until every rank has done the killed step: the median of the "
        "kills, and their full range",
        heading="back",
        unit="s",
        text=back_text,
    )
    paused: Estimate | None = column(
        "the seconds from the kill until the survivors have taken a step, where they go on before "
        "the dead rank is replaced",
        heading="survivors go on",
        unit="s",
        shown=lambda rows: any(row.paused for row in rows),
    )
    times_faster: float | None = column(
        "how many times sooner it is back than a restart from the default method's warm checkpoint",
        heading="against restart",
        text=ratio_text,
    )
    part_ratios: dict[str, float] | None = column(
        "the seconds of each part, and of `back`, in that restart over those here",
    )
    steps_recomputed: int | None = column(
        "how many steps are done again, besides the killed one; the median",
        heading="steps repeated",
    )
    ranks_after: list[int] = column_of_list(
        "how many ranks train after each kill",
        heading="ranks after",
        text=ranks_after_text,
        in_csv=False,
    )
    same_as: str = column(
        "the undisturbed run whose bits the state has after the killed step: that of as many "
        "ranks, or the one from which the dead ranks take leave at the same step",
        heading="same bits as",
        default="",
        left_aligned=True,
    )
    own_state_lost: bool | None = column(
        "whether what the dead rank alone had is lost, such as its random generator",
        heading="own state",
        text=own_state_text,
    )
    step_s: float | None = column(
        "the median seconds of a step without a failure",
        heading="step",
        aside=_STEADY,
        text=milliseconds("step_s"),
    )
    agreement_s: float | None = column(
        "the median seconds in which the ranks agree on each step, at its end, and in a quorum "
        "before it where there is one, without a failure",
        heading="agreement",
        aside=_STEADY,
        text=milliseconds("agreement_s"),
    )
    copies_s: float | None = column(
        "the median seconds in which a rank copies and mirrors what it alone has, in each step; "
        "without the wait for its neighbour",
        heading="copies",
        aside=_STEADY,
        text=milliseconds("copies_s"),
    )
    save_s: float | None = column(
        "the median seconds in which the rank that waits longest stands still for a checkpoint, "
        "every 4 steps",
        heading="checkpoint",
        aside=_STEADY,
        text=milliseconds("save_s"),
    )
    spare_share: float | None = column(
        "the part of one processor that a waiting spare takes",
        heading="waiting spare",
        aside=_STEADY,
        text=percent_text,
    )
    clock_error_s: float | None = column(
        "by how many seconds the clocks of several nodes may have been off when they were compared"
    )
    first_loss: float | None = column("the mean loss of the first pass over the examples")
    last_loss: float | None = column("the mean loss of the last pass over the examples")
    needs: str = column(
        "what this way needs",
        default="",
        heading="needs",
        aside="What each way back needs",
        left_aligned=True,
    )
    told: str = column("the framework's own words to the survivors of the first kill", default="")
    not_back: str = column("why training did not come back; empty where it did", default="")
    dropout: float = field(default=0.0, repr=False)
    wrong_bits: int = field(default=0, repr=False)  # kills without the bits that the way promises
    unknown_bits: int = field(default=0, repr=False)  # kills whose bits could not be compared
    each_kill: list[dict[str, Any]] = column_of_list(
        "every kill: whom it struck, when, and the way back. Only JSON has it", in_csv=False
    )

    @property
    def verdict(self) -> str:
        """The row in one word."""
        if self.status != "ok":
            return self.status
        if self.came_back != self.kills:
            return "not back"
        return "wrong bits" if self.wrong_bits else "back"

    def title(self, several_frameworks: bool) -> str:
        """Return the way, and the method where it loads a checkpoint."""
        framework = f"{self.framework} " if several_frameworks else ""
        mark = " (marked)" if self.marks else ""
        return f"{framework}{self.way_in_words}{mark}"

    @property
    def way_in_words(self) -> str:
        """The way, with its method and its mirror."""
        way = WAYS[self.way]
        method = f" from {self.method}" if way.state_from == "files" else ""
        mirror = ", mirrored" if self.mirror else ""
        cache = ", cold files" if self.cold else ""
        heartbeats = ", with heartbeats" if self.heartbeats else ""
        rare = self.spare_sleeps_s is not None and self.spare_sleeps_s > Script.pause_s
        spare = f", the spare sleeps {self.spare_sleeps_s:g} s" if rare else ""
        return f"{way.in_words}{method}{mirror}{cache}{heartbeats}{spare}"

    @property
    def subject(self) -> str:
        """The way back."""
        return f"'{self.way_in_words}'"

    @property
    def parts_in_order(self) -> tuple[str, ...]:
        """The parts in the order of time.

        A process that survivors spawn has started before they are a world with it.
        """
        return _PARTS_WITH_SPAWN if WAYS[self.way].newcomer == "spawned" else PARTS

    def part(self, name: str) -> Estimate | None:
        """Return the seconds of one of the `PARTS`, or of `back`."""
        return cast("Estimate | None", getattr(self, name))


def rows(items: Sequence[Wanted], records: RunRecords) -> list[RecoveryRow]:
    """Derive the row of every case."""
    from harness.experiments.recovery.from_records import compare, row_of

    derived = [row_of(item, records) for item in items]
    compare(derived)
    return derived
