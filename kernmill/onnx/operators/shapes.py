"""Shapes as values, constants, and the types of values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from kernmill.ir import DTypeError, ShapeError

from ...tensor import Tensor
from ..table import operator
from ..values import Coded, Host, Known, Value, dtype_of, shape_of, tensor_of, type_name

_LARGEST = 1 << 33  # elements of a constant that a file asks for: a wrong number is refused


def _storable(shape: Sequence[int], what: str) -> list[int]:
    sizes = [int(s) for s in shape]
    if any(s < 0 for s in sizes) or math.prod(sizes) > _LARGEST:
        raise ShapeError(f"{what}: shape {tuple(sizes)} cannot be stored. Change the model.")
    return sizes


@operator("Shape")
def shape(x: Value, *, start: int = 0, end: int | None = None) -> Any:
    return np.array(shape_of(x)[slice(start, end)], np.int64)


@operator("Size")
def size(x: Value) -> Any:
    return np.array(math.prod(shape_of(x)), np.int64)


@operator("Constant")
def constant(
    *, value: Value = None, sparse_value: Value = None, value_float: float | None = None, value_int: int | None = None,
    value_floats: Sequence[float] | None = None, value_ints: Sequence[int] | None = None,
    value_string: str | None = None, value_strings: Sequence[str] | None = None,
) -> Value:  # fmt: skip
    if value is not None or sparse_value is not None:
        return value if value is not None else sparse_value
    floats = value_float if value_float is not None else value_floats
    ints = value_int if value_int is not None else value_ints
    if floats is not None:
        return Known(np.array(floats, np.float32))
    if ints is not None:
        return Known(np.array(ints, np.int64))
    return Known(np.array(value_string if value_string is not None else list(value_strings or ()), dtype=object))


@operator("ConstantOfShape")
def constant_of_shape(sizes: Host, *, value: Value = None) -> Value:
    if isinstance(value, Coded):
        return Coded(value.kind, value.codes.reshape(1).expand(*_storable(sizes.tolist(), "ConstantOfShape")))
    fill = tensor_of(value).reshape(1) if value is not None else Tensor([0.0])
    whole = _storable(sizes.tolist(), "ConstantOfShape")
    return fill.reshape([1] * len(whole)).expand(*whole).contiguous() if whole else fill.reshape(())


@operator("Identity")
def identity(x: Value) -> Value:
    return x


@operator("Expand")
def expand(x: Value, sizes: Host) -> Value:
    own = shape_of(x)
    whole = np.broadcast_shapes(own, tuple(_storable(sizes.tolist(), "Expand")))
    if isinstance(x, Coded):
        return Coded(x.kind, x.codes.expand(*whole))
    return tensor_of(x).expand(*whole) if whole else tensor_of(x)


@operator("Range")
def arange(start: Host, limit: Host, delta: Host) -> Value:
    if not delta.item():
        raise ShapeError("Range: a step of 0 never ends. Change the model.")
    count = max(0, math.ceil((limit.item() - start.item()) / delta.item()))
    _storable([count], "Range")
    return Known((np.arange(count) * delta.item() + start.item()).astype(start.dtype))


@operator("EyeLike")
def eye_like(x: Tensor, *, dtype: int | None = None, k: int = 0) -> Tensor:
    wanted = x.dtype if dtype is None else dtype_of(dtype)
    if wanted is None:
        raise DTypeError(f"EyeLike: {type_name(dtype or 0)} is not supported. Change the model.")
    return Tensor.eye(x.shape[0], x.shape[1], k=k, dtype=wanted)


@operator("Reshape")
def reshape(x: Value, sizes: Host = None, *, shape: Sequence[int] | None = None, allowzero: int = 0) -> Value:
    given = [int(s) for s in (sizes if sizes is not None else shape or ())]
    own = shape_of(x)
    whole = [own[i] if s == 0 and not allowzero else s for i, s in enumerate(given)]
    return moved(x, lambda t: t.reshape(*whole) if whole else t.reshape(()))


def moved(x: Value, function: Any) -> Value:
    """Apply a function that only moves elements, on whatever holds them."""
    if isinstance(x, Coded):
        return Coded(x.kind, function(x.codes))
    if isinstance(x, Known) and x.is_text:
        indices = Tensor(np.arange(x.array.size).reshape(x.array.shape))
        return Known(x.array.ravel()[function(indices).numpy()])
    found: Tensor = function(tensor_of(x))
    return found


@operator("Flatten")
def flatten(x: Value, *, axis: int = 1) -> Value:
    own = shape_of(x)
    return moved(x, lambda t: t.reshape(math.prod(own[:axis]), math.prod(own[axis:])))


@operator("Squeeze")
def squeeze(x: Value, axes_in: Host = None, *, axes: Sequence[int] | None = None) -> Value:
    own = shape_of(x)
    given = axes if axes_in is None else axes_in.ravel().tolist()
    gone = {int(a) % len(own) for a in given} if given is not None else {i for i, s in enumerate(own) if s == 1}
    if any(own[a] != 1 for a in gone):
        raise ShapeError(f"Squeeze: axes {sorted(gone)} of shape {own} are not all 1. Change the model.")
    left = [s for i, s in enumerate(own) if i not in gone]
    return moved(x, lambda t: t.reshape(*left) if left else t.reshape(()))


@operator("Unsqueeze")
def unsqueeze(x: Value, axes_in: Host = None, *, axes: Sequence[int] | None = None) -> Value:
    given = [int(a) for a in (axes_in.ravel() if axes_in is not None else axes or ())]
    whole, rest = len(shape_of(x)) + len(given), iter(shape_of(x))
    new = {a + whole if a < 0 else a for a in given}
    if len(new) != len(given) or any(not 0 <= a < whole for a in new):
        raise ShapeError(f"Unsqueeze: axes {given} do not fit shape {shape_of(x)}. Change the model.")
    sizes = [1 if i in new else next(rest) for i in range(whole)]
    return moved(x, lambda t: t.reshape(*sizes))
