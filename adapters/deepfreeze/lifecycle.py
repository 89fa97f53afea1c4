"""The states of a save, the transitions between them, and the one place that changes the state."""

from __future__ import annotations

import threading
from enum import Enum


class State(Enum):
    """A state of a save. `Save` has the diagram."""

    NEW = "new"
    BEGINNING = "beginning"
    COPYING = "copying"
    WRITING = "writing"
    FLUSHING = "flushing"
    COMMITTING = "committing"
    DURABLE = "durable"
    GIVING_UP = "giving up"
    FAILED = "failed"


class Transition(Enum):
    """A named step from one state of a save to another."""

    BEGIN = "begin"
    TAKE_OVER = "take over"
    RELEASE = "release"
    SEAL = "seal"
    COMMIT = "commit"
    PUBLISH = "publish"
    ABORT = "abort"
    FAIL = "fail"
    CLEAN_UP = "clean up"


class IllegalTransition(RuntimeError):
    """A save was asked for a transition that its state does not allow."""


# transition: (the states in which it is legal, the state that it leads to)
TRANSITIONS: dict[Transition, tuple[frozenset[State], State]] = {
    Transition.BEGIN: (frozenset({State.NEW}), State.BEGINNING),
    Transition.TAKE_OVER: (frozenset({State.BEGINNING}), State.COPYING),
    Transition.RELEASE: (frozenset({State.COPYING}), State.WRITING),
    Transition.SEAL: (frozenset({State.WRITING}), State.FLUSHING),
    Transition.COMMIT: (frozenset({State.FLUSHING}), State.COMMITTING),
    Transition.PUBLISH: (frozenset({State.COMMITTING}), State.DURABLE),
    Transition.ABORT: (frozenset({State.NEW, State.BEGINNING}), State.GIVING_UP),
    Transition.FAIL: (
        frozenset({State.COPYING, State.WRITING, State.FLUSHING, State.COMMITTING}),
        State.GIVING_UP,
    ),
    Transition.CLEAN_UP: (frozenset({State.GIVING_UP}), State.FAILED),
}
# In these states nobody needs the memory of the training any more.
_RELEASED = frozenset({State.WRITING, State.DURABLE, State.FAILED})
_ENDS = frozenset({State.DURABLE, State.FAILED})


class Lifecycle:
    """The state of a save. Several threads look at it, and wait for it."""

    def __init__(self) -> None:
        self._state = State.NEW
        self._lock = threading.Lock()
        self._released = threading.Event()
        self._ended = threading.Event()

    @property
    def state(self) -> State:
        """The present state."""
        return self._state

    def apply(self, transition: Transition) -> None:
        """Change the state. Raise IllegalTransition if the present one does not allow that."""
        if not self.claim(transition):
            raise IllegalTransition(
                f"a save that is {self._state.value} cannot {transition.value}; this is a mistake "
                "in DeepFreeze, please report it"
            )

    def claim(self, transition: Transition) -> bool:
        """Change the state if the present one allows that, and return whether it does.

        Of several threads that claim a transition out of the same state, only one succeeds.
        """
        origins, target = TRANSITIONS[transition]
        with self._lock:
            if self._state not in origins:
                return False
            self._state = target
        if target in _RELEASED:
            self._released.set()
        if target in _ENDS:
            self._ended.set()
        return True

    def wait_until_released(self, timeout_s: float | None = None) -> bool:
        """Return when training may change everything again, or False after the timeout."""
        return self._released.wait(timeout_s)

    def wait_until_ended(self, timeout_s: float | None = None) -> bool:
        """Return when the save is durable or has failed, or False after the timeout."""
        return self._ended.wait(timeout_s)
