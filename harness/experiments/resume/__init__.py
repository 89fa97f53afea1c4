"""The continuation of a killed run from its checkpoint, compared with a run that was not killed."""

from harness.wire.case import Case
from harness.wire.experiment import Experiment, Stage, SuiteKey

STRAIGHT = Stage("straight", "training straight on", leaves="reference")
ABLATED = ("", "optimizer", "rng", "buffer", "position")


def states_at_work(case: Case) -> int:
    """Return how many states the references of every step take; every rank keeps its own."""
    return 12 * case.world


EXPERIMENT = Experiment(
    name="resume",
    question="Does a killed run go on bit by bit?",
    place=30,
    stages=(
        STRAIGHT,
        Stage("interrupt", "training up to a kill", leaves="checkpoint", ends_killed=True),
        Stage("resume", "training on from the checkpoint", one_case_a_process=True),
    ),
    suite_keys={
        "ablated": SuiteKey(
            "the part of the state that a resumed run does not get back",
            choices=ABLATED,
            default="",
            in_words=lambda role: f"without {role}" if role else "",
        )
    },
    states_at_work=states_at_work,
)
