"""The script of one recovery job: who is killed when, and what the survivors do.

The driver writes it and every rank reads it, so this module needs the standard library only.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from harness.experiments.recovery import WAYS, Way
from harness.wire.case import Case

Instant = Literal[
    "forward",
    "before",
    "exchange",
    "after",
    "save",
    "repair",
    "restore",
    "stopped",
    "apart",
    "launcher",
]

IN_WORDS: dict[Instant, str] = {
    "forward": "in the forward pass",
    "before": "before the gradient exchange",
    "exchange": "in the middle of the gradient exchange",
    "after": "after the gradient exchange",
    "save": "while it saved a checkpoint",
    "repair": "while the others were repaired",
    "restore": "while the others got their state back",
    "stopped": "by a SIGSTOP, before the gradient exchange",
    "apart": "by giving up a step that the others had done",
    "launcher": "together with all others, because the launcher was killed",
}
TOLERANT = ("--with-ft", "ulfm")
"""Options with which mpirun does not end the others when a rank dies. They are off by default."""

# Heartbeats alone find a rank that hangs, but lives. A thread sends them, because imports and
# compilation keep a rank away from MPI for longer than the limit. Times are in seconds.
_DETECTOR = {
    "mpi_ft_detector": "true",
    "mpi_ft_detector_thread": "true",
    "mpi_ft_detector_period": "0.5",
    "mpi_ft_detector_timeout": "3",
}
MICRO_BATCHES = 12
MICRO_BATCH_EXAMPLES = 2
SAVE_EVERY = 4  # steps
EPOCH_STEPS = 3
"""Training goes over the examples of so many steps again and again.

Any so many steps in a row have the same examples, so their losses can be compared.
"""


@dataclass(frozen=True)
class Kill:
    """A failure that the holder of a slot causes, once it has done `step` steps.

    Mostly it gives itself a SIGKILL; see `IN_WORDS`.
    """

    step: int
    instant: Instant
    slot: int


@dataclass(frozen=True)
class Script:
    """The orders for the ranks of one job.

    `members` train and `spares` wait, up to step `steps`. With `planned`, the holders of the slots
    in `kills` leave without dying, which gives the bits that the survivors of a shrink must have.
    """

    way: str
    members: int
    spares: int
    steps: int
    kills: tuple[Kill, ...]
    mirror: bool = False
    planned: bool = False
    # steps from one checkpoint to the next
    save_every: int = SAVE_EVERY
    # of the system's monotonic clock: the last step ends after it; 0 where `steps` alone ends it
    until_ns: int = 0
    # of a waiting spare, between two looks for a failure
    pause_s: float = 0.02
    # whether the ranks send each other heartbeats, which find one that hangs
    heartbeats: bool = False
    # the numbers of steps after which the ranks hash their state; None for each. A hash may take as
    # long as a step, so they hash only where somebody compares.
    hashed: tuple[int, ...] | None = None
    # where the ranks of this job write their events
    events: str = ""
    # where their checkpoints are
    checkpoints: str = ""

    def without(self, kills: Collection[Kill]) -> Script:
        """Return the script for ranks that begin again after some of its kills."""
        left = tuple(kill for kill in self.kills if kill not in kills)
        if self.hashed is None or not kills:
            return replace(self, kills=left)
        last_step = max(kill.step for kill in kills)
        # The state after an earlier kill has been compared.
        hashed = tuple(step for step in self.hashed if step > last_step)
        return replace(self, kills=left, hashed=hashed)

    @property
    def how(self) -> Way:
        """Return what the way does."""
        return WAYS[self.way]

    @property
    def survives(self) -> bool:
        """Return whether the survivors of a kill go on in their processes."""
        return not self.how.restarts and not self.planned

    @property
    def program(self) -> Literal["plain", "surviving", "quorum"]:
        """Return how the ranks train.

        The plain ones end with the first that dies. The surviving ones repair their world. Those of
        a quorum agree before each step on who takes part in it.
        """
        if self.how.goes_on:
            return "quorum"
        return "surviving" if self.survives else "plain"

    @property
    def launcher_options(self) -> tuple[str, ...]:
        """The options of mpirun that the script needs.

        The ranks of a framework's own ways notice a failure by themselves, before they end.
        """
        if self.planned or not (self.survives or self.how.own):
            return ()
        if not self.finds_hangs:
            return TOLERANT
        settings = [("--mca", name, value) for name, value in _DETECTOR.items()]
        return (*TOLERANT, *itertools.chain.from_iterable(settings))

    @property
    def finds_hangs(self) -> bool:
        """Return whether the ranks send each other heartbeats, which find one that hangs."""
        return self.heartbeats or any(kill.instant == "stopped" for kill in self.kills)

    @property
    def goes_back_a_step(self) -> bool:
        """Return whether survivors do the killed step again, so that each needs what it had."""
        may_fail = self.how.goes_on or not self.planned
        return self.how.state_from == "peers" and may_fail

    @property
    def fills_slots(self) -> bool:
        """Return whether newcomers take the slots of the dead."""
        return self.how.newcomer != ""

    @property
    def saves_files(self) -> bool:
        """Return whether the ranks write checkpoints with a method."""
        return self.how.state_from == "files" and not self.planned

    @property
    def saves_in_memory(self) -> bool:
        """Return whether the ranks keep checkpoints in their memory."""
        return self.how.state_from == "memory" and not self.planned


def script_path(scratch: Path, case: Case) -> Path:
    """Return the file in which the ranks of a case find their script."""
    return scratch / "recovery" / case.id / "script.json"


def write_script(path: Path, script: Script) -> None:
    """Write a script for the ranks of the next job."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(script)))


def read_script(path: Path) -> Script:
    """Return the script that the driver wrote."""
    values: dict[str, Any] = json.loads(path.read_text())
    kills = tuple(Kill(**kill) for kill in values.pop("kills"))
    return Script(kills=kills, **values)


def shares(slots: tuple[int, ...], members: int, drop: bool) -> dict[int, range]:
    """Return which of the micro-batches each slot computes. Each takes a contiguous run of them.

    With `drop`, the slots keep the runs that they had among `members`, and those of the lost slots
    are left out. Otherwise the survivors divide all micro-batches.
    """
    total = members if drop else len(slots)
    divided = {}
    for index, slot in enumerate(slots):
        place = slot if drop else index
        divided[slot] = range(MICRO_BATCHES * place // total, MICRO_BATCHES * (place + 1) // total)
    return divided
