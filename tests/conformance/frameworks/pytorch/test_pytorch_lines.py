"""The lines that PyTorch's methods declare for training scripts save and load bit by bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from script_lines import DECLARED, STEP, Names, covers_optimizer, run
from torch import nn

from adapters.pytorch.daemon import end_checkpoint_daemon

pytestmark = pytest.mark.slow

# PyTorch's merging of files fails for integers, as adapter.toml declares, and loses scalars.
MERGED = "dcp-hf-safetensors-merged"


def tied() -> nn.Module:
    model = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5), nn.Linear(5, 5))
    model[2].weight = model[0].weight
    return model


def of_images() -> nn.Module:
    layers = (nn.Unflatten(1, (5, 1, 1)), nn.Conv2d(5, 6, 3, padding=1), nn.Flatten())
    return nn.Sequential(*layers).to(memory_format=torch.channels_last)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "batch-norm": lambda: nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7), nn.Linear(7, 3)),
    "bfloat16": lambda: nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3)).to(torch.bfloat16),
    "tied": tied,
    "channels-last": of_images,
}


@pytest.fixture
def world() -> Iterator[None]:
    """Make the process group that a script under torchrun has."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    end_checkpoint_daemon()
    dist.destroy_process_group()


def trained(model_name: str, seed: int, steps: int = STEP) -> Names:
    """Return a model and an optimizer that have taken some steps."""
    torch.manual_seed(seed)
    model = MODELS[model_name]()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    dtype = next(model.parameters()).dtype
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 5, dtype=dtype)).square().mean().backward()
        optimizer.step()
    return {"model": model, "optimizer": optimizer}


def values(names: Names, optimizer: bool) -> dict[str, bytes]:
    """Return the bytes of all tensors of the model, and of the optimizer if asked for."""
    tensors = dict(names["model"].state_dict())
    if optimizer:
        for number, slots in names["optimizer"].state_dict()["state"].items():
            tensors |= {f"{number}/{slot}": tensor for slot, tensor in slots.items()}
    # numpy has no bfloat16.
    flat = {name: tensor.reshape(-1).view(torch.uint8) for name, tensor in tensors.items()}
    return {name: tensor.numpy().tobytes() for name, tensor in flat.items()}


@pytest.mark.usefixtures("world")
@pytest.mark.parametrize("method", [name for name in DECLARED if name != MERGED])
@pytest.mark.parametrize("model_name", MODELS)
def test_the_lines_of_a_method_save_and_load(model_name: str, method: str, tmp_path: Path) -> None:
    names = trained(model_name, seed=1)
    saved = values(names, covers_optimizer(method))
    run(method, "save", names, tmp_path)
    other = trained(model_name, seed=2)
    assert values(other, covers_optimizer(method)) != saved
    restored = run(method, "load", other, tmp_path)
    assert values(restored, covers_optimizer(method)) == saved
    # A new process has an optimizer that has taken no step.
    restored = run(method, "load", trained(model_name, seed=3, steps=0), tmp_path)
    assert values(restored, covers_optimizer(method)) == saved


@pytest.mark.usefixtures("world")
def test_what_merged_files_lose_is_what_their_lines_say(tmp_path: Path) -> None:
    with pytest.raises(BaseException, match="finfo"):
        run(MERGED, "save", trained("batch-norm", seed=1), tmp_path)
    names = trained("bfloat16", seed=1)
    folder = tmp_path / "without-integers"
    folder.mkdir()
    run(MERGED, "save", names, folder)
    restored = values(run(MERGED, "load", trained("bfloat16", seed=2), folder), optimizer=True)
    lost = {name for name, data in values(names, optimizer=True).items() if restored[name] != data}
    assert lost == {f"{number}/step" for number in range(4)}
    assert "fails for integers" in DECLARED[MERGED]["save"]
    assert "it loses numbers without a" in DECLARED[MERGED]["save"]
