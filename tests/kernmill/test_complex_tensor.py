"""ComplexTensor against NumPy's complex arrays: operators, functions, reductions, views, gradients, jit; bad input."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from kernmill import ComplexTensor, Context, DTypeError, GradientError, ShapeError, Tensor, dtypes, jit
from kernmill.complex_tensor import as_complex, joined
from tests.kernmill.against import only_on

on_device = only_on("LLVM")
FUNCTIONS = (
    "exp", "expm1", "log", "log1p", "log2", "log10", "sqrt", "sin", "cos", "tan", "sinh", "cosh", "tanh", "arcsin",
    "arccos", "arctan", "arcsinh", "arccosh", "arctanh", "square", "sign", "reciprocal",
)  # fmt: skip


def complex_values(*shape: int, seed: int = 1) -> Any:
    r = np.random.default_rng([seed, *shape])
    return r.normal(size=shape) + 1j * r.normal(size=shape)


def near(own: Any, theirs: Any, tolerance: float = 4e-15) -> None:
    a, b = own.numpy(), np.asarray(theirs)
    assert a.shape == b.shape
    np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance)


A, B = complex_values(3, 4), complex_values(3, 4, seed=2)


@pytest.mark.parametrize("name", ["add", "sub", "mul", "truediv", "pow"])
def test_operators_with_every_kind_of_operand(name: str) -> None:
    forward, backward = f"__{name}__", f"__r{name}__"
    x = np.abs(A.real) + 0.5
    for ours, theirs in ((ComplexTensor(B), B), (Tensor(x), x), (1.5, 1.5), (2, 2), (1j, 1j), (B, B)):
        near(getattr(ComplexTensor(A), forward)(ours), getattr(A, forward)(theirs))
        near(getattr(ComplexTensor(A), backward)(ours), getattr(A, backward)(theirs))


def test_operators_that_begin_with_a_tensor_or_an_array() -> None:
    x, z = Tensor(A.real), ComplexTensor(B)
    near(x + z, A.real + B)
    near(x - z, A.real - B)
    near(x / z, A.real / B)
    near(x + 1j, A.real + 1j)  # type: ignore[operator]
    near(1j * x, 1j * A.real)  # type: ignore[operator]
    near(A * z, A * B)
    near(x @ z.mH, A.real @ B.conj().T)
    near(z @ x.T, B @ A.real.T)
    assert (x == z).dtype is dtypes.bool
    assert bool((z != z.conj()).all())
    x += 1.0
    with pytest.raises(DTypeError, match="a Tensor is real"):
        x += z  # type: ignore[arg-type]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name: str) -> None:
    own = getattr(ComplexTensor, name.replace("arc", "a"))
    for scale in (1.0, 30.0, 1e-5):
        x = A * scale
        wanted = getattr(np, name)(x) if name != "log1p" or scale == 1.0 else np.log(1 + x.astype(np.clongdouble))
        np.testing.assert_allclose(own(ComplexTensor(x)).numpy(), wanted.astype(complex), rtol=3e-14)
    narrow = own(ComplexTensor(A.astype("complex64")))
    assert narrow.dtype is dtypes.complex64
    np.testing.assert_allclose(narrow.numpy(), getattr(np, name)(A), rtol=2e-5, atol=1e-6)


def test_values_at_zeros_and_infinities() -> None:
    inf = math.inf
    near(ComplexTensor([0j, -1.0, complex(-inf, 0)]).exp(), [1, math.exp(-1), 0], 1e-6)
    near(ComplexTensor([-4 + 0j, complex(-4, -0.0), 0j]).sqrt(), [2j, -2j, 0])
    near(ComplexTensor([0j, 2j]).pow(2.5), [0, (2j) ** 2.5], 1e-6)
    assert ComplexTensor([1e300 + 1e300j], dtype="complex128").abs().item() == pytest.approx(math.sqrt(2) * 1e300)
    one = ComplexTensor([1e300 + 1e300j], dtype="complex128")
    near(one / one, [1])
    assert ComplexTensor([1 + 0j]).__truediv__(0j).real.item() == inf
    assert [bool(f.item()) for f in (one.isnan(), one.isinf(), one.isfinite())] == [False, False, True]
    near(ComplexTensor([0j, 3j]).sign(), [0, 1j])


def test_reductions_and_products() -> None:
    z = ComplexTensor(A)
    near(z.sum(1), A.sum(1))
    near(z.mean((0, 1), True), A.mean(keepdims=True))
    near(z.prod(), A.prod())
    near(z.prod(-1, True), A.prod(-1, keepdims=True))
    near(z.var(1), A.var(1, ddof=1))
    near(z.std(0), A.std(0, ddof=1))
    near(z.cumsum(1), A.cumsum(1))
    near(z.angle(), np.angle(A))
    near(abs(z), np.abs(A))
    assert ComplexTensor(np.zeros((0, 3))).sum().item() == 0
    assert ComplexTensor(np.zeros((0, 3))).prod().item() == 1
    assert z.allclose(A + 1e-12)


def test_movement_views_and_writes() -> None:
    z, a = ComplexTensor(A), A.copy()
    near(z.reshape(4, 3).T[1:], a.reshape(4, 3).T[1:])
    near(joined([z, z], 1), np.concatenate([a, a], 1))
    near(joined([z, Tensor(A.real)], is_new=True), np.stack([a, a.real]))
    near(z.split(2, 1)[1], a[:, 2:])
    row = z[0]
    z[0, 1:3] = 1j
    a[0, 1:3] = 1j
    near(z, a)
    near(row, a[0])
    z.assign(B)
    near(row, B[0])
    assert len(z) == 3
    assert z.numel() == 12


def test_gradients() -> None:
    z = ComplexTensor(A, requires_grad=True)
    (z * z).abs().sum().backward()
    assert z.grad is not None
    near(z.grad, 2 * A)  # |z|^2 has the gradient 2 z
    zero = ComplexTensor([0j], requires_grad=True)
    zero.abs().sum().backward()
    assert zero.grad is not None
    assert zero.grad.item() == 0
    assert z.requires_grad
    assert not z.detach().requires_grad
    assert ComplexTensor(A).grad is None


def test_captured() -> None:
    @jit
    def f(z: ComplexTensor, w: Tensor) -> Any:
        return {"out": (z * w).exp(), "size": z.abs()}

    for scale in (1.0, 2.0, 3.0):
        made = f(ComplexTensor(A * scale), Tensor(B.real))
        near(made["out"], np.exp(A * scale * B.real), 1e-12)
        near(made["size"], np.abs(A * scale))


def test_every_device(device: str) -> None:
    with Context(DEVICE=device):
        if not device.startswith("NULL"):
            z = ComplexTensor(A)
            near((z * B / 2j).sqrt().sum(0), np.sqrt(A * B / 2j).sum(0))
            near(z @ z.mT, A @ A.T)


def test_ways_in_and_out() -> None:
    assert ComplexTensor([1, 2j]).dtype is dtypes.complex64
    assert ComplexTensor(A).dtype is dtypes.complex128
    assert ComplexTensor(A, dtype="complex64").numpy().dtype == np.complex64
    assert ComplexTensor(Tensor([1.0]), 2.0).tolist() == [1 + 2j]
    assert ComplexTensor([[1], [2]], [3, 4]).shape == (2, 2)
    assert ComplexTensor(np.arange(3, dtype=np.float32)).dtype is dtypes.complex64
    assert complex(ComplexTensor(3 + 4j)) == 3 + 4j
    assert ComplexTensor(3 + 4j).shape == ComplexTensor(np.array(1j)).numpy().shape == ()
    assert np.asarray(ComplexTensor(A), np.complex64).dtype == np.complex64
    assert repr(ComplexTensor(A)) == "<ComplexTensor (3, 4) complex128 LLVM>"
    z = as_complex(2.0)
    assert as_complex(z) is z
    assert z.to("complex128").dtype is dtypes.complex128
    assert bool(ComplexTensor(1j))
    assert not ComplexTensor(0j)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: Tensor(A), DTypeError, "a Tensor is real. Use kernmill.ComplexTensor"),
        (lambda: Tensor([1j]), DTypeError, "a Tensor is real. Use kernmill.ComplexTensor"),
        (lambda: Tensor([1.0]).cast("complex64"), DTypeError, "a Tensor is real"),
        (lambda: Tensor([1.0]).add(ComplexTensor([1j])), DTypeError, "Use an operator"),  # type: ignore[arg-type]
        (lambda: ComplexTensor(A).softmax(), AttributeError, "Use its planes"),
        (lambda: ComplexTensor(A).sum().backward(), GradientError, "a complex tensor is not a loss"),
        (lambda: ComplexTensor(A).cast("float32"), DTypeError, "must be complex64 or complex128"),
        (lambda: ComplexTensor(A) + "a", DTypeError, "ComplexTensor with str"),  # type: ignore[operator]
        (lambda: ComplexTensor([[1], [1, 2]]), ShapeError, "different lengths"),
        (lambda: ComplexTensor(["a"]), DTypeError, "elements must be numbers"),
        (lambda: ComplexTensor(A) + B[:2], ShapeError, "do not broadcast"),
        (lambda: np.array(ComplexTensor(A), copy=False), ValueError, "need a copy"),
    ],
)
def test_bad_input(call: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        call()
