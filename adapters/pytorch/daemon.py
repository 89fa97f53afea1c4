"""The end of the processes and folders that `async_save` makes.

PyTorch removes them when the interpreter exits, and has no public function for it. A worker that
goes on to another method, or that ends by `os._exit`, would leave them behind.

The names with an underscore are those of PyTorch 2.15 and Python 3.11.
"""

from __future__ import annotations

from multiprocessing import resource_sharer, resource_tracker, util

from torch.distributed.checkpoint import _async_process_executor as executor

END_S = 5


def end_checkpoint_daemon() -> None:
    """End DCP's daemon, and the helpers that multiprocessing started to talk with it.

    No save may be in progress.
    """
    _end_daemon()
    # the thread that hands shared memory to the daemon
    resource_sharer.stop(END_S)
    # A process that waits for every child that knows it, so the daemon must have ended before.
    resource_tracker._resource_tracker._stop()
    _remove_socket_folder()


def _end_daemon() -> None:
    # The daemon's finalizer asks it to end, but the traceback of a failed save keeps the daemon
    # alive.
    daemon = executor._CHECKPOINT_PROCESS
    executor._CHECKPOINT_PROCESS = None
    if daemon is None:
        return
    # It would take a second to end by itself. It has nothing to save any more.
    child = daemon._save_process
    child.kill()
    child.join()


def _remove_socket_folder() -> None:
    for finalizer in list(util._finalizer_registry.values()):
        if finalizer._callback is util._remove_temp_dir:
            finalizer()
