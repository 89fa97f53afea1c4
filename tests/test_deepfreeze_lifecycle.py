"""The states of a DeepFreeze save: the legal transitions, and those that each outcome takes."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path

import pytest
from deepfreeze_states import (
    STEP,
    broken,
    equal,
    interrupting,
    new_engine,
    new_state,
    rank_state,
    save_together,
)

from adapters.deepfreeze import commit, writer
from adapters.deepfreeze.lifecycle import (
    TRANSITIONS,
    IllegalTransition,
    Lifecycle,
    State,
    Transition,
)
from adapters.deepfreeze.writer import FileWriter

pytest_plugins = ["deepfreeze_fixtures"]

SUCCESS = ["begin", "take over", "release", "seal", "commit", "publish"]
PATHS = {
    State.NEW: [],
    State.BEGINNING: ["begin"],
    State.COPYING: ["begin", "take over"],
    State.WRITING: ["begin", "take over", "release"],
    State.FLUSHING: ["begin", "take over", "release", "seal"],
    State.COMMITTING: ["begin", "take over", "release", "seal", "commit"],
    State.DURABLE: SUCCESS,
    State.GIVING_UP: ["begin", "abort"],
    State.FAILED: ["begin", "abort", "clean up"],
}
PAIRS = list(itertools.product(State, Transition))
LEGAL = [
    (origin, transition) for origin, transition in PAIRS if origin in TRANSITIONS[transition][0]
]
ILLEGAL = [pair for pair in PAIRS if pair not in LEGAL]


def lifecycle_in(state: State) -> Lifecycle:
    lifecycle = Lifecycle()
    for name in PATHS[state]:
        lifecycle.apply(Transition(name))
    assert lifecycle.state is state
    return lifecycle


@pytest.mark.parametrize(("origin", "transition"), LEGAL)
def test_a_legal_transition_leads_to_its_state(origin: State, transition: Transition) -> None:
    lifecycle = lifecycle_in(origin)
    lifecycle.apply(transition)
    assert lifecycle.state is TRANSITIONS[transition][1]


@pytest.mark.parametrize(("origin", "transition"), ILLEGAL)
def test_an_illegal_transition_raises_and_changes_nothing(
    origin: State, transition: Transition
) -> None:
    lifecycle = lifecycle_in(origin)
    message = f"a save that is {origin.value} cannot {transition.value}"
    with pytest.raises(IllegalTransition, match=message):
        lifecycle.apply(transition)
    assert not lifecycle.claim(transition)
    assert lifecycle.state is origin


def test_the_transitions_are_those_of_the_diagram() -> None:
    assert {(origin.name, step.value, TRANSITIONS[step][1].name) for origin, step in LEGAL} == {
        ("NEW", "begin", "BEGINNING"),
        ("BEGINNING", "take over", "COPYING"),
        ("COPYING", "release", "WRITING"),
        ("WRITING", "seal", "FLUSHING"),
        ("FLUSHING", "commit", "COMMITTING"),
        ("COMMITTING", "publish", "DURABLE"),
        ("NEW", "abort", "GIVING_UP"),
        ("BEGINNING", "abort", "GIVING_UP"),
        ("COPYING", "fail", "GIVING_UP"),
        ("WRITING", "fail", "GIVING_UP"),
        ("FLUSHING", "fail", "GIVING_UP"),
        ("COMMITTING", "fail", "GIVING_UP"),
        ("GIVING_UP", "clean up", "FAILED"),
    }


@pytest.mark.parametrize("state", State)
def test_waits_end_when_the_state_is_reached(state: State) -> None:
    lifecycle = lifecycle_in(state)
    is_released = state in (
        State.WRITING,
        State.FLUSHING,
        State.COMMITTING,
        State.DURABLE,
        State.FAILED,
    )
    assert lifecycle.wait_until_released(timeout_s=0) == is_released
    assert lifecycle.wait_until_ended(timeout_s=0) == (state in (State.DURABLE, State.FAILED))


def test_only_one_of_several_threads_claims_a_transition() -> None:
    for _ in range(50):
        lifecycle = lifecycle_in(State.BEGINNING)
        barrier = threading.Barrier(2)
        claimed: list[Transition] = []

        def claim(
            transition: Transition, lifecycle: Lifecycle, barrier: threading.Barrier, claimed: list
        ) -> None:
            barrier.wait()
            if lifecycle.claim(transition):
                claimed.append(transition)

        threads = [
            threading.Thread(target=claim, args=(transition, lifecycle, barrier, claimed))
            for transition in (Transition.TAKE_OVER, Transition.ABORT)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(claimed) == 1


# Saves


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the transitions that a save takes."""
    names: list[str] = []
    claim = Lifecycle.claim

    def record(self: Lifecycle, transition: Transition) -> bool:
        is_legal = claim(self, transition)
        if is_legal:
            names.append(transition.value)
        return is_legal

    monkeypatch.setattr(Lifecycle, "claim", record)
    return names


@pytest.mark.parametrize("ring_bytes", [None, 1 << 17])
def test_a_save_that_succeeds_takes_every_step(
    folder: Path, ring_bytes: int | None, taken: list[str]
) -> None:
    save = new_engine(ring_bytes=ring_bytes).save(new_state(1), folder / "checkpoint", STEP)
    save.finished()
    assert taken == SUCCESS
    assert save.is_durable


@pytest.mark.parametrize("name", ["buffers/mean", "weights/a"], ids=["forward", "update"])
def test_a_copy_that_fails(folder: Path, name: str, taken: list[str]) -> None:
    save = new_engine().save(broken(new_state(1), name), folder / "checkpoint", STEP)
    with pytest.raises(OSError, match="Input/output error"):
        save.finished()
    middle = ["abort"] if name == "buffers/mean" else ["take over", "fail"]
    assert taken == ["begin", *middle, "clean up"]
    assert not save.is_durable
    assert not save.is_whole


def test_a_target_that_exists(saved: Path, taken: list[str]) -> None:
    save = new_engine().save(new_state(2), saved, STEP)
    with pytest.raises(FileExistsError):
        save.finished()
    assert taken == ["begin", "abort", "clean up"]


def test_a_write_that_fails_leaves_the_arena_whole(
    folder: Path, taken: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(descriptor: int, data: memoryview, offset: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer, "write_all", fail)
    save = new_engine().save(new_state(1), folder / "checkpoint", STEP)
    with pytest.raises(OSError, match="No space left on device"):
        save.finished()
    assert taken == ["begin", "take over", "release", "seal", "fail", "clean up"]
    assert not save.is_durable
    assert save.is_whole


def test_a_name_that_cannot_be_made_durable(
    folder: Path, taken: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path) -> None:
        if path == folder:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(commit, "sync_directory", fail)
    save = new_engine().save(new_state(1), folder / "checkpoint", STEP)
    with pytest.raises(OSError, match="Input/output error"):
        save.finished()
    assert taken == [*SUCCESS[:-1], "fail", "clean up"]
    assert (folder / "checkpoint").exists()
    assert not save.is_durable


def test_another_rank_that_fails(folder: Path, taken: list[str]) -> None:
    sources = [rank_state(0), broken(rank_state(1), "rng/cpu")]
    save_together(folder / "checkpoint", 2, sources.__getitem__)
    # Rank 0 has got as far as the commit, and rank 1 could not begin.
    assert sorted(taken) == sorted(
        [*SUCCESS[:-1], "fail", "clean up", "begin", "abort", "clean up"]
    )


def test_an_interrupt_of_the_beginning(folder: Path, taken: list[str]) -> None:
    engine = new_engine()
    with pytest.raises(KeyboardInterrupt):
        engine.save(interrupting(new_state(1), "rng/cpu"), folder / "checkpoint", STEP)
    assert taken == ["begin", "abort", "clean up"]
    # It is raised once.
    engine.wait()
    assert list(folder.iterdir()) == []


def test_a_save_that_is_cancelled(
    folder: Path, taken: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    is_sealed = threading.Event()
    is_cancelled = threading.Event()
    drain, stop = FileWriter.drain, FileWriter.stop

    def drain_and_wait(self: FileWriter) -> None:
        drain(self)
        is_sealed.set()
        assert is_cancelled.wait(30)

    def stop_and_say_so(self: FileWriter, error: BaseException) -> None:
        stop(self, error)
        is_cancelled.set()

    monkeypatch.setattr(FileWriter, "drain", drain_and_wait)
    monkeypatch.setattr(FileWriter, "stop", stop_and_say_so)
    engine = new_engine()
    engine.save(new_state(1), folder / "checkpoint", STEP)
    assert is_sealed.wait(30)
    engine.cancel(KeyboardInterrupt())
    assert taken == ["begin", "take over", "release", "seal", "fail", "clean up"]
    # The caller knows of it.
    engine.wait()
    assert list(folder.iterdir()) == []


def test_a_save_that_is_started_twice_goes_on(folder: Path, taken: list[str]) -> None:
    engine = new_engine()
    save = engine.save(new_state(1), folder / "checkpoint", STEP)
    with pytest.raises(IllegalTransition, match="cannot begin; this is a mistake in DeepFreeze"):
        save.start()
    save.finished()
    assert taken == SUCCESS
    loaded = engine.load(folder / "checkpoint", [], {})
    assert equal(loaded, {})
