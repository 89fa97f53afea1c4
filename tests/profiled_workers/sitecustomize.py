"""Profiles the worker processes that cost_of_guards.py has the driver start.

Python imports this module at its start, because its folder is on PYTHONPATH. A process that is no
worker goes on as usual.
"""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path
from typing import NoReturn

WORKER = "harness.worker"
FOLDER = "CKPTBENCH_PROFILES"  # the variable with the folder for profiles


def profile_this_process(file: Path) -> None:
    """Profile this thread from now on, and write the profile at the end of the process."""
    import cProfile  # would cost every other process time

    owner = os.getpid()
    end_at_once = os._exit
    # Builtins would stand between a function and the one that it calls by way of `sorted` or `sum`.
    profile = cProfile.Profile(builtins=False)

    def write() -> None:
        # A child by fork has its parent's calls too.
        if os.getpid() == owner:
            profile.disable()
            profile.dump_stats(file)

    def exit_with_profile(status: int) -> NoReturn:
        # Ranks end in this way, without what `atexit` was given.
        write()
        end_at_once(status)

    atexit.register(write)
    os.register_at_fork(after_in_child=profile.disable)
    os._exit = exit_with_profile
    profile.enable()


if WORKER in sys.orig_argv:
    job_file = Path(sys.orig_argv[sys.orig_argv.index(WORKER) + 1])
    process = Path(os.environ[FOLDER]) / f"{job_file.parent.name}.{os.getpid()}"
    process.with_name(f"{process.name}.begun").touch()
    # From Python 3.12 on, a profile mixes the times of all threads.
    if sys.version_info < (3, 12):
        profile_this_process(process.with_name(f"{process.name}.profile"))
