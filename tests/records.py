"""Records made up for the tests are believable, and a test changes fields by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.experiments.cost.records import OpenedRecord, SaveRecord, UpdatesRecord
from harness.experiments.drill.records import DrillRecord
from harness.experiments.faults.records import (
    DisksRecord,
    ErrorsRecord,
    KilledRecord,
    KillsRecord,
    PreemptedRecord,
    RecordedRecord,
    StruckRecord,
    TriedRecord,
)
from harness.experiments.goodput.records import (
    VARIANTS,
    ControlRecord,
    GoodputRecord,
    Predicted,
    PredictionRecord,
    ScheduleRecord,
)
from harness.experiments.killed_rank.records import (
    RankKillRecord,
    RankLeftRecord,
    RanksResumedRecord,
    RanksStruckRecord,
)
from harness.experiments.parity.records import ExtraLeaf, LeafSample, TrajectoryRecord
from harness.experiments.recovery.records import KillRecord, RecoveredRecord, SteadyRecord
from harness.experiments.reshard.records import ReshardRecord
from harness.experiments.resume.records import (
    Divergence,
    InterruptRecord,
    ResumeRecord,
    StraightRecord,
)
from harness.experiments.sizes.records import (
    FileContent,
    FileDifference,
    InventoryRecord,
    PayloadRecord,
    RepeatRecord,
    RolePayload,
)
from harness.experiments.train.records import TrainingRecord
from harness.wire.records import (
    Backing,
    CalibrationRecord,
    Ceilings,
    FailureRecord,
    FileEntry,
    FindingRecord,
    IsolatedRecord,
    KeptRecord,
    LoadRecord,
    OverheadRecord,
    Record,
    StateRecord,
    SweepPoint,
    SyscallsRecord,
    Usage,
    VerifiedRecord,
    WorkerRecord,
)

CASE = "0123456789ab"
BACKED = Backing("backed", 1 << 28, 5e9, 1)
USAGE = Usage(100 << 20, 8 << 20, 0, 40_000_000, 10_000_000, 1000, 0, 1 << 20)


def worker(**changes: Any) -> WorkerRecord:
    whole = WorkerRecord(
        "worker",
        "001-save-0",
        0,
        0,
        "3.11.2",
        {"numpy": "2.4.6"},
        "cpu",
        4711,
        3,
        1.8e9,
        framework="raw",
    )
    return replace(whole, **changes)


def ceilings(before_s: float = 0.1, after_s: float | None = None, direct: bool = True) -> Ceilings:
    return Ceilings(
        1 << 20, int(before_s * 1e9), int((before_s if after_s is None else after_s) * 1e9), direct
    )


def save(case: str = CASE, **changes: Any) -> SaveRecord:
    """A save of 0.1 s in each of its four phases, between ceilings of 0.1 s."""
    tenth = 100_000_000
    record = SaveRecord(
        kind="save",
        case=case,
        process=0,
        rank=0,
        index=0,
        warmup=False,
        disturbed=False,
        save_ns=tenth,
        staged_ns=tenth,
        finished_ns=tenth,
        sync_ns=tenth,
        ceilings=ceilings(),
        covered_bytes=1 << 20,
        file_bytes=1100,
        files=(FileEntry("a", 1000), FileEntry("b/c", 100)),
        backing=BACKED,
        quiet=True,
        usage=USAGE,
        started_at_s=1.8e9,
    )
    return replace(record, **changes)


def load(case: str = CASE, **changes: Any) -> LoadRecord:
    """A cold load of 0.2 s between ceilings of 0.1 s."""
    record = LoadRecord(
        kind="load",
        case=case,
        process=0,
        rank=0,
        index=0,
        warmup=False,
        disturbed=False,
        load_ns=200_000_000,
        ceilings=ceilings(),
        covered_bytes=1 << 20,
        file_bytes=1100,
        cache="cold",
        resident_fraction=0.0,
        backing=BACKED,
        quiet=None,
        usage=USAGE,
        started_at_s=1.8e9,
    )
    return replace(record, **changes)


def verified(case: str = CASE, **changes: Any) -> VerifiedRecord:
    return replace(VerifiedRecord("verified", case, 0, 0, 10, 0), **changes)


def failure(case: str = CASE, **changes: Any) -> FailureRecord:
    return replace(FailureRecord("failure", case, 0, 0, "failed", "save", "it broke"), **changes)


def state(case: str = CASE, **changes: Any) -> StateRecord:
    by_role = {"weight": 600, "optimizer": 400}
    return replace(
        StateRecord("state", case, 0, 0, 10, 10, 1000, 1000, by_role, 5_000_000, 0), **changes
    )


def opened(case: str = CASE, **changes: Any) -> OpenedRecord:
    return replace(OpenedRecord("opened", case, 0, 0, 20_000_000), **changes)


def syscalls(case: str = CASE, **changes: Any) -> SyscallsRecord:
    record = SyscallsRecord(
        kind="syscalls",
        case=case,
        durability="at return",
        data_durability="at return",
        reason="",
        writes=4,
        write_bytes=1100,
        write_min_bytes=100,
        write_median_bytes=300,
        write_max_bytes=400,
        direct_writes=1,
        fsyncs=2,
        syncs=0,
        msyncs=0,
        renames=1,
        files=2,
        late_writes=0,
    )
    return replace(record, **changes)


def payload(case: str = CASE, **changes: Any) -> PayloadRecord:
    roles = (
        RolePayload("weight", 600, 600, 540, 480),
        RolePayload("optimizer", 400, 400, 40, 40),
        RolePayload("rng", 0, 0, 0, 0),
    )
    return replace(PayloadRecord("payload", case, 0, 0, 20, roles), **changes)


def inventory(case: str = CASE, **changes: Any) -> InventoryRecord:
    """A checkpoint of two files, one of which tells what is in it."""
    data = FileContent(
        "data",
        1050,
        3,
        {"weight": 600, "optimizer": 400, "rng": 10},
        {"weight": 600, "optimizer": 400, "rng": 10},
    )
    index = FileContent("index", 50, 0, {}, {})
    return replace(
        InventoryRecord("inventory", case, 0, 0, 20, 1010, 1010, 1100, 1500, (data, index)),
        **changes,
    )


def difference(name: str = "index", **changes: Any) -> FileDifference:
    return replace(FileDifference(name, 50, 50, 7, 1, ((10, 17),), ("time stamp",)), **changes)


def repeat(case: str = CASE, **changes: Any) -> RepeatRecord:
    return replace(
        RepeatRecord("repeat", case, 0, 0, "one process", "random", True, 2, 0, (), (), ()),
        **changes,
    )


def trajectory(case: str = CASE, scale: float = 1.0, **changes: Any) -> TrajectoryRecord:
    """Ten falling losses and two sampled leaves; `scale` multiplies all of them."""
    record = TrajectoryRecord(
        kind="trajectory",
        case=case,
        process=0,
        rank=0,
        leaves=2,
        extra=(ExtraLeaf("rng/numpy", "rng", "uint64", (4,)),),
        losses=tuple(scale * (3.0 - 0.1 * step) for step in range(10)),
        forward=(
            LeafSample("buffers/norm.running_mean", 0.1 * scale, (0.1 * scale, -0.1 * scale)),
        ),
        updated=(LeafSample("weights/dense.weight", scale, (scale, -scale, 0.5 * scale)),),
    )
    return replace(record, **changes)


def training(case: str = CASE, **changes: Any) -> TrainingRecord:
    """A block of four steps of 0.1 s, with two checkpoints of 0.05 s, between plain blocks."""
    tenth, twentieth = 100_000_000, 50_000_000
    record = TrainingRecord(
        kind="training",
        case=case,
        process=0,
        rank=0,
        index=0,
        warmup=False,
        disturbed=False,
        every=2,
        checkpoints=2,
        plain_before_ns=4 * tenth,
        plain_after_ns=4 * tenth,
        block_ns=5 * tenth,
        save_ns=(30_000_000, 30_000_000),
        staged_ns=(20_000_000, 20_000_000),
        finished_ns=(0, 0),
        step_ns=(tenth,) * 4,
        plain_step_ns=(tenth,) * 8,
        sync_ns=twentieth,
        covered_bytes=1000,
        file_bytes=1100,
        usage=USAGE,
        started_at_s=1.8e9,
    )
    return replace(record, **changes)


def straight(case: str = CASE, **changes: Any) -> StraightRecord:
    return replace(
        StraightRecord("straight", case, 0, 0, tuple(3.0 - 0.1 * step for step in range(8))),
        **changes,
    )


def interrupt(case: str = CASE, **changes: Any) -> InterruptRecord:
    return replace(
        InterruptRecord("interrupt", case, 0, 0, 4, straight().losses[:4], 1100), **changes
    )


def resume(case: str = CASE, **changes: Any) -> ResumeRecord:
    """A run that went on from step 4 of 8 bit by bit."""
    return replace(
        ResumeRecord(
            "resume", case, 0, 0, 4, 8, straight().losses[4:], 10, True, None, (), 0, 0, 0
        ),
        **changes,
    )


def reshard(case: str = CASE, **changes: Any) -> ReshardRecord:
    return replace(ReshardRecord("reshard", case, 0, 0, 2, 4, 8, 2, 3), **changes)


def finding(case: str = CASE, **changes: Any) -> FindingRecord:
    made = FindingRecord("finding", case, 0, 0, "hard-links", "remark", "its files have two names")
    return replace(made, **changes)


def one_of_each() -> list[Record]:
    """A record of every type there is."""
    return [
        worker(),
        CalibrationRecord(
            "calibration",
            True,
            "",
            1 << 24,
            1 << 20,
            2,
            4 << 20,
            1,
            True,
            (SweepPoint("write", 1, 2, 3e9),),
        ),
        OverheadRecord("overhead", "001-save-0", 0, 0, (700, 600), 90 << 20),
        state(),
        opened(),
        save(),
        load(),
        KeptRecord("kept", CASE, 0, 0, 10),
        verified(),
        syscalls(),
        payload(),
        inventory(),
        repeat(identical=False, only_second=("new",), differences=(difference(),)),
        trajectory(),
        training(),
        straight(),
        interrupt(),
        resume(
            identical=False,
            diverged_at=4,
            first=(Divergence("rng/numpy", "rng", None, 3.0),),
            first_count=1,
        ),
        reshard(),
        failure(),
        finding(),
        IsolatedRecord("isolated", CASE, 0, 0, "save", ("ba9876543210",)),
        UpdatesRecord("updates", CASE, 0, 0, (1_000_000,), (1_100_000,)),
        *struck_save(),
        *killed_rank(),
        control(),
        schedule(),
        prediction(),
        goodput(),
        *killed_rank_in_a_save(),
    ]


def killed_rank_in_a_save() -> list[Record]:
    """A record of every type that experiment `killed_rank` writes."""
    return [
        RankKillRecord(
            "rank-kill",
            CASE,
            0,
            0,
            number=1,
            in_words="rank 1 killed before the other rank's rename step-2.tmp to step-2",
            victim=1,
            is_caller=False,
            fate="hung",
            after_ns=15_000_000_000,
            said="stood in barrier of torch/distributed.py",
        ),
        RankLeftRecord("rank-left", CASE, 0, 0, number=1, verdict="safe", got="step-1", reason=""),
        RanksStruckRecord(
            "ranks-struck", CASE, 0, 0, changes=5, writes=2, save_ns=9, kills=1, not_reached=0
        ),
        RanksResumedRecord("ranks-resumed", CASE, 0, 0),
    ]


_TWELVE_NS = tuple(second * 1_000_000_000 for second in range(20, 80, 5))


def prediction(case: str = CASE, **changes: Any) -> PredictionRecord:
    """A prediction that a tenth of the time is lost, with an interval of 5 % on each side."""
    lost = tuple(Predicted(variant, 0.1, 0.095, 0.105) for variant in VARIANTS)
    made = PredictionRecord(
        "prediction",
        case,
        0,
        0,
        kills=12,
        lost=lost,
    )
    return replace(made, **changes)


def control() -> ControlRecord:
    """A life of the control with two checkpoints that count."""
    return ControlRecord(
        "control",
        CASE,
        0,
        0,
        life=4,
        detect_ns=200_000_000,
        restart_ns=5_000_000_000,
        restore_ns=300_000_000,
        step_ns=(400_000_000, 410_000_000),
        stall_ns=(95_000_000, 90_000_000),
        lag_ns=(400_000_000, 200_000_000),
        slowdown_s=(0.02, 0.01),
    )


def schedule(case: str = CASE, **changes: Any) -> ScheduleRecord:
    """Twelve kills within 100 s, in a job that saves after every fifth step."""
    made = ScheduleRecord(
        "schedule",
        case,
        0,
        0,
        mtbf_ns=30_000_000_000,
        advised_steps=5,
        interval_steps=5,
        kills_ns=_TWELVE_NS,
        length_ns=100_000_000_000,
    )
    return replace(made, **changes)


def goodput(case: str = CASE, **changes: Any) -> GoodputRecord:
    """A job of 100 s that lost a tenth of them to twelve kills."""
    made = GoodputRecord(
        "goodput",
        case,
        0,
        0,
        steps=225,
        steps_done=230,
        step_ns=400_000_000,
        step_of="job",
        wall_ns=100_000_000_000,
        kills_ns=_TWELVE_NS,
        struck=("a rank",) * 12,
        training_ns=93_000_000_000,
        checkpoints_ns=1_000_000_000,
        detect_ns=400_000_000,
        restart_ns=6_000_000_000,
        restore_ns=600_000_000,
    )
    return replace(made, **changes)


def killed_rank() -> list[Record]:
    """A record of every type that experiments `recovery` and `drill` write."""
    return [
        KillRecord(
            "kill",
            CASE,
            0,
            0,
            number=0,
            slot=1,
            step=6,
            instant="before the gradient exchange",
            ranks_before=4,
            ranks_after=3,
            detect_ns=30_000_000,
            reconfigure_ns=500_000,
            restart_ns=None,
            restore_ns=2_000_000,
            recompute_ns=40_000_000,
            back_ns=72_500_000,
            steps_recomputed=0,
            own_state_lost=True,
            same_as="fewer ranks",
        ),
        SteadyRecord("steady", CASE, 0, 0, 50_000_000, 60_000, 900_000, 0.02, (2.3, 2.2)),
        RecoveredRecord("recovered", CASE, 0, 0),
        DrillRecord("drill", CASE, 0, 0, 90_000_000, True, 3, "fewer ranks", "fewer ranks", ""),
    ]


def struck_save() -> list[Record]:
    """A record of every type that experiment `faults` writes."""
    words = "killed before the creation of step-2"
    return [
        RecordedRecord("recorded", CASE, 0, 0, files=1, file_bytes=1_000_000),
        StruckRecord("struck", CASE, 0, 0, 0, "kill", 0, words, "safe", "step-1", ""),
        TriedRecord("tried", CASE, 0, 0, steps=9, instants=10, states=60, not_seen=""),
        ErrorsRecord("errors", CASE, 0, 0, hit=24),
        KilledRecord("killed", CASE, 0, 0, change=1, difference=""),
        KillsRecord("kills", CASE, 0, 0, kills=8),
        PreemptedRecord("preempted", CASE, 0, 0, 30_000_000, 20_000_000),
        DisksRecord("disks", CASE, 0, 0, {"ext4": 9}, {"ext4": 12}, {"xfs": "not here"}),
    ]
