from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernmill import DTypeError, Tensor, dtypes
from kernmill.compiler import estimate
from kernmill.runtime import collecting_kernels
from tests.kernmill.against import close, values, with_torch

# second derivatives: name -> a function of one tensor, spelled alike in PyTorch
TWICE: dict[str, Callable[[Any], Any]] = {
    "cube": lambda t: t * t * t,
    "exp": lambda t: t.exp() * t.sin(),
    "log": lambda t: (t * t + 1).log().tanh(),
    "softmax": lambda t: t.softmax(-1) ** 2,
    "matmul": lambda t: (t @ t.mT) ** 2,
    "max": lambda t: t.amax(1) ** 3,
    "window": lambda t: t.unfold(1, 2, 1) ** 3,
    "slice": lambda t: t[::2, 1:] ** 3,
    "take": lambda t: t[[0, 2, 0]] ** 3,
    "prod": lambda t: t.prod(1),
    "sqrt": lambda t: (t * t + 1).sqrt() / (t.erf() + 2),
}


@pytest.mark.parametrize("name", TWICE)
def test_second_derivatives_are_torchs(name: str) -> None:
    torch = pytest.importorskip("torch")
    fn = TWICE[name]
    x = values(3, 3, low=0.3)
    own = Tensor(x, requires_grad=True)
    (first,) = fn(own).sum().gradient(own)
    (second,) = (first * Tensor(values(3, 3, seed=5))).sum().gradient(own)
    ref = torch.tensor(x, requires_grad=True)
    (want,) = torch.autograd.grad(fn(ref).sum(), ref, create_graph=True)
    (want2,) = torch.autograd.grad((want * torch.tensor(values(3, 3, seed=5))).sum(), ref)
    close(first.detach(), want.detach().numpy(), 1e-5, 1e-5)
    close(second.detach(), want2.numpy(), 1e-4, 1e-5)


def test_second_derivatives_of_a_long_running_log_of_sums_are_numbers() -> None:
    """More than one block: what stands before the first is -inf only, and 0 / 0 of its gradient came through."""
    own = Tensor(np.zeros(17), requires_grad=True)
    (first,) = own.logcumsumexp(0)[-1].gradient(own)
    (second,) = first[0].gradient(own)
    want = np.full(17, -1 / 17**2)
    want[0] += 1 / 17
    close(second.detach(), want, 1e-12, 1e-12)


def test_second_derivative_of_a_convolution() -> None:
    torch = pytest.importorskip("torch")
    x, w = values(1, 2, 5, 5), values(3, 2, 3, 3, seed=1)
    a, b = Tensor(x, requires_grad=True), Tensor(w, requires_grad=True)
    (first,) = (a.conv2d(b, stride=2, padding=1) ** 2).sum().gradient(a)
    (second,) = (first * first).sum().gradient(b)
    ra, rb = torch.tensor(x, requires_grad=True), torch.tensor(w, requires_grad=True)
    (want,) = torch.autograd.grad(
        (torch.nn.functional.conv2d(ra, rb, stride=2, padding=1) ** 2).sum(), ra, create_graph=True
    )
    (want2,) = torch.autograd.grad((want * want).sum(), rb)
    close(second.detach(), want2.numpy(), 1e-4, 1e-3)


def test_gradient_for_targets_in_the_middle() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    y = x * x
    z = (y * 3).sum()
    by_y, by_x = z.gradient(y, x)
    assert (by_y.tolist(), by_x.tolist()) == ([3, 3], [6, 12])
    assert x.grad is None


def test_the_gradient_given_weighs_the_outputs() -> None:
    x = Tensor([1.0, 2.0], requires_grad=True)
    (x * x).backward(Tensor([1.0, 10.0]))
    assert x.grad is not None
    assert x.grad.tolist() == [2, 40]


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.bfloat16, dtypes.float64])
def test_gradients_have_the_dtype_and_shape_of_the_leaf(dtype: Any) -> None:
    x = Tensor(values(2, 3), dtype=dtype, requires_grad=True)
    (x.float() * 2).mean().backward()
    assert x.grad is not None
    assert (x.grad.dtype, x.grad.shape) == (dtype, (2, 3))
    close(x.grad.float(), np.full((2, 3), 1 / 3), 4e-3)


def test_steps_have_gradient_zero() -> None:
    x = Tensor([1.5], requires_grad=True)
    (x.floor() + x.round()).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0]
    assert (x.floor() * 3).sum().gradient(x)[0].tolist() == [0]  # it was told not to lead there
    plain = Tensor([1.5])  # of which `gradient` asks no flag, here neither
    assert plain.floor().gradient(plain)[0].tolist() == [0]
    signs = Tensor([0.0, -0.0, np.nan, 2.0], requires_grad=True)
    signs.sign().sum().backward()  # once it led to no leaf
    assert signs.grad is not None
    assert signs.grad.tolist() == [0] * 4


def test_a_deep_graph_does_not_recurse() -> None:
    x = Tensor([1.0], requires_grad=True)
    y = x
    for _ in range(3000):
        y = y + x
    (grad,) = y.sum().gradient(x)
    assert len(grad.uop.toposort()) > 0


def test_detach_gives_a_view() -> None:
    """As in PyTorch a write changes both. Once it was the tensor itself where nothing asked for gradients."""
    x = Tensor([1.0, 2.0, 3.0])
    y = x.detach()
    y.requires_grad = True
    assert not x.requires_grad
    z = x.detach()
    z[0] = 9.0
    assert (x.tolist(), z.tolist(), y.tolist()) == ([9.0, 2.0, 3.0], [9.0, 2.0, 3.0], [1.0, 2.0, 3.0])


def test_detach_stops() -> None:
    x = Tensor([3.0], requires_grad=True)
    (x * x.detach()).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [3]


def test_maximum_and_minimum_with_nan_pass_the_gradient_to_both() -> None:
    """As in PyTorch. Once neither got any, and a nan in a model's weights went unnoticed by its gradients."""
    a, b = np.array([1, np.nan, np.nan, 2, 3], np.float32), np.array([np.nan, 1, np.nan, 2, 4], np.float32)
    with_torch(lambda x, y: x.maximum(y), lambda x, y: x.maximum(y), [a, b])
    with_torch(lambda x, y: x.minimum(y), lambda x, y: x.minimum(y), [a, b])


MEANS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda t: t.sum(),
    "mean": lambda t: t.mean(),
    "scaled": lambda t: (t * 2 + 1).mean(),
    "rows": lambda t: t.mean(0).sum() / 3,
    "relu": lambda t: t.relu().sum(),
}


@pytest.mark.parametrize("name", MEANS)
@pytest.mark.parametrize("shape", [(5, 4, 3), (1, 4, 3), (5, 1, 1)], ids=str)
def test_a_gradient_that_is_the_same_for_all_rows(name: str, shape: tuple[int, int, int]) -> None:
    rows, inner, columns = shape
    inputs = [values(rows, inner), values(inner, columns, seed=1), values(columns, seed=2)]
    with_torch(lambda x, y, b: MEANS[name](x @ y + b), lambda x, y, b: MEANS[name](x @ y + b), inputs, 1e-5)


SCALED: dict[str, Callable[[Tensor], Tensor]] = {
    "a sum": lambda t: t.sum(),
    "a mean": lambda t: (t * 0.5).mean(),
    "a square": lambda t: t.sum() * t.sum(),
    "by columns": lambda t: (t.T * 2).sum() / 3,
    "with axes of size 1": lambda t: (t.unsqueeze(1) * 0.5).squeeze(1).sum(),
}


@pytest.mark.parametrize("name", SCALED)
def test_a_gradient_that_is_the_same_for_all_rows_is_added_once(name: str) -> None:
    """Once each of the rows had its own sum, of the same numbers: 1.4 s for (x @ y).sum() of 1024 x 1024."""
    x, y = (Tensor(values(64, 64, seed=s), requires_grad=True) for s in (1, 2))
    product = (x @ y).contiguous()
    SCALED[name](product).backward()
    assert x.grad is not None
    scale = {"a sum": 1.0, "a mean": 1 / 8192, "a square": 2 * product.sum().item(), "by columns": 2 / 3}.get(name, 0.5)
    with collecting_kernels() as found:
        close(x.grad, np.ones((64, 1)) * values(64, 64, seed=2).sum(1) * scale, 1e-4, 1e-4)
    most = 2 * 64 * 64 if name != "a square" else 2 * 64 * 64 * 66
    assert sum(estimate(ast).flops for _, ast in found) <= most + 2  # the product of two numbers that are given


def test_the_second_gradient_of_abs_at_zero_is_zero() -> None:
    """Once it was the gradient of the result."""
    x = Tensor([0.0, -0.0, 2.0, -3.0, np.inf], requires_grad=True)
    first = x.abs().gradient(x, gradient=Tensor.ones(5))[0]
    np.testing.assert_array_equal(first.numpy(), [0, 0, 1, -1, 1])
    np.testing.assert_array_equal(first.sum().gradient(x)[0].numpy(), 0)


def test_requires_grad_can_be_set() -> None:
    """It was an attribute that nothing looked at: backward() left no gradient, without a word."""
    x, y = Tensor([1.0, 2.0]).realize(), Tensor([3.0, 4.0], requires_grad=True)
    x.requires_grad, y.requires_grad = True, False
    (x * y).sum().backward()
    assert x.grad is not None
    assert (x.grad.tolist(), y.grad) == ([3.0, 4.0], None)
    y.requires_grad = True
    (x * y).sum().backward()
    assert y.grad is not None
    assert y.grad.tolist() == [1.0, 2.0]
    with pytest.raises(DTypeError, match="no gradient"):
        Tensor([1, 2]).requires_grad = True


def test_what_is_made_of_a_frozen_leaf_leads_to_no_gradient() -> None:
    """It did once the leaf was thawed; and each time the leaf's expression had one more node, and was compiled anew."""
    x = Tensor([1.0, 2.0], requires_grad=True).realize()
    before, depths = x * 3, []
    for _ in range(3):
        x.requires_grad = False
        frozen = x * 2
        x.requires_grad = True
        depths.append(len(x.uop.toposort()))
    (x * frozen + before).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [5.0, 7.0]
    assert depths == depths[:1] * 3
