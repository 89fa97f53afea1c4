"""One folder per run: its manifest, its plan, and its records, which are only ever appended to."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from harness.run.errors import UsageError, nearest
from harness.run.manifest import Manifest
from harness.run.plan import PlannedCase, Selection
from harness.run.reading import InvalidLine, parse
from harness.run.stored import MANIFEST, PLAN, RECORDS, StoredRun, folders
from harness.wire.case import SUMMARY_ABOVE
from harness.wire.records import Record, to_line

LATEST = "latest"


@dataclass(frozen=True)
class Settings:
    """What is said once for a whole run: it goes on with the same when it is resumed, and in a Slurm job.

    In a world of more than `summary_above` ranks, one record stands for the samples of all.
    `mpirun` is that of the system's own Open MPI, where the user has named one. A worker without
    progress for `timeout_s` is ended; None leaves that to its job. `site` is the file that says
    what Slurm is told, where not the user's own.
    """

    summary_above: int = SUMMARY_ABOVE
    mpirun: str | None = None
    timeout_s: float | None = None
    site: str | None = None


class Run(StoredRun):
    """A stored run, open for appending."""

    @property
    def settings(self) -> Settings:
        """What was said for the whole run, where anything was."""
        return Settings(**(self.header.get("settings") or {}))

    def _read(self) -> None:
        super()._read()
        content = self._file.read_text(errors="replace")
        self._lines = set(content.splitlines())
        self._torn = not content.endswith("\n") and content != ""

    @cached_property
    def _descriptor(self) -> int:
        """Opened for the first lock or line: a run that is only looked at may lie where nothing can be written."""
        return os.open(self._file, os.O_WRONLY | os.O_APPEND)

    def begin(self, manifest: Manifest) -> None:
        """Keep the machine on which the run is measured."""
        (self.folder / MANIFEST).write_text(json.dumps(manifest.to_json(), indent=1) + "\n")

    def discard(self) -> None:
        """Remove a run that holds nothing."""
        self.close()
        shutil.rmtree(self.folder)

    @property
    def jobs(self) -> Path:
        """Where jobs lie while they run."""
        return self.folder / "jobs"

    def lock(self) -> None:
        """Keep a second driver out of this run, and see what one before it has left.

        Raises UsageError where one is at work.
        """
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UsageError(f"run {self.name} is being measured by another process") from error
        self._read()  # that process may have ended, with new records, since the run was opened

    def append(self, record: Record) -> None:
        """Append a record of the driver's own."""
        self._append_line(to_line(record).rstrip("\n"))
        self.records.append(record)

    def absorb(self, line: str) -> Record | None:
        """Append a worker's line once it has been validated; None where the run has it already.

        Raises InvalidLine.
        """
        if line in self._lines:
            return None
        record = parse(line)
        self._append_line(line)
        self.records.append(record)
        return record

    def salvage(self) -> None:
        """Absorb what workers had written when the driver was killed."""
        for file in sorted(self.jobs.glob("*/rank-*.jsonl")):
            # what follows the last newline is half a line
            for line in file.read_text(errors="replace").split("\n")[:-1]:
                try:
                    self.absorb(line)
                except InvalidLine:
                    continue  # its case has no number, so it is measured again

    def close(self) -> None:
        """Let go of the file."""
        if "_descriptor" in vars(self):
            os.close(self._descriptor)
            del self._descriptor

    def _append_line(self, line: str) -> None:
        """One write for the whole line: a killed driver leaves none in two.

        A full disk may, and then the next begins anew.
        """
        data = ("\n" * self._torn + line + "\n").encode()
        self._torn = True
        while data:
            data = data[os.write(self._descriptor, data) :]
        self._torn = False
        self._lines.add(line)


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

    `manifest` is None where another machine is going to measure: see `Run.begin`.

    `directory` and `python` are what the user has named, where anything: a resumed run goes on with
    the same. So it does with `arms`, what the sides of a comparison are by name, with `goal`, the
    precision asked for and the seconds it may take, and with `settings`. `selection` is to what the
    suite was narrowed: without it, nobody knows why a row is not in the run.
    """
    folder = new_folder(results, suite, plan)
    folder.mkdir(parents=True)
    header = {
        "suite": suite,
        "command": list(command),
        "directory": str(directory.absolute()) if directory else None,
        "python": list(python),
        "arms": dict(arms or {}),
        "goal": dict(goal or {}),
        "settings": asdict(settings or Settings()),
        "selection": selection.to_json() if selection else None,
        # by which the records name them
        "cases": [{"id": item.case.id, **asdict(item)} for item in plan],
    }
    (folder / PLAN).write_text(json.dumps(header, indent=1) + "\n")
    (folder / RECORDS).touch()
    run = Run(folder)
    if manifest is not None:
        run.begin(manifest)
    return run


def new_folder(results: Path, suite: str, plan: Sequence[PlannedCase]) -> Path:
    """Return a path for a new run, named after the time, the suite and the frameworks."""
    frameworks = sorted({item.case.framework for item in plan})
    return _unused(results / f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{suite}-{'+'.join(frameworks)}")


def find(results: Path, name: str) -> Path:
    """Return the folder of the run called `name`, or of the newest for "latest".

    Raises UsageError naming those that exist.
    """
    known = {folder.name: folder for folder in folders(results)}
    if name != LATEST and (Path(name) / RECORDS).is_file():
        return Path(name)
    if not known:
        raise UsageError(f"there are no runs in {results} yet")
    if name == LATEST:
        return max(
            known.values(),
            key=lambda folder: (re.sub(r"\D", "", folder.name[:15]), folder.stat().st_mtime),
        )
    if name not in known:
        raise nearest("run", name, sorted(known))
    return known[name]


def _unused(folder: Path) -> Path:
    for number in range(1, 1000):
        candidate = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
        if not candidate.exists():
            return candidate
    raise UsageError(f"too many runs are called {folder.name}")
