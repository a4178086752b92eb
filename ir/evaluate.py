"""The meaning of every op, on NumPy arrays: slow, obvious, and the reference of all tests.

It evaluates tensor expressions, and kernels at every stage before the linear list. In a kernel each range is one axis
of every array. A value that depends on two loops is a two-dimensional array of its value in each iteration. Only loops
that a CARRY of memory names run one iteration after another.
bfloat16 values are stored in float32 arrays and rounded after each op.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import product
from typing import TYPE_CHECKING, Any

from .dtype import DType, dtypes
from .ops import Op, Ops
from .process.errors import InternalError
from .process.lazy_exports import LazyModule
from .shape import static
from .uop import UOp

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]
else:
    np = LazyModule("numpy")

__all__ = ["evaluate", "np", "round_bfloat16"]

Functions = dict[Op, Callable[..., Any]]


def round_bfloat16(x: Array) -> Array:
    """float32 values rounded to the nearest bfloat16, ties to even; nan stays nan."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    rounded = ((bits + (0x7FFF + ((bits >> 16) & 1))) & np.uint32(0xFFFF0000)).view(np.float32)
    return np.where(np.isnan(x), np.float32(np.nan), rounded)


def _numpy_name(dtype: DType) -> str:
    return {"bfloat16": "float32", "index": "int64"}.get(dtype.scalar.name, dtype.scalar.name)


def _settle(dtype: DType, value: Any) -> Array:
    """Return an array of the dtype: rounded for bfloat16."""
    array = np.asarray(value)
    if dtype.scalar is dtypes.bfloat16:
        return round_bfloat16(array.astype(np.float32))
    return array.astype(_numpy_name(dtype), copy=False)


def _fma(a: Array, b: Array, c: Array) -> Array:
    """Compute a*b + c, rounded once. float64 is exact enough for narrower floats; float64 itself uses error-free
    sums."""
    if a.dtype != np.float64:
        return (a.astype(np.float64) * b + c).astype(a.dtype) if a.dtype.kind == "f" else a * b + c
    (fa, ea), (fb, eb) = np.frexp(a), np.frexp(b)
    shift = (ea + eb).astype(np.int64)
    high = fa * fb
    split_a, split_b = (f * 134217729.0 - (f * 134217729.0 - f) for f in (fa, fb))  # the upper half of the bits
    low = (
        split_a * split_b - high + split_a * (fb - split_b) + (fa - split_a) * split_b + (fa - split_a) * (fb - split_b)
    )
    part, rest = _two_sum(np.ldexp(c, np.clip(-shift, -4000, 4000)), low)
    total, error = _two_sum(high, part)
    exact = np.ldexp(total + _odd_sum(error, rest), np.clip(shift, -4000, 4000))
    plain = ~np.isfinite(a * b) | ~np.isfinite(exact) | (a == 0) | (b == 0) | (exact == 0)
    return np.where(plain, np.where(np.isfinite(a) & np.isfinite(b) & np.isinf(c), c, a * b + c), exact)


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return a + b and its rounding error."""
    total = a + b
    other = total - a
    return total, (a - (total - other)) + (b - other)


def _odd_sum(a: Array, b: Array) -> Array:
    """Return a + b rounded to odd: a last bit of 1 marks an inexact sum, so that the next rounding is correct."""
    total, error = _two_sum(a, b)
    even = (np.asarray(total).view(np.int64) & 1) == 0
    return np.where((error != 0) & even, np.nextafter(total, np.where(error > 0, np.inf, -np.inf)), total)


def _shifted(by: Any, fill: int) -> Callable[[Array, Array], Array]:
    """Make a shift whose amount may exceed the bits of the word; `fill` is the result for a negative value then."""

    def fn(a: Array, b: Array) -> Array:
        ok = (b >= 0) & (b < a.dtype.itemsize * 8)
        outside = np.where(a < 0, fill, 0).astype(a.dtype)
        return np.where(ok, by(a, np.where(ok, b, 0).astype(b.dtype)), outside)

    return fn


def _cdiv(a: Array, b: Array) -> Array:
    safe = np.where(b == 0, 1, b)
    quotient: Array = a // safe
    adjusted: Array = quotient + ((a % safe != 0) & ((a < 0) != (safe < 0)))
    return adjusted


def _erf(x: Array) -> Array:
    result: Array = np.vectorize(math.erf, otypes=[np.float64])(x)
    return result.astype(x.dtype)


_LIKE_NUMPY = (Ops.ABS, Ops.EXP, Ops.EXP2, Ops.LOG, Ops.LOG2, Ops.SIN, Ops.COS, Ops.TANH, Ops.SQRT, Ops.TRUNC,
               Ops.FLOOR, Ops.CEIL, Ops.MOD)  # fmt: skip


def _functions() -> Functions:
    table: Functions = {
        Ops.NEG: lambda a: np.logical_not(a) if a.dtype == bool else -a,
        Ops.ERF: _erf,
        Ops.ROUND: np.rint,
        Ops.ADD: np.add,
        Ops.SUB: np.subtract,
        Ops.MUL: np.multiply,
        Ops.DIV: np.divide,
        Ops.FLOORDIV: np.floor_divide,
        Ops.CDIV: _cdiv,
        Ops.CMOD: lambda a, b: a - _cdiv(a, b) * b,
        Ops.POW: np.power,
        Ops.SCALE: lambda a, b: a * np.exp2(b // 2) * np.exp2(b - b // 2),
        Ops.MAX: np.maximum,
        Ops.MIN: np.minimum,
        Ops.AND: np.bitwise_and,
        Ops.OR: np.bitwise_or,
        Ops.XOR: np.bitwise_xor,
        Ops.SHL: _shifted(np.left_shift, 0),
        Ops.SHR: _shifted(np.right_shift, -1),
        Ops.LT: np.less,
        Ops.LE: np.less_equal,
        Ops.EQ: np.equal,
        Ops.NE: np.not_equal,
        Ops.WHERE: np.where,
        Ops.FMA: _fma,
    }
    return table | {op: getattr(np, op.name.lower()) for op in _LIKE_NUMPY}


def evaluate(
    root: UOp, buffers: Mapping[UOp, Array] | None = None, variables: Mapping[str, int] | None = None
) -> Array:
    """Return the value of an expression as an array of its shape; a SINK or STORE changes the arrays of `buffers` in
    place.

    `buffers` has a 1-D array for each BUFFER, PARAM or realized node; `variables` has a value for each VARIABLE by
    name.
    """
    with np.errstate(all="ignore"):
        return _Evaluator(root, dict(buffers or {}), dict(variables or {})).run()


class _Evaluator:
    """One evaluation: values of nodes so far, and the axis of each range."""

    def __init__(self, root: UOp, buffers: dict[UOp, Array], variables: dict[str, int]) -> None:
        self.root = root
        self.buffers = buffers
        self.variables = variables
        self.functions = _functions()
        self.values: dict[UOp, Array] = {}
        self.order = root.toposort(stop=lambda u: u in buffers)
        self.axes = {node: axis for axis, node in enumerate(n for n in self.order if n.op is Ops.RANGE)}

    def run(self) -> Array:
        carried = dict.fromkeys(loop for u in self.order if u.op is Ops.CARRY for loop in u.src[1:])
        self.settle(u for u in self.order if u.ranges.isdisjoint(carried))
        later = [u for u in self.order if u not in carried and not u.ranges.isdisjoint(carried)]
        for indices in product(*(range(self.size(loop.src[0])) for loop in carried)):  # one after the other
            self.values.update({loop: _settle(loop.dtype, n) for loop, n in zip(carried, indices, strict=True)})
            self.settle(later)
        return self.values[self.root]

    def settle(self, nodes: Iterable[UOp]) -> None:
        """Compute the values of the nodes, in this order."""
        for node in nodes:
            if node in self.buffers:
                self.values[node] = self.buffers[node]
            else:  # an INDEX has the dtype of the element, and the index as its value
                dtype = dtypes.index if node.op is Ops.INDEX else node.dtype
                self.values[node] = _settle(dtype, self.value(node))

    def value(self, u: UOp) -> Any:
        src = [self.values[s] for s in u.src]
        if u.op in self.functions:
            return self.function(u, src)
        handler = getattr(self, f"_{u.op.group.value}", None)
        if handler is None:
            raise InternalError(f"evaluate: {u!r} has no meaning here")
        return handler(u, src)

    def function(self, u: UOp, src: list[Array]) -> Any:
        fn = self.functions[u.op]
        if u.dtype.is_bool and u.op in (Ops.ADD, Ops.MUL):
            return (np.logical_or if u.op is Ops.ADD else np.logical_and)(*src)
        if u.op is Ops.POW and not u.dtype.is_float:
            return np.vectorize(lambda a, b: Ops.POW.py(int(a), int(b)) & 0xFFFFFFFFFFFFFFFF if Ops.POW.py else 0,
                                otypes=[np.uint64])(*src).astype(src[0].dtype)  # fmt: skip
        return fn(*src)

    # --- one method per group of ops
    def _source(self, u: UOp, src: list[Array]) -> Any:
        match u.op:
            case Ops.CONST:
                return np.array(u.arg, _numpy_name(u.dtype))
            case Ops.IOTA:
                return np.arange(self.size(u.arg))
            case Ops.VARIABLE:
                return np.int64(self.variables[u.arg[0]])
        raise InternalError(f"evaluate: no data given for {u!r}")

    def size(self, size: Any) -> int:
        return int(_Evaluator(size, {}, self.variables).run() if isinstance(size, UOp) else size)

    def sizes(self, shape: Any) -> tuple[int, ...]:
        return tuple(self.size(s) for s in shape)

    def _movement(self, u: UOp, src: list[Array]) -> Any:
        (x,) = src
        match u.op:
            case Ops.RESHAPE:
                return x.reshape(self.sizes(u.arg))
            case Ops.EXPAND:
                return np.broadcast_to(x, self.sizes(u.arg))
            case Ops.PERMUTE:
                return x.transpose(u.arg)
            case Ops.PAD:
                pads = [
                    (first, length - first - size)
                    for (first, length), size in zip(map(self.sizes, u.arg), x.shape, strict=True)
                ]
                return np.pad(x, pads)
            case Ops.SHRINK:
                return x[tuple(slice(self.size(a), self.size(a) + self.size(n)) for a, n in u.arg)]
            case Ops.STRIDE:
                return x[tuple(slice(None, None, step) for step, _ in u.arg)]
        axis, size, stride, dilation, *_ = u.arg
        if u.op is Ops.WINDOW:
            count = (x.shape[axis] - dilation * (size - 1) - 1) // stride + 1
            index = np.arange(count)[:, None] * stride + np.arange(size) * dilation
            return np.moveaxis(np.take(x, index, axis), axis + 1, -1)
        out = np.zeros((*x.shape[:axis], size, *x.shape[axis + 1 :]), x.dtype)
        for k in range(x.shape[-1]):
            positions = np.arange(x.shape[axis]) * stride + k * dilation
            np.moveaxis(out[..., k], axis, 0)[positions] = np.moveaxis(x[..., k], axis, 0)
        return out

    def _convert(self, u: UOp, src: list[Array]) -> Any:
        if u.op is Ops.CAST:
            x = src[0]
            if u.dtype.is_int and u.src[0].dtype.is_float:
                x = _truncated(x.astype(np.float64), u.dtype.scalar)
            return x != 0 if u.dtype.is_bool else x.astype(_numpy_name(u.dtype))
        if u.src[0].dtype.scalar is dtypes.bfloat16:
            return (src[0].view(np.uint32) >> 16).astype(np.uint16).view(_numpy_name(u.dtype))
        if u.dtype.scalar is dtypes.bfloat16:
            return (src[0].view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        whole = src[0] if u.dtype.bits == u.src[0].dtype.bits else np.ascontiguousarray(src[0])
        return whole.view(_numpy_name(u.dtype))

    def _reduction(self, u: UOp, src: list[Array]) -> Any:
        op = u.arg[0]
        reducer = self.functions[op]
        if u.dtype.is_bool and op in (Ops.ADD, Ops.MAX, Ops.MUL, Ops.MIN):
            reducer = np.logical_or if op in (Ops.ADD, Ops.MAX) else np.logical_and
        if len(u.src) == 1:
            return self.reduce(reducer, src[0], u.arg[1])
        count = u.arg[1]
        axes = tuple(self.axes[r] for r in u.src[count:])
        total: Any = None
        for value in src[:count]:
            shape = [1] * len(self.axes)
            for r in u.src[count:]:
                shape[self.axes[r]] = self.size(r.src[0])
            full = np.broadcast_to(value, np.broadcast_shapes(value.shape, tuple(shape)))
            part = self.reduce(reducer, full, axes)
            total = part if total is None else reducer(total, part)
        return total

    @staticmethod
    def reduce(reducer: Any, x: Array, axes: tuple[int, ...]) -> Array:
        wide = x.astype(np.float64) if x.dtype.name in ("float16", "float32") else x
        initial = {} if all(x.shape[a] for a in axes) or reducer.identity is not None else {"initial": -np.inf}
        return np.asarray(reducer.reduce(wide, axis=axes, keepdims=True, **initial)).astype(x.dtype)

    def _tensor(self, u: UOp, src: list[Array]) -> Any:
        match u.op:
            case Ops.TAKE:
                return np.take(src[0], src[1], axis=u.arg, mode="clip")
            case Ops.ASSIGN:
                out = np.array(np.broadcast_to(src[0], static(u.shape)))
                region = ... if u.arg is None else tuple(slice(*self.sizes(part)) for part in u.arg)
                out[region] = src[1]
                return out
            case Ops.SINK:
                return np.zeros(())
        return src[0]

    def _memory(self, u: UOp, src: list[Array]) -> Any:
        if u.op is Ops.INDEX:
            gate = src[2] if len(src) > 2 else np.array(True)
            return np.where(gate, src[1], -1)
        if u.op is Ops.LOCAL:  # an axis for each loop that has a separate copy, and one for the elements
            axes = [self.size(r.src[0]) if r in u.src else 1 for r in self.axes]
            return np.zeros((*axes, u.arg[1]), _numpy_name(u.dtype))
        if u.op in (Ops.AFTER, Ops.CARRY):
            return src[0]
        address = u.src[0]
        memory, index = self.values[address.src[0]], self.values[address].astype(np.int64)
        if u.op is Ops.LOAD:
            at, _ = self.array_index(memory, np.maximum(index, 0))
            return np.where(index < 0, np.zeros((), memory.dtype), memory[at])
        if u.op is Ops.STORE:
            index, value = np.broadcast_arrays(index, src[1])
            at, shape = self.array_index(memory, index)
            value = np.broadcast_to(value, shape)
            inside = np.broadcast_to(index >= 0, shape)
            memory[tuple(np.broadcast_to(a, shape)[inside] for a in at)] = value[inside]
            return np.zeros(())
        raise InternalError(f"evaluate: {u.op.name} is of a later stage")

    def array_index(self, memory: Array, index: Array) -> tuple[tuple[Array, ...], tuple[int, ...]]:
        """Return the array index into memory: a buffer has one axis, a LOCAL one more for every loop."""
        if memory.ndim == 1:
            return (index,), index.shape
        axes = np.ogrid[tuple(slice(size) for size in memory.shape[:-1])]
        at = (*axes, index)
        return at, np.broadcast_shapes(*(a.shape for a in at))

    def _control(self, u: UOp, src: list[Array]) -> Any:
        shape = [1] * len(self.axes)
        shape[self.axes[u]] = -1
        return np.arange(self.size(u.src[0])).reshape(shape)


def _truncated(x: Array, dtype: DType) -> Array:
    """`float_to_int` of all elements, not yet wrapped to a narrow dtype."""
    limit = 2.0 ** (63 if dtype.bits == 64 else 31)
    if not dtype.is_signed and dtype.bits >= 32:
        x = np.where(x < limit, x, x - 2 * limit)
    is_held = (x > -limit - 1) & (x < limit)
    return np.where(is_held | (x == -limit), x, -limit).astype(np.int64)
