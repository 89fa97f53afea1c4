"""A run's folder, opened for writing: its manifest, its plan, and its records.

Records are only ever appended. A kill loses none of them. A power loss can take those that were
appended after the last flush, which the driver makes after every job.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.run import flushing
from harness.run.errors import UsageError, nearest
from harness.run.manifest import Manifest
from harness.run.plan import PlannedCase, Selection, Settings
from harness.run.reading import InvalidLine, parse
from harness.run.stored import MANIFEST, PLAN, RECORDS, StoredRun, folders, records_file
from harness.wire.case import known_fields
from harness.wire.records import IsolatedRecord, Record, to_line

LATEST = "latest"
_TIME = re.compile(r"\d{8}-\d{6}")


class Run(StoredRun):
    """A stored run, open for appending.

    A worker's line is taken once, because a job that is cut off and resumed may write it again. An
    IsolatedRecord voids lines before it, and from then on equal lines are taken anew.
    """

    @property
    def settings(self) -> Settings:
        """Return the settings of the run. A run that is older than they are has the defaults."""
        stored = known_fields(Settings, self.header.get("settings") or {})
        for name in ("without_guards", "adapters"):
            stored[name] = tuple(stored.get(name, ()))
        return Settings(**stored)

    def _read(self) -> None:
        super()._read()
        if self.is_packed:
            return
        content = self._file.read_text(encoding="utf-8", errors="replace")
        self._lines = set(content.splitlines())
        self._torn = not content.endswith("\n") and content != ""

    @cached_property
    def _descriptor(self) -> int:
        """Open the records for the first lock or line.

        It is late, because a run that is only looked at may lie where nothing can be written.
        Raises UsageError where the records are packed.
        """
        if self.is_packed:
            raise UsageError(
                f"run {self.name} is packed, so nothing can be added to it; "
                f"unpack it with: gunzip {self._file}"
            )
        return os.open(self._file, os.O_WRONLY | os.O_APPEND)

    def begin(self, manifest: Manifest) -> None:
        """Store the machine on which the run is measured."""
        text = json.dumps(manifest.to_json(), indent=1) + "\n"
        # Half a manifest would make the run unreadable.
        flushing.write_file(self.folder / MANIFEST, text)

    def discard(self) -> None:
        """Remove a run that holds nothing. Raises ValueError where it has records."""
        if self.records:
            raise ValueError(f"run {self.name} has records, so it is not removed")
        self.close()
        shutil.rmtree(self.folder)

    @property
    def jobs(self) -> Path:
        """Return the folder of the jobs that run now."""
        return self.folder / "jobs"

    def lock(self) -> None:
        """Keep other drivers out of this run, and read the records that the last one added.

        Raise UsageError where another driver is at work.
        """
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(
                f"run {self.name} is being measured by another process; wait for it"
            ) from error
        # Another driver may have added records and ended since this run was opened.
        self._read()

    def append(self, record: Record) -> None:
        """Append a record of the driver's own."""
        self._forget_voided(record)
        self._append_line(to_line(record).rstrip("\n"))
        self.records.append(record)

    def absorb(self, line: str) -> Record | None:
        """Validate a worker's line and append it. Return None where the run has it already.

        Raise InvalidLine where it is not a record.
        """
        if line in self._lines:
            return None
        record = parse(line)
        self._forget_voided(record)
        self._append_line(line)
        self.records.append(record)
        return record

    def flush(self) -> None:
        """Make all records so far safe from a power loss."""
        os.fsync(self._descriptor)

    def salvage(self) -> None:
        """Absorb the records that workers had written when the driver was killed, and flush them.

        The workers' own files may be removed afterwards.
        """
        # Lines that the present driver has taken in and forgotten must not come twice.
        self._read()
        for file in sorted(self.jobs.glob("*/rank-*.jsonl")):
            # The text after the last newline is half a line.
            complete_lines = file.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
            for line in complete_lines:
                try:
                    self.absorb(line)
                except InvalidLine:
                    # Without its record, the case is measured again.
                    continue
        if any(isinstance(record, IsolatedRecord) for record in self.records):
            # What begins anew after the voided lines may write the same ones.
            self._lines.clear()
        self.flush()

    def close(self) -> None:
        """Close the records, which also gives up the lock."""
        if "_descriptor" in vars(self):
            os.close(self._descriptor)
            del self._descriptor

    def _forget_voided(self, record: Record) -> None:
        """Let lines come again that a record voids, because what begins anew may write them."""
        if isinstance(record, IsolatedRecord):
            self._lines.clear()

    def _append_line(self, line: str) -> None:
        """Append one line in a single write, so that a killed driver leaves no half line.

        A full disk can still cut a line short. The next line then begins with a newline.
        """
        text = f"\n{line}\n" if self._torn else f"{line}\n"
        data = text.encode()
        self._torn = True
        while data:
            data = data[self._written_bytes(data) :]
        self._torn = False
        self._lines.add(line)

    def _written_bytes(self, data: bytes) -> int:
        """Write the data or its beginning, and return how many bytes those are."""
        try:
            return os.write(self._descriptor, data)
        except OSError as error:
            # The kernel names no file.
            raise OSError(error.errno, error.strerror, str(self._file)) from error


def create(
    results: Path,
    suite: str,
    command: Sequence[str],
    plan: Sequence[PlannedCase],
    manifest: Manifest | None,
    directory: Path | None = None,
    python: Sequence[str] = (),
    arms: Mapping[str, Any] | None = None,
    goal: Mapping[str, float] | None = None,
    settings: Settings | None = None,
    selection: Selection | None = None,
) -> Run:
    """Make the folder of a new run.

    `manifest` is None where another machine is going to measure (see `Run.begin`). `directory` and
    `python` are the user's own, if any, `arms` describes the sides of a comparison by name, and
    `goal` is the precision asked for and the seconds that it may take. A resumed run goes on with
    all of these and with `settings`. `selection` is the part of the suite that was asked for, which
    tells later why a row is not in the run.
    """
    header = {
        "suite": suite,
        "command": list(command),
        "directory": str(directory.absolute()) if directory else None,
        "python": list(python),
        "arms": dict(arms or {}),
        "goal": dict(goal or {}),
        "settings": asdict(settings or Settings()),
        "selection": selection.to_json() if selection else None,
        "cases": [planned.to_json() for planned in plan],
    }
    text = json.dumps(header, indent=1) + "\n"
    try:
        run = _written(new_folder(results, suite, plan), text)
        if manifest is not None:
            run.begin(manifest)
    except FileExistsError as error:
        raise UsageError(
            f"no run can be stored in {results}, because {error.filename} is no folder"
        ) from error
    except OSError as error:
        raise UsageError(f"no run can be stored in {results}: {error.strerror}") from error
    return run


def _written(wanted: Path, plan: str) -> Run:
    """Make the folder of a run that has its plan, or nothing where the disk is full.

    Its records come last, because no command takes a folder without records for a run.
    """
    folder = _made(wanted)
    try:
        flushing.write_file(folder / PLAN, plan)
        flushing.make_empty_file(folder / RECORDS)
    except OSError:
        # A full disk still removes.
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return Run(folder)


def _made(wanted: Path) -> Path:
    """Make a folder, under another name where another process has just taken the name."""
    folder = wanted
    while True:
        try:
            flushing.make_folder(folder)
        except FileExistsError:
            if not folder.exists():
                # A folder on the way to it is a file, or a link to a disk that is not there.
                raise
            folder = _unused(wanted)
        else:
            return folder


def new_folder(results: Path, suite: str, plan: Sequence[PlannedCase]) -> Path:
    """Return a path for a new run, named after the time, the suite and the frameworks."""
    frameworks = "+".join(sorted({planned.case.framework for planned in plan}))
    return _unused(results / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{suite}-{frameworks}")


def find(results: Path, name: str) -> Path:
    """Return the folder of the run called `name`, or of the newest for "latest".

    Raise UsageError with the names of the runs there are.
    """
    if name != LATEST and records_file(Path(name)).is_file():
        return Path(name)
    known = {folder.name: folder for folder in folders(results)}
    if not known:
        raise UsageError(
            f"there are no runs in {results} yet; measure one, or name the folder with --results"
        )
    if name == LATEST:
        return max(known.values(), key=_begun_at)
    if name not in known:
        raise nearest("run", name, known)
    return known[name]


def _begun_at(folder: Path) -> tuple[str, float]:
    """Return the time in a run's name, then that of its folder, because names count in seconds.

    A folder that its user renamed counts as older than those whose names have a time.
    """
    time = _TIME.match(folder.name)
    return time[0] if time else "", folder.stat().st_mtime


def _unused(folder: Path) -> Path:
    for number in range(1, 1000):
        candidate = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
        if not candidate.exists():
            return candidate
    raise UsageError(f"too many runs are called {folder.name}")
