"""The points in which PyTorch differs from what the conformance suite expects."""

from __future__ import annotations

import torch

from adapters.pytorch.state import State
from adapters.shared import quirks

OWN_MODEL = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(9, 4)
        self.norm = nn.BatchNorm1d(4)
        self.drop = nn.Dropout(0.2)
        self.tied = nn.Linear(4, 9, bias=False)
        self.tied.weight = self.embed.weight
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, tokens):
        self.seen += 1
        return self.tied(self.drop(self.norm(self.embed(tokens))))

def make():
    model = Net()
    return model, torch.optim.Adam(model.parameters(), 0.01, amsgrad=True), step

def step(model, number):
    tokens = torch.randperm(9, generator=torch.Generator().manual_seed(number))
    return nn.functional.cross_entropy(model(tokens), tokens)

def make_without_step():
    model = nn.Linear(3, 2)
    return model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
"""


class Quirks(quirks.Quirks[State]):
    """PyTorch counts batches and steps, and pickles the position together with other objects."""

    added_leaves = ("rng/cpu", "position/step", "optimizer/step/.*", ".*num_batches_tracked")
    required_leaves = ("rng/cpu", "position/step")
    dtypes = frozenset({"uint8", "bfloat16", "float32", "int64"})
    without_gpu = "finds no CUDA device"
    # The daemon of dcp-async-tuned takes seconds to start.
    cases_of_entries = ("resnet50-float32", "llm-slice-bf16-mixed")
    # The writer of Hugging Face's files asks integers for their smallest fraction.
    cannot_save = frozenset({"dcp-hf-safetensors-merged"})
    # torch.save pickles the position together with other objects. DCP pickles it alone.
    position_bytes = {"zip": range(9), "pickle": range(1), "dcp": range(1, 2048)}
    # DCP writes every tensor as an archive of torch.save.
    padding_bytes = {"dcp": 4096}
    safetensors_name = "pt"
    own_model = OWN_MODEL

    training_worlds = (2, 4)
    trained_cases = ("resnet50-float32", "llm-slice-bf16-mixed", "uneven")
    sharded_cases = ("llm-slice-bf16-mixed", "uneven")
    writes_one_file_per_rank = True
    refusal = FileNotFoundError

    def steps_before_assigning(self, strategy: str) -> int:
        # DDP rebuilds its buckets in the first step, as the other state has done.
        return 1 if strategy == "ddp" else 0

    def part_that_dies(self, state: State) -> object:
        return next(state.trained.parameters())

    def weight_tolerance(self, steps: int) -> float:
        # Measured: 0.0037 for each step.
        return 0.01 * steps

    def moment_tolerance(self, steps: int) -> float:
        # Measured: 1.3e-6 after one step, and 7.1e-6 after ten.
        return 1e-5 if steps == 1 else 1e-4

    def addresses(self, state: State) -> dict[str, int]:
        tensors = state.tensors()
        # The position is a number, of which every look makes a new tensor.
        del tensors["position/step"]
        return {name: tensor.data_ptr() for name, tensor in tensors.items()}

    def described(self, tensor: torch.Tensor) -> tuple[str, tuple[int, ...], bytes]:
        # numpy has no bfloat16.
        data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), data
