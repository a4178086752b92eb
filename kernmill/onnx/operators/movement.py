"""Operators that move elements: transpose, slices, joins, pads, blocks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from kernmill.ir import ShapeError

from ...methods.elementwise import where
from ...tensor import Tensor
from ..table import operator
from ..values import Coded, Host, Known, Value, shape_of, tensor_of
from .shapes import moved


@operator("Transpose")
def transpose(x: Value, *, perm: Sequence[int] | None = None) -> Value:
    order = list(perm) if perm is not None else list(range(len(shape_of(x))))[::-1]
    return moved(x, lambda t: t.permute(*order) if order else t)


@operator("Concat")
def concat(*parts: Value, axis: int = 1) -> Value:
    return joined([p for p in parts if p is not None], axis)


def joined(parts: Sequence[Value], axis: int) -> Value:
    """Concatenate values of one type."""
    if all(isinstance(p, Coded) for p in parts):
        codes = [p.codes for p in parts if isinstance(p, Coded)]
        return Coded(parts[0].kind, codes[0].cat(*codes[1:], axis=axis))  # type: ignore[union-attr]
    if any(isinstance(p, Known) and p.is_text for p in parts):
        return Known(np.concatenate([p.array for p in parts if isinstance(p, Known)], axis))
    first, *rest = map(tensor_of, parts)
    return first.cat(*rest, axis=axis)


@operator("Split")
def split(
    x: Value, sizes: Host = None, *, axis: int = 0, split: Sequence[int] | None = None, num_outputs: int | None = None,
    call: Any,
) -> Value:  # fmt: skip
    own = shape_of(x)[axis]
    given = split if sizes is None else sizes.tolist()
    if given is None:
        count = num_outputs or call.outputs
        each = -(-own // count)
        given = [max(0, min(each, own - i * each)) for i in range(count)]
    if sum(given) != own or any(s < 0 for s in given):
        raise ShapeError(f"Split: sizes {list(given)} of an axis of {own}. Change the model.")
    ends = np.cumsum([0, *given]).tolist()
    cuts = [slice_along(x, axis, a, b, 1) for a, b in itertools.pairwise(ends)]
    return tuple(cuts)  # type: ignore[return-value]


def slice_along(x: Value, axis: int, start: int, stop: int | None, step: int) -> Value:
    axis %= len(shape_of(x))
    index = (*[slice(None)] * axis, slice(start, stop, step))
    return moved(x, lambda t: t[index])


@operator("Slice")
def cut(
    x: Value, starts_in: Host = None, ends_in: Host = None, axes_in: Host = None, steps: Host = None, *,
    starts: Sequence[int] | None = None, ends: Sequence[int] | None = None, axes: Sequence[int] | None = None,
) -> Value:  # fmt: skip
    first = [int(s) for s in (starts_in if starts_in is not None else starts or ())]
    last = [int(s) for s in (ends_in if ends_in is not None else ends or ())]
    which = axes_in.tolist() if axes_in is not None else axes or range(len(first))
    hops = [int(s) for s in steps] if steps is not None else [1] * len(first)
    own = shape_of(x)
    index: list[slice] = [slice(None)] * len(own)
    for axis, a, b, step in zip(which, first, last, hops, strict=True):
        if not step:
            raise ShapeError("Slice: a step of 0. Change the model.")
        size = own[axis]
        if step > 0:
            index[axis] = slice(max(a + size, 0) if a < 0 else a, max(b + size, 0) if b < 0 else b, step)
        else:
            a = min(a + size if a < 0 else a, size - 1)
            b = b + size if b < 0 else b
            index[axis] = slice(0, 0) if a < 0 else slice(a, None if b < 0 else b, step)
    return moved(x, lambda t: t[tuple(index)] if index else t)


@operator("Tile")
def tile(x: Value, repeats: Host, tiles_axis: Host = None) -> Value:
    if tiles_axis is not None:  # the first version: a count and an axis
        counts = [1] * len(shape_of(x))
        counts[int(tiles_axis.item())] = int(repeats.item())
        return moved(x, lambda t: t.repeat(*counts))
    counts = [int(r) for r in repeats]
    return moved(x, lambda t: t.repeat(*counts) if counts else t)


_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


@operator("Pad")
def pad(
    x: Tensor, pads_in: Host = None, value_in: Tensor | None = None, axes_in: Host = None, *,
    pads: Sequence[int] | None = None, paddings: Sequence[int] | None = None, value: float = 0.0,
    mode: str = "constant",
) -> Tensor:  # fmt: skip
    given = [int(p) for p in (pads_in if pads_in is not None else pads or paddings or ())]
    axes = [int(a) for a in axes_in] if axes_in is not None else list(range(x.ndim))
    if len(given) != 2 * len(axes) or mode not in _MODES:
        raise ShapeError(f"Pad: pads {given} in mode {mode!r} for shape {x.shape}. Change the model.")
    pairs = [(0, 0)] * x.ndim
    for i, axis in enumerate(axes):
        pairs[axis] = (given[i], given[i + len(axes)])
    if mode != "constant":
        kept = [(max(a, 0), max(b, 0)) for a, b in pairs]
        cuts = [(min(a, 0), min(b, 0)) for a, b in pairs]
        return x.pad(cuts).pad(kept, _MODES[mode])
    padded = x.pad(pairs, value=value) if x.dtype.is_float or not value else x.pad(pairs, value=int(value))
    if value_in is None:
        return padded
    inside = x.detach()._filled(1).ne(0).pad(pairs) if x.numel() else padded.ne(padded)
    return where(inside, padded, value_in.reshape(()).cast(x.dtype))


@operator("DepthToSpace")
def depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = x.shape
    b = blocksize
    if mode == "DCR":
        y = x.reshape(n, b, b, c // b**2, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        y = x.reshape(n, c // b**2, b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    return y.reshape(n, c // b**2, h * b, w * b)


@operator("SpaceToDepth")
def space_to_depth(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    n, c, h, w = x.shape
    b = blocksize
    y = x.reshape(n, c, h // b, b, w // b, b)
    y = y.permute(0, 3, 5, 1, 2, 4) if mode == "DCR" else y.permute(0, 1, 3, 5, 2, 4)
    return y.reshape(n, c * b * b, h // b, w // b)


@operator("Trilu")
def trilu(x: Tensor, k: Host = None, *, upper: int = 1) -> Tensor:
    offset = 0 if k is None else int(k.item())
    offset = max(-x.shape[-2] - 1, min(offset, x.shape[-1] + 1))
    return x.triu(offset) if upper else x.tril(offset)


@operator("CenterCropPad")
def center_crop_pad(x: Tensor, shape: Host, *, axes: Sequence[int] | None = None) -> Tensor:
    for axis, size in zip(axes if axes is not None else range(x.ndim), shape.tolist(), strict=True):
        own = x.shape[axis]
        pairs = [(0, 0)] * x.ndim
        low = abs(size - own) // 2
        pairs[axis] = (low, size - own - low) if size >= own else (-low, size - own + low)
        x = x.pad(pairs)
    return x


@operator("ReverseSequence")
def reverse_sequence(x: Tensor, lengths: Tensor, *, batch_axis: int = 1, time_axis: int = 0) -> Tensor:
    t = x.transpose(0, 1) if time_axis == 1 else x  # time first
    steps = Tensor.arange(t.shape[0]).reshape(-1, 1)
    index = where(steps.lt(lengths), lengths - 1 - steps, steps)
    index = index.reshape(*index.shape, *[1] * (t.ndim - 2)).expand(*t.shape)
    y = t.gather(0, index)
    return y.transpose(0, 1) if time_axis == 1 else y
