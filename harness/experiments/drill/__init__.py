"""Failures that are harder than one killed rank, and whether training survives each of them."""

from harness.experiments.recovery import WAYS, states_at_work
from harness.wire.case import Case
from harness.wire.experiment import Experiment, Stage, SuiteKey

DRILLS = {
    "rank-0": "rank 0 is killed",
    "in-a-row": "two are killed in two steps",
    "at-once": "two are killed at once",
    "down-to-one": "all but one are killed",
    "in-repair": "another is killed in the repair",
    "in-restore": "another is killed in the restore",
    "stopped": "a rank hangs",
    "apart": "a rank is a step behind",
    "in-save": "a rank is killed in a save",
    "launcher": "the launcher is killed",
}
"""The failures, and their names in words."""

# A framework's own way, whose ranks meet in a world over ULFM as those of the other ways do.
_OWN_OVER_ULFM = "chainermn"
_WAYS = tuple(name for name, way in WAYS.items() if not (way.restarts or way.own))


def jobs_a_case(case: Case) -> int:
    """Return 1: the job in which ranks fail."""
    return 1


EXPERIMENT = Experiment(
    name="drill",
    question="Does training survive harder failures?",
    place=37,
    stages=(
        Stage(
            "recover",
            "a harder failure",
            reports="rank 0",
            by_driver=True,
            alone=True,
            divides_processors=True,
        ),
    ),
    suite_keys={
        "way": SuiteKey(
            "how training comes back after a failure",
            choices=(*_WAYS, _OWN_OVER_ULFM),
            declared_as_peers=(_OWN_OVER_ULFM,),
        ),
        "failure": SuiteKey("what fails", choices=tuple(DRILLS)),
    },
    states_at_work=states_at_work,
    jobs_a_case=jobs_a_case,
    own_models=False,
)
