"""The store of this engine behind the contract of stores, for one framework."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, TypeVar

from adapters import base
from adapters.base import Pending
from adapters.deepfreeze.method import DeepFreezeMethod
from adapters.deepfreeze.store import Store

StateT = TypeVar("StateT")


class DeepFreezeManaged(base.Store[StateT]):
    """DeepFreeze's store, whose option `keep` is the number of checkpoints that stay.

    The other options are those of the method.
    """

    method_class: ClassVar[type[DeepFreezeMethod[Any]]]

    def open(self, state: StateT, folder: Path) -> None:
        method = self.method_class(self.place, self.framework, self.options)
        method.open(state)
        try:
            self._store = Store(method, folder, self.options["keep"])
        except BaseException:
            method.close()
            raise

    def save(self, state: StateT, step: int) -> Pending:
        return self._store.save(state, step)

    def restore_latest(self, state: StateT) -> int:
        return self._store.restore(state).step

    def close(self) -> None:
        self._store.close()
