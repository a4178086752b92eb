from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernmill import DType, Tensor, dtypes
from kernmill.runtime import collecting_kernels
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


def test_relus_gradient_does_not_want_what_relu_was_given() -> None:
    """Once the sums before relu were stored as well, and read twice: 3 % of a training step."""
    x, w, v = (Tensor(values(n, k), requires_grad=True) for n, k in ((48, 32), (32, 64), (64, 32)))
    t = Tensor(values(48, 32))
    with collecting_kernels() as seen:
        y = (x @ w).relu() @ v
        (y * t).sum().backward()
        x.grad.realize(y, w.grad, v.grad)  # type: ignore[union-attr,arg-type]
    inner = [k for k, _ in seen.values() if k.name.startswith("map_48x64")]
    assert not inner
    a, b, c, d = (one.detach().numpy().astype(np.float64) for one in (x, w, v, t))
    into = np.where(a @ b > 0, d @ c.T, 0)
    assert x.grad is not None
    np.testing.assert_allclose(x.grad.numpy(), into @ b.T, rtol=1e-3, atol=1e-4)


def test_relu_passes_on_what_comes_back_to_nan() -> None:
    x = Tensor([np.nan, -0.0, 2.0], requires_grad=True)
    (x.relu() * Tensor([5.0, 6.0, 7.0])).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [5, 0, 7]  # torch's


def test_gelu_refuses_other_formulas() -> None:
    with pytest.raises(ValueError, match="must be 'none' or 'tanh'"):
        Tensor([1.0]).gelu("fast")


@pytest.mark.parametrize("name", ["relu6", "hardtanh", "hardsigmoid", "hardswish"])
def test_gradients_where_a_hard_bound_begins_are_torchs(name: str) -> None:
    """Once they were those of the inside, where relu's at 0 is that of the outside."""
    functional = pytest.importorskip("torch").nn.functional
    x = np.array([0, 6, 1, -1, 3, -3, 2, -7, 9], np.float32)
    with_torch(lambda t: getattr(t, name)(), getattr(functional, name), [x])


@pytest.mark.parametrize("name", ["gelu", "quick_gelu", "silu", "mish", "softplus", "elu", "hardswish", "sigmoid"])
@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16], ids=str)
def test_half_types_are_rounded_once(name: str, dtype: DType) -> None:
    """gelu(-3) was 0 in bfloat16 and 9 % off in float16: 1 + erf(x) was rounded to a half type."""
    x = Tensor(np.linspace(-12, 6, 1001, dtype=np.float32)).cast(dtype)
    exact = getattr(x.double(), name)().numpy()
    found = getattr(x, name)()
    assert found.dtype is dtype
    unit = np.maximum(np.abs(exact), 6.2e-5) * (2.0**-11 if dtype is dtypes.float16 else 2.0**-8)
    most = 4.0 if name == "gelu" else 1.5  # 1 + erf(-5) has lost digits in float32 as well
    assert (np.abs(found.double().numpy() - exact) / unit).max() < most
