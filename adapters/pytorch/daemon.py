"""The end of what `async_save` starts in other processes.

PyTorch has no public way, and leaves it to the interpreter's exit.

A worker that goes on to other methods, or that leaves by `os._exit`, would keep the processes and
folders beyond their method. The names with an underscore are those of PyTorch 2.13 and Python 3.11.
"""

from __future__ import annotations

from multiprocessing import resource_sharer, resource_tracker, util

from torch.distributed.checkpoint import _async_process_executor as executor

END_SECONDS = 5


def end_checkpoint_daemon() -> None:
    """End DCP's daemon and what multiprocessing started to talk with it.

    No save may be under way.
    """
    _end_daemon()
    resource_sharer.stop(END_SECONDS)  # the thread that hands shared memory to the daemon
    # a process; waits for every child that knows it, so the daemon goes first
    resource_tracker._resource_tracker._stop()
    _remove_socket_folder()


def _end_daemon() -> None:
    # Its finalizer would do this too, but the traceback of a failed save keeps the object alive.
    daemon, executor._CHECKPOINT_PROCESS = executor._CHECKPOINT_PROCESS, None
    if daemon is None:
        return
    child = daemon._save_process
    if child.is_alive():
        daemon._send(executor._CheckpointSaveProcessControlOpts.TERMINATE)
        child.join(END_SECONDS)
    if child.is_alive():
        child.kill()
        child.join()


def _remove_socket_folder() -> None:
    for finalizer in list(util._finalizer_registry.values()):
        if finalizer._callback is util._remove_temp_dir:
            finalizer()
