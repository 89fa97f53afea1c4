"""The remains of a save of several ranks, one of which is killed, and the fate of the others."""

from harness.wire.experiment import Experiment, Stage, SuiteKey

EVERY_CHANGE = 1_000_000

EXPERIMENT = Experiment(
    name="killed_rank",
    question="What is left when one of several ranks is killed in a save?",
    place=35,
    stores=True,
    stages=(
        Stage("strike", "one rank is killed in a save", reports="rank 0", by_driver=True),
        Stage("resume", "what it leaves", reports="rank 0", by_driver=True, seed_offset=1),
    ),
    suite_keys={
        "kills": SuiteKey(
            "how many times a rank is killed at most",
            at_least=6,
            at_most=EVERY_CHANGE,
            default=12,
            in_words=lambda number: "",
            option="--states",
        ),
    },
)
