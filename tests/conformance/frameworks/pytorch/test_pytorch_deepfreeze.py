"""DeepFreeze's stream on a GPU, with PyTorch's tensors."""

from __future__ import annotations

import pytest
import torch
from device_copies import check_there_and_back

from adapters.deepfreeze.driver_stream import AtAddress
from adapters.deepfreeze.tensor import Bytes
from adapters.pytorch.deepfreeze import new_stream


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_stream_copies_what_it_is_asked_to() -> None:
    def to_gpu(data: Bytes) -> AtAddress:
        tensor = torch.from_numpy(data).cuda()
        return AtAddress(tensor.data_ptr(), tensor.nbytes, tensor)

    check_there_and_back(new_stream(), to_gpu, lambda tensor: tensor.owner.cpu().numpy())
