"""The op table: ONE ROW PER OP. The row has all facts about the op.

The verifier, the printer, constant folding, the evaluator, the reference device, docs/ops.md and half of the tests
are derived from these rows. To add an op: add a row here, a decomposition or one line per renderer, and a gradient if
it has one (docs/how-to/add-an-op.md).

`py` is the meaning on Python scalars (ints are unbounded here; the caller wraps them to the dtype). It never raises.
"""

# ruff: noqa: E501 - a row is a line

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum, StrEnum
from typing import Any, Final

from .process.lazy_exports import LazyModule

__all__ = ["AxisKind", "Op", "OpGroup", "Ops"]


class OpGroup(Enum):
    """The kind of node that an op makes. It decides where the op is legal (ir/verify.py)."""

    SOURCE = "source"
    MOVEMENT = "movement"
    UNARY = "unary"
    BINARY = "binary"
    COMPARE = "compare"
    TERNARY = "ternary"
    CONVERT = "convert"
    REDUCTION = "reduction"
    TENSOR = "tensor"
    MEMORY = "memory"
    VECTOR = "vector"
    CONTROL = "control"


_fractions: Any = LazyModule("fractions")  # slow to import
_ELEMENTWISE: Final = frozenset({OpGroup.UNARY, OpGroup.BINARY, OpGroup.COMPARE, OpGroup.TERNARY, OpGroup.CONVERT})


class AxisKind(StrEnum):
    """The purpose of a loop. The optimizer changes the kinds of ranges; lowering generates code for each kind."""

    LOOP = "loop"  # an ordinary loop over outputs
    THREAD = "thread"  # the outermost loop, divided into chunks that the thread pool distributes
    REDUCE = "reduce"  # a loop that feeds an accumulator
    UNROLL = "unroll"  # unrolled: a register tile, or a longer loop body
    VECTOR = "vector"  # the lanes of a vector value
    RFACTOR = "rfactor"  # a reduce loop unrolled into multiple accumulators
    GLOBAL = "global"  # a GPU's grid
    LOCAL = "local"  # the work-items of a work-group: each runs one iteration


@dataclass(eq=False, slots=True, repr=False)
class Op:
    """An op. Ops are equal if identical; the name is that of the attribute in `Ops`."""

    group: OpGroup
    doc: str
    arity: int | None = None  # number of sources; None: variable
    py: Callable[..., Any] | None = None
    _: KW_ONLY
    commutative: bool = False
    associative: bool = False
    idempotent: bool = False
    unit: float | None = None  # x op unit == x
    cost: int = 1  # execution time in additions, approximate
    is_elementwise: bool = field(init=False)  # each element depends on the same element of each source
    is_function: bool = field(init=False)  # a root, a quotient, an exponential: devices have another rate for them
    name: str = field(init=False, default="?")

    def __post_init__(self) -> None:
        self.is_function = self.cost >= 4
        self.is_elementwise = self.group in _ELEMENTWISE

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


# --- meanings that Python's operators do not have --------------------------------------------------------------------
def _guard(fn: Callable[[float], float]) -> Callable[[float], float]:
    def safe(x: float) -> float:
        try:
            return fn(x)
        except ValueError:
            return math.nan
        except OverflowError:
            return math.inf

    return safe


def _log(fn: Callable[[float], float]) -> Callable[[float], float]:
    return lambda x: -math.inf if x == 0 else _guard(fn)(x)


def _div(a: float, b: float) -> float:
    if b != 0:
        return a / b
    if a == 0 or a != a:
        return math.nan
    return math.copysign(math.inf, a) * math.copysign(1.0, b)


def _floordiv(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b else 0
    if b == 0 or a != a or b != b:
        return _div(a, b)
    return a // b if math.isfinite(a) else math.nan


def _mod(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        return a % b if b else 0
    if b == 0 or math.isinf(a) or a != a or b != b:
        return math.nan
    if math.isinf(b):
        return a if a == 0 or (a < 0) == (b < 0) else b
    return math.copysign(abs(r), b) if (r := a % b) == 0 else r


def _cdiv(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if b else 0


def _pow(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int):
        if b < 0:
            return a ** (b % 2) if a in (1, -1) else 0
        wrapped = pow(a, b, 1 << 64)  # a**b itself may be too large to compute
        return wrapped - (1 << 64) if wrapped >> 63 else wrapped
    try:
        return math.pow(a, b)
    except ValueError:
        odd = b == math.floor(b) and b % 2 == 1
        return math.copysign(math.inf, a) if a == 0 and odd else (math.inf if a == 0 else math.nan)
    except OverflowError:
        return -math.inf if a < 0 and b == math.floor(b) and b % 2 == 1 else math.inf


def _fma(a: Any, b: Any, c: Any) -> Any:
    plain = a * b + c
    if isinstance(plain, int) or not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return plain
    exact = _fractions.Fraction(a) * _fractions.Fraction(b) + _fractions.Fraction(c)
    try:
        return float(exact) if exact else plain
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def _mma(a: Any, b: Any, c: Any, m: int, n: int, k: int, g: int) -> Any:
    return [
        sum((a[i * k + t] * b[(t // g * n + j) * g + t % g] for t in range(k)), c[i * n + j])
        for i in range(m)
        for j in range(n)
    ]


def _max(a: Any, b: Any) -> Any:
    return a if a != a or a > b else b


def _min(a: Any, b: Any) -> Any:
    return a if a != a or a < b else b


def _rounded(fn: Callable[[float], int]) -> Callable[[Any], Any]:
    return lambda x: x if isinstance(x, int) or not math.isfinite(x) else math.copysign(float(fn(x)), x)


class Ops:
    """The table of ops. A row has group, meaning with special cases, number of sources, Python function, algebraic facts."""

    # fmt: off
    # --- sources
    CONST    = Op(OpGroup.SOURCE, "arg, a Python number of the dtype (a tuple of them for a vector)", 0)
    BUFFER   = Op(OpGroup.SOURCE, "a 1-D buffer, arg=(number, device, numel); the UOp's `storage` is the memory", 0)
    PARAM    = Op(OpGroup.SOURCE, "a 1-D kernel argument, arg=(slot, numel); arg=(slot, greatest, least) if its size differs from run to run", 0)
    VARIABLE = Op(OpGroup.SOURCE, "an integer known at launch, arg=(name, least, greatest)", 0)
    IOTA     = Op(OpGroup.SOURCE, "0, 1, ..., arg-1 along one axis", 0)

    # --- movement: the same elements at other indices; src=(x,)
    RESHAPE  = Op(OpGroup.MOVEMENT, "same elements in row-major order, shape arg", 1)
    EXPAND   = Op(OpGroup.MOVEMENT, "axes of size 1 repeated to shape arg", 1)
    PERMUTE  = Op(OpGroup.MOVEMENT, "axis i of the result is axis arg[i] of x", 1)
    PAD      = Op(OpGroup.MOVEMENT, "zeros around x; arg=((before, length of the result), ...)", 1)
    SHRINK   = Op(OpGroup.MOVEMENT, "x[start:start+length] per axis; arg=((start, length), ...)", 1)
    STRIDE   = Op(OpGroup.MOVEMENT, "every step-th element, from the end if step < 0; arg=((step, length of the result), ...)", 1)
    WINDOW   = Op(OpGroup.MOVEMENT, "arg=(axis, size, stride, dilation, positions): axis becomes positions, a new last one runs over the window: out[.., o, .., k] = x[.., o*stride + k*dilation, ..]", 1)
    UNWINDOW = Op(OpGroup.MOVEMENT, "arg=(axis, length, stride, dilation), the adjoint of WINDOW before summing: out[.., i, .., k] = x[.., o, .., k] where i = o*stride + k*dilation, else 0", 1)

    # --- elementwise, one source
    NEG      = Op(OpGroup.UNARY, "-x; wraps for the smallest int", 1, operator.neg)
    ABS      = Op(OpGroup.UNARY, "|x|; -0 -> 0; wraps for the smallest int", 1, abs)
    EXP      = Op(OpGroup.UNARY, "e**x; overflow -> inf, nan -> nan", 1, _guard(math.exp), cost=12)
    EXP2     = Op(OpGroup.UNARY, "2**x; overflow -> inf, nan -> nan", 1, _guard(lambda x: 2.0**x), cost=12)
    LOG      = Op(OpGroup.UNARY, "natural logarithm; 0 -> -inf, x<0 -> nan", 1, _log(math.log), cost=12)
    LOG2     = Op(OpGroup.UNARY, "logarithm base 2; 0 -> -inf, x<0 -> nan", 1, _log(math.log2), cost=12)
    SIN      = Op(OpGroup.UNARY, "sine of radians; +-inf -> nan", 1, _guard(math.sin), cost=20)
    COS      = Op(OpGroup.UNARY, "cosine of radians; +-inf -> nan", 1, _guard(math.cos), cost=20)
    TANH     = Op(OpGroup.UNARY, "hyperbolic tangent; +-inf -> +-1", 1, math.tanh, cost=12)
    ERF      = Op(OpGroup.UNARY, "error function; +-inf -> +-1", 1, math.erf, cost=24)
    SQRT     = Op(OpGroup.UNARY, "square root, correctly rounded; x<0 -> nan, -0 -> -0", 1, _guard(math.sqrt), cost=4)
    TRUNC    = Op(OpGroup.UNARY, "towards zero", 1, _rounded(math.trunc))
    FLOOR    = Op(OpGroup.UNARY, "towards -inf", 1, _rounded(math.floor))
    CEIL     = Op(OpGroup.UNARY, "towards +inf", 1, _rounded(math.ceil))
    ROUND    = Op(OpGroup.UNARY, "to nearest, ties to even", 1, _rounded(round))

    # --- elementwise, two sources of one dtype
    ADD      = Op(OpGroup.BINARY, "a + b; ints wrap; bool: or", 2, operator.add, commutative=True, associative=True, unit=0)
    SUB      = Op(OpGroup.BINARY, "a - b; ints wrap", 2, operator.sub)
    MUL      = Op(OpGroup.BINARY, "a * b; ints wrap; bool: and", 2, operator.mul, commutative=True, associative=True, unit=1)
    DIV      = Op(OpGroup.BINARY, "a / b of floats; x/0 -> +-inf, 0/0 -> nan", 2, _div, cost=4)
    FLOORDIV = Op(OpGroup.BINARY, "floor of the exact quotient, as NumPy; ints by 0 -> 0; x/0 as DIV, inf/x -> nan", 2, _floordiv, cost=4)
    MOD      = Op(OpGroup.BINARY, "a - b*floor(a / b), sign of b; ints by 0 -> 0, as NumPy", 2, _mod, cost=4)
    CDIV     = Op(OpGroup.BINARY, "ints, towards zero, b != 0 and no overflow: the divide instruction", 2, _cdiv)
    CMOD     = Op(OpGroup.BINARY, "ints, remainder of CDIV, sign of a, b != 0", 2, lambda a, b: a - _cdiv(a, b) * b)
    POW      = Op(OpGroup.BINARY, "a ** b as IEEE 754 pow; ints wrap", 2, _pow, cost=20)
    SCALE    = Op(OpGroup.BINARY, "a * 2**b of float32 or float64, rounded once; a near 1 and b integral", 2, lambda a, b: a * _pow(2.0, b // 2) * _pow(2.0, b - b // 2))
    MAX      = Op(OpGroup.BINARY, "the larger value; nan if either is nan", 2, _max, commutative=True, associative=True, idempotent=True)
    MIN      = Op(OpGroup.BINARY, "the smaller value; nan if either is nan", 2, _min, commutative=True, associative=True, idempotent=True)
    AND      = Op(OpGroup.BINARY, "bitwise and of ints; and of bools", 2, operator.and_, commutative=True, associative=True, idempotent=True)
    OR       = Op(OpGroup.BINARY, "bitwise or of ints; or of bools", 2, operator.or_, commutative=True, associative=True, idempotent=True, unit=0)
    XOR      = Op(OpGroup.BINARY, "bitwise exclusive or; bools: differ", 2, operator.xor, commutative=True, associative=True, unit=0)
    SHL      = Op(OpGroup.BINARY, "a << b; b outside 0..bits-1 -> 0", 2, lambda a, b: a << b if 0 <= b < 64 else 0)
    SHR      = Op(OpGroup.BINARY, "a >> b, arithmetic for signed; b outside 0..bits-1 -> 0 or -1", 2, lambda a, b: a >> (b if 0 <= b < 64 else 64))

    # --- comparisons: bool result
    LT       = Op(OpGroup.COMPARE, "a < b; false with nan", 2, operator.lt)
    LE       = Op(OpGroup.COMPARE, "a <= b; false with nan", 2, operator.le)
    EQ       = Op(OpGroup.COMPARE, "a == b; false with nan", 2, operator.eq, commutative=True)
    NE       = Op(OpGroup.COMPARE, "a != b; true with nan", 2, operator.ne, commutative=True)

    # --- elementwise, three sources
    WHERE    = Op(OpGroup.TERNARY, "b where the bool a is true, else c; the value that is not selected is ignored, even nan", 3, lambda a, b, c: b if a else c)
    FMA      = Op(OpGroup.TERNARY, "a*b + c, rounded once. Targets without FMA round twice unless arg=1", 3, _fma)

    # --- conversions
    CAST     = Op(OpGroup.CONVERT, "to the dtype: floats truncate to ints, ints wrap, floats round to nearest even. Floats out of range of the int and of int32 (64 bits: int64), and nan, give its least value, wrapped; CPUs other than x86 and GPUs give any value there", 1, cost=0)
    BITCAST  = Op(OpGroup.CONVERT, "the same bits read as the dtype (of equal size)", 1, cost=0)

    # --- over an axis
    REDUCE   = Op(OpGroup.REDUCTION, "arg=(op, axes): axes reduced with op to size 1; in a kernel src=(values.., ranges..), arg=(op, number of values)")

    # --- tensors only
    TAKE     = Op(OpGroup.TENSOR, "src=(x, i): entries i of axis arg; every i must be within the axis (CHECK enforces it)", 2)
    ASSIGN   = Op(OpGroup.TENSOR, "src=(old, value): old with the region arg=((start, stop, step), ...) replaced; None: all of it", 2)
    CONTIGUOUS = Op(OpGroup.TENSOR, "x, in a separate buffer", 1)
    COPY     = Op(OpGroup.TENSOR, "x on device arg", 1)
    DETACH   = Op(OpGroup.TENSOR, "x, a constant for gradients", 1)
    CHECK    = Op(OpGroup.TENSOR, "src=(x, bad): x; realizing it fails with check_failed(arg), an IndexRangeError or LinAlgError, when the bool scalar bad is true", 2)
    WAIT     = Op(OpGroup.TENSOR, "src=(x, others..): x, in memory; kernels that read it through this node run after the others are computed")
    ROUTINE  = Op(OpGroup.TENSOR, "arg=(name, count, batch, is interleaved, sizes..): count values that a loop program of compiler/routines computes from the sources, each in memory of its own")
    SINK     = Op(OpGroup.TENSOR, "the roots of a graph or a kernel")

    # --- memory, in kernels
    INDEX    = Op(OpGroup.MEMORY, "src=(buffer, i) or (buffer, i, gate): element i; accessed only where the bool gate is true")
    LOAD     = Op(OpGroup.MEMORY, "the value at src[0]=INDEX; 0 where its gate is false; arg: None, (prefetch distance in bytes, cache level), or 'inorder' (not hoisted above earlier loads)", 1)
    STORE    = Op(OpGroup.MEMORY, "src=(INDEX, value): no result; arg: None, 'nt' (non-temporal) or 'prefetchw' (prefetch its cache line during the reduction)", 2)
    PREFETCH = Op(OpGroup.MEMORY, "prefetch the address of src[0]=INDEX + arg bytes; no result, never faults; arg None: prefetch for writing", 1)
    LOCAL    = Op(OpGroup.MEMORY, "a kernel-local array, arg=(name, numel), or (name, numel, 'shared'): one for all work-items of a work-group; src: the ranges whose iterations each have a new array")
    REG      = Op(OpGroup.MEMORY, "an accumulator, src=(initial value, ranges whose iterations reset it..), arg=name")
    CARRY    = Op(OpGroup.MEMORY, "src=(REG or memory, ranges..): its value at the start of an iteration of the ranges, which run in order")
    SET      = Op(OpGroup.MEMORY, "src=(REG, value): set the accumulator to value", 2)
    AFTER    = Op(OpGroup.MEMORY, "src=(REG or LOCAL, effects.., ranges..): src[0] after its arg effects have run over these ranges")

    # --- vectors
    BROADCAST = Op(OpGroup.VECTOR, "the scalar in every lane", 1)
    LANES    = Op(OpGroup.VECTOR, "the scalars as the lanes of one vector")
    LANE     = Op(OpGroup.VECTOR, "lane arg of the vector", 1)
    SHUFFLE  = Op(OpGroup.VECTOR, "src=(a, b): lanes arg of a followed by b", 2)
    TABLE    = Op(OpGroup.VECTOR, "in each lane an entry of a table. src=(indices below 16,): table of the 16 bytes arg; src=(indices, *parts): table of 2 or 4 parts, one after another, indices modulo their lanes")
    FOLD     = Op(OpGroup.VECTOR, "horizontal reduction: all lanes combined with op arg to a scalar, halves first", 1)
    DOT      = Op(OpGroup.VECTOR, "src=(a, b, c): c + sums of adjacent products. Of 4, a and b of bytes, c of int32: exact, but for the int32 sum, which wraps. Of 2, a and b of bfloat16, c of float32: each addition is rounded, in any order, subnormal ones may count as 0", 3)
    MMA      = Op(OpGroup.VECTOR, "arg=(m, n, k, g), src=(a, b, c): c + a@b on a matrix unit; a has m rows of k, c m rows of n, and b k/g rows of n groups of g values, consecutive in k; ints wrap; floats are added in any order, subnormal ones may count as 0", 3, _mma)

    # --- control, in kernels
    RANGE    = Op(OpGroup.CONTROL, "a loop variable 0..size-1: src=(size,), arg=(name, AxisKind), and for a slice of the THREAD loop its first iteration", 1)
    END      = Op(OpGroup.CONTROL, "the end of the loop src[0]", 1)
    BARRIER  = Op(OpGroup.CONTROL, "all work-items of a work-group synchronize here and see earlier stores to shared arrays; arg: its number", 0)
    # fmt: on

    @classmethod
    def rows(cls) -> Iterator[Op]:
        """All rows, in the order of the table."""
        return (row for row in vars(cls).values() if isinstance(row, Op))

    @classmethod
    def named(cls, name: str) -> Op:
        """The row of that name."""
        row = vars(cls)[name]
        assert isinstance(row, Op)
        return row
