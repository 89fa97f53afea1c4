"""The remains of a save that a kill, a power loss or a damage has struck, and who notices."""

from harness.experiments.faults.records import ON_DISK
from harness.wire.case import Case
from harness.wire.experiment import Experiment, Stage, SuiteKey

ALL_INSTANTS = 1_000_000
# Few methods have more instants in a save.
_USUAL_INSTANTS = 400


def jobs_a_case(case: Case) -> int:
    """Return how many jobs of a framework take roughly as long as the strikes of a case.

    A kill forks from a process that has imported already, so two take as long as one job. One
    process tries many states. This was 7 jobs a case in the reference runs of `faults`, and 5 in
    those of `faults-disks`.
    """
    settings = EXPERIMENT.settings(case)
    kills = int(settings["kills"])
    instants = min(int(settings["instants"]), _USUAL_INSTANTS)
    chosen = str(settings["file_systems"])
    file_systems = {"none": 0, "all": len(ON_DISK)}.get(chosen, 1)
    return kills // 2 + instants // 20 + file_systems


EXPERIMENT = Experiment(
    name="faults",
    question="What is left when a save is struck?",
    place=35,
    stores=True,
    # Some methods save in the order of a set of names. Kills are ordered by the calls of a save of
    # another process, which makes the same ones only if the order is the same.
    hash_seeds=(0,),
    jobs_a_case=jobs_a_case,
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
