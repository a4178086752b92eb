"""Tensor expressions: one constructor per op, with the checks and messages that a user sees when shapes do not fit.

Every function takes and returns UOps; shapes may have symbolic sizes. Nothing is computed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from .algebra import ordered_products, polynomial, simplify
from .dtype import DType, dtypes
from .ops import Op, Ops
from .process.errors import DeviceError, DTypeError, ShapeError
from .shape import Shape, Size, broadcast_shapes, numel, show_shape, show_size
from .uop import UOp, index_const

__all__ = [
    "as_size", "assign", "broadcast_to", "device_of", "elementwise", "expand", "flatten_axes", "iota", "is_same_size",
    "pad", "permute", "reduce_axes", "reshape", "shrink", "strided", "take", "unwindow", "window",
]  # fmt: skip


def as_size(value: Size) -> Size:
    """Return a size as an int if it is known, else as a simplified UOp: `n * m` and `m * n` are one."""
    if isinstance(value, int):
        return value
    value = simplify(value)
    if (ordered := ordered_products(value)) is not value:
        value = simplify(ordered)
    return int(value.arg) if value.op is Ops.CONST else value


def is_same_size(a: Size, b: Size) -> bool:
    """True if two sizes are equal whatever the values of their variables: `(n + 1) * m` and `n * m + m` are."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    a, b = as_size(a), as_size(b)
    return a == b or polynomial(index_const(a)) == polynomial(index_const(b))


def _sizes(shape: Sequence[Size]) -> Shape:
    return tuple(shape) if {int}.issuperset(map(type, shape)) else tuple(as_size(size) for size in shape)


def device_of(u: UOp) -> str | None:
    """Return the device of the data of this expression; None for constants.

    Raises:
        DeviceError: sources on different devices.
    """
    found: dict[str, UOp] = {}
    for node in u.toposort(stop=lambda n: n.op in (Ops.BUFFER, Ops.COPY) or n.storage is not None):
        if node.storage is not None or node.op is Ops.BUFFER:
            found.setdefault(node.storage.device if node.storage is not None else node.arg[1], node)
        elif node.op is Ops.COPY:
            found.setdefault(node.arg, node)
    if len(found) > 1:
        raise DeviceError(
            f"an expression mixes tensors on {' and '.join(sorted(found))}. Move one side with .to({min(found)!r})."
        )
    return next(iter(found), None)


def iota(length: Size, dtype: DType = dtypes.int64) -> UOp:
    """0, 1, ..., length-1."""
    return UOp(Ops.IOTA, dtype, (), as_size(length))


def elementwise(op: Op, *src: UOp) -> UOp:
    """Apply an elementwise op to sources of one dtype (a condition apart), broadcasting their shapes."""
    operands = src[1:] if op is Ops.WHERE else src
    if len({s.dtype for s in operands}) > 1:
        raise DTypeError(f"{op.name.lower()}: dtypes {', '.join(s.dtype.name for s in operands)} differ; cast first.")
    shape = broadcast_shapes(op.name.lower(), *[s.shape for s in src])
    first, *others = [broadcast_to(s, shape) for s in src]
    return first.alu(op, *others)


def reshape(x: UOp, shape: Sequence[Size]) -> UOp:
    """The same elements in row-major order under another shape; one size may be -1."""
    given = tuple(shape)
    shape = _sizes(given)
    if shape == x.shape:
        return x
    if shape.count(-1) == 1:
        known = prod(s for s in shape if s != -1)
        total = numel(x.shape)
        if isinstance(total, int) and isinstance(known, int):
            if known == 0 or total % known:
                raise ShapeError(_reshape_error(x, given, "no size fits the -1"))
            missing: Size = total // known
        else:
            missing = as_size(index_const(total) // known)
        shape = tuple(missing if s == -1 else s for s in shape)
    if min([s for s in shape if isinstance(s, int)], default=0) < 0:
        raise ShapeError(_reshape_error(x, given, "sizes are negative"))
    have, wanted = numel(x.shape), numel(shape)
    if have != wanted and not is_same_size(have, wanted):
        why = f"{show_size(as_size(have))} elements do not make {show_size(as_size(wanted))}"
        raise ShapeError(_reshape_error(x, given, why))
    if shape == x.shape:
        return x
    if x.op is Ops.RESHAPE and not x.own:
        return reshape(x.src[0], shape)
    return UOp(Ops.RESHAPE, x.dtype, (x,), shape)


def _reshape_error(x: UOp, shape: Shape, why: str) -> str:
    return f"reshape: {show_shape(x.shape)} -> {show_shape(shape)}: {why}. Give sizes with the same product, or one -1."


def expand(x: UOp, shape: Sequence[Size]) -> UOp:
    """Repeat axes of size 1 to the sizes of `shape`; the rank is unchanged."""
    shape = _sizes(shape)
    if len(shape) != len(x.shape) or False in [a in (b, 1) for a, b in zip(x.shape, shape, strict=True)]:
        raise ShapeError(
            f"expand: {show_shape(x.shape)} -> {show_shape(shape)}: only axes of size 1 can grow. "
            "Reshape first so that the growing axes have size 1."
        )
    return x if shape == x.shape else UOp(Ops.EXPAND, x.dtype, (x,), shape)


def broadcast_to(x: UOp, shape: Shape) -> UOp:
    """NumPy's broadcasting to a shape; a scalar constant stays a scalar."""
    if x.shape == shape or (x.shape == () and x.op is Ops.CONST):
        return x
    if len(x.shape) > len(shape):
        raise ShapeError(f"broadcast: {show_shape(x.shape)} has more axes than {show_shape(shape)}. Reshape it first.")
    return expand(reshape(x, (1,) * (len(shape) - len(x.shape)) + x.shape), shape)


def permute(x: UOp, axes: Sequence[int]) -> UOp:
    """Axis i of the result is axis axes[i] of x."""
    axes = tuple(axes)
    if sorted(axes) != list(range(len(x.shape))):
        raise ShapeError(f"permute: {axes} is not an order of the {len(x.shape)} axes of {show_shape(x.shape)}.")
    if axes == tuple(range(len(axes))):
        return x
    if x.op is Ops.PERMUTE and not x.own:
        return permute(x.src[0], [x.arg[a] for a in axes])
    return UOp(Ops.PERMUTE, x.dtype, (x,), axes)


def pad(x: UOp, padding: Sequence[tuple[Size, Size]]) -> UOp:
    """Zeros (False) around x: (before, after) per axis."""
    pads = tuple((as_size(before), as_size(after)) for before, after in padding)
    if len(pads) != len(x.shape) or any(index_const(p).bounds[0] < 0 for pair in pads for p in pair):
        shown = f"({', '.join(map(show_shape, pads))}{',' if len(pads) == 1 else ''})"
        raise ShapeError(f"pad: {show_shape(x.shape)} by {shown}: give one pair of sizes >= 0 per axis.")
    if all(p == (0, 0) for p in pads):
        return x
    arg = tuple((first, as_size(first + size + last)) for (first, last), size in zip(pads, x.shape, strict=True))
    return UOp(Ops.PAD, x.dtype, (x,), arg)


def check_region(shape: Shape, axis: int, start: Size, stop: Size, size: Size) -> None:
    """Check that indices start..stop are within an axis for all values of their variables.

    Raises:
        ShapeError: some values are out of bounds.
    """
    if isinstance(start, int) and isinstance(stop, int):
        return
    least, greatest = index_const(start).bounds[0], index_const(as_size(index_const(stop) - size)).bounds[1]
    if least < 0 or greatest > 0 or index_const(as_size(index_const(stop) - start)).bounds[0] < 0:
        raise ShapeError(
            f"[{show_size(start)}:{show_size(stop)}] of axis {axis} of {show_shape(shape)}: some values of the "
            "variables are out of bounds. Give the variables bounds for which 0 <= start <= stop <= size."
        )


def shrink(x: UOp, bounds: Sequence[tuple[Size, Size]]) -> UOp:
    """x[start:stop] on every axis."""
    bounds = tuple((as_size(start), as_size(stop)) for start, stop in bounds)
    if len(bounds) != len(x.shape) or any(
        isinstance(start, int) and isinstance(stop, int) and isinstance(size, int) and not 0 <= start <= stop <= size
        for (start, stop), size in zip(bounds, x.shape, strict=False)
    ):
        raise ShapeError(f"shrink: {show_shape(x.shape)} to {bounds}: need 0 <= start <= stop <= size on every axis.")
    for axis, ((start, stop), size) in enumerate(zip(bounds, x.shape, strict=True)):
        check_region(x.shape, axis, start, stop, size)
    if bounds == tuple((0, size) for size in x.shape):
        return x
    return UOp(Ops.SHRINK, x.dtype, (x,), tuple((start, as_size(stop - start)) for start, stop in bounds))


def strided(x: UOp, steps: Sequence[int]) -> UOp:
    """Every steps[i]-th element of axis i; a negative step walks from the end."""
    steps = tuple(steps)
    if len(steps) != len(x.shape) or 0 in steps:
        raise ShapeError(f"strided: steps {steps} for {show_shape(x.shape)}: give one step other than 0 per axis.")
    if all(step == 1 for step in steps):
        return x
    lengths = [as_size((size + abs(step) - 1) // abs(step)) for size, step in zip(x.shape, steps, strict=True)]
    return UOp(Ops.STRIDE, x.dtype, (x,), tuple(zip(steps, lengths, strict=True)))


def window(x: UOp, axis: int, size: int, stride: int = 1, dilation: int = 1) -> UOp:
    """Sliding windows: the axis becomes window positions, a new last axis runs over the window."""
    length = x.shape[axis]
    if min(size, stride, dilation) < 1 or dilation * (size - 1) + 1 > index_const(length).bounds[0]:
        raise ShapeError(
            f"window: size {size}, stride {stride}, dilation {dilation} on axis {axis} of {show_shape(x.shape)}: "
            f"the window spans {dilation * (size - 1) + 1} elements. Pad the input or use a smaller window."
        )
    count = as_size((length - dilation * (size - 1) - 1) // stride + 1)
    # adjacent windows do not overlap: their gradient needs no sum
    if size == stride and dilation == 1 and isinstance(length, int):
        whole = shrink(x, [(0, count * size) if a == axis else (0, s) for a, s in enumerate(x.shape)])
        cut = reshape(whole, (*x.shape[:axis], count, size, *x.shape[axis + 1 :]))
        rank = len(cut.shape)
        return permute(cut, [*range(axis + 1), *range(axis + 2, rank), axis + 1])
    return UOp(Ops.WINDOW, x.dtype, (x,), (axis, size, stride, dilation, count))


def unwindow(x: UOp, axis: int, length: Size, stride: int, dilation: int) -> UOp:
    """Scatter each window's elements to their positions in an axis of `length`, zeros elsewhere. Sum the last axis
    to add them."""
    return UOp(Ops.UNWINDOW, x.dtype, (x,), (axis, as_size(length), stride, dilation))


def reduce_axes(x: UOp, op: Op, axes: Sequence[int]) -> UOp:
    """Reduce axes with ADD, MUL, MAX, MIN, AND or OR; they keep size 1."""
    axes = tuple(sorted(a for a in axes if not (isinstance(x.shape[a], int) and x.shape[a] == 1)))
    return UOp(Ops.REDUCE, x.dtype, (x,), (op, axes)) if axes else x


def take(x: UOp, index: UOp, axis: int) -> UOp:
    """Gather entries `index` of one axis. The caller ensures that every index is in range (Tensor adds a CHECK)."""
    return UOp(Ops.TAKE, x.dtype, (x, index), axis)


def assign(old: UOp, value: UOp, region: tuple[tuple[Size, Size, int], ...] | None = None) -> UOp:
    """`old` with the region (start, stop, step > 0 per axis) replaced by `value`."""
    if region is not None:
        region = tuple((as_size(start), as_size(stop), step) for start, stop, step in region)
        for axis, ((start, stop, _), size) in enumerate(zip(region, old.shape, strict=True)):
            check_region(old.shape, axis, start, stop, size)
    if value.dtype is not old.dtype:
        raise DTypeError(f"assign: a {value.dtype.name} value into a {old.dtype.name} tensor. Cast it first.")
    return UOp(Ops.ASSIGN, old.dtype, (old, value), region)


def flatten_axes(x: UOp, first: int, last: int) -> UOp:
    """Axes first..last merged into one."""
    return reshape(x, (*x.shape[:first], numel(x.shape[first : last + 1]), *x.shape[last + 1 :]))
