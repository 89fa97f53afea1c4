"""The slowdown of training: real steps with checkpoints between blocks of steps without."""

from harness.wire.case import Case
from harness.wire.experiment import Experiment, Stage, SuiteKey


def states_at_work(case: Case) -> int:
    """Return 6: the checkpoints of a block of training lie beside each other until its end."""
    return 6


def steps_a_sample(case: Case) -> int:
    """Return the steps of four blocks: two with checkpoints, and two without."""
    return 4 * case.every


def interval_in_words(every: int) -> str:
    """Return the steps between two checkpoints in words."""
    return "every step" if every == 1 else f"every {every} steps"


EXPERIMENT = Experiment(
    name="train",
    checks_timed_saves=True,
    question="How much slower does training get?",
    place=20,
    stages=(
        Stage("steps", "training with checkpoints", leaves="checkpoint", samples="all"),
        Stage("load", "loads", samples="one", seed_offset=1),
    ),
    processes=None,
    suite_keys={
        "every": SuiteKey("the number of steps between two checkpoints", in_words=interval_in_words)
    },
    states_at_work=states_at_work,
    steps_a_sample=steps_a_sample,
)
