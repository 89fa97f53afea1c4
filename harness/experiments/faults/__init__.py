"""The remains of a save that a kill, a power loss or a damage has struck, and who notices."""

from harness.wire.experiment import Experiment, Stage, SuiteKey

EXPERIMENT = Experiment(
    name="faults",
    question="What is left when a save is struck?",
    place=35,
    stores=True,
    stages=(
        Stage("record", "one save, call by call", reports="rank 0", by_driver=True),
        Stage("try", "what a strike leaves", reports="rank 0", by_driver=True, seed_offset=1),
    ),
    suite_keys={
        "instants": SuiteKey(
            "how many instants of a save are struck at most", at_most=100_000, default=60
        ),
    },
)
