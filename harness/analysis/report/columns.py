"""What the columns of the tables mean, and the number by which each is sorted."""

from __future__ import annotations

from dataclasses import dataclass

from harness.analysis.row import Row
from harness.analysis.statistics import Estimate


@dataclass(frozen=True)
class Column:
    """A column of an experiment's table.

    It is sorted by the row's field `number`, over the field `over` where there is one. Where
    `of_several`, the number is not one row's own, and whoever makes the table gives it. All others
    are sorted by their text.
    """

    meaning: str
    number: str = ""
    over: str = ""
    of_several: bool = False

    @property
    def is_number(self) -> bool:
        """Whether it is sorted by numbers."""
        return bool(self.number) or self.of_several

    def sort_value(self, row: Row) -> float | None:
        """The number that the row is sorted by; None where it has none."""
        value = _number(row, self.number)
        if not self.over or value is None:
            return value
        whole = _number(row, self.over)
        return value / whole if whole else None


def _number(row: Row, name: str) -> float | None:
    value = getattr(row, name) if name else None
    if value is None:
        return None
    return value.value if isinstance(value, Estimate) else float(value)


IDENTITY = {
    "method": Column(
        "how the checkpoint is written, as 'ckptbench list methods' names it; the link leads to the command"
    ),
    "framework": Column("the deep-learning framework; raw is numpy without any: the floor"),
    "state": Column(
        "what is saved: workload and size, precision where it is not float32, device, and how many ranks"
    ),
}
RUN = Column(
    "which of the runs above; seconds of two runs were taken at different moments, and compare less than those of one"
)
_COVERS = Column(
    "what comes back: weights, weights+optimizer, or full (with random generators and position in the data)"
)
_BYTES = Column("bytes of the files over bytes of the state in memory", "file_bytes", "state_bytes")

SLOWDOWN = "to one rank's"
_COST = {
    "ranks": Column(
        "how many processes saved together; + marks more than there are processors", "world"
    ),
    "stall": Column(
        "how long training stands still: time blocked in the save and until the state may change again",
        "stall_s",
    ),
    "durable": Column(
        "until every file and every name is flushed to the disk, whatever the method itself did",
        "durable_s",
    ),
    SLOWDOWN: Column(
        "durable over that of the method's smallest world, with its 95 % interval; for each byte where the state grows",
        of_several=True,
    ),
    "share of ceiling": Column(
        "time of a raw write of the same bytes, measured just before and after, over durable; 1 is as fast as the disk. "
        "In brackets the 95 % interval; * where it lies above 1, so that the ceiling is in doubt",
        "write_efficiency",
    ),
    "n": Column(
        "how many saves the medians are of; in brackets, with ~, how many of them were disturbed",
        "samples",
    ),
    "last / median rank": Column(
        "how much longer the last rank took than the median one", "straggler"
    ),
    "writers": Column("how many ranks wrote a share worth the name", "writers"),
    "cold load": Column(
        "a load in another process, after the files had left the page cache", "load_s"
    ),
    "open": Column(
        "to make the method ready for this state, once in each process, before its first save",
        "open_s",
    ),
    "bytes": _BYTES,
    "covers": _COVERS,
    "power-safe": Column(
        "from the system calls: after which instant a power loss leaves the checkpoint whole. never (data …): the contents are "
        "flushed and only a name is not"
    ),
    "verified": Column("every covered byte came back, from a save that overlapped a training step"),
}
_SIZES = {
    "bytes": _BYTES,
    "fresh": Column(
        "the same for a state that has not been trained", "fresh_file_bytes", "state_bytes"
    ),
    "weights": Column(
        "stored bytes of the weights over bytes of the state", "weights_bytes", "state_bytes"
    ),
    "optimizer": Column(
        "stored bytes of the optimizer over bytes of the state", "optimizer_bytes", "state_bytes"
    ),
    "rest": Column(
        "everything else in the files: random generators, position, headers", "metadata_bytes"
    ),
    "files": Column("how many files a checkpoint is", "files"),
    "writes": Column("how many system calls wrote it, and their median size", "writes"),
    "to device": Column(
        "bytes that reached the block device over bytes of the files",
        "device_written_bytes",
        "file_bytes",
    ),
    "same files": Column(
        "whether saving the same state again gives the same files: in one process, in two"
    ),
}
_PARITY = {
    "leaves": Column(
        "tensors that all frameworks have, and those of the framework's own", "leaves"
    ),
    "forward": Column(
        "how far the first loss and the buffers are from the median framework's, and what is tolerated",
        "forward_difference",
    ),
    "one step": Column(
        "the same for every weight and optimizer slot after one step", "step_difference"
    ),
    "ten losses": Column("the largest difference of ten losses", "losses_difference"),
    "first loss": Column("loss of the first step", "first_loss"),
    "last loss": Column("loss of the tenth step", "last_loss"),
    "same state": Column("whether all differences are tolerated"),
}
_TRAIN = {
    "every": Column("steps between two checkpoints", "every"),
    "step": Column("one training step without checkpoints", "step_s"),
    "overhead": Column(
        "what one checkpoint adds to the training time, with its 95 % interval: stall, slowdown and back-pressure",
        "overhead_s",
    ),
    "of training": Column("the same as a share of the training time", "overhead_share"),
    "stall": Column("time blocked in the save", "stall_s"),
    "slowdown": Column("how much longer the steps take meanwhile", "slowdown_s"),
    "back-pressure": Column(
        "what the loop waits for one checkpoint before it may begin the next", "back_pressure_s"
    ),
    "unflushed": Column("what flushing the files to the disk then still takes", "unflushed_s"),
    "n": Column(
        "how many blocks of training the medians are of; in brackets, with ~, how many of them were disturbed",
        "samples",
    ),
    "verified": Column("every covered byte of the last checkpoint came back"),
}
_RESUME = {
    "covers": _COVERS,
    "resumed": Column(
        "whether every tensor after every step is bit by bit that of a run without interruption"
    ),
    "first": Column("the tensor that differs first, and by how many representable numbers (ulp)"),
    "at the end": Column(
        "how many tensors differ after the last step, and by how much", "final_count"
    ),
    "last loss": Column("loss of the last step, over that of the run without interruption"),
}
_RESHARD = {
    "ranks": Column("how many ranks saved, and how many loaded", "load_world"),
    "replicated": Column("tensors that every rank has whole", "replicated_leaves"),
    "sharded": Column("tensors that are divided over the ranks", "sharded_leaves"),
    "left out": Column(
        "tensors that a rank has of its own, or that the method does not cover", "left_out"
    ),
    "whole": Column("whether everything else came back bit by bit"),
}

COLUMNS = {
    "cost": _COST,
    "sizes": _SIZES,
    "parity": _PARITY,
    "train": _TRAIN,
    "resume": _RESUME,
    "rerun": _RESUME,
    "reshard": _RESHARD,
}
QUESTIONS = {
    "cost": "What does a checkpoint cost?",
    "train": "How much slower does training get?",
    "resume": "Does a killed run go on bit by bit?",
    "rerun": "Does training alone repeat bit by bit?",
    "reshard": "Can another number of ranks load it?",
    "sizes": "What is in the files?",
    "parity": "Do all frameworks hold the same state?",
}
"""In the order of the page."""
