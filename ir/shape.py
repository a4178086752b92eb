"""Shapes: tuples of sizes, where a size is an int or a symbolic index UOp."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, TypeAlias

from .ops import Ops
from .process.errors import ShapeError

if TYPE_CHECKING:
    from .uop import UOp

__all__ = ["Shape", "Size", "broadcast_shapes", "numel", "row_strides", "show_shape", "show_size", "static"]

Size: TypeAlias = "int | UOp"
Shape: TypeAlias = "tuple[Size, ...]"


_SIGNS = {Ops.ADD: "+", Ops.SUB: "-", Ops.MUL: "*", Ops.FLOORDIV: "//", Ops.MOD: "%"}


def show_size(size: Size) -> str:
    """A size as Python writes it: `3`, `n`, `(n * 2) + 1`."""
    if isinstance(size, int):
        return str(size)
    if size.op not in _SIGNS:
        return str(size.arg[0] if size.op is Ops.VARIABLE else size.arg if size.op is Ops.CONST else size)
    parts = [f"({show_size(s)})" if s.op in _SIGNS else show_size(s) for s in size.src]
    return f" {_SIGNS[size.op]} ".join(parts).replace("+ -", "- ")


def show_shape(shape: Shape) -> str:
    """A shape as a person writes it: `(2, 3)`, `(n, 3)`."""
    names = [show_size(size) for size in shape]
    return f"({', '.join(names)}{',' if len(names) == 1 else ''})"


def broadcast_shapes(call: str, *shapes: Shape) -> Shape:
    """The common shape under NumPy's rules: aligned at the right, size 1 stretches.

    Raises:
        ShapeError: two sizes differ and neither is 1.
    """
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    result: list[Size] = []
    for axis, sizes in enumerate(zip(*padded, strict=True)):
        wide = [*dict.fromkeys([size for size in sizes if size != 1])] or [1]
        if len(wide) > 1:
            shown = " and ".join(show_shape(shape) for shape in shapes)
            raise ShapeError(
                f"{call}: shapes {shown} do not broadcast: at axis {axis - rank} the sizes are "
                f"{' and '.join(map(show_size, sizes))}. Reshape one of them so that sizes are equal or 1."
            )
        result += wide
    return tuple(result)


def numel(shape: Shape) -> Size:
    """Number of elements; symbolic when a size is."""
    return prod(shape)


def static(shape: Shape) -> tuple[int, ...]:
    """Return the shape with each symbolic size at its greatest value, for which memory is allocated."""
    for size in shape:
        if not isinstance(size, int):
            return tuple([size if isinstance(size, int) else int(size.bounds[1]) for size in shape])
    return shape  # type: ignore[return-value]


def row_strides(shape: Sequence[Size]) -> list[Size]:
    """Return the stride of each axis in row-major order, in elements."""
    strides: list[Size] = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * shape[axis + 1]
    return strides
