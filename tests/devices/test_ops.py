"""Every row of the op table on every device, against NumPy: dtypes, special values, and a bound on the error.

A new op fails here with "no case for op X" until CASES (elementwise) or OTHERS (everything else) has a row for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import ml_dtypes
import mpmath
import numpy as np
import pytest

from kernmill.ir import DType, Op, Ops, UOp, dtypes, elementwise, reduce_axes
from kernmill.runtime import download, get_device, realize
from tests.devices.arrays import Array, leaf, numpy_dtype, read

finfo: Any = ml_dtypes.finfo
Exact = Callable[..., Any]

FLOATS = (dtypes.float16, dtypes.bfloat16, dtypes.float32, dtypes.float64)
INTS = tuple(d for d in dtypes.data if d.is_int)
NUMBERS = (*INTS, *FLOATS)
ALL = (dtypes.bool, *NUMBERS)
BITS = (dtypes.bool, *INTS)
ULP = {dtypes.float16: 0.505, dtypes.bfloat16: 0.501}  # computed in float32, rounded once


# --- values in and out -----------------------------------------------------------------------------------------------
def values_of(root: UOp, device: str) -> Array | None:
    """Realize and read back; NULL has nothing to read."""
    realize([root])
    if device == "NULL":
        return None
    return read(root)


def same(got: Array, want: Array) -> Array:
    """Equal in every bit that means something: nan is nan, -0 is not 0."""
    equal = (got == want) & (np.signbit(got) == np.signbit(want)) if got.dtype.kind in "fV" else got == want
    equal |= (got != got) & (want != want)
    return np.asarray(equal)


def check_same(got: Array | None, want: Array, *inputs: Array) -> None:
    if got is None:
        return
    assert got.dtype == want.dtype
    assert got.shape == want.shape
    with np.errstate(all="ignore"):
        wrong = np.argwhere(~same(got, want))
    if len(wrong):
        place = tuple(wrong[0])
        given = [a[place] if a.shape == got.shape else a for a in inputs]
        pytest.fail(
            f"{len(wrong)} of {got.size} wrong, first at {place}: of {given} got {got[place]}, not {want[place]}"
        )


# --- inputs ----------------------------------------------------------------------------------------------------------
def specials(dtype: DType) -> list[Any]:
    """The corners of a dtype."""
    if dtype.is_bool:
        return [False, True]
    if dtype.is_int:
        found = [dtype.min, dtype.min + 1, 0, 1, 2, 3, 7, dtype.max // 2, dtype.max - 1, dtype.max]
        return found + ([-1, -2, -7] if dtype.min else [])
    info = finfo(numpy_dtype(dtype))
    tiny, least, most = float(info.tiny), float(info.smallest_subnormal), float(info.max)
    positive = [0.0, least, tiny, 0.5, 1.0, 1.5, 2.5, 3.0, 60.0, most, math.inf]
    return [math.nan, *positive, *(-x for x in positive)]


def some(dtype: DType, count: int, seed: int) -> Array:
    """Ordinary values, ties among them."""
    rng = np.random.default_rng(seed)
    if dtype.is_bool:
        return rng.random(count) < 0.5
    if dtype.is_int:
        return rng.integers(max(int(dtype.min), -100), 101, count).astype(dtype.name)
    return np.concatenate([rng.normal(0, 3, count - 8), rng.integers(-9, 9, 8) / 2]).astype(numpy_dtype(dtype))


def inputs(case: Case, dtype: DType) -> list[Array]:
    """All pairs of corners and some ordinary values, without those that the op has no meaning for."""
    corners = np.array(specials(dtype), numpy_dtype(dtype))
    grid = np.meshgrid(*[corners] * min(2, case.arity), indexing="ij")
    columns = [np.concatenate([g.ravel(), some(dtype, 37, seed)]) for seed, g in enumerate(grid)]
    while len(columns) < case.arity:
        columns.append(np.roll(columns[-1], 5))
    if case.op is Ops.WHERE:
        columns[0] = some(dtypes.bool, len(columns[0]), 7)
    keep = np.ones(len(columns[0]), bool)
    if case.domain is not None:
        with np.errstate(all="ignore"):
            keep = np.asarray(case.domain(*columns), bool)
    return [c[keep] for c in columns]


# --- the cases -------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Case:
    """A row: what the op means in NumPy, for which dtypes, and how far a float result may be off.

    ulp None: every bit. Else `real` is the exact function, on mpmath numbers.
    """

    op: Op
    numpy: Exact
    dtypes: tuple[DType, ...]
    ulp: float | None = None
    real: Exact | None = None
    domain: Exact | None = None

    @property
    def arity(self) -> int:
        assert self.op.arity is not None
        return self.op.arity


def divide(fn: Exact) -> Exact:
    """A division of NumPy: of ints 0 for a divisor of 0."""

    def safe(a: Array, b: Array) -> Any:
        return (
            fn(a, b) if a.dtype.kind not in "iu" else np.where(b == 0, 0, fn(a, np.where(b == 0, 1, b))).astype(a.dtype)
        )

    return safe


def toward_zero(a: Array, b: Array) -> Array:
    pairs = zip(a.tolist(), b.tolist(), strict=True)
    return np.array([abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1) for x, y in pairs]).astype(a.dtype)


def left_over(a: Array, b: Array) -> Array:
    return np.array(
        [math.copysign(1, x) * (abs(x) % abs(y)) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    ).astype(a.dtype)


def no_trap(a: Array, b: Array) -> Array:
    """Divisors that a divide instruction takes."""
    overflows = (a == np.iinfo(a.dtype).min) & (a < 0) & (b.astype(np.float64) == -1)
    return np.asarray((b != 0) & ~overflows & (abs(a.astype(np.float64)) < 2**53))


def shifted(left: bool) -> Exact:
    def fn(a: Array, b: Array) -> Array:
        bits = a.dtype.itemsize * 8
        by = [int(v) if 0 <= int(v) < bits else None for v in b]
        whole = [
            (0 if left or v >= 0 else -1) if s is None else v << s if left else v >> s
            for v, s in zip(a.tolist(), by, strict=True)
        ]
        return np.array([v & ((1 << bits) - 1) for v in whole], np.uint64).astype(f"uint{bits}").view(a.dtype)

    return fn


def int_power(a: Array, b: Array) -> Array:
    bits = a.dtype.itemsize * 8

    def one(x: int, y: int) -> int:
        if y < 0:
            return x ** (y % 2) if x in (1, -1) else 0
        return int(pow(x, y, 1 << bits))

    whole = [one(x, y) & ((1 << bits) - 1) for x, y in zip(a.tolist(), b.tolist(), strict=True)]
    return np.array(whole, np.uint64).astype(f"uint{bits}").view(a.dtype)


def power(a: Array, b: Array) -> Array:
    return int_power(a, b) if a.dtype.kind in "iu" else np.power(a, b)


def in_reach(a: Array, b: Array) -> Array:
    """Where NumPy's own remainder is worth comparing with: |a / b| below what the dtype counts exactly."""
    if a.dtype.kind in "iu":
        return np.ones(len(a), bool)
    a, b = a.astype(np.float64), b.astype(np.float64)
    ordinary = (np.abs(a) < 1e4) & ((np.abs(b) > 1e-3) & (np.abs(b) < 1e4))
    return np.asarray(ordinary | np.isnan(a) | np.isnan(b))


def fused(a: Array, b: Array, c: Array) -> Array:
    return a * b + c


def scaled(a: Array, b: Array) -> Any:
    return np.ldexp(a, b.astype(np.int32))


def scalable(a: Array, b: Array) -> Any:
    """What the op is for: a factor near 1, and a whole number."""
    return (np.abs(a) >= 0.5) & (np.abs(a) <= 2) & (b == np.rint(b)) & (np.abs(b) < 2000 // (64 // a.itemsize // 8))


def signed_zero_any(case_op: Op) -> bool:
    """max(0, -0) may be either."""
    return case_op in (Ops.MAX, Ops.MIN)


def modest(limit: float) -> Exact:
    return lambda x: ~np.isfinite(x) | (np.abs(x.astype(np.float64)) <= limit)


CASES = {
    case.op: case
    for case in [
        Case(Ops.NEG, lambda x: (0 - x) if x.dtype.kind in "iu" else -x, NUMBERS),
        Case(Ops.ABS, lambda x: np.where(x < 0, 0 - x, x) if x.dtype.kind in "iu" else np.abs(x), NUMBERS),
        Case(Ops.EXP, np.exp, FLOATS, 1.3, mpmath.exp),
        Case(Ops.EXP2, np.exp2, FLOATS, 1.3, lambda x: mpmath.power(2, x)),
        Case(Ops.LOG, np.log, FLOATS, 1.3, mpmath.log),
        Case(Ops.LOG2, np.log2, FLOATS, 1.6, lambda x: mpmath.log(x, 2)),
        Case(Ops.SIN, np.sin, FLOATS, 1.6, mpmath.sin, modest(1e4)),
        Case(Ops.COS, np.cos, FLOATS, 1.6, mpmath.cos, modest(1e4)),
        Case(Ops.TANH, np.tanh, FLOATS, 2.0, mpmath.tanh),
        Case(Ops.ERF, np.vectorize(math.erf, otypes=[float]), FLOATS, 2.5, mpmath.erf),
        Case(Ops.SQRT, np.sqrt, FLOATS),
        Case(Ops.TRUNC, np.trunc, FLOATS),
        Case(Ops.FLOOR, np.floor, FLOATS),
        Case(Ops.CEIL, np.ceil, FLOATS),
        Case(Ops.ROUND, np.rint, FLOATS),
        Case(Ops.ADD, np.add, ALL),
        Case(Ops.SUB, np.subtract, NUMBERS),
        Case(Ops.MUL, np.multiply, ALL),
        Case(Ops.DIV, np.divide, FLOATS),
        Case(Ops.FLOORDIV, divide(np.floor_divide), NUMBERS, domain=in_reach),
        Case(Ops.MOD, divide(np.mod), NUMBERS, domain=in_reach),
        Case(Ops.CDIV, toward_zero, INTS, domain=no_trap),
        Case(Ops.CMOD, left_over, INTS, domain=no_trap),
        Case(Ops.POW, power, NUMBERS, 1.6, mpmath.power),
        Case(Ops.SCALE, scaled, (dtypes.float32, dtypes.float64), domain=scalable),
        Case(Ops.MAX, np.maximum, ALL),
        Case(Ops.MIN, np.minimum, ALL),
        Case(Ops.AND, np.bitwise_and, BITS),
        Case(Ops.OR, np.bitwise_or, BITS),
        Case(Ops.XOR, np.bitwise_xor, BITS),
        Case(Ops.SHL, shifted(True), INTS),
        Case(Ops.SHR, shifted(False), INTS),
        Case(Ops.LT, np.less, ALL),
        Case(Ops.LE, np.less_equal, ALL),
        Case(Ops.EQ, np.equal, ALL),
        Case(Ops.NE, np.not_equal, ALL),
        Case(Ops.WHERE, np.where, ALL),
        Case(Ops.FMA, fused, FLOATS, 0.5),
    ]
}  # fmt: skip

SHAPED = (Ops.REDUCE, Ops.RESHAPE, Ops.EXPAND, Ops.PERMUTE, Ops.PAD, Ops.SHRINK, Ops.STRIDE, Ops.WINDOW, Ops.UNWINDOW,
          Ops.TAKE, Ops.ASSIGN, Ops.CONTIGUOUS, Ops.COPY, Ops.DETACH, Ops.CHECK, Ops.IOTA, Ops.CONST, Ops.BUFFER,
          Ops.VARIABLE)  # fmt: skip
OF_KERNELS = (Ops.PARAM, Ops.SINK, Ops.INDEX, Ops.LOAD, Ops.STORE, Ops.LOCAL, Ops.REG, Ops.CARRY, Ops.SET, Ops.AFTER,
              Ops.BROADCAST, Ops.LANES, Ops.LANE, Ops.FOLD, Ops.SHUFFLE, Ops.TABLE, Ops.DOT, Ops.RANGE,
              Ops.END)  # fmt: skip
OTHERS: dict[Op, str] = {
    **dict.fromkeys((Ops.CAST, Ops.BITCAST), "tests/devices/test_casts.py"),
    **dict.fromkeys(SHAPED, "tests/devices/test_shapes.py"),
    **dict.fromkeys(OF_KERNELS, "what kernels are made of: tests/compiler/"),
    Ops.BARRIER: "work-items wait for each other: tests/compiler/kernel/test_distribute_work_items.py",
    Ops.MMA: "tests/devices/test_tiles.py",
    Ops.WAIT: "an order: tests/compiler/graph/test_order_kernels.py, tests/kernmill/functional/test_custom.py",
    Ops.ROUTINE: "tests/compiler/routines/ and tests/kernmill/test_linalg.py",
    Ops.PREFETCH: "changes nothing: tests/compiler/lower/test_insert_prefetches.py",
}  # fmt: skip


def test_every_op_has_a_case() -> None:
    for op in Ops.rows():
        assert op in CASES or op in OTHERS, (
            f"no case for op {op.name}: add a row to CASES or OTHERS of tests/devices/test_ops.py"
        )
        assert not op.is_elementwise or op in CASES or op in (Ops.CAST, Ops.BITCAST), f"no case for op {op.name}"


ROWS = [
    pytest.param(case, dtype, id=f"{case.op.name}-{dtype.name}") for case in CASES.values() for dtype in case.dtypes
]


@pytest.mark.parametrize(("case", "dtype"), ROWS)
def test_elementwise(case: Case, dtype: DType, device: str) -> None:
    given = inputs(case, dtype)
    root = elementwise(case.op, *(leaf(g, device) for g in given))
    got = values_of(root, device)
    assert got is not None
    with np.errstate(all="ignore"):
        if case.ulp is None or not dtype.is_float:
            check_exact(case, got, given)
        else:
            check_close(case, dtype, got, given)


def check_exact(case: Case, got: Array, given: list[Array]) -> None:
    want = np.asarray(case.numpy(*given))
    if signed_zero_any(case.op):
        got, want = (np.where(a == 0, np.zeros((), a.dtype), a) for a in (got, want))
    check_same(got, want.astype(got.dtype, copy=False), *given)


def check_close(case: Case, dtype: DType, got: Array, given: list[Array]) -> None:
    """Special results as NumPy has them; the others within the bound of the exact value."""
    wide = [g.astype(np.float64) for g in given]
    plain = np.asarray(case.numpy(*wide)).astype(np.float64)
    limit = float(finfo(numpy_dtype(dtype)).max)
    bound = ULP.get(dtype, case.ulp or 0.5) if case.op is not Ops.FMA else 0.51
    for place, (mine, like) in enumerate(zip(got.astype(np.float64).tolist(), plain.tolist(), strict=True)):
        at = [float(w[place]) for w in wide]
        if case.op is Ops.FMA:
            assert fma_is_right(dtype, mine, at, limit), f"{case.op}{at} = {mine}"
        elif not all(math.isfinite(v) for v in at) or not math.isfinite(like) or like == 0 or abs(like) > limit:
            assert is_special(mine, like, limit), f"{case.op}{at} = {mine}, not {like}"
        else:
            off = ulps_off(dtype, mine, case.real, at, like)
            assert off <= bound, f"{case.op}{at} = {mine}, not {like}: {off:.3f} ulp"


def is_special(mine: float, like: float, limit: float) -> bool:
    if like != like:
        return mine != mine
    if abs(like) > limit:
        return abs(mine) >= limit and (mine > 0) == (like > 0)
    return mine == like and math.copysign(1, mine) == math.copysign(1, like)


def ulps_off(dtype: DType, mine: float, real: Exact | None, at: Sequence[float], like: float) -> float:
    assert real is not None
    if not math.isfinite(mine):
        return math.inf
    with mpmath.workprec(140):
        exact = real(*(mpmath.mpf(v) for v in at))
        return float(abs(mpmath.mpf(mine) - exact) / spacing(dtype, float(exact)))


def spacing(dtype: DType, value: float) -> float:
    """The distance of neighbours at a value."""
    info = finfo(numpy_dtype(dtype))
    exponent = max(math.frexp(value)[1] - 1, int(info.minexp)) if value else int(info.minexp)
    return math.ldexp(1.0, exponent - int(info.nmant))


def fma_is_right(dtype: DType, mine: float, at: Sequence[float], limit: float) -> bool:
    """Rounded once, or twice where the device has no such instruction."""
    a, b, c = at
    plain = a * b + c
    if not all(math.isfinite(v) for v in at):
        return (mine != mine) if plain != plain else mine == plain
    kind = numpy_dtype(dtype).type
    twice = float(kind(a) * kind(b) + kind(c))
    once = rounded(dtype, Fraction(a) * Fraction(b) + Fraction(c))
    in_float32 = float(kind(np.float32(a) * np.float32(b) + np.float32(c)))
    return (
        mine in (twice, once, in_float32)
        or (mine != mine and twice != twice)
        or (abs(float(once)) >= limit and abs(mine) >= limit)
    )


def rounded(dtype: DType, value: Fraction) -> float:
    """The nearest value of the dtype, ties to even."""
    if value == 0:
        return 0.0
    info = finfo(numpy_dtype(dtype))
    exponent = abs(value.numerator).bit_length() - value.denominator.bit_length()
    if abs(value) < Fraction(2) ** exponent:
        exponent -= 1
    step = Fraction(2) ** (max(exponent, int(info.minexp)) - int(info.nmant))
    near = round(value / step) * step
    if abs(near) > Fraction(float(info.max)):
        return math.inf if near > 0 else -math.inf
    return float(near)


# --- shapes: every class of them, for a few ops ----------------------------------------------------------------------
@pytest.mark.parametrize("first", range(1, 71, 14))
def test_every_length_up_to_seventy(first: int, device: str) -> None:
    """The vector body, the tail, and both together: one kernel a length."""
    rng = np.random.default_rng(first)
    roots, wants = [], []
    for length in range(first, first + 14, 1 if device == "LLVM" else 5):
        a, b = rng.normal(size=(2, length)).astype(np.float32)
        roots.append(leaf(a, device) * leaf(b, device) + 1.0)
        wants.append(a * b + np.float32(1))
    realize(roots)
    for root, want in zip(roots, wants, strict=True):
        np.testing.assert_array_equal(download(root), want)


SHAPES = [(), (0,), (1,), (3, 0, 2), (1, 1), (7,), (3, 5), (2, 3, 4), (1, 17), (17, 1)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.int8, dtypes.bool, dtypes.bfloat16], ids=str)
def test_shape(shape: tuple[int, ...], dtype: DType, device: str) -> None:
    count = max(1, math.prod(shape))
    a, b = (np.resize(some(dtype, max(9, count), seed), shape).astype(numpy_dtype(dtype)) for seed in (1, 2))
    root = elementwise(Ops.MUL, leaf(a, device), leaf(b, device))
    check_same(values_of(root, device), np.asarray(a * b).reshape(shape))


PAIRS = [
    ((3, 1), (1, 4)),
    ((), (5,)),
    ((2, 1, 3), (4, 1)),
    ((1,), (0,)),
    ((0, 1), (1, 3)),
    ((5, 33), (33,)),
    ((33, 5), (33, 1)),
]


@pytest.mark.parametrize(("left", "right"), PAIRS, ids=str)
def test_broadcast(left: tuple[int, ...], right: tuple[int, ...], device: str) -> None:
    rng = np.random.default_rng(3)
    a, b = rng.integers(-9, 9, left), rng.integers(-9, 9, right)
    root = elementwise(Ops.SUB, leaf(np.asarray(a), device), leaf(np.asarray(b), device))
    check_same(values_of(root, device), np.asarray(a - b))


@pytest.mark.parametrize("op", [op for op, case in CASES.items() if dtypes.float32 in case.dtypes], ids=str)
def test_null_compiles(op: Op) -> None:
    leaves = [leaf(np.ones(70, np.float32), "NULL") for _ in range(CASES[op].arity)]
    if op is Ops.WHERE:
        leaves[0] = leaf(np.ones(70, bool), "NULL")
    assert values_of(elementwise(op, *leaves), "NULL") is None
    assert get_device("NULL").props().is_host_visible


def test_reduce_of_one_is_itself() -> None:
    x = leaf(np.ones((3, 1), np.float32), "PYTHON")
    assert reduce_axes(x, Ops.ADD, (1,)) is x
