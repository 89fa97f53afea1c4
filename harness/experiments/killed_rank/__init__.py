"""The remains of a save of several ranks, one of which is killed, and the fate of the others."""

from harness.wire.case import Case
from harness.wire.experiment import Experiment, Stage, SuiteKey

KILLS = 12
_KEPT_KILLS = 100  # more calls than most saves make


def jobs_a_case(case: Case) -> int:
    """Return how many jobs a case has at most: its kills, an undisturbed save, and the loads."""
    return _kills(case) + 2


def states_at_work(case: Case) -> int:
    """Return two for each kill and for the undisturbed save: an older and a newer checkpoint.

    All of them lie in the scratch directory until they are loaded. `kills` may be far above the
    number of calls, so it counts only up to what is likely.
    """
    return 2 * (min(_kills(case), _KEPT_KILLS) + 1)


def _kills(case: Case) -> int:
    return int(case.settings.get("kills", KILLS))


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
            at_most=1_000_000,  # more calls than any save makes
            default=KILLS,
            in_words=lambda number: "",
            option="--states",
        ),
    },
    jobs_a_case=jobs_a_case,
    states_at_work=states_at_work,
)
