"""DeepFreeze in PyTorch: what the safetensors library finds in its files.

Runs in PyTorch's environment.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from deepfreeze_shards import indexed, save_shards  # noqa: E402
from device_copies import check_there_and_back  # noqa: E402
from safetensors import safe_open  # noqa: E402
from safetensors.torch import load_file  # noqa: E402
from test_pytorch import make, opened, trained  # noqa: E402

import workloads  # noqa: E402
from adapters.base import DirectIo, Place  # noqa: E402
from adapters.pytorch.cuda_stream import CudaStream  # noqa: E402
from adapters.pytorch.framework import PyTorch  # noqa: E402


@pytest.fixture
def framework(tmp_path: Path) -> Iterator[PyTorch]:
    framework = PyTorch()
    framework.start(
        Place(
            rank=0,
            world=1,
            device="cpu",
            temporary=tmp_path,
            io=DirectIo(False, 0, 0),
            memory=tmp_path / "memory",
        )
    )
    yield framework
    framework.stop()


@pytest.mark.parametrize(
    "shape", [("resnet50", "float32"), ("llm-slice", "bf16-mixed")], ids="-".join
)
def test_the_library_finds_every_tensor(
    framework: PyTorch, shape: tuple[str, str], tmp_path: Path
) -> None:
    state = trained(framework, workloads.load(shape[0], "small", shape[1]), 1, 2)
    method = make("deepfreeze", framework)
    with opened(method, state):
        method.save(state, tmp_path / "checkpoint").finished()
    found = load_file(tmp_path / "checkpoint" / "model.safetensors")
    expected = state.tensors()
    assert found.keys() == expected.keys()
    assert all(
        torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype
        for name, tensor in expected.items()
    )
    with safe_open(tmp_path / "checkpoint" / "model.safetensors", "pt") as file:
        metadata = file.metadata()
    assert (metadata["framework"], metadata["step"]) == ("pytorch", "2")
    assert {f"xxh3_64:{name}" for name in expected} < metadata.keys()


def test_the_library_opens_the_files_of_several_ranks_through_their_index(tmp_path: Path) -> None:
    expected = save_shards(tmp_path / "checkpoint")
    found = {}
    for name, file in indexed(tmp_path / "checkpoint"):
        with safe_open(file, "pt") as opened_file:
            found[name] = (
                opened_file.get_tensor(name).reshape(-1).view(torch.uint8).numpy().tobytes()
            )
    assert found == expected
    assert len(found) > 6, "one is divided"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_stream_copies_what_it_is_asked_to() -> None:
    check_there_and_back(
        CudaStream(),
        lambda data: torch.from_numpy(data).cuda(),
        lambda tensor: tensor.cpu().numpy(),
    )
