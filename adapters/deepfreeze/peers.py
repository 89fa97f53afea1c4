"""Agreement among the ranks of a job, before and between saves."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class Alone:
    """A world of one rank, which agrees with itself."""

    def of_first(self, make: Callable[[], T]) -> T:
        """Return on every rank what rank 0 makes, or raise on every rank what rank 0 raises."""
        return make()

    def of_all(self, value: T) -> list[T]:
        """Return on every rank the values of all ranks, by rank."""
        return [value]

    def on_all(self, is_well: bool) -> bool:
        """Return whether all is well on every rank."""
        return is_well


class Together(Alone):
    """The ranks that MPI has started.

    Only the main thread may use this, because not every MPI lets other threads in.
    """

    def __init__(self) -> None:
        # The import starts MPI, which a world of one rank does without.
        from mpi4py import MPI

        self._world = MPI.COMM_WORLD

    def of_first(self, make: Callable[[], T]) -> T:
        made, error = _try(make) if self._world.rank == 0 else (None, None)
        made, error = self._world.bcast((made, error))
        if error is not None:
            raise error
        result: T = made
        return result

    def of_all(self, value: T) -> list[T]:
        values: list[T] = self._world.allgather(value)
        return values

    def on_all(self, is_well: bool) -> bool:
        return all(self.of_all(is_well))


def _try(make: Callable[[], T]) -> tuple[T | None, Exception | None]:
    """Return the result of a call and None, or None and the error that it raised."""
    try:
        return make(), None
    except Exception as error:
        return None, error
