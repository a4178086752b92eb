"""Polynomial programs against wider arithmetic: the errors that the docstrings state, over samples of the whole range.

float32 is compared with float64, float64 with the x87 extended type where NumPy has it, and a few points of everything
with mpmath; sine and cosine also at every exponent and where they are nearest to 0.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from functools import cache
from typing import Any

import mpmath
import numpy as np
import pytest

from kernmill.ir import DType, Op, Ops, RuleSet, UOp, dtypes, evaluate, rewrite

# inside the compiler: no user of the package calls these
_module = importlib.import_module("kernmill.compiler.lower.transcendental")
in_basic_ops, TRANSCENDENTAL, SINES_IN_WORDS = _module.in_basic_ops, _module.TRANSCENDENTAL, _module.SINES_IN_WORDS
exp_to_polynomial, exp2_to_polynomial = _module.exp_to_polynomial, _module.exp2_to_polynomial
scale_in_steps = importlib.import_module("kernmill.compiler.lower.split_float").scale_in_steps

Array = np.ndarray[Any, Any]
EXTENDED = np.finfo(np.longdouble).nmant >= 63
FLOATS = [
    dtypes.float32,
    pytest.param(dtypes.float64, marks=pytest.mark.skipif(not EXTENDED, reason="no wider float to compare with")),
]
# the errors in the docstrings, in ulp
LIMITS: dict[Op, dict[int, float]] = {
    Ops.EXP: {32: 1.1, 64: 1.2}, Ops.EXP2: {32: 1.1, 64: 1.2}, Ops.LOG: {32: 1.0, 64: 1.0},
    Ops.LOG2: {32: 1.2, 64: 1.2},
    Ops.SIN: {32: 1.6, 64: 1.6}, Ops.COS: {32: 1.6, 64: 1.6}, Ops.TANH: {32: 1.6, 64: 1.6}, Ops.ERF: {32: 1.3, 64: 1.3},
    Ops.POW: {32: 1.2, 64: 1.6},
}  # fmt: skip
# where the samples are densest: for float32, for float64
RANGES: dict[Op, dict[int, tuple[float, float]]] = {
    Ops.EXP: {32: (-104, 89), 64: (-746, 710)}, Ops.EXP2: {32: (-151, 128), 64: (-1076, 1024)},
    Ops.LOG: {32: (0, 4), 64: (0, 4)}, Ops.LOG2: {32: (0, 4), 64: (0, 4)},
    Ops.SIN: {32: (-1e5, 1e5), 64: (-1e9, 1e9)}, Ops.COS: {32: (-1e5, 1e5), 64: (-1e9, 1e9)},
    Ops.TANH: {32: (-10, 10), 64: (-21, 21)}, Ops.ERF: {32: (-4.5, 4.5), 64: (-6.2, 6.2)},
}  # fmt: skip
PERIODIC = (Ops.SIN, Ops.COS)
SINE_ENDS = {32: math.inf, 64: 2.0**50}  # beyond, the error is absolute
SINE_BEYOND = 1e-15


def wide_erf(x: Array) -> Array:
    """erf by its series of positive terms, in the dtype of x."""
    size = np.minimum(np.abs(x), 7)
    term, total = size.copy(), size.copy()
    for n in range(1, 250):
        term = term * (2 * size * size / np.array(2 * n + 1, x.dtype))
        total += term
    root_pi = np.sqrt(np.array(math.pi, x.dtype) + np.array(1.2246467991473532e-16, x.dtype))
    result: Array = np.copysign(np.minimum(total * np.exp(-size * size) * 2 / root_pi, 1), x)
    return result


WIDE: dict[Op, Callable[..., Array]] = {
    Ops.EXP: np.exp, Ops.EXP2: np.exp2, Ops.LOG: np.log, Ops.LOG2: np.log2, Ops.SIN: np.sin, Ops.COS: np.cos,
    Ops.TANH: np.tanh, Ops.ERF: wide_erf, Ops.POW: np.power,
}  # fmt: skip
ROUNDING: dict[Op, Callable[..., Array]] = {
    Ops.ROUND: np.rint, Ops.FLOOR: np.floor, Ops.CEIL: np.ceil, Ops.TRUNC: np.trunc,
}  # fmt: skip
MP: dict[Op, Callable[..., Any]] = {
    Ops.EXP: mpmath.exp, Ops.EXP2: lambda x: mpmath.power(2, x), Ops.LOG: mpmath.log,
    Ops.LOG2: lambda x: mpmath.log(x, 2),
    Ops.SIN: mpmath.sin, Ops.COS: mpmath.cos, Ops.TANH: mpmath.tanh, Ops.ERF: mpmath.erf, Ops.POW: mpmath.power,
}  # fmt: skip


def leaf(dtype: DType, slot: int = 0) -> UOp:
    return UOp(Ops.PARAM, dtype, (), (slot, 1))


def run(op: Op, dtype: DType, *arrays: Array) -> Array:
    leaves = [leaf(dtype, i) for i in range(len(arrays))]
    root = in_basic_ops(op, *leaves)
    assert root is not None
    assert root.dtype is dtype
    result: Array = evaluate(root, dict(zip(leaves, arrays, strict=True)))
    return result


def wider(x: Array) -> Array:
    return x.astype(np.longdouble if x.dtype == np.float64 else np.float64)


def error_ulp(got: Array, want: Array) -> Array:
    """Distance from the exact value in units of its last place in the dtype of `got`; 0 for equal inf and nan."""
    info = np.finfo(got.dtype)
    rounded = want.astype(got.dtype)
    same = (np.isnan(got) & np.isnan(rounded)) | (np.isinf(rounded) & (got == rounded))
    exponent = np.maximum(np.frexp(np.abs(want))[1] - info.nmant - 1, info.minexp - info.nmant)
    distance = np.abs(got.astype(want.dtype) - want) / np.ldexp(np.ones_like(want), exponent)
    return np.asarray(np.where(same, 0, np.where(np.isnan(distance), np.inf, distance)), np.float64)


def bit_patterns(dtype: DType, count: int, rng: np.random.Generator) -> Array:
    """Finite values of every size."""
    x: Array = rng.integers(0, 1 << dtype.bits, count, dtype=f"uint{dtype.bits}").view(dtype.name)
    finite: Array = x[np.isfinite(x)]
    return finite


@cache
def samples(op: Op, dtype: DType) -> Array:
    rng = np.random.default_rng(0)
    low, high = RANGES[op][dtype.bits]
    near_1 = 1 + rng.uniform(-1, 1, 40_000) * 2.0 ** rng.integers(-dtype.bits, 0, 40_000)
    parts = [bit_patterns(dtype, 60_000, rng), rng.uniform(low, high, 80_000), rng.uniform(-2, 2, 40_000), near_1]
    if op in PERIODIC:  # near the zeros
        parts.append(rng.integers(-int(high / 1.6), int(high / 1.6), 40_000) * (np.longdouble(math.pi) / 2))
    x: Array = np.concatenate([p.astype(dtype.name) for p in parts])
    if op in PERIODIC:
        x = x[np.abs(x) < SINE_ENDS[dtype.bits]]
    return np.abs(x) if op in (Ops.LOG, Ops.LOG2) else x


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", [op for op in WIDE if op is not Ops.POW], ids=str)
def test_error_is_as_stated(op: Op, dtype: DType) -> None:
    x = samples(op, dtype)
    with np.errstate(all="ignore"):
        error = error_ulp(run(op, dtype, x), WIDE[op](wider(x)))
    worst = int(np.argmax(error))
    assert len(x) >= 100_000
    assert error[worst] <= LIMITS[op][dtype.bits], (x[worst], error[worst])


@pytest.mark.parametrize("op", PERIODIC, ids=str)
def test_sine_and_cosine_without_float64(op: Op) -> None:
    """Also at every exponent, next to the zeros, and at what is no number."""
    rng = np.random.default_rng(1)
    every = (np.ldexp(1 + rng.random((64, 278)), np.arange(-149, 129)[None] - 1)).astype(np.float32).reshape(-1)
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 0.78, 0.78000003, 1e-45], np.float32)
    x = np.concatenate([samples(op, dtypes.float32), every[np.isfinite(every)], special])
    place = leaf(dtypes.float32)
    root = rewrite(place.alu(op), SINES_IN_WORDS)
    assert not any(u.dtype.scalar is dtypes.float64 for u in root.toposort())
    with np.errstate(all="ignore"):
        got = evaluate(root, {place: x})
        error = error_ulp(got, WIDE[op](wider(x)))
    worst = int(np.argmax(error))
    assert error[worst] <= LIMITS[op][32], (x[worst], error[worst])
    if op is Ops.SIN:
        assert np.signbit(got[np.signbit(x) & (x == 0)]).all()
    half = leaf(dtypes.float16)
    assert rewrite(half.alu(op), SINES_IN_WORDS).dtype is dtypes.float16
    double = leaf(dtypes.float64).alu(op)
    assert rewrite(double, SINES_IN_WORDS) is double


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_power_over_its_whole_range(dtype: DType) -> None:
    rng = np.random.default_rng(0)
    info = np.finfo(dtype.name)
    near_1 = 1 + rng.uniform(-1, 1, 60_000) * 2.0 ** rng.integers(-info.nmant - 1, 0, 60_000)
    x = np.concatenate(
        [v.astype(dtype.name) for v in (bit_patterns(dtype, 60_000, rng), rng.uniform(0, 3, 60_000), near_1)]
    )
    with np.errstate(all="ignore"):
        y = (rng.uniform(-1.05, 1.05, len(x)) * (info.nmant - info.minexp) / np.log2(np.abs(wider(x)))).astype(
            dtype.name
        )
        y[::5] = rng.integers(-6, 6, len(y[::5]))
        x[1:] = np.where(y[1:] == np.rint(y[1:]), x[1:], np.abs(x[1:]))
        error = error_ulp(run(Ops.POW, dtype, x, y), np.power(wider(x), wider(y)))
    worst = int(np.argmax(error))
    assert error[worst] <= LIMITS[Ops.POW][dtype.bits], (x[worst], y[worst], error[worst])


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
@pytest.mark.parametrize("op", WIDE, ids=str)
def test_few_points_in_fifty_digits(op: Op, dtype: DType) -> None:
    rng = np.random.default_rng(5)
    base = np.concatenate([rng.uniform(0, 3, 100), rng.uniform(0, 80, 100), 2.0 ** rng.uniform(-60, 0, 100)]).astype(
        dtype.name
    )
    args = [base, rng.uniform(-2, 5, 300).astype(dtype.name)] if op is Ops.POW else [base]
    got = run(op, dtype, *args)
    with mpmath.workdps(50):
        for value, *point in zip(got.tolist(), *(a.tolist() for a in args), strict=True):
            want = MP[op](*(mpmath.mpf(p) for p in point))
            info = np.finfo(dtype.name)
            unit = mpmath.mpf(2) ** max(mpmath.frexp(want)[1] - info.nmant - 1, info.minexp - info.nmant)
            assert abs(value - want) / unit <= LIMITS[op][dtype.bits], point


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
@pytest.mark.parametrize("op", [*WIDE, *ROUNDING], ids=str)
def test_edges_are_numpys(op: Op, dtype: DType) -> None:
    info = np.finfo(dtype.name)
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 2, -3, 0.5, -2.5, info.max,
                  info.min, info.tiny, -info.tiny, info.smallest_subnormal, -info.smallest_subnormal,
                  1e7, -1e7, 16777217], dtype.name)  # fmt: skip
    if op in PERIODIC:
        x = x[~(np.abs(x) >= SINE_ENDS[dtype.bits]) | np.isinf(x)]
    args = [g.ravel() for g in np.meshgrid(x, x)] if op is Ops.POW else [x]
    got = run(op, dtype, *args)
    with np.errstate(all="ignore"):
        exact = (WIDE | ROUNDING)[op](*(a.astype(np.longdouble) for a in args))
        want = exact.astype(dtype.name)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        np.testing.assert_array_equal(np.isinf(got), np.isinf(want))
        np.testing.assert_array_equal(got == 0, want == 0)
        np.testing.assert_array_equal(np.signbit(got) & ~np.isnan(got), np.signbit(want) & ~np.isnan(want))
        assert error_ulp(got, exact).max() <= 2


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
def test_exp_at_the_ends(dtype: DType) -> None:
    last, first_inf = (88.72, 89.0) if dtype.bits == 32 else (709.78, 709.79)
    x = np.array([last, first_inf, -1000, 0, -np.inf, np.inf, np.nan], dtype.name)
    got = run(Ops.EXP, dtype, x)
    assert np.isfinite(got[0])
    np.testing.assert_array_equal(got[1:], [np.inf, 0, 1, 0, np.inf, np.nan])


@pytest.mark.parametrize("fn", [exp_to_polynomial, exp2_to_polynomial], ids=["exp", "exp2"])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
def test_what_is_masked_is_0_by_a_factor_of_0(dtype: DType, fn: Callable[[UOp], UOp]) -> None:
    """A product that underflows takes a microcode assist: attention with a mask was half as fast."""
    scale, given = fn(leaf(dtype)), {leaf(dtype): np.array([-np.inf, -1e9], dtype.name)}
    least = -254 if dtype.bits == 32 else -2046  # lanes that an instruction leaves out (renderers/llvmir.py)
    np.testing.assert_array_equal(evaluate(scale.src[1], given), least)
    factors = [evaluate(s, given) for s in scale_in_steps(*scale.src).src[0].src]
    assert any((factor == 0).all() for factor in factors)
    assert all(np.isfinite(factor).all() for factor in factors)


def check_sine(op: Op, dtype: DType, x: Array) -> None:
    """Against mpmath: the error in ulp where that is promised, else the absolute one."""
    info = np.finfo(dtype.name)
    got = run(op, dtype, x)
    with mpmath.workprec(160):  # of the result: mpmath reduces the argument exactly
        for point, value in zip(x.tolist(), got.tolist(), strict=True):
            want = MP[op](mpmath.mpf(point))
            error = abs(value - want)
            if abs(point) < SINE_ENDS[dtype.bits]:
                exponent = max(mpmath.frexp(want)[1] - info.nmant - 1, info.minexp - info.nmant)
                assert mpmath.ldexp(error, -exponent) <= LIMITS[op][dtype.bits], point
            else:
                assert error <= SINE_BEYOND, point


def near_zeros(dtype: DType, exponents: range) -> Array:
    """Floats that are nearest to multiples of pi/2 for their size: denominators of the convergents of 2**e * 2/pi."""
    found = []
    with mpmath.workdps(400):
        for e in exponents:
            rest = mpmath.frac(mpmath.ldexp(2 / mpmath.pi, e))
            before, last = 0, 1
            while last < 1 << np.finfo(dtype.name).nmant + 1:
                found.append(math.ldexp(last, e))
                part = int(mpmath.floor(1 / rest))
                rest = 1 / rest - part
                before, last = last, part * last + before
    return np.array(found, dtype.name)


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
@pytest.mark.parametrize("op", PERIODIC, ids=str)
def test_sine_at_every_exponent(op: Op, dtype: DType) -> None:
    info, rng = np.finfo(dtype.name), np.random.default_rng(1)
    exponents = np.repeat(np.arange(info.minexp - info.nmant, info.maxexp), 40 if dtype.bits == 32 else 5)
    sign = rng.choice([-1.0, 1.0], len(exponents))
    check_sine(op, dtype, np.ldexp(sign * rng.uniform(1, 2 - 2**-23, len(exponents)), exponents).astype(dtype.name))


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
@pytest.mark.parametrize("op", PERIODIC, ids=str)
def test_sine_next_to_multiples_of_half_pi(op: Op, dtype: DType) -> None:
    x = near_zeros(dtype, range(-20, 104)) if dtype.bits == 32 else near_zeros(dtype, range(-50, 971, 7))
    assert len(x) > 1500
    check_sine(op, dtype, np.concatenate([x, (np.arange(1, 2000) * (math.pi / 2)).astype(dtype.name)]))


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
@pytest.mark.parametrize("op", PERIODIC, ids=str)
def test_sine_of_known_hard_arguments(op: Op, dtype: DType) -> None:
    # nearest of all to a multiple of pi/2: in float32 by 1.6e-9, in float64 by 4.7e-19
    hardest = [math.ldexp(16367173, 72), math.ldexp(6381956970095103, 797)]
    x = np.array([1e22, 2.0**120, 2.0**127, 1e15, 1e16, 6e6, 355, 52175, *hardest][: 9 + dtype.bits // 64], dtype.name)
    # where other words are chosen
    ends = (47, 74, 102) if dtype.bits == 32 else (50, *range(52 + 53, 1024, 53))
    starts = np.array([2.0**e for e in ends], dtype.name)
    largest = np.array([np.finfo(dtype.name).max], dtype.name)
    x = np.concatenate([x, largest, starts, np.nextafter(starts, 0), np.nextafter(starts, largest)])
    check_sine(op, dtype, np.concatenate([x, -x]))
    beyond = np.array([np.inf, -np.inf, np.nan], dtype.name)
    assert np.isnan(run(op, dtype, beyond)).all()


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
def test_sine_of_tiny_arguments_is_the_argument(dtype: DType) -> None:
    info = np.finfo(dtype.name)
    tiny = info.smallest_subnormal * np.arange(1, 5000, dtype=dtype.name)
    x = np.concatenate([tiny, [info.tiny, info.tiny * 3, 1e-30, 0]]).astype(dtype.name)
    for value in (x, -x):
        got = run(Ops.SIN, dtype, value)
        np.testing.assert_array_equal(got, value)
        np.testing.assert_array_equal(np.signbit(got), np.signbit(value))
        np.testing.assert_array_equal(run(Ops.COS, dtype, value), 1)


@pytest.mark.parametrize("op", PERIODIC, ids=str)
@pytest.mark.parametrize(
    ("dtype", "limit"), [(dtypes.float16, 28), (dtypes.float32, 35), (dtypes.float64, 87)], ids=str
)
def test_sine_costs_what_is_stated(op: Op, dtype: DType, limit: int) -> None:
    """As in docs/topics/math-and-precision.md: large arguments are paid for by all. FMA negates for nothing."""
    free = (Ops.CONST, Ops.PARAM, Ops.BITCAST, Ops.NEG)
    root = in_basic_ops(op, leaf(dtype))
    assert root is not None
    assert sum(n.op not in free for n in root.toposort()) <= limit


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("exponent", [-2, -1, -0.5, 0, 0.5, 1, 2, 3, 4, 1.5, 7])
def test_constant_exponents(exponent: float, dtype: DType) -> None:
    x = np.concatenate(
        [
            bit_patterns(dtype, 100_000, np.random.default_rng(2)),
            np.array([0, -0.0, np.inf, -np.inf, np.nan], dtype.name),
        ]
    )
    root = in_basic_ops(Ops.POW, leaf(dtype), leaf(dtype).like(exponent))
    assert root is not None
    got = evaluate(root, {leaf(dtype): x}) * np.ones_like(x)
    with np.errstate(all="ignore"):
        # an array of exponents: for the scalar 0.5 NumPy takes sqrt, which differs at -inf
        want = np.power(wider(x), np.full_like(x, exponent))
        assert error_ulp(got, want).max() <= 2
        np.testing.assert_array_equal(np.signbit(got) & ~np.isnan(got), np.signbit(want) & ~np.isnan(want))
    assert exponent in (1.5, 7) or len(root.toposort()) < 12


@pytest.mark.parametrize("dtype", [dtypes.float16, dtypes.float32, dtypes.float64], ids=str)
@pytest.mark.parametrize("op", ROUNDING, ids=str)
def test_rounding(op: Op, dtype: DType) -> None:
    rng = np.random.default_rng(4)
    corners = [0.0, -0.0, np.inf, -np.inf, np.nan, 0.5, -0.5, 1.5, 2.5, -2.5, 0.49999997, -0.2]
    x = np.concatenate(
        [bit_patterns(dtype, 50_000, rng), rng.uniform(-9, 9, 50_000), rng.integers(-99, 99, 9999) / 2, corners]
    )
    x = x.astype(dtype.name)
    got, want = run(op, dtype, x), ROUNDING[op](x)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(np.signbit(got) & ~np.isnan(got), np.signbit(want) & ~np.isnan(want))


@pytest.mark.parametrize("op", WIDE, ids=str)
def test_halves_are_rounded_float32(op: Op) -> None:
    x = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    x = x[np.isfinite(x) & ((np.abs(x) < 1e4) | (op in PERIODIC))]
    args = [np.abs(x), x[::-1]] if op is Ops.POW else [x]
    with np.errstate(all="ignore"):
        got, want = run(op, dtypes.float16, *args), WIDE[op](*(a.astype(np.float64) for a in args))
        assert error_ulp(got, want).max() <= 0.51


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op", WIDE)
def test_a_target_without_fused_multiplication_loses_little(op: Op, dtype: DType) -> None:
    """SIN, COS and POW, whose reductions must be exact, once lost all bits near the zeros and for large results."""
    x, y = leaf(dtype), leaf(dtype, 1)
    root = rewrite(in_basic_ops(op, x, *[y] * (op is Ops.POW)) or x, _unfused())
    assert Ops.FMA not in {n.op for n in root.toposort()}
    values = samples(Ops.LOG if op is Ops.POW else op, dtype)
    values = values[np.abs(values) < 1e9] if op in PERIODIC else values
    others = np.resize(np.linspace(-20, 20, 1001).astype(dtype.name), values.shape)
    with np.errstate(all="ignore"):
        got = evaluate(root, {x: values, y: others})
        want = WIDE[op](wider(values), *[wider(others)] * (op is Ops.POW))
        assert error_ulp(got, want).max() <= 4


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_product_in_parts_is_rounded_once(dtype: DType) -> None:
    """Factors as large as floats get, too: what cuts them once overflowed, and remainders by 1e36 were nan."""
    rng, largest = np.random.default_rng(1), float(np.finfo(dtype.name).max)
    leaves = [leaf(dtype, slot) for slot in range(3)]
    a, b, c = (rng.uniform(-1, 1, 4096).astype(dtype.name) for _ in range(3))
    a[:1024] *= largest
    b[1024:2048] *= largest
    c[2048:3072] = -a[2048:3072] * b[2048:3072]
    fused = leaves[0].alu(Ops.FMA, *leaves[1:])
    given = dict(zip(leaves, (a, b, c), strict=True))
    assert np.array_equal(evaluate(rewrite(fused.replace(arg=1), _unfused()), given), evaluate(fused, given))


def test_what_overflows_in_parts_is_not_nan() -> None:
    x = leaf(dtypes.float32)
    root = rewrite(x.alu(Ops.FMA, x.like(2.0), x.like(-1.0)).replace(arg=1), _unfused())
    with np.errstate(all="ignore"):
        got = evaluate(root, {x: np.array([3e38, -3e38, np.inf, np.nan], np.float32)})
    assert np.array_equal(got, np.array([np.inf, -np.inf, np.inf, np.nan], np.float32), equal_nan=True)


def _unfused() -> Any:
    rules = importlib.import_module("kernmill.compiler.lower.decompose")._BASICS
    return RuleSet("unfused", [rule for op, rule in rules if op in (Ops.FMA, Ops.NEG)])


@pytest.mark.parametrize("dtype", [dtypes.float32.vec(16), dtypes.float64.vec(8), dtypes.bfloat16.vec(4)], ids=str)
def test_vectors_stay_vectors_and_every_rule_fires(dtype: DType) -> None:
    for rule in TRANSCENDENTAL:
        op, before = rule.pattern.op, rule.fired
        assert op is not None
        root = TRANSCENDENTAL.apply(leaf(dtype).alu(op, *[leaf(dtype, 1)] * ((op.arity or 1) - 1)))
        assert root is not None
        assert rule.fired == before + 1
        assert root.dtype is dtype
        assert {n.dtype.lanes for n in root.toposort()} == {dtype.lanes}


def test_what_is_not_here_is_declined() -> None:
    assert in_basic_ops(Ops.SQRT, leaf(dtypes.float32)) is None
    assert in_basic_ops(Ops.POW, leaf(dtypes.int32), leaf(dtypes.int32, 1)) is None


def test_exp_is_short() -> None:
    """Softmax and GELU run at memory speed because of it. Constants, sources and bit casts cost no instruction."""
    free = (Ops.CONST, Ops.PARAM, Ops.BITCAST)
    x = leaf(dtypes.float32)
    assert sum(n.op not in free for n in exp_to_polynomial(x).toposort()) <= 20


# --- powers ---
X = UOp(Ops.PARAM, dtypes.float32, (), (0, 1))
VALUES = np.array([0.0, -0.0, 1.0, -1.0, 0.3, -2.5, 7.0, np.inf, -np.inf, np.nan], np.float32)


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0, 3.0, 0.5, -1.0, -0.5, -2.0])
def test_by_a_constant(exponent: float) -> None:
    found = _module.pow_by_constant(X, exponent)
    if found is None:
        return
    with np.errstate(all="ignore"):
        want = np.power(VALUES.astype(np.float64), np.full(len(VALUES), exponent)).astype(np.float32)
    np.testing.assert_allclose(evaluate(found, {X: VALUES}), want, rtol=3e-7)


def test_a_square_is_one_product() -> None:
    found = _module.pow_by_constant(X, 2.0)
    assert found is X * X


def test_other_exponents_take_the_long_way() -> None:
    assert _module.pow_by_constant(X, 2.7) is None


def test_special_cases_of_the_polynomial() -> None:
    y = UOp(Ops.PARAM, dtypes.float32, (), (1, 1))
    a, b = (g.reshape(-1) for g in np.meshgrid(VALUES, VALUES))
    with np.errstate(all="ignore"):
        want = np.power(a.astype(np.float64), b.astype(np.float64))
        got = evaluate(_module.pow_to_polynomial(X, y), {X: a, y: b})
    np.testing.assert_allclose(got, want.astype(np.float32), rtol=1e-6)
