"""DeepFreeze's stream on a GPU, with PyTorch's tensors."""

from __future__ import annotations

import pytest
import torch
from device_copies import check_there_and_back

from adapters.pytorch.cuda_stream import CudaStream


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_stream_copies_what_it_is_asked_to() -> None:
    check_there_and_back(
        CudaStream(),
        lambda data: torch.from_numpy(data).cuda(),
        lambda tensor: tensor.cpu().numpy(),
    )
