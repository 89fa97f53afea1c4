"""Orders of a program to the gate around it: which of its system calls shall be struck, and how.

The program gives an order by asking whether a path exists that spells the order. Nothing has such a
path. The gate (`harness.durability.gate`) sees the call, takes the order and answers that the path
exists, so that the program knows that it was heard. The gate counts in a report file. Both sides of
the process border import this module, so it needs the standard library only.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final, Literal, cast, get_args

# Each stands for a family of calls. "change" is every call that changes a file or a name, and
# "directory" is every change but a write: a creation, a truncation, a rename, a removal.
Struck = Literal["write", "open", "fsync", "rename", "close", "change", "directory"]
# "kill" kills all processes under the gate, "kill-process" only the one that makes the call, and
# "kill-session" all of that one's session but its tracers, and "kill-group" all of its process
# group. All kill before the call takes effect. "kill-others" kills all groups but the caller's and
# the gate's own, and the call goes on: mpirun starts each rank in a group of its own.
# "short" writes half of the bytes.
Effect = Literal[
    "EIO", "ENOSPC", "kill", "kill-process", "kill-session", "kill-group", "kill-others", "short"
]

_PREFIX = "/ckptbench/gate/"
OFF: Final = "off"
NEVER = 10**9
"""The number of a call that no save makes, to have calls counted without striking any."""

_ONCE = "once"
_LASTING = "lasting"


@dataclass(frozen=True)
class Strike:
    """An order to strike one system call, or that one and all later ones of its family.

    Raises ValueError if the number is below 1, or if a call that is no write shall be short.
    """

    call: Struck
    # counts the calls of the family from the order on, beginning with 1
    number: int
    effect: Effect
    # Every later call of the family is struck too.
    lasting: bool = False

    def __post_init__(self) -> None:
        if self.number < 1:
            raise ValueError(f"a strike counts calls from 1, so it cannot hit call {self.number}")
        if self.effect == "short" and self.call != "write":
            raise ValueError(f'only the call "write" can be short, not "{self.call}"')


@dataclass(frozen=True)
class Report:
    """The calls that the gate saw since the last order."""

    struck: int = 0
    # the calls of the ordered family, those before the strike and after it included
    seen: int = 0
    # the first struck call in words, such as "write to step-2/model.pt"
    first: str | None = None
    # how many of the calls that were seen write bytes
    writes: int = field(default=0, compare=False, repr=False)
    # the numbers of the calls that rename, counted as `seen` counts
    renames: tuple[int, ...] = field(default=(), compare=False, repr=False)
    # the process group of the first struck call, and its instant on the system's monotonic clock
    group: int = field(default=0, compare=False, repr=False)
    at_ns: int = field(default=0, compare=False, repr=False)


def order(strike: Strike) -> bool:
    """Order a strike in place of the previous one. Return False if no gate is around this program.

    The gate counts calls from now on.
    """
    return os.access(spelled(strike), os.F_OK)


def call_off() -> bool:
    """End the strike, and let the gate report. Return False if no gate is around this program."""
    return os.access(spelled(OFF), os.F_OK)


def spelled(wanted: Strike | Literal["off"]) -> str:
    """Return the path that stands for an order, or for the end of one."""
    if not isinstance(wanted, Strike):
        return _PREFIX + wanted
    duration = _LASTING if wanted.lasting else _ONCE
    return f"{_PREFIX}{wanted.call}/{wanted.number}/{wanted.effect}/{duration}"


def parse(path: str) -> Strike | Literal["off"] | None:
    """Return the order that a path stands for, or None for every other path."""
    if path == spelled(OFF):
        return OFF
    parts = path.removeprefix(_PREFIX).split("/")
    if not path.startswith(_PREFIX) or len(parts) != 4:
        return None
    call, number, effect, duration = parts
    is_known = call in get_args(Struck) and effect in get_args(Effect)
    if not is_known or not number.isdecimal() or duration not in (_ONCE, _LASTING):
        return None
    try:
        return Strike(cast(Struck, call), int(number), cast(Effect, effect), duration == _LASTING)
    except ValueError:
        return None


def write_report(path: Path, report: Report) -> None:
    """Replace the report, so that a reader sees the old one or the new one.

    Raises OSError if the file or the one beside it cannot be written.
    """
    unfinished = path.with_name(path.name + ".new")
    unfinished.write_text(json.dumps(asdict(report)))
    unfinished.replace(path)


def read_report(path: Path) -> Report:
    """Read the report of a gate. A gate that was given no order has written none.

    Raises OSError if the file cannot be read, and ValueError if it holds no report.
    """
    content = json.loads(path.read_text())
    try:
        return Report(**content | {"renames": tuple(content["renames"])})
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} holds no report of a gate: {error}") from error
