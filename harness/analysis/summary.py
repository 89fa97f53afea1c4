"""What a table means for the person who reads it, in plain sentences."""

from __future__ import annotations

from collections.abc import Sequence

from harness.analysis import statistics
from harness.analysis.frame import Measured
from harness.analysis.row import Naming, Row, listed
from harness.analysis.statistics import Estimate
from harness.analysis.tables import DISTURBED, duration, fraction, spread_duration
from harness.experiments.cost.rows import CostRow
from harness.experiments.cost.scaling import is_scaling, series
from harness.experiments.parity.rows import ParityRow
from harness.experiments.reshard.rows import ReshardRow
from harness.experiments.resume.rows import ResumeRow
from harness.experiments.sizes.rows import SizesRow
from harness.experiments.train.rows import TrainRow


def meaning(rows: Sequence[Row]) -> str:
    """Say what the rows of one table mean."""
    cost = [row for row in rows if isinstance(row, CostRow)]
    sizes = [row for row in rows if isinstance(row, SizesRow)]
    parity = [row for row in rows if isinstance(row, ParityRow)]
    train = [row for row in rows if isinstance(row, TrainRow)]
    resume = [row for row in rows if isinstance(row, ResumeRow)]
    reshard = [row for row in rows if isinstance(row, ReshardRow)]
    naming = Naming.among(rows)
    said = [
        _cost(cost, naming) if cost else "",
        _sizes(sizes, naming) if sizes else "",
        _parity(parity) if parity else "",
        _train(train, naming) if train else "",
        _resume(resume, naming) if resume else "",
        _reshard(reshard, naming) if reshard else "",
    ]
    return " ".join(text for text in said if text)


def _cost(rows: Sequence[CostRow], naming: Naming) -> str:
    """Which method is fastest, by how much, which stalls least, and which checkpoints can be lost."""
    good = [row for row in rows if row.status == "ok" and row.verified and row.durable_s]
    if not good:
        return "No method gave a verified checkpoint here."
    if is_scaling(rows):
        return _scaling(rows, naming)
    sentences = [_fastest(good, naming), _least_stall(good, naming), _unsafe(good, naming)]
    failed = [naming.name(row) for row in rows if row.status == "failed"]
    if failed:
        sentences.append(f"{listed(failed)} failed: see the reasons below.")
    return " ".join(sentence for sentence in sentences if sentence)


def _scaling(rows: Sequence[CostRow], naming: Naming) -> str:
    """What the largest world does to each method, and which is then the fastest."""
    found = [members for members in series(rows) if members[-1].slowdown is not None]
    world = max((members[-1].row.world for members in found), default=0)
    largest = [members[-1] for members in found if members[-1].row.world == world]
    good = [member for member in largest if member.row.verified and member.row.durable_s]
    if not good:
        return "No method gave a verified checkpoint in several worlds."
    best = min(
        good,
        key=lambda member: member.row.durable_s.value if member.row.durable_s else float("inf"),
    )
    each = "for each byte " if best.row.scale else ""
    times = "; ".join(
        f"{_named(member.row, naming)} {member.slowdown.value:.1f}"
        for member in sorted(
            good, key=lambda member: member.slowdown.value if member.slowdown else 0.0
        )
        if member.slowdown
    )
    said = [
        f"On {world} ranks {_named(best.row, naming)} is durable first, in {duration(best.row.durable_s)}."
    ]
    said.append(f"Times of the time that one rank takes {each}there: {times}.")
    if any(row.oversubscribed for row in rows):
        said.append(
            "+ marks more ranks than processors (oversubscribed): they also wait for one another's turn."
        )
    return " ".join(said)


def _sizes(rows: Sequence[SizesRow], naming: Naming) -> str:
    """How far the state itself can be compressed, and which files change from save to save."""
    good = [row for row in rows if row.status == "ok"]
    if not good:
        return "No method's files could be looked at."
    sentences = [_compressibility(good[0], naming.whose(good[0]))]
    one = [_with_causes(row, naming) for row in good if row.same_in_one_process is False]
    two = [
        _with_causes(row, naming)
        for row in good
        if row.same_in_one_process and row.same_in_two_processes is False
    ]
    if one:
        sentences.append(
            f"Saving the same state twice in one process gives other files with {listed(one)}."
        )
    if two:
        sentences.append(f"Two processes with the same state write other files with {listed(two)}.")
    if not one and not two:
        sentences.append("Every method writes the same files for the same state.")
    return " ".join(sentence for sentence in sentences if sentence)


def _with_causes(row: SizesRow, naming: Naming) -> str:
    return f"{naming.name(row)} ({', '.join(row.causes)})"


def _compressibility(row: SizesRow, whose: str) -> str:
    if row.weights_deflated_trained is None or row.optimizer_deflated_trained is None:
        return ""
    return (
        f"Deflate leaves {fraction(row.weights_deflated_trained)} of {whose} trained weights (fresh: "
        f"{fraction(row.weights_deflated_fresh)}; with a byte shuffle: {fraction(row.weights_shuffled_trained)}) and "
        f"{fraction(row.optimizer_deflated_trained)} of the optimizer's slots (fresh: {fraction(row.optimizer_deflated_fresh)}; "
        f"with a byte shuffle: {fraction(row.optimizer_shuffled_trained)})."
    )


def _parity(rows: Sequence[ParityRow]) -> str:
    """Who holds the same state."""
    same = [row.framework for row in rows if row.verified]
    other = [row.framework for row in rows if row.status == "failed"]
    said = []
    if same:
        said.append(f"{listed(same)} hold the same state and train it alike.")
    if other:
        said.append(
            f"{listed(other)} {'does' if len(other) == 1 else 'do'} not: see the reasons below."
        )
    return " ".join(said)


def _train(rows: Sequence[TrainRow], naming: Naming) -> str:
    """Which method slows training down least, and where the loop waits for a checkpoint before the next."""
    good = [row for row in rows if row.status == "ok" and row.overhead_s]
    if not good:
        return "No method's training could be timed."
    full = [row for row in good if row.covers == "full"] or good
    best = min(full, key=lambda row: row.overhead_s.value if row.overhead_s else float("inf"))
    said = [
        f"Training loses least with {_named(best, naming)}: {spread_duration(best.overhead_s)} a checkpoint."
    ]
    safe = min(full, key=_overhead_until_flushed)
    if safe is not best:
        said.append(f"With what flushing the files still takes, it is {_named(safe, naming)}.")
    pressed = [
        row
        for row in good
        if row.back_pressure_s
        and row.step_s
        and row.back_pressure_s.is_above(0.1 * row.step_s.value)
    ]
    if pressed:
        said.append(
            f"With {listed([_named(row, naming) for row in pressed])} the loop waits for one checkpoint before the next."
        )
    return " ".join(said)


def _resume(rows: Sequence[ResumeRow], naming: Naming) -> str:
    """Which methods resume bit by bit, and which that say they cover everything do not."""
    known = [row for row in rows if row.bitwise is not None and not row.ablated]
    plain = [row for row in known if not row.method]
    methods = [row for row in known if row.method]
    same = [_named(row, naming) for row in methods if row.bitwise]
    other = [_named(row, naming) for row in methods if not row.bitwise and row.covers == "full"]
    said = [
        f"{row.framework} trains {_bits(row)} when it trains again{_with(row)}." for row in plain
    ]
    if same:
        said.append(f"Bit by bit as if nothing had happened: {listed(same)}.")
    if other:
        said.append(f"Not so, for all that they cover the state: {listed(other)}.")
    return " ".join(said)


def _bits(row: ResumeRow) -> str:
    return "the same bits" if row.bitwise else "other bits"


def _overhead_until_flushed(row: TrainRow) -> float:
    return (
        sum(part.value for part in (row.overhead_s, row.unflushed_s) if part)
        if row.overhead_s
        else float("inf")
    )


def _named(row: Row, naming: Naming) -> str:
    """A method with what else tells its row from others of the same method."""
    every = f" every {'step' if row.every == 1 else f'{row.every} steps'}" if row.every else ""
    return f"{naming.name(row)}{every}{_with(row)}"


def _with(row: Row) -> str:
    return f" with {row.strategy}" if row.strategy else ""


def _reshard(rows: Sequence[ReshardRow], naming: Naming) -> str:
    """Whose checkpoints another number of ranks can load."""
    good = [_named(row, naming) for row in rows if row.verified]
    return (
        f"Whole for another number of ranks: {listed(good)}."
        if good
        else "No checkpoint is whole for another number of ranks."
    )


def compared_with_default(row: CostRow, rows: Sequence[CostRow]) -> Estimate | None:
    """How many times as fast as the framework's default a method is durable, simultaneous over the methods of the table.

    None where there is no interval that could tell them apart: without a default, or with a single
    sample of either.
    """
    default = next((other for other in rows if other.default and _is_alike(other, row)), None)
    if default is None or default is row or not (row.durable_samples and default.durable_samples):
        return None
    if statistics.is_single(default.durable_samples) or statistics.is_single(row.durable_samples):
        return None
    comparisons = sum(1 for other in rows if other.durable_samples) - 1
    return statistics.ratio(default.durable_samples, row.durable_samples, comparisons)


def _is_alike(one: Row, other: Row) -> bool:
    return (one.framework, one.strategy) == (other.framework, other.strategy)


def notes(rows: Sequence[Row], found: Measured) -> list[str]:
    """What a reader must know about the circumstances."""
    naming = Naming.among(rows)
    measured = [row for row in rows if isinstance(row, CostRow) and row.samples]
    said = [_samples_note(measured)] if measured else []
    said += _overhead_note(found)
    if any(row.ceiling_direct is False for row in measured):
        said.append(
            "The scratch directory takes no direct I/O: ceilings went through the page cache and say little about a disk."
        )
    if any(row.backing == "unknown" for row in measured):
        said.append(
            "Memory backing could not be shown for some samples: their times may include the host handing memory back."
        )
    doubtful = [naming.name(row) for row in measured if row.above_ceiling]
    if doubtful:
        said.append(
            f"* {listed(doubtful)} beat the ceiling beyond the interval: there the ceiling is in doubt, not the method."
        )
    return said


def _fastest(rows: Sequence[CostRow], naming: Naming) -> str:
    full = [row for row in rows if row.covers == "full"] or list(rows)
    best = min(full, key=lambda row: row.durable_s.value if row.durable_s else float("inf"))
    text = f"{naming.name(best)} makes a verified {best.covers} checkpoint durable fastest, in {duration(best.durable_s)}"
    gain = compared_with_default(best, rows)
    if gain is None:
        return text + (f", and it is {naming.whose(best)} default." if best.default else ".")
    whose = naming.whose(best)
    if gain.low > 1:
        return f"{text}: {gain.value:.1f} times ({gain.low:.1f} to {gain.high:.1f}) as fast as {whose} default."
    if gain.high < 1:
        default = next(row for row in rows if row.default and _is_alike(row, best))
        return f"{text}: {whose} default, {default.method}, is faster and covers less ({default.covers})."
    return f"{text}, which cannot be told from {whose} default's time."


def _least_stall(rows: Sequence[CostRow], naming: Naming) -> str:
    best = min(rows, key=lambda row: row.stall_s.value if row.stall_s else float("inf"))
    return f"Training stands still least with {naming.name(best)}: {duration(best.stall_s)} a checkpoint."


def _unsafe(rows: Sequence[CostRow], naming: Naming) -> str:
    nothing = [
        naming.name(row)
        for row in rows
        if row.durability == "never" and row.data_durability == "never"
    ]
    names = [
        naming.name(row)
        for row in rows
        if row.durability == "never" and row.data_durability != "never"
    ]
    said = []
    if nothing:
        said.append(
            f"After a power loss nothing that {listed(nothing)} wrote is certain: not all of it is flushed."
        )
    if names:
        said.append(
            f"{listed(names)} flush{'es' if len(names) == 1 else ''} the data but not every file name."
        )
    return " ".join(said)


def _samples_note(rows: Sequence[CostRow]) -> str:
    used = sum(row.samples for row in rows)
    disturbed = sum(row.disturbed for row in rows)
    processes = max(row.processes for row in rows)
    said = (
        f"Medians of {used} saves, up to {processes} processes a method, 95 % bootstrap intervals clustered by process; "
        f"{disturbed} samples stood between ceilings that differed by more than 10 % and were tagged disturbed."
    )
    counting = f" They count ({DISTURBED} behind their number) where a row has too few others."
    return said + counting * any(row.used_disturbed for row in rows)


def _overhead_note(found: Measured) -> list[str]:
    if not found.overheads:
        return []
    costs = sorted(cost for record in found.overheads for cost in record.empty_save_ns)
    peak = max(record.harness_peak_bytes for record in found.overheads)
    return [
        f"The harness itself: {costs[len(costs) // 2] / 1e3:.1f} us a save, {peak / 2**20:.0f} MiB of memory."
    ]
