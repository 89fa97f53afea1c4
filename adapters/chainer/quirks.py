"""The points in which Chainer differs from what the conformance suite expects."""

from __future__ import annotations

from collections.abc import Mapping

from adapters.chainer.state import State
from adapters.shared import quirks
from adapters.shared.quirks import Obstacle
from workloads import Role

# Chainer saves the number of the epoch with the optimizer. No leaf stands for it.
_EPOCH_BYTES = 8


OWN_MODEL = """
import chainer
import chainer.functions as F
import chainer.links as L
import numpy as np

class Net(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.embed = L.EmbedID(9, 4)
            self.lazy = L.Linear(None, 5, initialW=chainer.initializers.Normal(0.5))
            self.norm = L.BatchNormalization(5)
            self.scale = chainer.Parameter(np.full(5, 2, np.float16))
        self.add_persistent("seen", 0)
        self.add_persistent("mean", np.zeros((), np.float64))

    def forward(self, tokens):
        self.seen += len(tokens)
        x = F.dropout(self.norm(self.lazy(F.flatten(self.embed(tokens)).reshape(len(tokens), -1))))
        self.mean[...] = x.array.mean()
        return F.scale(x, F.cast(self.scale, np.float32))

def make():
    return Net(), chainer.optimizers.AMSGrad(0.01), step

def step(model, number):
    tokens = np.random.RandomState(number).permutation(9).reshape(3, 3)
    return F.mean((model(tokens) - 1) ** 2)

def make_without_step():
    link = L.Linear(3, 2)
    return link, chainer.optimizers.SGD().setup(link)
"""


def _script(made: str, step: str = "return F.sum(model(np.ones((2, 3), 'f')))") -> str:
    """Return a script whose `make` does this, with a step of this body."""
    return f"""
import chainer, numpy as np
import chainer.functions as F
import chainer.links as L
def step(model, number):
    {step}
def make():
    m, o = L.Linear(3, 1), chainer.optimizers.SGD(0.1)
    {made}
"""


BROKEN_MODELS = {
    "no return": (_script("pass"), "must return a model and an optimizer.*not None$"),
    "model alone": (_script("return m"), "must return a model and an optimizer.*not a Linear$"),
    "wrong order": (_script("return o, m"), "first value that it returns must be a chainer Link"),
    "class of an optimizer": (
        _script("return m, chainer.optimizers.SGD"),
        "second value.*must be a chainer GradientMethod",
    ),
    "two optimizers": (
        _script("return m, {'a': o, 'b': o}"),
        "trained by one optimizer here, and it returned 2",
    ),
    "step is no function": (_script("return m, o, 3"), "third value.*not an int"),
    "step of one argument": (
        _script("return m, o, lambda model: 0"),
        "must take two arguments, the model and the number",
    ),
    "no parameters": (_script("return chainer.Chain(), o, step"), "no parameters.*init_scope"),
    "no values": (_script("return L.Linear(None, 1), o"), "W has no values.*call the model once"),
    "optimizer of another model": (
        _script("return m, o.setup(L.Linear(3, 1)), step"),
        "SGD was set up for another Linear",
    ),
    "unused link": (
        _script(
            "return chainer.Sequential(L.Linear(3, 1), L.Linear(None, 1)), o, step",
            "return F.sum(model[0](np.ones((2, 3), 'f')))",
        ),
        "1.W has no values after a step",
    ),
    "persistent text": (
        _script("m.add_persistent('note', 'a'); return m, o, step"),
        "persistent value note as a str",
    ),
    "step returns nothing": (
        _script("return m, o, step", "pass"),
        "must return the loss alone, as a chainer.Variable.*it returned None",
    ),
    "step returns an array": (
        _script("return m, o, step", "return np.ones(1)"),
        "it returned a ndarray",
    ),
    "step returns all losses": (
        _script("return m, o, step", "return model(np.ones((2, 3), 'f'))"),
        r"a loss of one element.*shape \[2, 1\]",
    ),
    "loss of something else": (
        _script("return m, o, step", "return chainer.Variable(np.ones((), 'f'))"),
        "does not depend on the model's parameters",
    ),
    "step changes nothing": (
        _script("o.lr = 0.0; return m, o, step"),
        "changes none of the 2 weights",
    ),
    "step raises": (
        _script("return m, o, step", "return F.sum(model(np.ones((2, 4), 'f')))"),
        "^train.py:6: InvalidType: ",
    ),
}


class Quirks(quirks.Quirks[State]):
    """Chainer has no bfloat16, and its optimizer counts the steps of every parameter."""

    added_leaves = ("rng/numpy", "position/step", "optimizer/step", "optimizer/step/.*")
    required_leaves = (
        "rng/numpy",
        "position/step",
        "optimizer/step",
        "optimizer/step/{parameter}",
    )
    refused_precisions = {"bf16-mixed": "Chainer has no bfloat16"}
    without_gpu = "finds no CUDA device"
    obstacle = Obstacle.NO_FOLDER
    obstacle_message = "No such file or directory|Not a directory"
    # numpy writes a header before every array of an archive.
    header_bytes = {"npz": 128}
    extra_bytes = {
        "npz": {Role.OPTIMIZER: _EPOCH_BYTES},
        "hdf5": {Role.OPTIMIZER: _EPOCH_BYTES},
    }
    # The count of batches that only fine-tuning the statistics of a norm uses.
    entries_without_role = r"(.*/)?N(\.npy)?"

    # Its version of numpy has no bfloat16.
    reads_bfloat16 = False

    # The damaged bytes are in the state already. If they are the position in the words of numpy's
    # random generator, the next draw reads beyond the words, and the process crashes.
    trains_after_damage = False

    own_model = OWN_MODEL
    broken_models = BROKEN_MODELS

    def lost_updates(self, strategy: str) -> int:
        # ChainerMN's first update only broadcasts the weights.
        return 1 if strategy == "chainermn" else 0

    def lasting_objects(self, state: State) -> Mapping[str, object]:
        return {
            name: array
            for name, array in state.arrays().items()
            if name.startswith(("weights", "buffers", "rng"))
        }
