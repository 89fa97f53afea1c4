"""Resumes from a directory as a user's script does, and judges what it gets."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack
from pathlib import Path

from adapters.base import NothingToRestore
from harness.durability import trees
from harness.experiments.faults.damage import files_of
from harness.experiments.faults.outcome import Outcome
from harness.experiments.faults.states import NEWER
from harness.experiments.faults.subject import open_subject
from harness.wire.case import Case
from harness.worker import verify
from harness.worker.bench import Bench
from harness.worker.failures import describe
from harness.worker.verify import Digests

_REASON_AT_MOST = 300  # characters

Expected = Mapping[str, Digests]
"""The digests of the checkpoints that may come back, by their names."""


class Trial:
    """Loads by one method or store into one state, which is another one before each load."""

    def __init__(
        self,
        bench: Bench,
        case: Case,
        checkpoints: Sequence[AbstractSet[str]],
        saved: Iterable[Digests],
    ) -> None:
        """Take what was saved, and make a state that has no value of any saved one.

        `checkpoints` holds the hashes of all files of each checkpoint. Raises Mismatch where no
        such state can be made.
        """
        self._bench = bench
        self._case = case
        self._scope = bench.scope(case)
        self._checkpoints = checkpoints
        bench.rebuild_target()
        for digests in saved:
            bench.assign_other_bytes(verify.equal_leaves(digests, bench.digests()))
            verify.check_all_differ(digests, bench.digests())
        self._target = self._leaves()
        self._target_digests = bench.digests()

    def resume(self, folder: Path, expected: Expected) -> Outcome:
        """Restore the newest checkpoint that is visible in a folder.

        `expected` holds the digests of each checkpoint that may come back.
        """
        outcome = self._resume(folder, expected)
        if outcome.verdict == "refused":
            return self.refused(folder, outcome.reason)
        if outcome.verdict == "lost" and self._has_a_whole_one(folder):
            return Outcome("lost", "", f"{outcome.reason}, but one has all of its files")
        return outcome

    def refused(self, folder: Path, reason: str) -> Outcome:
        """Return the verdict on a folder from which nothing comes back for this reason."""
        if self._has_a_whole_one(folder):
            return Outcome("refused", "", reason)
        return Outcome("lost", "", f"{reason}; no checkpoint has all of its files")

    def _resume(self, folder: Path, expected: Expected) -> Outcome:
        bench = self._bench
        self._make_target()
        with ExitStack() as closing:
            bench.forget_digests()
            try:
                subject = open_subject(bench, self._case, folder)
                closing.callback(bench.close_method, subject)
                bench.output.enter("load")
                name = subject.resume(bench.state)
                bench.framework.synchronize(bench.state)
                loaded = bench.digests()
            except NothingToRestore as nothing:
                return Outcome("lost", "", _reason(str(nothing), folder))
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException as error:
                # A panic of a Rust extension is no Exception.
                bench.forget_digests()
                bench.thread_errors.clear()
                return Outcome("refused", "", _reason(describe(error), folder))
        return self._judge(loaded, name, expected)

    def _judge(self, loaded: Digests, name: str, expected: Expected) -> Outcome:
        """Return whose bytes a load has brought."""
        # A store may name a step that nobody saved.
        named = [name] if name in expected else []
        for checkpoint in (*named, *expected):
            if not self._wrong_leaves(loaded, expected[checkpoint]):
                return Outcome("safe", checkpoint, "")
        wrong = self._wrong_leaves(loaded, expected[named[0] if named else NEWER])
        return Outcome("silent", "", f"wrong after the load: {verify.listed(wrong)}")

    def _wrong_leaves(self, loaded: Digests, saved: Digests) -> list[str]:
        """Return the covered leaves that are not as they were saved."""
        return [
            name
            for name, digest in saved.items()
            if self._scope.covered(digest)
            and (name not in loaded or loaded[name].sha256 != digest.sha256)
        ]

    def _make_target(self) -> None:
        """Set every leaf to a value that no checkpoint has."""
        bench = self._bench
        bench.output.enter("prepare")
        try:
            bench.framework.assign(bench.state, self._target)
            bench.forget_digests()
            is_target = verify.hashes(bench.digests(), self._target) == verify.hashes(
                self._target_digests, self._target
            )
        except Exception:
            # A refused load may leave leaves of other shapes.
            is_target = False
        if not is_target:
            bench.rebuild_target()
            bench.framework.assign(bench.state, self._target)
            bench.forget_digests()

    def _leaves(self) -> dict[str, memoryview]:
        """Return a copy of the state."""
        leaves = self._bench.framework.leaves(self._bench.state)
        return {leaf.name: memoryview(bytes(leaf.data)) for leaf in leaves}

    def _has_a_whole_one(self, folder: Path) -> bool:
        """Return whether the bytes of all files of either checkpoint are there.

        They may have other names, such as the name of an unfinished file. Somebody can repair that.
        """
        found = set(hashes(files_of(trees.read(folder), {})).values())
        return any(found.issuperset(files) for files in self._checkpoints)


def hashes(files: Mapping[str, bytes]) -> dict[str, str]:
    """Return the hash of every file's bytes."""
    return {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}


def _reason(text: str, folder: Path) -> str:
    """Return an error's text without the folder, which depends on the scratch directory."""
    return text.replace(str(folder), "…")[:_REASON_AT_MOST]
