"""The way back of a training whose ranks are killed: a checkpoint, a peer, or fewer ranks."""

from dataclasses import dataclass
from typing import Literal

from harness.wire.case import Case
from harness.wire.experiment import Experiment, Stage, SuiteKey

Bits = Literal["all ranks", "fewer ranks", "neither"]
"""An undisturbed run: on as many ranks, one from which the same ranks take leave, or none."""


@dataclass(frozen=True)
class Way:
    """A way in which training comes back after a kill.

    With `restarts`, all processes end and others begin. Otherwise the survivors go on in theirs. A
    `newcomer` takes the slot of the dead: a spare that waits, a process that is spawned then, or
    one that the launcher starts, for which the survivors do not wait. Without one, the survivors
    are fewer. `state_from` says where the ranks go back to. The survivors of `peers` go back to
    nothing, because the killed step never happened.
    """

    in_words: str
    needs: str
    restarts: bool = False
    newcomer: Literal["", "waiting", "spawned", "started"] = ""
    state_from: Literal["files", "memory", "peers"] = "peers"
    drops: bool = False  # nobody computes what the dead would have
    # The framework's own means start the ranks or add up, for those that declare them in `[peers]`.
    own: bool = False
    kills_a_job: int = 3

    @property
    def fills_slots_in_repair(self) -> bool:
        """Return whether a process takes the slot of a dead rank within the repair."""
        return self.newcomer in ("waiting", "spawned")

    @property
    def goes_on(self) -> bool:
        """Return whether the survivors go on before the newcomer has joined them."""
        return self.newcomer == "started"

    def promised_bits(self, mirror: bool) -> tuple[Bits, ...]:
        """Return the undisturbed runs of which one must have the same bits, the likeliest first.

        Files and a mirror have what the dead rank alone had. Without them it is lost, and what
        comes of that depends on the model. Of the ways that go on before the newcomer has joined,
        the instant of joining decides.
        """
        if self.drops:
            return ("neither",)
        if self.goes_on:
            return ("fewer ranks", "all ranks", "neither")
        if self.state_from == "files" or (self.newcomer and mirror):
            return ("all ranks",)
        return ("neither", "all ranks") if self.newcomer else ("fewer ranks",)


WAYS = {
    "restart": Way(
        "restart",
        "a launcher that starts it again, and a checkpoint",
        restarts=True,
        state_from="files",
        kills_a_job=6,
    ),
    "rollback-file": Way(
        "roll back to a file",
        "ULFM, a spare, and a checkpoint",
        newcomer="waiting",
        state_from="files",
    ),
    "rollback-memory": Way(
        "roll back in memory",
        "ULFM, a spare, and memory for a copy of the state",
        newcomer="waiting",
        state_from="memory",
    ),
    "peer-spare": Way("a spare takes over", "ULFM and a spare", newcomer="waiting"),
    "peer-spawn": Way(
        "a spawned process takes over",
        "ULFM, and a launcher that can start one more process",
        newcomer="spawned",
    ),
    "shrink": Way("shrink", "ULFM"),
    "shrink-drop": Way("shrink, drop the lost batches", "ULFM", drops=True),
    "torchrun": Way(
        "torchrun starts all again",
        "torchrun, new names for the keys in its store after each restart, and a checkpoint",
        restarts=True,
        state_from="files",
        own=True,
        kills_a_job=6,
    ),
    # A job has one kill, because nobody knows at which step the new process will have joined.
    "torchft": Way(
        "torchft heals from a peer",
        "torchft, a lighthouse, a quorum in each step, and a launcher that starts a rank again",
        newcomer="started",
        own=True,
        kills_a_job=1,
    ),
    "multiworker": Way(
        "MultiWorkerMirroredStrategy, all start again",
        "a launcher that starts it again, and a checkpoint",
        restarts=True,
        state_from="files",
        own=True,
        kills_a_job=6,
    ),
    # The death of process 0 ends all, so a job has one kill.
    "live-devices": Way(
        "live devices go on",
        "jax_enable_recoverability, and process 0 alive",
        own=True,
        kills_a_job=1,
    ),
    "chainermn": Way("ChainerMN on a shrunk communicator", "ULFM", own=True),
}
"""The ways in which training comes back."""

SPARE_SLEEPS = "20ms"
SPARE_SLEEPS_S = {SPARE_SLEEPS: 0.02, "200ms": 0.2}
"""The seconds that a waiting spare may sleep between two looks for a failure."""

OWN_WAYS = tuple(name for name, way in WAYS.items() if way.own)
"""The ways that only a framework has that declares them."""


def states_at_work(case: Case) -> int:
    """Return 4: two checkpoints that are complete, one being written, and one being removed."""
    return 4


def jobs_a_case(case: Case) -> int:
    """Return about how many times the ranks of a case are started.

    Without newcomers, each job is compared with one in which the same ranks take leave. The run in
    which nobody dies is left out, because most cases share it.
    """
    from harness.experiments.recovery import plans

    name = case.settings.get("way", "restart")
    if name not in WAYS or case.world < 2:
        return 0
    way = WAYS[name]
    if way.restarts:
        return plans.KILLS + 1
    jobs = len(plans.kills(name, case.world))
    return jobs if way.newcomer else 2 * jobs


EXPERIMENT = Experiment(
    name="recovery",
    question="What does a killed rank cost?",
    place=36,
    stages=(
        Stage(
            "recover",
            "real kills while ranks train",
            reports="rank 0",
            by_driver=True,
            alone=True,
            divides_processors=True,
        ),
    ),
    suite_keys={
        "way": SuiteKey(
            "how training comes back after a kill",
            choices=tuple(WAYS),
            declared_as_peers=OWN_WAYS,
        ),
        "mirror": SuiteKey(
            "whether a neighbour keeps a copy of what a rank alone has",
            choices=("no", "yes"),
            default="no",
            in_words=lambda chosen: "with a mirror" if chosen == "yes" else "",
        ),
        "cache": SuiteKey(
            "whether a restart finds the checkpoint's files in the page cache",
            choices=("warm", "cold"),
            default="warm",
            later=True,
            in_words=lambda chosen: "with cold files" if chosen == "cold" else "",
        ),
        "heartbeats": SuiteKey(
            "whether the ranks send each other heartbeats, which find one that hangs",
            choices=("no", "yes"),
            default="no",
            later=True,
            in_words=lambda chosen: "with heartbeats" if chosen == "yes" else "",
        ),
        "spare": SuiteKey(
            "how long a waiting spare sleeps between two looks for a failure",
            choices=tuple(SPARE_SLEEPS_S),
            default=SPARE_SLEEPS,
            later=True,
            in_words=lambda chosen: "" if chosen == SPARE_SLEEPS else f"spare sleeps {chosen}",
        ),
    },
    states_at_work=states_at_work,
    jobs_a_case=jobs_a_case,
    own_models=False,
)
