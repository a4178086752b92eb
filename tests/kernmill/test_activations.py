from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernmill import Tensor
from tests.kernmill.against import same, values, with_torch

NAMES = ["relu", "relu6", "leaky_relu", "elu", "celu", "selu", "silu", "gelu", "softplus", "mish", "hardtanh",
         "hardsigmoid", "hardswish", "logsigmoid", "softsign"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_activations_are_torchs(name: str) -> None:
    torch = pytest.importorskip("torch")
    theirs: Callable[[Any], Any] = getattr(torch.nn.functional, name)
    x = np.concatenate([values(50, low=-6, high=6), np.array([-90, 90, -30, 30], np.float32)])
    with_torch(lambda t: getattr(t, name)(), theirs, [x], 2e-5)


def test_gelu_by_tanh() -> None:
    torch = pytest.importorskip("torch")
    with_torch(lambda t: t.gelu("tanh"), lambda t: torch.nn.functional.gelu(t, approximate="tanh"), [values(50)])


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("mish", "gelu")])
def test_nan_stays_nan(name: str) -> None:
    assert np.isnan(getattr(Tensor([np.nan]), name)().numpy()).all()


def test_relu_of_ints_and_at_zero() -> None:
    same(Tensor([-1, 0, 3]).relu(), np.array([0, 0, 3]))
    x = Tensor([-1.0, 0.0, 1.0], requires_grad=True)
    x.relu().sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0, 0, 1]


def test_gelu_refuses_other_formulas() -> None:
    with pytest.raises(ValueError, match="neither 'none' nor 'tanh'"):
        Tensor([1.0]).gelu("fast")


@pytest.mark.parametrize("name", ["relu6", "hardtanh", "hardsigmoid", "hardswish"])
def test_gradients_where_a_hard_bound_begins_are_torchs(name: str) -> None:
    """Once they were those of the inside, where relu's at 0 is that of the outside."""
    functional = pytest.importorskip("torch").nn.functional
    x = np.array([0, 6, 1, -1, 3, -3, 2, -7, 9], np.float32)
    with_torch(lambda t: getattr(t, name)(), getattr(functional, name), [x])
