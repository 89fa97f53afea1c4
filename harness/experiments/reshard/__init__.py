"""The load of a checkpoint by another number of ranks than saved it."""

from harness.wire.case import MOST_RANKS, Case
from harness.wire.experiment import Experiment, Stage, SuiteKey


def loading_ranks(case: Case) -> int:
    """Return how many ranks load the checkpoint."""
    return case.load_world


EXPERIMENT = Experiment(
    name="reshard",
    question="Can another number of ranks load it?",
    place=50,
    stages=(
        Stage("part", "saves", leaves="checkpoint"),
        Stage("reload", "loads by another number of ranks", ranks=loading_ranks),
    ),
    suite_keys={
        "load_world": SuiteKey(
            "the number of ranks that load the checkpoint",
            at_most=MOST_RANKS,
            in_words=lambda ranks: f"for {ranks} ranks",
        )
    },
    reads_in_another_world=True,
)
