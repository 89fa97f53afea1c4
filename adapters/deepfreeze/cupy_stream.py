"""DeepFreeze's stream for CuPy's arrays, which are those of Chainer and raw."""

from __future__ import annotations

from typing import Any

from adapters.deepfreeze.driver_stream import AtAddress, DriverStream


def new_stream() -> DriverStream:
    """Return a stream on the current GPU."""
    # Only an environment for a GPU has it.
    import cupy

    return DriverStream(cupy.cuda.Device().id, lambda: int(cupy.cuda.get_current_stream().ptr))


def at_address(array: Any) -> AtAddress:
    """Return the memory of an array of CuPy. Raises ValueError where it is not contiguous."""
    if not array.flags.c_contiguous:
        raise ValueError(
            f"an array of shape {list(array.shape)} and strides {list(array.strides)} is not "
            "contiguous; make it so with cupy.ascontiguousarray"
        )
    return AtAddress(int(array.data.ptr), int(array.nbytes), array)
