"""`python -m adapters.pytorch.torchft_launcher RANKS ARGUMENTS`: ranks beside a lighthouse.

Each rank is a process of this interpreter with the arguments. It is a replica group of torchft, so
its death concerns no other one. A rank that a signal has ended is started again.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import NoReturn
from urllib.parse import urlsplit

# A heartbeat comes every 0.1 s, and torchft's own limit is 5 s. Within that a new process is often
# ready, so that nobody would see the others go on without it.
_HEARTBEAT_TIMEOUT_MS = 2000
# The default of torchft's own command. The class has 100 ms, so that each quorum leaves out the
# rank that comes last, and that rank is behind in the next one.
_JOIN_TIMEOUT_MS = 60_000
STARTS = 20
"""The starts of one rank. One that dies at once would be started for ever."""


class Ranks:
    """The processes of the ranks. `start` starts that of a rank, and returns its number."""

    def __init__(self, count: int, start: Callable[[int], int]) -> None:
        self._start = start
        self._starts = dict.fromkeys(range(count), 0)
        self._rank_of: dict[int, int] = {}

    def supervise(self) -> int:
        """Start all ranks, and return 0 once they are done, else the status of the first failure.

        A rank fails that ends with a status of its own, or that dies again and again.
        """
        for rank in self._starts:
            self._start_one(rank)
        while self._rank_of:
            pid, ending = os.waitpid(-1, 0)
            rank = self._rank_of.pop(pid, None)
            if rank is None:
                continue  # an orphan that this process has adopted
            status = os.waitstatus_to_exitcode(ending)
            if status < 0 and self._starts[rank] < STARTS:
                self._start_one(rank)
            elif status != 0:
                self.end()
                return 128 - status if status < 0 else status
        return 0

    def end(self) -> None:
        """End all ranks at once."""
        for pid in self._rank_of:
            os.kill(pid, signal.SIGKILL)

    def _start_one(self, rank: int) -> None:
        self._starts[rank] += 1
        self._rank_of[self._start(rank)] = rank


def variables(rank: int, ranks: int, host: str, port: int) -> dict[str, str]:
    """Return what torchrun tells a rank. Its rendezvous is the lighthouse.

    Threads of several ranks on few processors wait for each other, so torchrun gives each rank one
    where the user has not said otherwise.
    """
    return {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
    }


def command(arguments: Sequence[str]) -> list[str]:
    """Return the command of a rank, which ends with this process where setpriv can tie it."""
    setpriv = shutil.which("setpriv")
    tied = [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []
    return [*tied, sys.executable, *arguments]


def main(count: int, arguments: Sequence[str]) -> int:
    """Start a lighthouse and the ranks, and return the status that this process ends with."""
    # torchft says several lines a step otherwise.
    os.environ.setdefault("RUST_LOG", "warn")
    from torchft.coordination import LighthouseServer

    lighthouse = LighthouseServer(
        bind="[::]:0",
        min_replicas=1,
        join_timeout_ms=_JOIN_TIMEOUT_MS,
        heartbeat_timeout_ms=_HEARTBEAT_TIMEOUT_MS,
    )
    port = urlsplit(lighthouse.address()).port
    assert port is not None

    def start(rank: int) -> int:
        environment: Mapping[str, str] = os.environ | variables(rank, count, "localhost", port)
        argv = command(arguments)
        return os.spawnvpe(os.P_NOWAIT, argv[0], argv, environment)

    ranks = Ranks(count, start)

    def end(number: int, frame: FrameType | None) -> NoReturn:
        ranks.end()
        os._exit(128 + number)

    signal.signal(signal.SIGTERM, end)
    status = ranks.supervise()
    lighthouse.shutdown()
    return status


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
