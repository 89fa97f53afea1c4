"""The output of a worker for its driver: records line by line, and a position that survives it."""

from __future__ import annotations

import json
import mmap
import signal
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import records
from conftest import ROOT

from harness.run.reading import parse, read
from harness.wire.phases import DONE, Position, position_path, read_position, records_path
from harness.worker.output import Output

PROGRAM = """
import sys
from pathlib import Path
from harness.worker.output import Output

output = Output(Path(sys.argv[1]), rank=1, process=0)
output.task(3)
for phase in sys.stdin:
    output.enter(phase.strip())
    output.fail("0123456789ab", f"in {phase.strip()}")
    print("entered", flush=True)
"""


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a process that enters the phases that it is sent."""
    argv = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    child = subprocess.Popen(
        argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    yield child
    child.kill()
    child.communicate()


def enter(worker: subprocess.Popen[str], phase: str) -> None:
    assert worker.stdin is not None
    assert worker.stdout is not None
    print(phase, file=worker.stdin, flush=True)
    assert worker.stdout.readline() == "entered\n"


def test_the_position_is_seen_while_the_worker_lives_and_after_it_was_killed(
    worker: subprocess.Popen[str], tmp_path: Path
) -> None:
    enter(worker, "prepare")
    before = read_position(tmp_path, 1)
    assert (before.task, before.phase) == (3, "prepare")
    enter(worker, "save")
    seen = read_position(tmp_path, 1)
    assert seen == (before.changes + 1, 3, "save", before.reached + 1)
    worker.send_signal(signal.SIGKILL)
    assert worker.wait() == -signal.SIGKILL
    assert read_position(tmp_path, 1) == seen


def test_records_are_whole_lines_after_the_worker_was_killed(
    worker: subprocess.Popen[str], tmp_path: Path
) -> None:
    enter(worker, "prepare")
    enter(worker, "save")
    worker.kill()
    worker.wait()
    found, damages = read(records_path(tmp_path, 1))
    assert damages == []
    assert found == [
        records.failure(rank=1, phase=phase, reason=f"in {phase}") for phase in ("prepare", "save")
    ]


def test_a_rank_that_has_not_begun_is_at_its_launch(tmp_path: Path) -> None:
    assert read_position(tmp_path, 0) == (0, -1, "launch", 0)


@pytest.mark.parametrize(
    "content", [b"", b"\x01", bytes(31), bytes(33)], ids=["empty", "a byte", "short", "long"]
)
def test_half_a_position_is_none(tmp_path: Path, content: bytes) -> None:
    position_path(tmp_path, 0).write_bytes(content)
    assert read_position(tmp_path, 0) == (0, -1, "launch", 0)


def test_a_position_still_blank_is_at_its_launch(tmp_path: Path) -> None:
    output = Output(tmp_path, 0, 0)
    size = position_path(tmp_path, 0).stat().st_size
    del output
    position_path(tmp_path, 0).write_bytes(bytes(size))
    assert read_position(tmp_path, 0).phase == "launch"


def test_a_worker_begins_at_its_start_with_no_task(tmp_path: Path) -> None:
    output = Output(tmp_path, 0, 0)
    assert read_position(tmp_path, 0)[1:3] == (-1, "start")
    assert output.phase == "start"


def test_each_rank_has_a_position_and_records_of_its_own(tmp_path: Path) -> None:
    outputs = [Output(tmp_path, rank, 0) for rank in range(2)]
    outputs[0].enter("save")
    outputs[1].enter("load")
    outputs[1].fail("0123456789ab", "it broke", "unsupported")
    assert [read_position(tmp_path, rank).phase for rank in range(2)] == ["save", "load"]
    assert records_path(tmp_path, 0).read_text() == ""
    assert parse(records_path(tmp_path, 1).read_text()) == records.failure(
        rank=1, phase="load", reason="it broke", status="unsupported"
    )


def test_every_phase_changes_the_position_also_the_same_one_again(tmp_path: Path) -> None:
    """The driver believes that a worker hangs if its position does not change."""
    output = Output(tmp_path, 0, 0)
    seen = []
    for _ in range(3):
        output.enter("save")
        seen.append(read_position(tmp_path, 0))
    assert len(set(seen)) == 3
    output.task(-1)
    output.enter(DONE)
    assert read_position(tmp_path, 0)[1:3] == (-1, DONE)


def test_ranks_on_several_nodes_are_compared_by_what_all_nodes_were_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[Position] = []

    class Mapped(mmap.mmap):
        def flush(self, *arguments: int) -> None:
            super().flush(*arguments)
            flushed.append(read_position(tmp_path, 0))

    monkeypatch.setattr(mmap, "mmap", Mapped)
    output = Output(tmp_path, 0, 0, on_nodes=True)
    output.enter("build")
    assert flushed == [(1, -1, "start", 1)], (
        "a flush takes a while, and a phase may begin next to the clock"
    )
    output.task(3)
    output.enter("save")
    assert flushed[1:] == [(2, 3, "build", 2)]
    assert read_position(tmp_path, 0) == (3, 3, "save", 2), (
        "what is on the driver's own node is seen at once, and counts no more"
    )
    output.finish()
    assert flushed[2:] == [(4, 3, DONE, 4)]


def test_the_position_of_an_older_checkouts_worker_is_read(tmp_path: Path) -> None:
    """The worker of one arm of a comparison may be older than this driver."""
    position_path(tmp_path, 0).write_bytes(struct.pack("<Qi20s", 5, 2, b"load"))
    assert read_position(tmp_path, 0) == (5, 2, "load", 5)


def test_a_phase_that_is_too_long_is_cut_and_a_shorter_one_leaves_no_rest(tmp_path: Path) -> None:
    output = Output(tmp_path, 0, 0)
    output.enter("a phase with a long, long name")
    assert read_position(tmp_path, 0).phase == "a phase with a long,"
    output.enter("load")
    assert read_position(tmp_path, 0).phase == "load"


def test_a_record_larger_than_any_buffer_is_one_line(tmp_path: Path) -> None:
    output = Output(tmp_path, 0, 0)
    many = records.save(
        files=tuple(records.FileEntry(f"shard-{number:06d}", number) for number in range(5000))
    )
    output.write(many)
    output.write(records.load())
    lines = records_path(tmp_path, 0).read_text().splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["save", "load"]
    assert parse(lines[0]) == many
