"""The remains of a save of several ranks, one of which is killed, and the fate of the others."""

from harness.wire.case import Case
from harness.wire.experiment import Experiment, Stage, SuiteKey

EVERY_CHANGE = 1_000_000
KILLS = 12


def jobs_a_case(case: Case) -> int:
    """Return how many jobs a case has at most: its kills, an undisturbed save, and the loads."""
    return int(case.settings.get("kills", KILLS)) + 2


EXPERIMENT = Experiment(
    name="killed_rank",
    question="What is left when one of several ranks is killed in a save?",
    place=35,
    stores=True,
    # A kill is ordered by the calls of another job's save, as in the experiment `faults`.
    hash_seeds=(0,),
    stages=(
        Stage("strike", "one rank is killed in a save", reports="rank 0", by_driver=True),
        Stage("resume", "what it leaves", reports="rank 0", by_driver=True, seed_offset=1),
    ),
    suite_keys={
        "kills": SuiteKey(
            "how many times a rank is killed at most",
            at_least=6,
            at_most=EVERY_CHANGE,
            default=KILLS,
            in_words=lambda number: "",
            option="--states",
        ),
    },
    jobs_a_case=jobs_a_case,
)
