"""The share of the time that trains while ranks are killed, predicted and measured."""

from harness.wire.case import Case
from harness.wire.experiment import Experiment, Stage, SuiteKey

KILLS = 12
"""The kills of the control from which it comes back, and which tell the costs."""

SCALE_KILLS = 3
"""The first kills of the control, which tell how far apart those of the judged job shall be."""

INTERVALS = {"quarter": 0.25, "advised": 1.0, "four-times": 4.0}
"""The interval between two checkpoints, in parts of the advised one."""

JUDGING_KILLS = {"quarter": 12, "advised": 12, "four-times": 24}
"""The kills of the judged job. It is chance where in an interval a kill comes.

That weighs more where intervals are long, and evens out over more kills. With 12 kills, 90 % of the
predictions for a long interval were spread over 22 % of the loss.
"""

LEAST_RATIO, LARGEST_RATIO = 0.85, 1.15
"""The ends of the predicted over the measured loss within which a prediction holds."""


def jobs_a_case(case: Case) -> int:
    """Return about how many restarts a case takes as much time as.

    Each kill of the control takes six, because ranks train for 20 s or more before it. Those of the
    judged job are `mtbf` restarts apart on average.
    """
    judging = JUDGING_KILLS[case.settings["interval"]]
    return 6 * (SCALE_KILLS + KILLS) + judging * int(case.settings["mtbf"])


def states_at_work(case: Case) -> int:
    """Return 7: four checkpoints of the job that has its turn, and three of the other one."""
    return 7


EXPERIMENT = Experiment(
    name="goodput",
    question="Does a prediction of the lost time hold?",
    place=38,
    stages=(
        Stage(
            "recover",
            "real kills at random instants while ranks train",
            reports="rank 0",
            by_driver=True,
            alone=True,
            divides_processors=True,
        ),
    ),
    suite_keys={
        "mtbf": SuiteKey(
            "the mean time between two kills, as a multiple of the time of one restart",
            at_least=2,
            in_words=lambda restarts: f"a kill every {restarts} restarts",
        ),
        "interval": SuiteKey(
            "the interval between two checkpoints against the advised one",
            choices=tuple(INTERVALS),
            in_words=lambda chosen: f"{chosen} interval",
        ),
    },
    states_at_work=states_at_work,
    jobs_a_case=jobs_a_case,
    own_models=False,
)
