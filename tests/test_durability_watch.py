"""Some saves are traced, and leave records."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from conftest import planned
from traced_saves import PRELUDE, ROOT, require_strace

from harness.durability import strace
from harness.durability.watch import watch_saves
from harness.wire.case import Case
from harness.wire.records import Record, SyscallsRecord

SAVED = planned("buffered").case
OTHER = planned("direct").case


@dataclass
class Session:
    """A session whose worker writes one file per case under strace."""

    scratch: Path
    slot: int = 0
    traced_cases: Sequence[Case] = (SAVED, OTHER)
    obstacle: str | None = None
    breakage: str = ""
    in_memory: str | None = None
    alone: set[str] = field(default_factory=set)
    known: set[tuple[str, str]] = field(default_factory=set)
    records: list[Record] = field(default_factory=list)
    jobs_run: list[list[str]] = field(default_factory=list)

    @property
    def jobs(self) -> Path:
        return self.scratch

    @property
    def cases(self) -> Sequence[Case]:
        return self.traced_cases

    def sharing(self, cases: Sequence[Case]) -> Sequence[Sequence[Case]]:
        together = [case for case in cases if case.id not in self.alone]
        return [together, *([case] for case in cases if case.id in self.alone)]

    def announce(self, text: str) -> None:
        assert text == "system calls"

    def out_of_sight(self) -> str | None:
        return self.obstacle

    def volatile(self) -> str | None:
        return self.in_memory

    def run_job(self, role: str, cases: Sequence[Case], prefix: Sequence[str] = ()) -> str:
        self.jobs_run.append([case.id for case in cases])
        if self.breakage:
            return self.breakage
        saves_folder = self.scratch / "saves"
        saves_folder.mkdir(exist_ok=True)
        saves = [
            f"root = {str(saves_folder / case.id)!r}; os.mkdir(root)\n"
            f"marks.mark({case.id!r}, 'begin')\n"
            "write(at('m'), flush=True); flush(root)\n"
            f"marks.mark({case.id!r}, 'returned'); marks.mark({case.id!r}, 'finished')\n"
            for case in cases
        ]
        argv = [*prefix, sys.executable, "-c", PRELUDE + "".join(saves), str(saves_folder)]
        subprocess.run(argv, cwd=ROOT, check=True, timeout=60)
        return ""

    def has(self, kind: str, case: Case) -> bool:
        return (kind, case.id) in self.known

    def add(self, record: Record) -> None:
        self.records.append(record)

    def verdicts(self) -> dict[str, tuple[str, str]]:
        return {
            record.case: (record.durability, record.reason)
            for record in self.records
            if isinstance(record, SyscallsRecord)
        }


@pytest.fixture
def _can_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strace, "available", lambda: None)


def test_one_job_judges_every_case(tmp_path: Path) -> None:
    require_strace()
    session = Session(tmp_path)
    watch_saves(session)
    safe = ("at return", "every file and every name was flushed before save returned")
    assert session.verdicts() == {SAVED.id: safe, OTHER.id: safe}
    assert session.jobs_run == [[SAVED.id, OTHER.id]]


def test_a_case_that_changes_its_process_is_traced_alone(tmp_path: Path) -> None:
    require_strace()
    session = Session(tmp_path, alone={SAVED.id})
    watch_saves(session)
    assert session.jobs_run == [[OTHER.id], [SAVED.id]]
    assert list(session.verdicts()) == [OTHER.id, SAVED.id]


@pytest.mark.usefixtures("_can_trace")
def test_a_case_that_was_traced_is_not_traced_again(tmp_path: Path) -> None:
    session = Session(tmp_path, known={("syscalls", SAVED.id)}, breakage="it broke")
    watch_saves(session)
    assert session.jobs_run == [[OTHER.id]]
    assert list(session.verdicts()) == [OTHER.id]


@pytest.mark.parametrize(
    "session",
    [Session(Path(), slot=1), Session(Path(), traced_cases=())],
    ids=["a later process", "nothing to trace"],
)
def test_no_job_is_run_without_need(session: Session) -> None:
    watch_saves(session)
    assert (session.jobs_run, session.records) == ([], [])


def test_an_absent_strace_is_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strace, "available", lambda: "strace is not installed")
    session = Session(tmp_path, traced_cases=(SAVED,))
    watch_saves(session)
    assert session.verdicts() == {SAVED.id: ("unknown", "strace is not installed")}
    assert session.jobs_run == []


def test_ranks_out_of_sight_are_the_reason(tmp_path: Path) -> None:
    session = Session(tmp_path, traced_cases=(SAVED,), obstacle="the ranks run elsewhere")
    watch_saves(session)
    assert session.verdicts() == {SAVED.id: ("unknown", "the ranks run elsewhere")}


@pytest.mark.usefixtures("_can_trace")
def test_a_broken_job_is_the_reason(tmp_path: Path) -> None:
    session = Session(tmp_path, traced_cases=(SAVED,), breakage="rank 0 was killed by signal 9")
    watch_saves(session)
    assert session.verdicts() == {SAVED.id: ("unknown", "rank 0 was killed by signal 9")}


@pytest.mark.usefixtures("_can_trace")
def test_a_case_that_failed_gets_no_verdict(tmp_path: Path) -> None:
    failed = {("failure", SAVED.id)}
    session = Session(tmp_path, known=failed, breakage="it broke")
    watch_saves(session)
    assert list(session.verdicts()) == [OTHER.id]


def test_nothing_is_safe_on_a_file_system_in_memory(tmp_path: Path) -> None:
    require_strace()
    session = Session(tmp_path, in_memory="tmpfs keeps files in memory")
    watch_saves(session)
    lost = ("never", "tmpfs keeps files in memory")
    assert session.verdicts() == {SAVED.id: lost, OTHER.id: lost}
