"""The repeatability of training itself: the same run twice, without any checkpoint."""

from harness.experiments.resume import STRAIGHT, states_at_work
from harness.wire.experiment import Experiment, Stage

EXPERIMENT = Experiment(
    name="rerun",
    question="Does training alone repeat bit by bit?",
    place=40,
    stages=(STRAIGHT, Stage("again", "training once more")),
    methods=False,
    states_at_work=states_at_work,
)
