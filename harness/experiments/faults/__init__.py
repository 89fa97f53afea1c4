"""The remains of a save that a kill, a power loss or a damage has struck, and who notices."""

from harness.experiments.faults.records import ON_DISK
from harness.wire.experiment import Experiment, Stage, SuiteKey

ALL_INSTANTS = 1_000_000

EXPERIMENT = Experiment(
    name="faults",
    question="What is left when a save is struck?",
    place=35,
    stores=True,
    # Some methods save in the order of a set of names. Kills are ordered by the calls of a save of
    # another process, which makes the same ones only if the order is the same.
    hash_seeds=(0,),
    stages=(
        Stage("record", "one save, call by call", reports="rank 0", by_driver=True),
        Stage("fail", "errors of its system calls", reports="rank 0", by_driver=True),
        Stage("kill", "real kills", reports="rank 0", by_driver=True, forks=True),
        Stage("preempt", "the end of an allocation", reports="rank 0", by_driver=True),
        Stage("disk", "power losses on real file systems", reports="rank 0", by_driver=True),
        Stage("try", "what a strike leaves", reports="rank 0", by_driver=True, seed_offset=1),
    ),
    suite_keys={
        "instants": SuiteKey(
            "how many instants of a save are struck at most",
            at_most=ALL_INSTANTS,
            default=60,
            in_words=lambda number: "",
            option="--states",
        ),
        "kills": SuiteKey(
            "how many times a save is really killed",
            at_least=0,
            at_most=1000,
            default=8,
            in_words=lambda number: "",
        ),
        "grace_s": SuiteKey(
            "how many seconds a process has from a SIGTERM to its end",
            at_most=3600,
            default=30,
            later=True,
            in_words=lambda seconds: f"{seconds} s of grace" if seconds != 30 else "",
        ),
        "file_systems": SuiteKey(
            "on which real file systems the power is cut, which needs root",
            choices=("none", "all", *ON_DISK),
            default="none",
            in_words=lambda chosen: "" if chosen == "none" else f"power cut on {chosen}",
        ),
    },
)
