"""Resumes from a directory as a user's script does, and judges what it gets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from harness.durability import trees
from harness.durability.trees import Tree
from harness.experiments.faults.outcome import Outcome
from harness.experiments.faults.states import OLDER, newest_of
from harness.wire.case import Case
from harness.worker import verify
from harness.worker.bench import Bench
from harness.worker.failures import describe
from harness.worker.verify import Digests

_REASON_AT_MOST = 300  # characters

Expected = Mapping[str, Digests]
"""The digests of the checkpoints that may come back, by their names."""


class Trial:
    """Loads by one method into one state, which is another one before each load."""

    def __init__(self, bench: Bench, case: Case, saved: Iterable[Digests]) -> None:
        """Make a state that has no value of any saved one. Raises Mismatch where that fails."""
        self._bench = bench
        self._case = case
        self._scope = bench.scope(case)
        bench.rebuild_target()
        for digests in saved:
            bench.assign_other_bytes(verify.equal_leaves(digests, bench.digests()))
            verify.check_all_differ(digests, bench.digests())
        self._target = self._leaves()
        self._target_digests = bench.digests()

    def resume(self, folder: Path, whole: Tree, expected: Expected) -> Outcome:
        """Load the newest checkpoint that is visible in a folder.

        `whole` is the older checkpoint as it was when it was complete. `expected` holds the digests
        of each checkpoint that may come back.
        """
        newest = newest_of(path.name for path in folder.iterdir())
        if newest is None:
            return Outcome("lost", "", "no checkpoint is visible")
        outcome = self._load(folder / newest, expected)
        if outcome.verdict == "refused" and not self._is_whole(folder, whole):
            return Outcome("lost", "", f"{outcome.reason}; the older checkpoint is damaged too")
        return outcome

    def _load(self, path: Path, expected: Expected) -> Outcome:
        bench = self._bench
        self._make_target()
        method = bench.open_method(self._case)
        bench.forget_digests()
        bench.output.enter("load")
        try:
            method.load(bench.state, path)
            bench.framework.synchronize(bench.state)
            loaded = bench.digests()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:
            # A panic of a Rust extension is no Exception.
            bench.forget_digests()
            bench.thread_errors.clear()
            return Outcome("refused", "", describe(error)[:_REASON_AT_MOST])
        finally:
            bench.close_method(method)
        return self._judge(loaded, path.name, expected)

    def _judge(self, loaded: Digests, name: str, expected: Expected) -> Outcome:
        """Return whose bytes a load has brought."""
        for checkpoint in (name, *expected):
            if not self._wrong_leaves(loaded, expected[checkpoint]):
                return Outcome("safe", checkpoint, "")
        wrong = self._wrong_leaves(loaded, expected[name])
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

    def _is_whole(self, folder: Path, whole: Tree) -> bool:
        """Return whether the older checkpoint has all of its files as they were."""
        found = _below(trees.read(folder), [OLDER])
        return trees.difference(_below(whole, [OLDER]), found) is None


def _below(tree: Tree, checkpoints: Iterable[str]) -> Tree:
    kept = tuple(checkpoints)
    return {name: node for name, node in tree.items() if name.split("/")[0] in kept}
