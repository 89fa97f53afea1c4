"""The stacks of a worker that stands still, which it writes down when the driver asks for them.

faulthandler writes them in a signal handler, which needs no lock of Python's. So a worker also
answers from a native call that never returns. Standard library only.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
from pathlib import Path

from harness.wire.nodes import node_name

ASK = signal.SIGUSR1
"""The signal by which the driver asks.

It ends a process that has not offered its stacks, and one that is about to exit.
"""

_FRAME = re.compile(r'File "(?P<file>[^"]+)", line \d+ in (?P<function>\S+)')
_STANDARD_LIBRARY = re.compile(r"^<frozen |/python3\.\d+/(?!(site|dist)-packages/)")


def offer(folder: Path) -> None:
    """Have this process write the stacks of all its threads into a file of the folder when asked.

    A process that it forks later is asked only if it offers its own.
    """
    file = (folder / f"{_name()}-{os.getpid()}").open("w")
    faulthandler.register(ASK, file)


def offered(folder: Path) -> dict[int, Path]:
    """Return the files of the processes of this node that have offered their stacks, by number.

    A process may have ended since then.
    """
    files = {}
    for path in folder.iterdir():
        name, _, number = path.name.rpartition("-")
        if name == _name():
            files[int(number)] = path
    return files


def innermost(stacks: str, through: str) -> str:
    """Return the innermost function of one thread, as in "wait of torch/distributed.py".

    It is the thread with a file in its stack whose path contains `through`, else the main thread,
    because a deep stack lacks its outermost frames. Python's own library says little about where a
    thread stands. So its functions count only where the thread has no others.
    """
    threads = [list(_FRAME.finditer(thread)) for thread in stacks.split("\n\n")]
    chosen = [frames for frames in threads if any(through in frame["file"] for frame in frames)]
    # The main thread comes last.
    frames = (chosen or threads[-1:])[0]
    others = [frame for frame in frames if not _STANDARD_LIBRARY.search(frame["file"])]
    for frame in others or frames:
        file = "/".join(frame["file"].split("/")[-2:])
        return f"{frame['function']} of {file}"
    return "a thread that cannot be told"


def _name() -> str:
    """Return the name of a process's file on this node, without the number of the process."""
    return f"stacks-{node_name()}"
