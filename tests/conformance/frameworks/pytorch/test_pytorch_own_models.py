"""Models of the user's own in PyTorch: what is measured, and the sentence for what is not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from subject import digests, new_method, opened, save

from adapters.base import UnusableModel
from adapters.pytorch.framework import PyTorch
from harness.worker import look, own_models
from harness.worker.guards import lost_settings

HEAD = """
import torch
from torch import nn

def net():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

def adam(model, **options):
    return torch.optim.Adam(model.parameters(), 0.01, **options)
"""
KEEPING = """class Keeping(torch.optim.SGD):
        def __init__(self, model, key, value):
            super().__init__(model.parameters(), 0.1)
            self.kept = key, value
        def step(self):
            super().step()
            self.state[self.kept[0]] = self.kept[1]
"""
PAIR = "model = net()\n    return model, adam(model)"

WRONG: dict[str, tuple[str, str]] = {
    # --- what make returns ---
    "nothing": ("net()", "must return a model and an optimizer.* not None"),
    "only a model": ("return net()", "must return a model and an optimizer.* not a Sequential"),
    "four values": ("return 1, 2, 3, 4", r"not 4 values \(int, int, int, int\)"),
    "the wrong order": (
        "model = net()\n    return adam(model), model",
        "first value that it returns must be a torch Module, not an Adam",
    ),
    "a class instead of a model": ("return nn.Linear, None", "must be a torch Module, not a type"),
    "a model that is None": ("return None, None", "must be a torch Module, not None"),
    "no optimizer": ("return net(), None", "must be a torch Optimizer.* not None"),
    "a learning rate as optimizer": ("return net(), 0.1", "must be a torch Optimizer.* a float"),
    "no optimizers": ("return net(), {}", "dictionary of optimizers is empty"),
    "a wrong optimizer among several": (
        "model = net()\n    return model, {'a': adam(model), 'b': 1}",
        r"a dictionary of them by name, not an int \(b\)",
    ),
    "a step that is no function": (
        "model = net()\n    return model, adam(model), 3",
        "must be a step function, not an int",
    ),
    "a step without arguments": (
        "model = net()\n    return model, adam(model), lambda: None",
        "must take two arguments",
    ),
    "a generator": ("yield net()", "must return a model and an optimizer.* not a generator"),
    # --- the step ---
    "a step without a result": (
        "model = net()\n    return model, adam(model), lambda model, number: None",
        "must return the loss.*it returned None",
    ),
    "a loss that is a number": (
        "model = net()\n    return model, adam(model), lambda model, number: 0.5",
        "must return the loss.*it returned a float",
    ),
    "a loss beside the outputs": (
        "model = net()\n"
        "    def step(model, number):\n"
        "        outputs = model(torch.ones(300, 4))\n"
        "        return outputs.sum(), outputs\n"
        "    return model, adam(model), step",
        r"the loss alone, a tensor with one number.*it returned 2 values \(Tensor, Tensor\)$",
    ),
    "a loss within the outputs": (
        "import dataclasses\n"
        "    @dataclasses.dataclass\n"
        "    class Output:\n"
        "        loss: object\n"
        "        logits: object\n"
        "    model = net()\n"
        "    def step(model, number):\n"
        "        outputs = model(torch.ones(300, 4))\n"
        "        return Output(outputs.sum(), outputs)\n"
        "    return model, adam(model), step",
        "the loss alone, a tensor with one number.*it returned an Output$",
    ),
    "a loss of several elements": (
        "model = net()\n"
        "    return model, adam(model), lambda model, number: model(torch.ones(3, 4))",
        r"a loss of one element.*shape \[3, 2\]",
    ),
    "a loss without a gradient": (
        "model = net()\n    return model, adam(model), lambda model, number: torch.tensor(1.0)",
        r"shape \[\] without a gradient",
    ),
    "a step with wrong shapes": (
        "model = net()\n"
        "    return model, adam(model), lambda model, number: model(torch.ones(3, 5)).sum()",
        r"train\.py:\d+: RuntimeError: .*mat1 and mat2 shapes",
    ),
    "a step that raises": (
        "model = net()\n    return model, adam(model), lambda model, number: 1 / 0",
        r"train\.py:\d+: ZeroDivisionError",
    ),
    # --- the text ---
    "a missing import": ("import nowhere", r"train\.py:13: ModuleNotFoundError: .*'nowhere'"),
    "an undefined name": ("return modle", r"train\.py:13: NameError: .*'modle'"),
    "an exception": ("raise ValueError('no data')", r"train\.py:13: ValueError: no data"),
    "an end of the program": ("raise SystemExit(2)", r"train\.py:13: it ends the program"),
    "a missing file": ("return open('/nowhere')", r"train\.py:13: FileNotFoundError"),
    # --- the model ---
    "no parameters": (
        "model = nn.ReLU()\n    return model, adam(net())",
        "no parameters that can be trained",
    ),
    "only frozen parameters": (
        "model = net().requires_grad_(False)\n    return model, adam(model)",
        "no parameters that can be trained",
    ),
    "a model without memory": (
        "with torch.device('meta'):\n        model = net()\n    return model, adam(model)",
        r"0\.weight is on device 'meta', and the run is on 'cpu'",
    ),
    "a sparse parameter": (
        "model = net()\n"
        "    model.extra = nn.Parameter(torch.eye(3).to_sparse())\n"
        "    return model, adam(model)",
        "extra is a sparse or quantized tensor",
    ),
    "a state that is no tensor": (
        "class Odd(nn.Linear):\n"
        "        def get_extra_state(self):\n            return {'seen': 3}\n"
        "    model = Odd(2, 2)\n    return model, adam(model)",
        r"'_extra_state' \(a dict\)",
    ),
    "a buffer that repeats itself": (
        "model = net()\n"
        "    model.register_buffer('one', torch.ones(1).expand(3))\n"
        "    return model, adam(model)",
        "shares memory with itself",
    ),
    # --- the optimizer ---
    "an optimizer of another model": ("return net(), adam(net())", "Adam changes a parameter"),
    "a model that was copied": (
        "import copy\n    model = net()\n    optimizer = adam(model)\n"
        "    return copy.deepcopy(model), optimizer",
        "was the model converted or copied",
    ),
    "an optimizer with lists": (
        f"{KEEPING}    model = net()\n"
        "    return model, Keeping(model, model[0].bias, {'seen': [1]})",
        "Keeping keeps 'seen' as a list, and only tensors and numbers",
    ),
    "an optimizer that needs a closure": (
        "model = net()\n    return model, torch.optim.LBFGS(model.parameters())",
        "LBFGS needs a closure, which ckptbench cannot give",
    ),
    "an optimizer with an entry of its own": (
        f"{KEEPING}    model = net()\n    return model, Keeping(model, 'global', {{'count': 3}})",
        r"the state of Keeping holds the entry 'global' \(a dict\), and only",
    ),
    "an optimizer with a number of its own": (
        f"{KEEPING}    model = net()\n    return model, Keeping(model, 'k', 0)",
        r"the state of Keeping holds the entry 'k' \(an int\), and only",
    ),
    "an optimizer with a number instead of slots": (
        f"{KEEPING}    model = net()\n    return model, Keeping(model, model[0].bias, 0)",
        r"holds an int for a tensor of shape \[8\]",
    ),
    "an optimizer with slots of another tensor": (
        f"{KEEPING}    model = net()\n"
        "    return model, Keeping(model, torch.ones(5), {'count': 3})",
        r"holds a dict for a tensor of shape \[5\]",
    ),
    "an optimizer of sparse gradients": (
        "model = net()\n    return model, torch.optim.SparseAdam(list(model.parameters()))",
        "RuntimeError: SparseAdam does not support dense gradients",
    ),
    "a learning rate of 0": (
        "model = net()\n    return model, torch.optim.SGD(model.parameters(), 0.0)",
        "changes none of the 4 weights",
    ),
    "weights that are NaN": (
        "model = net()\n"
        "    nn.utils.vector_to_parameters(torch.ones(58) * torch.nan, model.parameters())\n"
        "    return model, torch.optim.SGD(model.parameters(), 0.1)",
        "changes none of the 4 weights",
    ),
}

WHOLE_TEXTS: dict[str, tuple[str, str]] = {
    "no such function": ("def mak():\n    pass\n", "has no function 'make'; did you mean 'mak'?"),
    "no function at all": ("", "has no function 'make'$"),
    "a name that is no function": ("make = 3\n", "make is no function, but of type int"),
    "arguments that are needed": (
        "def make(size, *, depth):\n    pass\n",
        "it needs 'size' and 'depth'",
    ),
    "a syntax error": ("def make(:\n", r"train\.py:1: SyntaxError"),
    "a program": ("import sys\nsys.exit(0)\n", r"train\.py:2: it ends the program"),
}

RIGHT: dict[str, str] = {
    "random gradients": PAIR,
    "no slots": "model = net()\n    return model, torch.optim.SGD(model.parameters(), 0.1)",
    "tied weights": (
        "model = nn.ModuleDict({'a': nn.Linear(4, 4), 'b': nn.Linear(4, 4)})\n"
        "    model['b'].weight = model['a'].weight\n    return model, adam(model)"
    ),
    "buffers of all kinds": (
        "model = net()\n"
        "    model.register_buffer('mask', torch.tensor([True, False]))\n"
        "    model.register_buffer('ids', torch.arange(5))\n"
        "    model.register_buffer('short', torch.ones(3, dtype=torch.bfloat16))\n"
        "    model.register_buffer('scratch', torch.ones(3), persistent=False)\n"
        "    return model, adam(model)"
    ),
    "bfloat16": "model = net().to(torch.bfloat16)\n    return model, adam(model)",
    "a frozen layer": (
        "model = net()\n    model[0].requires_grad_(False)\n    return model, adam(model)"
    ),
    "channels last": (
        "model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)\n"
        "    return model, adam(model)"
    ),
    "two optimizers": (
        "model = nn.ModuleDict({'one': net(), 'two': net()})\n"
        "    return model, {'one': adam(model['one']),\n"
        "                   'two': torch.optim.SGD(model['two'].parameters(), 0.1, 0.9)}"
    ),
    "an average of the weights": (
        "model = nn.ModuleDict({'net': net()})\n    optimizer = adam(model)\n"
        "    model['average'] = torch.optim.swa_utils.AveragedModel(model['net'])\n"
        "    return model, optimizer"
    ),
    "a step": (
        "model = nn.Sequential(net(), nn.Dropout(0.5))\n"
        "    return model, adam(model), lambda model, number: model(torch.ones(3, 4)).sum()"
    ),
    "a step count that is a plain number": (
        "class Counting(torch.optim.Optimizer):\n"
        "        def __init__(self, parameters):\n            super().__init__(parameters, {})\n"
        "        @torch.no_grad()\n"
        "        def step(self):\n"
        "            for parameter in self.param_groups[0]['params']:\n"
        "                slots = self.state[parameter]\n"
        "                slots['count'] = slots.get('count', 0) + 1\n"
        "                parameter -= 0.1 * parameter.grad\n"
        "    model = net()\n    return model, Counting(model.parameters())"
    ),
    "layers whose activations are computed again": (
        "from torch.distributed.algorithms._checkpoint import checkpoint_wrapper as wrappers\n"
        "    norm = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))\n"
        "    model = nn.Sequential(nn.Linear(4, 8), wrappers.checkpoint_wrapper(norm))\n"
        "    return model, adam(model), lambda model, number: model(torch.rand(3, 4)).sum()"
    ),
    "a compiled model": (
        "model = torch.compile(net())\n"
        "    return model, adam(model), lambda model, number: model(torch.ones(3, 4)).sum()"
    ),
}


def written(folder: Path, text: str) -> Path:
    file = folder / "train.py"
    file.write_text(text)
    return file


def with_body(folder: Path, body: str) -> Path:
    """Write a text whose function `make` has this body, of which only the first line lacks room."""
    return written(folder, f"{HEAD}\n\ndef make():\n    {body}\n")


def said(file: Path) -> str:
    """Return the sentence that a user is told about a text."""
    request = {
        "file": str(file),
        "function": "make",
        "framework": "adapters.pytorch.framework:PyTorch",
        "device": "cpu",
        "folder": str(file.parent),
        "methods": {},
    }
    with pytest.raises(BaseException) as caught:  # noqa: PT011 - any error of a user's text
        look.look(request, file)
    return own_models.sentence(caught.value, file, "make")


@pytest.mark.parametrize("name", WRONG)
def test_a_broken_model_is_told_in_one_sentence(name: str, tmp_path: Path) -> None:
    body, expected = WRONG[name]
    sentence = said(with_body(tmp_path, body))
    assert_sentence(sentence, expected)


@pytest.mark.parametrize("name", WHOLE_TEXTS)
def test_a_broken_text_is_told_in_one_sentence(name: str, tmp_path: Path) -> None:
    text, expected = WHOLE_TEXTS[name]
    assert_sentence(said(written(tmp_path, text)), expected)


def assert_sentence(sentence: str, expected: str) -> None:
    assert re.search(expected, sentence), sentence
    assert sentence.startswith("train.py")
    assert "\n" not in sentence
    assert "Traceback" not in sentence


def state_of(framework: PyTorch, file: Path, seed: int) -> Any:
    return framework.adopt(own_models.load(file, "make"), seed)


@pytest.mark.parametrize("method", ["torch-save", "safetensors", "dcp", "deepfreeze-sync"])
@pytest.mark.parametrize("name", RIGHT)
def test_a_model_comes_back_bit_by_bit(
    framework: PyTorch, name: str, method: str, tmp_path: Path
) -> None:
    file = with_body(tmp_path, RIGHT[name])
    saved = state_of(framework, file, 1)
    framework.gradients(saved)
    framework.update(saved)
    loaded = state_of(framework, file, 2)
    flipped = {
        leaf.name: memoryview(bytes(byte ^ 1 for byte in leaf.data))
        for leaf in framework.leaves(loaded)
        if leaf.name.startswith("buffers/")
    }
    framework.assign(loaded, flipped)
    assert digests(framework, loaded) != digests(framework, saved)
    with opened(new_method(method, framework), saved) as writer:
        save(writer, saved, tmp_path / "checkpoint")
    with opened(new_method(method, framework), loaded) as reader:
        reader.load(loaded, tmp_path / "checkpoint")
    assert digests(framework, loaded) == digests(framework, saved)


@pytest.mark.parametrize(
    ("method", "loses"),
    [
        ("torch-save", False),
        ("dcp", False),
        ("dcp-async", False),
        ("safetensors", True),
        ("deepfreeze-sync", True),
        ("dcp-hf-safetensors", True),
    ],
)
def test_settings_that_a_load_does_not_bring_back_are_named(
    framework: PyTorch, method: str, loses: bool, tmp_path: Path
) -> None:
    file = with_body(tmp_path, RIGHT["two optimizers"])
    state, target = (state_of(framework, file, seed) for seed in (1, 2))
    plain = [dict(group) for group in framework.settings(target)]
    with opened(new_method(method, framework), state) as writer:
        save(writer, state, tmp_path / "checkpoint")
    settings = lost_settings.Settings(framework, target)
    rates = [group["lr"] for group in framework.settings(target)]
    assert rates == [group["lr"] + 1.0 for group in plain]
    with opened(new_method(method, framework), target) as reader:
        reader.load(target, tmp_path / "checkpoint")
    sentence = settings.lost()
    rates = [group["lr"] for group in framework.settings(target)]
    assert rates == [group["lr"] for group in plain]
    assert bool(sentence) == loses
    if loses:
        assert "a load does not bring back the optimizer's settings (eps, lr, momentum" in sentence
    assert settings.lost() == ""


def test_a_buffer_that_state_dict_leaves_out_is_no_leaf(framework: PyTorch, tmp_path: Path) -> None:
    state = state_of(framework, with_body(tmp_path, RIGHT["buffers of all kinds"]), 1)
    names = {leaf.name for leaf in framework.leaves(state)}
    assert "buffers/mask" in names
    assert "buffers/scratch" not in names


def test_wrapped_layers_have_the_names_of_the_state_dict(
    framework: PyTorch, tmp_path: Path
) -> None:
    body = RIGHT["layers whose activations are computed again"]
    state = state_of(framework, with_body(tmp_path, body), 1)
    names = {leaf.name for leaf in framework.leaves(state)}
    roles = ("weights/", "buffers/")
    held = {name.partition("/")[2] for name in names if name.startswith(roles)}
    assert held == set(state.model.state_dict())
    assert "optimizer/exp_avg/1.0.weight" in names


def test_a_compiled_model_is_compiled(framework: PyTorch, tmp_path: Path) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    state_of(framework, with_body(tmp_path, RIGHT["a compiled model"]), 1)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_tied_weights_are_one_leaf(framework: PyTorch, tmp_path: Path) -> None:
    state = state_of(framework, with_body(tmp_path, RIGHT["tied weights"]), 1)
    weights = [leaf.name for leaf in framework.leaves(state) if leaf.name.startswith("weights/")]
    assert weights == ["weights/a.weight", "weights/a.bias", "weights/b.bias"]


def test_random_gradients_are_the_same_on_every_rank_and_differ_by_step(
    framework: PyTorch, tmp_path: Path
) -> None:
    first = state_of(framework, with_body(tmp_path, PAIR), 1)
    second = state_of(framework, with_body(tmp_path, PAIR), 2)
    for state in (first, second):
        framework.gradients(state)
    one, two = (next(state.model.parameters()).grad for state in (first, second))
    assert torch.equal(one, two)
    framework.update(first)
    framework.gradients(first)
    assert not torch.equal(next(first.model.parameters()).grad, one)


@pytest.mark.parametrize("step", ["", ", lambda model, number: model(torch.ones(3, 4)).sum()"])
def test_a_step_moves_the_generator_of_a_model_without_dropout(
    framework: PyTorch, step: str, tmp_path: Path
) -> None:
    state = state_of(framework, with_body(tmp_path, f"{PAIR}{step}"), 1)
    before = digests(framework, state)["rng/cpu"]
    framework.gradients(state)
    framework.update(state)
    assert digests(framework, state)["rng/cpu"] != before


def test_a_sharded_strategy_needs_a_sharded_model(framework: PyTorch, tmp_path: Path) -> None:
    from adapters.pytorch import own_model
    from adapters.pytorch.strategies import FullySharded

    strategy = FullySharded.__new__(FullySharded)
    strategy.device = torch.device("cpu")
    made = own_models.load(with_body(tmp_path, PAIR), "make")()
    with pytest.raises(UnusableModel, match="must call fully_shard"):
        own_model.new_state(made, strategy, {})
