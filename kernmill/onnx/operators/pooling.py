"""Pooling over windows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from kernmill.ir import ShapeError, dtypes

from ...tensor import Tensor
from ..table import operator
from ..values import Host
from .convolutions import padded, pads_of


def _windows(
    x: Tensor, kernel: Sequence[int], steps: Sequence[int], gaps: Sequence[int], pairs: Sequence[tuple[int, int]],
    ceil: bool, value: float,
) -> tuple[Tensor, list[tuple[int, int]]]:  # fmt: skip
    """The windows as last axes, and the padding that ceil_mode adds."""
    outs, more = list[int](), list[tuple[int, int]]()
    for n, k, s, d, (a, c) in zip(x.shape[2:], kernel, steps, gaps, pairs, strict=True):
        room = n + a + c - (k - 1) * d - 1
        count = (-(-room // s) if ceil else room // s) + 1
        if ceil and (count - 1) * s >= n + a:  # a window that begins in the padding after the data
            count -= 1
        if count < 1:
            raise ShapeError(f"a window of {k} (dilation {d}) for an axis of {n} with padding {a}, {c}.")
        outs.append(count)
        more.append((0, max(0, (count - 1) * s + (k - 1) * d + 1 - n - a - c)))
    y = padded(padded(x, pairs, value), more, value)
    for axis, (k, s, d, count) in enumerate(zip(kernel, steps, gaps, outs, strict=True), 2):
        y = y.unfold(axis, (k - 1) * d + 1, s)
        y = y.shrink([(0, n) if a != axis else (0, count) for a, n in enumerate(y.shape)])
        y = y[..., ::d] if d > 1 else y
    return y, more


@operator("MaxPool")
def max_pool(
    x: Tensor, *, kernel_shape: Sequence[int], auto_pad: str = "NOTSET", ceil_mode: int = 0,
    dilations: Sequence[int] | None = None, pads: Sequence[int] | None = None, storage_order: int = 0,
    strides: Sequence[int] | None = None, call: object,
) -> Tensor | tuple[Tensor, Tensor]:  # fmt: skip
    rank = len(kernel_shape)
    steps, gaps = list(strides or [1] * rank), list(dilations or [1] * rank)
    pairs = pads_of(auto_pad, pads, x.shape[2:], kernel_shape, steps, gaps)
    low = -math.inf if x.dtype.is_float else int(x.dtype.min)
    seen, _ = _windows(x, kernel_shape, steps, gaps, pairs, bool(ceil_mode), low)
    y = seen.max(tuple(range(-rank, 0)))
    if getattr(call, "outputs", 1) < 2:
        return y
    local = seen.flatten(-rank).argmax(-1)
    offsets, index = list[Tensor](), local
    for k in reversed(kernel_shape):
        offsets.insert(0, index.remainder(k))
        index = index.floor_divide(k)
    flat = (Tensor.arange(x.shape[0] * x.shape[1]) * math.prod(x.shape[2:])).reshape(*x.shape[:2], *[1] * rank)
    sizes = x.shape[2:] if not storage_order else x.shape[2:][::-1]
    scale = [math.prod(sizes[i + 1 :]) for i in range(rank)]
    scale = scale if not storage_order else scale[::-1]
    for axis, (offset, s, d, (a, _)) in enumerate(zip(offsets, steps, gaps, pairs, strict=True)):
        start = (Tensor.arange(y.shape[2 + axis]) * s - a).reshape(-1, *[1] * (rank - axis - 1))
        flat = flat + (offset * d + start) * scale[axis]
    return y, flat.cast(dtypes.int64)


@operator("AveragePool")
def average_pool(
    x: Tensor, *, kernel_shape: Sequence[int], auto_pad: str = "NOTSET", ceil_mode: int = 0,
    count_include_pad: int = 0, dilations: Sequence[int] | None = None, pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    rank = len(kernel_shape)
    steps, gaps = list(strides or [1] * rank), list(dilations or [1] * rank)
    pairs = pads_of(auto_pad, pads, x.shape[2:], kernel_shape, steps, gaps)
    seen, more = _windows(x, kernel_shape, steps, gaps, pairs, bool(ceil_mode), 0)
    axes = tuple(range(-rank, 0))
    if not any(map(any, more)) and (count_include_pad or not any(map(any, pairs))):
        return seen.mean(axes)
    counts: np.ndarray = np.ones(1)
    for axis, (n, k, s, d, (a, c)) in enumerate(zip(x.shape[2:], kernel_shape, steps, gaps, pairs, strict=True)):
        first, last = (-a, n + c) if count_include_pad else (0, n)
        at = np.arange(seen.shape[2 + axis])[:, None] * s - a + np.arange(k) * d
        counts = np.multiply.outer(counts, ((at >= first) & (at < last)).sum(1))
    return seen.sum(axes) / Tensor(counts[0].astype(np.float32)).cast(x.dtype)


@operator("LpPool")
def lp_pool(
    x: Tensor, *, kernel_shape: Sequence[int], auto_pad: str = "NOTSET", ceil_mode: int = 0,
    dilations: Sequence[int] | None = None, p: int = 2, pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    rank = len(kernel_shape)
    steps, gaps = list(strides or [1] * rank), list(dilations or [1] * rank)
    pairs = pads_of(auto_pad, pads, x.shape[2:], kernel_shape, steps, gaps)
    seen, _ = _windows(x, kernel_shape, steps, gaps, pairs, bool(ceil_mode), 0)
    return (seen.abs() ** p).sum(tuple(range(-rank, 0))) ** (1 / p)


@operator("GlobalAveragePool")
def global_average_pool(x: Tensor) -> Tensor:
    return x.mean(tuple(range(2, x.ndim)), True)


@operator("GlobalMaxPool")
def global_max_pool(x: Tensor) -> Tensor:
    return x.max(tuple(range(2, x.ndim)), True)


@operator("GlobalLpPool")
def global_lp_pool(x: Tensor, *, p: int = 2) -> Tensor:
    return (x.abs() ** p).sum(tuple(range(2, x.ndim)), True) ** (1 / p)


@operator("MaxUnpool")
def max_unpool(
    x: Tensor, index: Tensor, sizes: Host = None, *, kernel_shape: Sequence[int], pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    rank = len(kernel_shape)
    steps = list(strides or [1] * rank)
    pairs = pads_of("NOTSET", pads, x.shape[2:], kernel_shape, steps, [1] * rank)
    own = [(n - 1) * s - a - c + k
           for n, k, s, (a, c) in zip(x.shape[2:], kernel_shape, steps, pairs, strict=True)]  # fmt: skip
    small = (*x.shape[:2], *own)
    whole = small if sizes is None else tuple(int(s) for s in sizes)
    flat = (x.reshape(-1)[:1] * 0).expand(math.prod(small)).scatter(0, index.reshape(-1), x.reshape(-1))
    return flat.reshape(small).pad([(0, w - s) for w, s in zip(whole, small, strict=True)])


@operator("MaxRoiPool")
def max_roi_pool(x: Tensor, rois: Host, *, pooled_shape: Sequence[int], spatial_scale: float = 1.0) -> Tensor:
    high, wide = pooled_shape
    results = list[Tensor]()
    for roi in rois:
        x1, y1, x2, y2 = (int(np.round(v * spatial_scale)) for v in roi[1:])
        h, w = max(y2 - y1 + 1, 1) / high, max(x2 - x1 + 1, 1) / wide
        image = x[int(roi[0])]
        for i in range(high):
            for j in range(wide):
                rows = slice(max(0, y1 + math.floor(i * h)), max(0, y1 + math.ceil((i + 1) * h)))
                columns = slice(max(0, x1 + math.floor(j * w)), max(0, x1 + math.ceil((j + 1) * w)))
                part = image[:, rows, columns]
                results.append(part.max((1, 2)) if part.numel() else image[:, 0, 0] * 0)
    first, *others = results
    return first.stack(*others).reshape(len(rois), high, wide, x.shape[1]).permute(0, 3, 1, 2)
