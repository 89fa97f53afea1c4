"""The way back of a training whose ranks are killed: a checkpoint, a peer, or fewer ranks."""

from harness.wire.case import Case
from harness.wire.experiment import Experiment, Stage, SuiteKey

WAYS = {
    "restart": "restart",
    "rollback-file": "roll back to a file",
    "rollback-memory": "roll back in memory",
    "peer-spare": "a spare takes over",
    "shrink": "shrink",
    "shrink-drop": "shrink, drop the lost batches",
}
"""The ways in which training comes back, and their names in words."""

SPARE_WAYS = ("rollback-file", "rollback-memory", "peer-spare")
"""The ways in which a waiting spare takes the place of the dead rank."""

FILE_WAYS = ("restart", "rollback-file")
"""The ways that load a checkpoint from a method's files."""


def states_at_work(case: Case) -> int:
    """Return 4: two checkpoints that are complete, one being written, and one being removed."""
    return 4


def jobs_a_case(case: Case) -> int:
    """Return about how many jobs a case has: a restart after each of six kills, or two jobs."""
    return 7 if case.settings.get("way") == "restart" else 2


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
        ),
    ),
    suite_keys={
        "way": SuiteKey("how training comes back after a kill", choices=tuple(WAYS)),
        "mirror": SuiteKey(
            "whether a neighbour keeps a copy of what a rank alone has",
            choices=("no", "yes"),
            default="no",
            in_words=lambda chosen: "with a mirror" if chosen == "yes" else "",
        ),
    },
    states_at_work=states_at_work,
    jobs_a_case=jobs_a_case,
    own_models=False,
)
