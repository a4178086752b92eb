"""`vmap`: a function of one example becomes a function of a batch.

The function is traced once, on placeholders of the shape of one example. `Rewriter` then builds its graph for the whole
batch, so a batch costs as few kernels as an example.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kernmill.ir import DTypeError, ShapeError, UOp, show_shape

from ..lazy import tracing, tracked_tensors
from ..tensor import Tensor
from .rewriting import Rewriter, placeholder
from .trees import parts_of, replaced

__all__ = ["vmap"]

_NO_VALUES = (
    "vmap: the function reads values (numpy(), item(), a comparison in an if). It is called once for the whole batch, "
    "on an example without values. Use where(), or write a Python loop over the batch."
)


def vmap(function: Callable[..., Any], in_axes: Any = 0, out_axes: Any = 0) -> Callable[..., Any]:
    """Return a function that maps over one axis of its arguments, as if it was called for each entry.

    `in_axes`: the mapped axis of all positional arguments, or a tuple with that of each. A dict, list or tuple of
    tensors has one for all of them, or one for each in the same form. None: the argument is the same for each entry.
    Arguments by name are mapped along axis 0. `out_axes`: where the axis is in the results. The function draws random
    numbers once for the whole batch.

    Raises:
        ShapeError: no axis is mapped, or sizes differ.
        KernmillError: the function reads values.
    """
    if not callable(function):
        raise DTypeError(f"vmap: a {type(function).__name__} cannot be called. Give a function of tensors.")

    @functools.wraps(function)
    def mapped(*arguments: Any, **named: Any) -> Any:
        if isinstance(in_axes, (tuple, list)) and len(in_axes) != len(arguments):
            raise ShapeError(
                f"vmap: in_axes has {len(in_axes)} entries for {len(arguments)} arguments. Give one for each."
            )
        axes = [
            *_axes_of_parts(tuple(in_axes) if isinstance(in_axes, list) else in_axes, arguments),
            *_axes_of_parts(0, named),
        ]
        parts = [*parts_of((arguments, named))]
        size = _batch_size(parts, axes)
        table: dict[UOp, UOp] = {}
        given = [_example(part, axis, table) for part, axis in zip(parts, axes, strict=True)]
        passed, names = replaced((arguments, named), iter(given))
        before = {id(t): t.uop for _, t in tracked_tensors() if "uop" in t.__dict__}
        with tracing():
            value = function(*passed, **names)
        results = [*parts_of(value)]
        batch = Rewriter(table, size)
        made = [_result(y, axis, batch) for y, axis in zip(results, _axes_of_parts(out_axes, value), strict=True)]
        _no_escapes(before, batch)
        return replaced(value, iter(made))

    return mapped


def _axes_of_parts(axes: Any, value: Any) -> Iterator[int | None]:
    """Yield the axis for each part of a value: one for all, or as many as there are parts.

    Raises:
        ShapeError: the forms differ.
    """
    if axes is None or isinstance(axes, int):
        yield from (axes for _ in parts_of(value))
        return
    keys: Any = None
    if isinstance(axes, dict) and isinstance(value, dict) and axes.keys() == value.keys():
        keys = value.keys()
    elif isinstance(axes, (tuple, list)) and isinstance(value, (tuple, list)) and len(axes) == len(value):
        keys = range(len(value))
    if keys is None:
        raise ShapeError(
            f"vmap: axes {axes!r} for a {type(value).__name__}. Give an int, None, or the form of the argument."
        )
    for key in keys:
        yield from _axes_of_parts(axes[key], value[key])


def _batch_size(parts: Sequence[Any], axes: Sequence[int | None]) -> int:
    sizes: dict[int, Tensor] = {}
    for part, axis in zip(parts, axes, strict=True):
        if not isinstance(part, Tensor) or axis is None:
            continue
        if not -part.ndim <= axis < part.ndim:
            raise ShapeError(f"vmap: axis {axis} of an argument of shape {show_shape(part.uop.shape)} does not exist.")
        sizes.setdefault(part.node_shape[axis], part)
    if not sizes:
        raise ShapeError("vmap: no argument is mapped. Give a tensor, and its axis in in_axes.")
    if len(sizes) > 1:
        first, second, *_ = sizes.items()
        raise ShapeError(
            f"vmap: mapped axes of sizes {first[0]} and {second[0]}, in arguments of shapes "
            f"{show_shape(first[1].uop.shape)} and {show_shape(second[1].uop.shape)}. Give equal sizes, or None in "
            "in_axes."
        )
    (size,) = sizes
    if not isinstance(size, int):
        raise ShapeError(f"vmap: the mapped axis has the symbolic size {size}. Map an axis whose size is known.")
    return size


def _example(part: Any, axis: int | None, table: dict[UOp, UOp]) -> Any:
    """The argument as the function sees it; the table gets the batch for its placeholder."""
    if not isinstance(part, Tensor) or axis is None:
        return part
    batch = part.movedim(axis, 0)
    node = placeholder(batch.dtype, batch.uop.shape[1:], part.device, _NO_VALUES)
    table[node] = batch.uop
    return Tensor._make(node, part._device, part._requires_grad)


def _result(y: Any, axis: int | None, batch: Rewriter) -> Any:
    """A result for the whole batch."""
    if not isinstance(y, Tensor):
        if isinstance(y, (bool, int, float)):
            return y
        raise DTypeError(
            f"vmap: the function returns a {type(y).__name__}. Return tensors, in dicts, lists and tuples."
        )
    node = batch(y.uop)
    if axis is None:
        if batch.depends(y.uop):
            raise ShapeError("vmap: out_axes is None for a result that differs for each entry. Give an axis.")
        return y
    made = Tensor._make(node if batch.depends(y.uop) else batch.wide(node, node), y._device, y._requires_grad)
    if not -made.ndim <= axis < made.ndim:
        raise ShapeError(f"vmap: out_axes {axis} of a result of shape {show_shape(made.uop.shape)} does not exist.")
    return made.movedim(0, axis) if axis else made


def _no_escapes(before: dict[int, UOp], batch: Rewriter) -> None:
    """A tensor outside must not depend on an example.

    Raises:
        ShapeError: the function assigned to one.
    """
    for _, t in tracked_tensors():
        node = before.get(id(t))
        if node is not None and "uop" in t.__dict__ and t.uop is not node and batch(t.uop) is not t.uop:
            t._put(node)
            raise ShapeError(
                f"vmap: the function assigns to a tensor of shape {show_shape(t.uop.shape)} outside of it. Return the "
                "value, and assign outside."
            )
