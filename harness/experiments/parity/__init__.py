"""The equality of the state that each framework builds and trains from one workload."""

from harness.wire.experiment import Experiment, Stage

EXPERIMENT = Experiment(
    name="parity",
    question="Do all frameworks hold the same state?",
    place=70,
    stages=(Stage("train", "ten steps"),),
    methods=False,
    compares_frameworks=True,
    own_models=False,
)
