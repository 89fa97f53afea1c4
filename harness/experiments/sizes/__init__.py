"""The content of checkpoint files, and whether the same state gives the same files again."""

from harness.wire.experiment import Experiment, Stage

EXPERIMENT = Experiment(
    name="sizes",
    question="What is in the files?",
    place=60,
    stages=(
        Stage("inspect", "files", leaves="checkpoint", reports="rank 0"),
        Stage("repeat", "the same files again", reports="rank 0"),
    ),
    processes=2,
    # The second slot fixes Python's text hashes, because their order can be the only difference.
    hash_seeds=(None, 0),
)
