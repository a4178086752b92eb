"""Sequences and optional values: Python lists, and None."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from kernmill.ir import IndexRangeError, ShapeError

from ..table import NodeCall, operator
from ..values import Host, Value, shape_of
from .movement import joined, slice_along
from .shapes import moved


def _position(items: list[Any], at: Any, most: int, what: str) -> int:
    position = most if at is None else int(at.item())
    position += len(items) if position < 0 else 0
    if not 0 <= position <= most:
        raise IndexRangeError(f"{what}: position {position} in a sequence of {len(items)}. Change the model.")
    return position


@operator("SequenceEmpty")
def sequence_empty(*, dtype: int = 1) -> tuple[list[Any]]:
    return ([],)


@operator("SequenceConstruct")
def sequence_construct(*values: Value) -> tuple[list[Any]]:
    return (list(values),)


@operator("SequenceInsert")
def sequence_insert(items: Value, value: Value, at: Host = None) -> tuple[list[Any]]:
    new = _items(items)
    new.insert(_position(new, at, len(new), "SequenceInsert"), value)
    return (new,)


@operator("SequenceErase")
def sequence_erase(items: Value, at: Host = None) -> tuple[list[Any]]:
    new = _items(items)
    del new[_position(new, at, len(new) - 1, "SequenceErase")]
    return (new,)


@operator("SequenceAt")
def sequence_at(items: Value, at: Host) -> tuple[Value]:
    own = _items(items)
    return (own[_position(own, at, len(own) - 1, "SequenceAt")],)


@operator("SequenceLength")
def sequence_length(items: Value) -> Any:
    return np.array(len(_items(items)), np.int64)


def _items(value: Value) -> list[Any]:
    if not isinstance(value, list):
        raise ShapeError("a tensor where a sequence is needed. Change the model.")
    return list(value)


@operator("SplitToSequence")
def split_to_sequence(x: Value, sizes: Host = None, *, axis: int = 0, keepdims: int = 1) -> tuple[list[Any]]:
    size = shape_of(x)[axis]
    if sizes is None:
        parts = [slice_along(x, axis, i, i + 1, 1) for i in range(size)]
        if not keepdims:
            parts = [_without(p, axis) for p in parts]
        return (parts,)
    each = [int(sizes.item())] * -(-size // int(sizes.item())) if not sizes.ndim else [int(s) for s in sizes]
    ends = np.minimum(np.cumsum([0, *each]), size).tolist()
    return ([slice_along(x, axis, a, b, 1) for a, b in itertools.pairwise(ends)],)


def _without(x: Value, axis: int) -> Value:
    return moved(x, lambda t: t.squeeze(axis))


@operator("ConcatFromSequence")
def concat_from_sequence(items: Value, *, axis: int, new_axis: int = 0) -> Value:
    parts = _items(items)
    if new_axis:
        at = axis if axis >= 0 else axis + len(shape_of(parts[0])) + 1
        parts = [moved(p, lambda t: t.unsqueeze(at)) for p in parts]
    return joined(parts, axis)


@operator("SequenceMap")
def sequence_map(items: Value, *others: Value, body: Any, call: NodeCall) -> tuple[list[Any], ...]:
    first = _items(items)
    rows = [
        call.body(body, [value, *[o[i] if isinstance(o, list) else o for o in others]]) for i, value in enumerate(first)
    ]
    return tuple(list(column) for column in zip(*rows, strict=True)) if rows else tuple([] for _ in body.outputs)


@operator("Optional")
def optional(value: Value = None, *, type: Any = None) -> tuple[Value]:
    return (value,)


@operator("OptionalHasElement")
def optional_has_element(value: Value = None) -> Any:
    return np.array(value is not None)


@operator("OptionalGetElement")
def optional_get_element(value: Value) -> tuple[Value]:
    return (value,)
