"""autocast: dtypes, values, captured steps."""

from __future__ import annotations

import numpy as np
import pytest

from kernmill import DTypeError, Tensor, autocast, dtypes, jit, nn
from kernmill.ir import DType

from .against import values

HALF = (dtypes.bfloat16, dtypes.float16)


@pytest.mark.parametrize("half", HALF)
def test_products_are_half_and_sums_are_not(half: DType) -> None:
    x, w, b = Tensor(values(4, 3)), Tensor(values(5, 3)), Tensor(values(5))
    image, kernel = Tensor(values(1, 2, 5, 5)), Tensor(values(3, 2, 2, 2))
    with autocast(half):
        products = [x @ w.T, x.linear(w, b), x.matmul(w.T), image.conv2d(kernel)]
        heads = Tensor(values(1, 2, 4, 4))
        products.append(heads.scaled_dot_product_attention(heads, heads))
        single = [products[0].softmax(1), products[0].sum(), products[0].exp(), products[0].mean(0), products[0].norm()]
        single.append(products[0].cross_entropy(Tensor([0, 1, 2, 3])))
        assert (x + w[0]).dtype is dtypes.float32
        assert (Tensor([1, 2]) @ Tensor([3, 4])).dtype is dtypes.int64
        assert (x.double() @ w.double().T).dtype is dtypes.float64
        with autocast(enabled=False):
            assert (x @ w.T).dtype is dtypes.float32
    assert {p.dtype for p in products} == {half}
    assert {s.dtype for s in single} == {dtypes.float32}
    assert (x @ w.T).dtype is dtypes.float32
    exact = x.numpy() @ w.numpy().T
    np.testing.assert_allclose(products[0].float().numpy(), exact, rtol=0.02, atol=0.02)
    np.testing.assert_array_equal(products[0].float().numpy(), (x.cast(half) @ w.cast(half).T).float().numpy())


def test_parameters_and_gradients_stay_float32() -> None:
    layer = nn.Linear(3, 8)
    x = Tensor(values(4, 3))
    grads = []
    for enabled in (True, False):
        with autocast(enabled=enabled):
            loss = nn.LayerNorm(8)(layer(x)).square().mean() + layer(x).square().mean()
        loss.backward()
        assert layer.weight.grad is not None
        assert (loss.dtype, layer.weight.grad.dtype) == (dtypes.float32, dtypes.float32)
        grads.append(layer.weight.grad.numpy().copy())
        layer.weight.grad = None
    np.testing.assert_allclose(grads[0], grads[1], rtol=0.1, atol=0.05)
    assert (grads[0] != grads[1]).any()


def test_a_captured_function_is_captured_for_each() -> None:
    x = Tensor(values(4, 3))
    inside = jit(lambda x: _product(x))
    outside = jit(lambda x: x @ x.T)
    for _ in range(3):
        assert inside(x).dtype is dtypes.bfloat16
        assert outside(x).dtype is dtypes.float32
        with autocast():
            assert outside(x).dtype is dtypes.bfloat16


@autocast()
def _product(x: Tensor) -> Tensor:
    return x @ x.T


def test_mistakes() -> None:
    with (
        pytest.raises(DTypeError, match=r"^autocast: float32. Give dtypes.bfloat16 or dtypes.float16."),
        autocast("float32"),
    ):
        pass
