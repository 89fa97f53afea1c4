"""Guard `lost-settings`: settings of a user's optimizers that a load does not bring back.

A learning rate that a scheduler has changed would be lost without a word. Settings are no leaves,
because some methods hold nothing but tensors, and the workloads of this project never change them.
"""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Any

from adapters.base import Framework

NAME = "lost-settings"

Groups = Sequence[MutableMapping[str, Any]]


class Settings:
    """The settings of a state, which have other values until a load has brought them back."""

    def __init__(self, framework: Framework[Any], state: Any) -> None:
        """Change every setting that is a floating-point number."""
        self._framework = framework
        self._state = state
        self._changed: list[tuple[int, str, float, float]] = []
        for index, group in enumerate(framework.settings(state)):
            for name, value in list(group.items()):
                if isinstance(value, float):
                    group[name] = value + 1.0
                    self._changed.append((index, name, value, group[name]))

    def lost(self) -> str:
        """Return what a load has lost in one sentence, after it is as before; empty if nothing."""
        # A load may put other objects there.
        groups = self._framework.settings(self._state)
        names = set()
        for index, name, value, other in self._changed:
            if groups[index].get(name) == other:
                groups[index][name] = value
                names.add(name)
        if not names:
            return ""
        return (
            f"a load does not bring back the optimizer's settings ({', '.join(sorted(names))}), so "
            "a script that changes them has to save them besides"
        )
