"""DeepFreeze's stream on a GPU, with CuPy's arrays."""

from __future__ import annotations

import pytest
from chainer.backends import cuda
from device_copies import check_there_and_back

from adapters.deepfreeze.cupy_stream import at_address, new_stream


@pytest.mark.skipif(not cuda.available, reason="needs a GPU")
def test_a_stream_copies_what_it_is_asked_to() -> None:
    check_there_and_back(
        new_stream(),
        lambda data: at_address(cuda.cupy.asarray(data)),
        lambda tensor: cuda.to_cpu(tensor.owner),
    )
