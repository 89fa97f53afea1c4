"""Saves whose system calls fail: with an error, or with fewer bytes written than asked."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from harness.durability import trees
from harness.durability.trees import Tree
from harness.experiments.faults import left as lefts
from harness.experiments.faults import left_behind
from harness.experiments.faults.alarm import killed_after
from harness.experiments.faults.left import NEXT, Left
from harness.experiments.faults.recorded_save import AT, BEGIN, RecordedSave, first_number
from harness.experiments.faults.states import NEWER
from harness.experiments.faults.subject import Subject, open_subject
from harness.wire import strikes
from harness.wire.case import Case
from harness.wire.strikes import Effect, Strike, Struck
from harness.worker import storage, usage, verify
from harness.worker.bench import Bench
from harness.worker.failures import describe


class BrokenSave(Exception):
    """A save raises by itself, so nothing can be said of its errors."""


Leaves = Mapping[str, memoryview]
"""The bytes of every leaf of a state, by the names of the leaves."""

FAMILIES: tuple[Struck, ...] = ("write", "fsync", "rename", "open", "close")
_ERRORS: tuple[Effect, ...] = ("EIO", "ENOSPC")
_SAID_AT_MOST = 200  # characters of an error
# A save that waits for a thread that an error has ended waits for ever.
_SAVE_AT_MOST_S = 20.0
_UNDISTURBED = 5  # openings with two saves, to learn what they leave


def strikes_of(counts: Mapping[Struck, int]) -> Iterator[Strike]:
    """Yield the strikes of a save that makes so many calls of each family.

    They hit the first, a middle and the last call, once and from then on.
    """
    for family in FAMILIES:
        count = counts[family]
        if not count:
            continue
        for number in sorted({1, (count + 1) // 2, count}):
            for effect in _ERRORS:
                yield Strike(family, number, effect)
                yield Strike(family, number, effect, lasting=True)
    writes = counts["write"]
    if writes:
        for number in sorted({1, (writes + 1) // 2, writes}):
            yield Strike("write", number, "short")
        yield Strike("write", 1, "short", lasting=True)


@dataclass(frozen=True)
class _Saved:
    """The end of one save: what it raised, or nothing where it reported success."""

    raised: str = ""

    @property
    def in_words(self) -> str:
        return f"the save raised {self.raised}" if self.raised else "the save reported success"


class Errors:
    """Saves by one method under errors, one after the other in one process."""

    def __init__(self, bench: Bench, case: Case, save: RecordedSave) -> None:
        """Make the state that is saved."""
        self._bench = bench
        self._case = case
        self._before: Tree = save.before
        self._recorded = bench.folders.recording(case)
        self._report = bench.folders.gate_report
        self._begin = first_number(self._recorded)
        # A process that goes on behind a save without an end saves other states.
        self._expected = lefts.of_errors(self._begin)
        self._struck = self._new_state(self._expected)
        # A method that saves a copy of the struck state once more must not pass.
        self._next = self._new_state(lefts.next_of(self._expected))
        self._usual: set[str] = set()
        self._usual_bytes: list[int] = []
        for _ in range(_UNDISTURBED):
            self._save_undisturbed()
        self._resident_bytes: list[int] = []

    def _new_state(self, name: str) -> Leaves:
        """Train the state, store its digests under a name, and return its leaves."""
        bench = self._bench
        bench.train()
        bench.add_fresh_bits()
        digests = verify.digests_to_json(bench.digests())
        lefts.store_expected(self._recorded, name, digests)
        return {
            leaf.name: memoryview(bytes(leaf.data)) for leaf in bench.framework.leaves(bench.state)
        }

    def strike_all(self) -> int:
        """Save under every strike, store what each leaves, and return how many hit a call."""
        hit = 0
        for number, strike in enumerate(strikes_of(self._counts())):
            if number >= self._begin:
                hit += self._strike(number, strike)
        (self._recorded / AT).unlink(missing_ok=True)
        (self._recorded / BEGIN).unlink(missing_ok=True)
        return hit

    @property
    def grew_bytes(self) -> int:
        """Return by how much memory grew from the first hit to the last.

        That of as many undisturbed saves does not count.
        """
        repeated = len(self._resident_bytes) - 1
        if repeated < 1:
            return 0
        grew = self._resident_bytes[-1] - self._resident_bytes[0]
        usual = (self._usual_bytes[-1] - self._usual_bytes[0]) / (_UNDISTURBED - 1)
        return max(0, int(grew - repeated * max(0.0, usual)))

    def _save_undisturbed(self) -> None:
        """Save twice, and note which names and how much memory that leaves."""
        folder = self._folder()
        with self._opened(folder) as subject:
            self._save_well(subject, folder / NEWER)
            self._save_well(subject, folder / NEXT)
        self._usual |= left_behind.patterns({**self._before, **trees.read_settled(folder)})
        storage.remove_tree(folder)
        self._usual_bytes.append(usage.resident_bytes())

    def _counts(self) -> dict[Struck, int]:
        """Return how many calls of each family one undisturbed save makes."""
        counts: dict[Struck, int] = {}
        for family in FAMILIES:
            folder = self._folder()
            with self._opened(folder) as subject:
                strikes.order(Strike(family, strikes.NEVER, "EIO"))
                self._save_well(subject, folder / NEWER)
                strikes.call_off()
            counts[family] = strikes.read_report(self._report).seen
            storage.remove_tree(folder)
        return counts

    def _folder(self) -> Path:
        """Return a new folder that holds the older checkpoint."""
        folder = self._bench.checkpoints.fresh().parent
        trees.write(self._before, folder)
        return folder

    def _strike(self, number: int, strike: Strike) -> bool:
        """Save under one strike and once more after it. Return whether the strike hit a call."""
        folder = self._folder()
        words = _in_words(strike)
        self._set(self._struck)
        self._stand_at(number, "error", words, folder)
        processes = usage.descendants()
        left: Left | None = None
        with self._opened(folder) as subject:
            strikes.order(strike)
            saved = self._save(subject, folder / NEWER)
            strikes.call_off()
            report = strikes.read_report(self._report)
            if report.struck:
                words = f"{words} ({_call_in_words(report.first, folder)})"
                self._keep(strike, words, saved, folder)
                self._stand_at(number, "next save", words, folder)
                left = self._save_again(subject, words, folder)
        if left is not None:
            self._keep_next(left, folder, processes)
        storage.remove_tree(folder)
        return report.struck > 0

    def _set(self, leaves: Leaves) -> None:
        """Give the state these values."""
        self._bench.framework.assign(self._bench.state, leaves)
        self._bench.forget_digests()

    def _stand_at(self, number: int, save: str, words: str, folder: Path) -> None:
        """Store at which save this process stands, because that one may never end."""
        at = {
            "number": number,
            "strike": save,
            "in_words": words,
            "folder": str(folder),
            "expected": self._expected,
        }
        (self._recorded / AT).write_text(json.dumps(at))

    def _keep(self, strike: Strike, words: str, saved: _Saved, folder: Path) -> None:
        """Store what a struck save has left."""
        success = not saved.raised
        lie = ""
        if success and strike.call == "fsync":
            # The kernel reports a failed flush once. The bytes may be gone after that.
            lie = "the save reported success although a flush had failed"
        said = saved.in_words
        left = Left("error", words, self._expected, said, NEWER if success else "", lie)
        lefts.store(self._recorded, left, trees.read_settled(folder))

    def _save_again(self, subject: Subject, words: str, folder: Path) -> Left:
        """Save another state with the same method, now that nothing strikes."""
        self._set(self._next)
        saved = self._save(subject, folder / NEXT)
        return Left(
            "next save",
            lefts.words_of_next(words),
            self._expected,
            saved.in_words,
            must_be="" if saved.raised else NEXT,
        )

    def _keep_next(self, left: Left, folder: Path, processes: Sequence[int]) -> None:
        """Store what the next save has left once its method is closed."""
        tree = trees.read_settled(folder)
        left = replace(
            left,
            stray_files=left_behind.stray_files(tree, self._usual),
            stray_processes=left_behind.left_processes(processes),
        )
        lefts.store(self._recorded, left, tree)
        self._resident_bytes.append(usage.resident_bytes())

    @contextmanager
    def _opened(self, folder: Path) -> Iterator[Subject]:
        """Open the method or store on a folder, and close it even if it is broken by then."""
        subject = open_subject(self._bench, self._case, folder)
        try:
            yield subject
        finally:
            try:
                self._bench.close_method(subject)
            except Exception as error:
                print(f"closing after an error raised: {describe(error)}")

    def _save_well(self, subject: Subject, path: Path) -> None:
        """Save where nothing strikes. Raise BrokenSave where that raises, which no error explains.

        Otherwise the first error would be blamed for it.
        """
        saved = self._save(subject, path)
        if saved.raised:
            strikes.call_off()
            raise BrokenSave(f"a save that no error struck raised {saved.raised}")

    def _save(self, subject: Subject, path: Path) -> _Saved:
        """Save, and return what that raised. End the process if it does not end."""
        bench = self._bench
        bench.output.enter("save")
        try:
            with killed_after(_SAVE_AT_MOST_S):
                _save_to_the_end(subject, bench, path)
            bench.thread_errors.raise_first()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            # A panic of a Rust extension is no Exception.
            bench.thread_errors.clear()
            said = describe(error).replace(str(path.parent), "…")
            return _Saved(said[:_SAID_AT_MOST])
        return _Saved()


def _save_to_the_end(subject: Subject, bench: Bench, path: Path) -> None:
    pending = subject.save(bench.state, path)
    pending.staged()
    pending.finished()


def _call_in_words(call: str | None, folder: Path) -> str:
    """Return the struck call without the name of the folder, which is another one for each save."""
    return (call or "an unknown call").replace(f"{folder.name}/", "")


def _in_words(strike: Strike) -> str:
    ordinal = f"{strike.call} number {strike.number}"
    if strike.effect == "short":
        return f"half of the bytes of {ordinal}{' and all later ones' if strike.lasting else ''}"
    return f"{strike.effect} at {ordinal}{' and all later ones' if strike.lasting else ''}"
