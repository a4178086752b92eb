from __future__ import annotations

import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import kernmill
from kernmill import Tensor, dtypes, nn
from kernmill.methods import other_names

X: Any = Tensor([1.0, 2.0])
MATRIX: Any = Tensor([[1.0, 2.0]])
PLAIN: Any = kernmill
NN: Any = nn
PLACES: dict[str, tuple[Any, ...]] = {  # of PyTorch 2.13's public names: where a person looks for them here
    "Tensor": (MATRIX,), "functional": (MATRIX, PLAIN), "nn": (NN,), "optim": (nn.optim, nn.optim.lr_scheduler),
    "linalg": (kernmill.linalg,), "fft": (kernmill.fft,), "distributions": (kernmill.distributions,),
    "torch": (PLAIN, MATRIX),
}  # fmt: skip
TORCH_NAMES = json.loads(Path(__file__).with_name("torch_names.json").read_text(encoding="utf-8"))

SENTENCES: list[tuple[Any, str, str]] = [
    (X, "mul_", "'Tensor' object has no attribute 'mul_'. Write x *= y."),
    (X, "clamp_", "'Tensor' object has no attribute 'clamp_'. Write x.assign(x.clamp(..))."),
    (X, "unsqueeze_", "'Tensor' object has no attribute 'unsqueeze_'. Write x = x.unsqueeze(..)."),
    (NN, "Unfold", "module 'kernmill.nn' has no attribute 'Unfold'"),  # it means something else there
    (X, "nonsense", "'Tensor' object has no attribute 'nonsense'"),
    (X, "_relu_", "'Tensor' object has no attribute '_relu_'"),
    (
        NN,
        "ReLU",
        "module 'kernmill.nn' has no attribute 'ReLU'. Any function of a tensor is a layer: write Tensor.relu.",
    ),
    (kernmill, "save", "module 'kernmill' has no attribute 'save'. Write nn.state.save(path, model)."),
    (kernmill, "nonsense", "module 'kernmill' has no attribute 'nonsense'"),
    (NN, "Flatten", "module 'kernmill.nn' has no attribute 'Flatten'. Write lambda x: x.flatten(1)."),
    (NN, "Nonsense", "module 'kernmill.nn' has no attribute 'Nonsense'"),
    (nn.Linear(2, 2), "zero_grad", "'Linear' object has no attribute 'zero_grad'. Write optimizer.zero_grad()."),
    (nn.Linear(2, 2), "nonsense", "'Linear' object has no attribute 'nonsense'"),
    (NN.Linear(2, 2), "cuda", "'Linear' object has no attribute 'cuda'. Write with Context(DEVICE='CL') around it."),
    (
        NN.optim.SGD([Tensor([1.0], requires_grad=True)]),
        "param_groups",
        "'SGD' object has no attribute 'param_groups'. Write optimizer.groups, each with its lr, or optimizer.lr.",
    ),
    (
        NN.optim,
        "StepLR",
        "module 'kernmill.nn.optim' has no attribute 'StepLR'. Write nn.optim.lr_scheduler.StepLR.",
    ),
    (
        NN,
        "scope",
        "module 'kernmill.nn' has no attribute 'scope'. Write kernmill.scope.",
    ),
    (X, "data", "'Tensor' object has no attribute 'data'. Write x.detach(), or memoryview(x.numpy()) for its bytes."),
    (PLAIN, "zeros", "module 'kernmill' has no attribute 'zeros'. Write Tensor.zeros."),
    (PLAIN, "int32", "module 'kernmill' has no attribute 'int32'. Write dtypes.int32."),
    (PLAIN, "nonsense", "module 'kernmill' has no attribute 'nonsense'"),
]


@pytest.mark.parametrize(
    ("place", "name", "sentence"), SENTENCES, ids=[f"{name}{i}" for i, (_, name, _) in enumerate(SENTENCES)]
)
def test_a_name_of_another_library_says_what_is_written_here(place: Any, name: str, sentence: str) -> None:
    with pytest.raises(AttributeError) as raised:
        getattr(place, name)
    assert str(raised.value) == sentence
    assert not hasattr(place, name)


def test_no_name_that_is_here_is_said_to_be_missing() -> None:
    assert [name for name in other_names._INSTEAD if hasattr(X, name)] == []
    assert [name for name in other_names._LAYERS if hasattr(nn, name)] == []
    assert [name for name in other_names.MODULE if hasattr(nn.Module, name)] == []


TABLES = ("_INSTEAD", "_LAYERS", "MODULE", "OPTIMIZER", "OPTIMIZERS", "FRONT", "DISTRIBUTIONS", "LINALG")
HINTS = [text for table in TABLES for text in getattr(other_names, table).values()]
OWNERS: dict[str, Any] = {  # of an attribute, by the name that sentences use; any other name is a tensor
    "kernmill": kernmill,
    "nn": nn, "nn.state": nn.state, "nn.optim": nn.optim, "np": np, "np.linalg": np.linalg, "np.fft": np.fft,
    "dtypes": dtypes, "math": math, "model": nn.Linear(2, 2), "self": SimpleNamespace(name=1),
    "optimizer": nn.optim.SGD([Tensor([1.0], requires_grad=True)]),
    "d": kernmill.distributions.Normal(0, 1), "parts": kernmill.distributions.Normal(0, 1),
    "base": kernmill.distributions.Normal(0, 1), "kernmill.distributions": kernmill.distributions,
}  # fmt: skip


def is_answered(place: Any, name: str) -> bool:
    """True if a name is here, or its error says what to write."""
    try:
        getattr(place, name)
    except AttributeError as error:
        return ". Write " in str(error) or ": write " in str(error)
    return True


@pytest.mark.parametrize("place", PLACES)
def test_a_name_of_pytorch_is_here_or_says_what_to_write(place: str) -> None:
    """Named regression: Tensor.hstack, stft, lcm, SyncBatchNorm, LARS and others had neither."""
    names = [name for line in TORCH_NAMES[place] for name in line.split()]
    assert len(names) > 15
    assert [n for n in names if not any(is_answered(owner, n) for owner in PLACES[place])] == []


@pytest.mark.parametrize("name", ["LARS", "Adafactor"])
def test_an_optimizer_of_large_models_has_a_neighbour(name: str) -> None:
    with pytest.raises(AttributeError, match=rf"no attribute '{name}'. Write nn.optim"):
        getattr(nn.optim, name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hann_window", [0, 0.5, 1, 0.5]), ("hamming_window", [0.08, 0.54, 1, 0.54]),
        ("bartlett_window", [0, 0.5, 1, 0.5]),
        ("softshrink", [-1.5, 0, 2.5]), ("hardshrink", [-2, 0, 3]), ("fmax", [0, 1, 4]), ("ldexp", [-2, 0.5, 48]),
        ("float_power", [1, 0.25, 81]), ("logaddexp2", [0.321928, 1.673198, 4.584962]), ("heaviside", [0, 1, 1]),
        ("trapezoid", 8), ("pairwise_distance", 2.35849), ("embedding_bag", [[7, 8]]),
    ],
)  # fmt: skip
def test_what_is_written_here_computes_it(name: str, expected: Any) -> None:
    """The values are PyTorch's."""
    x, y = Tensor([-2.0, 0.25, 3.0]), Tensor([0.0, 1.0, 4.0])
    values = {"x": x, "y": y, "n": 4, "weight": Tensor.arange(20).reshape(10, 2).cast(dtypes.float32)}
    names = {**vars(other_names), **values, "Tensor": Tensor, "where": kernmill.where, "math": math, "dtypes": dtypes}
    result = eval(other_names._INSTEAD[name], names, {"index": Tensor([[1, 6]])})
    np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5, atol=1e-7)


def test_what_is_written_here_is_here() -> None:
    """Every attribute and function in a sentence exists; `scatter_reduce` recommended a function of another meaning."""
    for text in HINTS:
        for owner, name in re.findall(r"\b((?:nn\.|np\.)?[a-z]\w*|Tensor)\.([a-zA-Z]\w*)", text):
            assert name == "md" or hasattr(OWNERS.get(owner, MATRIX), name), text
        for name in re.findall(r"(?<![.\w])([a-z_]\w*)\(", text):
            assert hasattr(kernmill, name) or name in ("bool", "backward", "lambda", "step", "groups", "range", "len",
                                                       "index_add", "memoryview"), text  # fmt: skip


def test_data_is_no_attribute_that_can_be_set() -> None:
    """Named regression: `p.data = q` left the tensor as it was, without a word."""
    x: Any = Tensor([1.0])
    with pytest.raises(AttributeError, match=r"no attribute 'data'. Write x.assign\(values\)"):
        x.data = X
