"""The cost of a checkpoint: timed saves in one process, timed cold loads in another."""

from harness.wire.experiment import Experiment, Stage

EXPERIMENT = Experiment(
    name="cost",
    checks_timed_saves=True,
    question="What does a checkpoint cost?",
    place=10,
    stages=(
        Stage("save", "saves", leaves="checkpoint", samples="all"),
        Stage("load", "loads", samples="all", seed_offset=1),
    ),
    processes=None,
)
