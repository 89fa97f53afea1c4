"""DeepFreeze's stream on a GPU, with CuPy's arrays."""

from __future__ import annotations

import pytest
from chainer.backends import cuda
from device_copies import check_there_and_back

from adapters.deepfreeze.cupy_stream import CupyStream


@pytest.mark.skipif(not cuda.available, reason="needs a GPU")
def test_a_stream_copies_what_it_is_asked_to() -> None:
    check_there_and_back(CupyStream(), cuda.cupy.asarray, cuda.to_cpu)
