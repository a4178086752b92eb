from __future__ import annotations

import itertools
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kernmill import DType, DTypeError, Tensor, dtypes, where
from tests.kernmill.against import close, same, values, with_torch

EDGES = np.array([0.0, -0.0, 1.0, -1.5, 3.0, np.inf, -np.inf, np.nan, 0.5, -2.0], np.float32)
BINARY = ["add", "sub", "mul", "truediv", "floordiv", "mod", "lt", "le", "gt", "ge", "eq", "ne"]


@pytest.mark.parametrize("name", BINARY)
def test_operators_on_edge_values_are_numpys(name: str) -> None:
    fn: Callable[[Any, Any], Any] = getattr(operator, name)
    a, b = (x.reshape(-1) for x in np.meshgrid(EDGES, EDGES))
    with np.errstate(all="ignore"):
        want = fn(a, b)
    got = fn(Tensor(a), Tensor(b)).numpy()
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


def test_no_tensor_equals_none() -> None:
    """As in PyTorch and Python; `x == None` and `x in [None]` raised."""
    x: Any = Tensor([1.0])
    assert (x == None, x != None) == (False, True)  # noqa: E711
    assert x not in [None]
    with pytest.raises(DTypeError, match="Tensor with NoneType"):
        x.eq(None)


@pytest.mark.parametrize("name", [*BINARY, "and_", "or_", "xor"])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint32"])
def test_operators_on_ints_are_numpys(name: str, dtype: str) -> None:
    fn: Callable[[Any, Any], Any] = getattr(operator, name)
    info = np.iinfo(dtype)
    pool = np.array([0, 1, 2, 7, info.min, info.max, info.max - 3], dtype)
    a, b = (x.reshape(-1) for x in np.meshgrid(pool, pool))
    if name == "floordiv" and info.min:
        a, b = a[(a != info.min) | (b != a.dtype.type(-1))], b[(a != info.min) | (b != a.dtype.type(-1))]
    with np.errstate(all="ignore"):
        want = fn(a, b)
    got = fn(Tensor(a), Tensor(b)).numpy()
    np.testing.assert_allclose(got, want, rtol=2e-7)
    assert got.dtype == (np.float32 if name == "truediv" else want.dtype)


SCALARS: list[tuple[DType, Any, DType]] = [
    (dtypes.int32, 1, dtypes.int32),
    (dtypes.int32, 1.5, dtypes.float32),
    (dtypes.int32, True, dtypes.int32),
    (dtypes.uint8, 3, dtypes.uint8),
    (dtypes.bool, True, dtypes.bool),
    (dtypes.bool, 1, dtypes.int64),
    (dtypes.bool, 1.5, dtypes.float32),
    (dtypes.float16, 1.5, dtypes.float16),
    (dtypes.float32, 1, dtypes.float32),
    (dtypes.float64, 0.1, dtypes.float64),
    (dtypes.float32, np.float64(2), dtypes.float32),
]


@pytest.mark.parametrize(("dtype", "scalar", "result"), SCALARS)
def test_python_numbers_are_weak(dtype: DType, scalar: Any, result: DType) -> None:
    t = Tensor.ones(2, dtype=dtype)
    assert (t + scalar).dtype is result
    assert (scalar + t).dtype is result


@pytest.mark.parametrize(("a", "b"), list(itertools.combinations(dtypes.data, 2)))
def test_promotion_is_torchs(a: DType, b: DType) -> None:
    torch = pytest.importorskip("torch")
    if "uint64" in (a.name, b.name) or {a.name, b.name} & {"uint16", "uint32"}:
        pytest.skip("PyTorch refuses wide unsigned ints")
    want = torch.promote_types(getattr(torch, a.name), getattr(torch, b.name))
    assert (Tensor.ones(1, dtype=a) + Tensor.ones(1, dtype=b)).dtype.name == str(want).removeprefix("torch.")


def test_numpy_arrays_are_operands_on_both_sides() -> None:
    a, b = values(3), values(3, seed=1)
    assert isinstance(b + Tensor(a), Tensor)
    close(b - Tensor(a), b - a)
    close(Tensor(a) * b, a * b)
    close(np.float32(2) * Tensor(a), 2 * a)


def test_reflected_operators() -> None:
    x = np.array([1.0, 2.0, 4.0], np.float32)
    i = np.array([1, 2, 3])
    close(2 - Tensor(x), 2 - x)
    close(2 / Tensor(x), 2 / x)
    close(7 // Tensor(x), 7 // x)
    close(7 % Tensor(i), 7 % i)
    close(2 ** Tensor(x), 2**x)
    close(1 << Tensor(i), 1 << i)
    close(64 >> Tensor(i), 64 >> i)
    close(6 & Tensor(i), 6 & i)


def test_in_place_operators_change_a_tensor_and_its_views() -> None:
    a = Tensor([1.0, 2.0])
    alias, view = a, a.reshape(2, 1)
    a += 1
    a *= Tensor([2.0, 3.0])
    a -= 1
    a /= 2
    close(a, [1.5, 4.0])
    assert alias is a
    close(view, [[1.5], [4.0]])


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, -1, -2, 0.5, 1.5, 7])
def test_powers(exponent: float) -> None:
    x = values(5, low=0.5)
    close(Tensor(x) ** exponent, x**exponent, 3e-6)
    with_torch(lambda t: t**exponent, lambda t: t**exponent, [x])


def test_power_of_tensors_and_its_gradient_at_zero() -> None:
    a, b = np.array([0.0, 0.0, 2.0, 3.0], np.float32), np.array([0.0, 2.0, 0.0, -1.5], np.float32)
    with_torch(lambda x, y: x**y, lambda x, y: x**y, [a, b])


def test_int_powers_are_exact() -> None:
    same(Tensor([3, -7, 10]) ** 13, np.array([3, -7, 10]) ** 13)
    same(Tensor([2, 3]) ** Tensor([62, 20]), np.array([2, 3]) ** np.array([62, 20]))


def test_division_by_an_int_outside_the_dtype_is_exact() -> None:
    t = Tensor(np.array([0, 5], np.uint8))
    same(t / -2, np.array([-0.0, -2.5], np.float32))
    same(1000 / t, np.array([np.inf, 200], np.float32))


def test_whole_division_of_bools_takes_the_dtype_of_the_other_operand() -> None:
    bits, bytes_ = np.array([True, False]), np.array([1, 2], np.int8)
    same(Tensor(bits) // Tensor(bytes_), bits // bytes_)
    same(Tensor(bytes_) % Tensor(bits), np.zeros(2, np.int8))
    same(Tensor(bits) % Tensor(bytes_), bits % bytes_)
    assert (Tensor(bits) // Tensor(bits)).dtype is dtypes.int64


def test_comparison_with_an_int_outside_the_dtype_is_exact() -> None:
    t = Tensor(np.array([0, 255], np.uint8))
    assert (t < 300).tolist() == [True, True]
    assert (t == -1).tolist() == [False, False]
    assert (t > 2**80).tolist() == [False, False]


def test_ints_of_64_bits_are_compared_with_numbers_just_beyond_them() -> None:
    """In float64, where they were compared, 2**63 - 1 is 2**63."""
    for dtype in ("int64", "uint64"):
        limits = np.iinfo(dtype)
        t: Any = Tensor(np.array([limits.min, 0, limits.max], dtype))
        above, below = int(limits.max) + 1, int(limits.min) - 1
        for holds in (t < above, t <= above, t != above, above > t, t > below, t >= below, below != t, below <= t):
            assert holds.tolist() == [True, True, True], dtype
        for fails in (t > above, t >= above, t == above, above < t, t < below, t <= below, below == t, below >= t):
            assert fails.tolist() == [False, False, False], dtype


DIFFERENTIABLE: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "maximum": lambda a, b: a.maximum(b),
    "minimum": lambda a, b: a.minimum(b),
    "fmod": lambda a, b: a.fmod(b),
    "remainder": lambda a, b: a.remainder(b),
    "lerp": lambda a, b: a.lerp(b, 0.3),
    "clamp": lambda a, b: a.clamp(-1, 1) * b,
    "clamp_tensor": lambda a, b: a.clamp(b - 1, b + 0.5),
    "where": lambda a, b: a.where(a > 0, b),
    "masked_fill": lambda a, b: a.masked_fill(b > 0, 3.0) + b,
    "square": lambda a, b: a.square() + b.reciprocal(),
    "abs": lambda a, b: a.abs() * b.sign(),
    "neg": lambda a, b: -a * b,
}


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_values_and_gradients_are_torchs(name: str) -> None:
    fn = DIFFERENTIABLE[name]
    with_torch(fn, fn, [values(3, 4), values(4, seed=1)], 2e-5)


def test_logic() -> None:
    a, b = np.array([True, True, False, False]), np.array([1.5, 0.0, np.nan, 0.0])
    same(Tensor(a).logical_and(Tensor(b)), np.logical_and(a, b))
    same(Tensor(a).logical_or(Tensor(b)), np.logical_or(a, b))
    same(Tensor(a).logical_xor(Tensor(b)), np.logical_xor(a, b))
    same(~Tensor(a), ~a)
    same(~Tensor(np.array([0, 5], np.uint8)), ~np.array([0, 5], np.uint8))
    same(Tensor(EDGES).isnan(), np.isnan(EDGES))
    same(Tensor(EDGES).isinf(), np.isinf(EDGES))
    same(Tensor(EDGES).isfinite(), np.isfinite(EDGES))
    same(Tensor(EDGES).isclose(Tensor(EDGES)), np.isclose(EDGES, EDGES))
    same(Tensor(EDGES).isclose(Tensor(EDGES), equal_nan=True), np.isclose(EDGES, EDGES, equal_nan=True))


def test_choice_of_numbers() -> None:
    c = Tensor([True, False])
    assert where(c, 1, 2).dtype is dtypes.int64
    same(where(c, 1.5, 2), np.array([1.5, 2], np.float32))
    same(where(c, Tensor([1, 2]), 0.5), np.array([1, 0.5], np.float32))


def test_sign_of_everything() -> None:
    same(Tensor(EDGES).sign(), np.sign(EDGES))
    same(Tensor(np.array([0, 3], np.uint8)).sign(), np.array([0, 1], np.uint8))
    same(Tensor([True, False]).sign(), np.array([True, False]))


def test_shifts() -> None:
    a = np.array([1, -8, 3], np.int32)
    same(Tensor(a) << 3, a << 3)
    same(Tensor(a) >> 1, a >> 1)
    same(Tensor(a) << 40, np.zeros(3, np.int32))


def test_int_division_by_zero_does_not_crash() -> None:
    same(Tensor([1, 2]) // Tensor([0, 1]), np.array([0, 2]))
    same(Tensor([1, 2]) % Tensor([0, 1]), np.array([0, 0]))


def test_fmod_has_gradient_one_at_zero() -> None:
    x = Tensor([0.0, -0.0, 2.5, -2.5], requires_grad=True)
    x.fmod(2).sum().backward()
    assert x.grad is not None
    same(x.grad, np.ones(4, np.float32))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_fmod_keeps_the_sign_of_zero(dtype: Any) -> None:
    a = np.array([-0.0, 0.0, -3, 3, -2.5, 5, np.inf, np.nan], dtype)
    for other in (3.0, -3.0, 0.0, np.inf, -np.inf, np.nan):
        b = np.full(a.shape, other, dtype)
        found = Tensor(a).fmod(Tensor(b)).numpy()
        with np.errstate(invalid="ignore"):
            expected = np.fmod(a, b)
        np.testing.assert_array_equal(found, expected)
        signs = ~np.isnan(expected)
        np.testing.assert_array_equal(np.signbit(found[signs]), np.signbit(expected[signs]))


def test_fmod_of_the_smallest_int() -> None:
    a, b = np.array([-128, -128, 127, -128, 5], np.int8), np.array([127, 7, -128, -1, 0], np.int8)
    same(Tensor(a).fmod(Tensor(b)), np.array([-1, -2, 127, 0, 0], np.int8))


def test_clamp_to_nan_is_nan() -> None:
    """Once a nan among the bounds was no bound at all."""
    x, low, high = (np.array(v, np.float32) for v in ([-1, 0.5, np.nan, 3], [0, np.nan, 0, 2], [1, 1, 1, np.nan]))
    same(Tensor(x).clamp(Tensor(low), Tensor(high)), np.clip(x, low, high))
    same(Tensor(x).clamp(min=np.nan), np.full(4, np.nan, np.float32))
    same(Tensor([1, 5, 9]).clamp(2, 6), np.array([2, 5, 6]))


@pytest.mark.parametrize("exponent", [-1, -2, -3, -6])
def test_gradients_of_negative_powers_at_zero_are_torchs(exponent: int) -> None:
    """inf * 0 was nan."""
    torch = pytest.importorskip("torch")
    x = np.array([0.0, -0.0, 2.0, -1.5, np.nan], np.float32)
    ours, theirs = Tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
    (first,) = (ours**exponent).sum().gradient(ours)
    (want,) = torch.autograd.grad((theirs**exponent).sum(), theirs, create_graph=True)
    close(first, want.detach().numpy())
    (twice,) = first[2:4].sum().gradient(ours)
    close(twice[2:4], torch.autograd.grad(want[2:4].sum(), theirs)[0].numpy()[2:4])


def test_what_is_known_of_a_power_hides_no_other_target() -> None:
    """A node is the same node wherever it is built: the gradient of 1 / square once led past the square."""
    x = Tensor([1.0, 2.0], requires_grad=True)
    power, square = x**-2, x * x
    (got,) = square.reciprocal().sum().gradient(square)
    assert power.shape == (2,)
    assert got.tolist() == [-1, -0.0625]


def test_gradient_of_clamp_at_nan_is_torchs() -> None:
    with_torch(lambda t: t.clamp(-1, 1), lambda t: t.clamp(-1, 1), [np.array([np.nan, -5, 0.5, 5, 1], np.float32)])


def test_powers_of_bools_are_int64() -> None:
    """Once no kernel could be made of them."""
    a, b = np.array([True, True, False, False]), np.array([True, False, True, False])
    power = Tensor(a) ** Tensor(b)
    assert power.dtype is dtypes.int64
    np.testing.assert_array_equal(power.numpy(), a.astype(int) ** b)
    np.testing.assert_array_equal((True ** Tensor(b)).numpy(), [1, 1, 1, 1])


def test_every_operator_with_an_equals_sign_is_in_place() -> None:
    """`x **= 2`, `mask |= other` and others gave the name another tensor; where a function was given x, x stayed."""

    def change(x: Tensor, i: Tensor, b: Tensor) -> None:
        x **= 2
        x //= 2
        x %= 3
        i <<= 3
        i >>= 1
        i &= 12
        i |= 1
        i ^= 2
        b &= Tensor([True, False, True])
        b |= Tensor([False, False, True])
        b ^= True

    x, i, b = Tensor([1.0, 2.0, 3.0]), Tensor([1, 2, 3]), Tensor([True, True, False])
    change(x, i, b)
    assert (x.tolist(), i.tolist(), b.tolist()) == ([0.0, 2.0, 1.0], [7, 11, 15], [False, True, False])


RESULTS: dict[str, Callable[[Tensor], Tensor]] = {
    "clamp": lambda t: t.clamp(), "pow": lambda t: t.pow(1), "diff": lambda t: t.diff(0), "floor": Tensor.floor,
    "round": Tensor.round, "nan_to_num": Tensor.nan_to_num, "cat": lambda t: t.cat(), "abs": lambda t: t.bool().abs(),
    "sort": lambda t: t[0].sort().values, "cumsum": lambda t: t[0].cumsum(0),
    "scatter": lambda t: t.scatter(0, t[:0], 1),
}  # fmt: skip


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_a_tensor_of_its_own(name: str) -> None:
    """`y = x.diff(0); y += 1` changed x, and so it was after `x ** 1`, `x.clamp()` and floor of ints."""
    t = Tensor([3, 5])
    found = RESULTS[name](t)
    assert found is not t
    found += found
    assert t.tolist() == [3, 5]
