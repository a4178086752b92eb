"""Arrays in other shapes, joined, separated and repeated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernmill.ir import ShapeError, broadcast_shapes, show_shape

from ..complex_tensor import ComplexTensor, joined
from ..methods.movement import cat
from ..methods.movement import stack as _stack
from .creation import asarray
from .dtypes import Array, astype, result_type

__all__ = [
    "broadcast_arrays", "broadcast_to", "concat", "expand_dims", "flip", "moveaxis", "permute_dims", "repeat",
    "reshape", "roll", "squeeze", "stack", "tile", "unstack",
]  # fmt: skip

Axes = int | Sequence[int] | None


def broadcast_arrays(*arrays: Array) -> list[Array]:
    """Arrays in their common shape."""
    shape: Any = ()
    for a in arrays:
        shape = broadcast_shapes("broadcast_arrays", shape, a.shape)
    return [a.expand(shape) for a in arrays]


def broadcast_to(x: Array, /, shape: Sequence[int]) -> Array:
    """An array repeated along axes of size 1."""
    return x.expand(tuple(shape))


def _alike(arrays: Sequence[Array], call: str) -> list[Any]:
    if not arrays:
        raise ShapeError(f"{call}: no arrays. Give one or more.")
    dtype = result_type(*arrays)
    return [astype(a, dtype, copy=False) for a in arrays]


def concat(arrays: Sequence[Array], /, *, axis: int | None = 0) -> Array:
    """Arrays one after the other along an axis; flat ones without it."""
    found = _alike(arrays, "concat")
    if axis is None:
        found, axis = [a.reshape((-1,)) for a in found], 0
    return joined(found, axis) if isinstance(found[0], ComplexTensor) else cat(found, axis)


def stack(arrays: Sequence[Array], /, *, axis: int = 0) -> Array:
    """Arrays along a new axis."""
    found = _alike(arrays, "stack")
    return joined(found, axis, is_new=True) if isinstance(found[0], ComplexTensor) else _stack(found, axis)


def unstack(x: Array, /, *, axis: int = 0) -> tuple[Array, ...]:
    """The parts along an axis."""
    return tuple(x.unbind(axis))


def expand_dims(x: Array, /, *, axis: int = 0) -> Array:
    """A new axis of size 1."""
    return x.unsqueeze(axis)


def squeeze(x: Array, /, axis: int | Sequence[int]) -> Array:
    """Axes of size 1 removed.

    Raises:
        ShapeError: an axis of another size.
    """
    axes = [axis] if isinstance(axis, int) else list(axis)
    if not axes:
        return x.clone()
    for a in axes:
        if not -x.ndim <= a < x.ndim or x.shape[a] != 1:
            raise ShapeError(f"squeeze: axis {a} of shape {show_shape(x.shape)}: must be an axis of size 1.")
    return x.squeeze(tuple(axes))


def flip(x: Array, /, *, axis: Axes = None) -> Array:
    """Entries in reverse order along axes."""
    axes = tuple(range(x.ndim)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
    return x.flip(axes) if axes else x.clone()


def moveaxis(x: Array, source: int | Sequence[int], destination: int | Sequence[int], /) -> Array:
    """Axes at other positions."""
    return x.movedim(source, destination)


def permute_dims(x: Array, /, axes: Sequence[int]) -> Array:
    """Axes in another order."""
    return x.permute(tuple(axes))


def reshape(x: Array, /, shape: Sequence[int], *, copy: bool | None = None) -> Array:
    """The elements in another shape."""
    made = x.reshape(tuple(shape))
    return made.clone() if copy else made


def roll(x: Array, /, shift: int | Sequence[int], *, axis: Axes = None) -> Array:
    """Entries moved along axes, those beyond the end to the front; without an axis of the flat array."""
    if axis is None:
        return x.reshape((-1,)).roll(shift, 0).reshape(x.shape)
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    shifts = (shift,) * len(axes) if isinstance(shift, int) else tuple(shift)
    for amount, a in zip(shifts, axes, strict=True):  # an axis may be there twice
        x = x.roll(amount, a)
    return x


def repeat(x: Array, repeats: Any, /, *, axis: int | None = None) -> Array:
    """Each entry several times."""
    counts = repeats if isinstance(repeats, int) else asarray(repeats).numpy()
    if not isinstance(counts, int) and counts.ndim == 0:
        counts = int(counts)
    return x.repeat_interleave(counts, axis)


def tile(x: Array, repetitions: Sequence[int], /) -> Array:
    """The whole array several times along each axis."""
    return x.tile(tuple(repetitions))
