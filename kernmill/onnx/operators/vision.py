"""Reading images at points between their entries, and decoding them."""

from __future__ import annotations

import functools
import io
import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from kernmill.ir import SettingError, dtypes

from ...methods.elementwise import where
from ...tensor import Tensor
from ..table import operator
from ..values import Host


def _reflected(at: Tensor, size: int, align: bool) -> Tensor:
    """Positions mirrored into the axis."""
    low, high = (0.0, size - 1.0) if align else (-0.5, size - 0.5)
    span = high - low
    if span <= 0:
        return at * 0
    moved = (at - low).abs()
    rest = moved - (moved / (2 * span)).floor() * (2 * span)
    return where(rest.gt(span), 2 * span - rest, rest) + low


def _entry(index: Tensor, size: int, padding: str, align: bool) -> tuple[Tensor, Tensor]:
    """An index inside the axis, and whether its entry counts."""
    inside = index.ge(0) & index.le(size - 1)
    if padding == "reflection":
        index, inside = _reflected(index, size, align), inside | inside.logical_not()
    elif padding == "border":
        inside = inside | inside.logical_not()
    return index.clamp(0, size - 1).cast(dtypes.int64), inside


def _cubic_weights(t: Tensor, a: float = -0.75) -> list[Tensor]:
    def near(d: Tensor) -> Tensor:
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d: Tensor) -> Tensor:
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return [far(t + 1), near(t), near(1 - t), far(2 - t)]


def sampled(x: Tensor, positions: Sequence[Tensor], mode: str, padding: str, align: bool) -> Tensor:
    """Entries of (batch, channels, *spatial) at positions (batch, points) for each spatial axis."""
    sizes = x.shape[2:]
    positions = list(positions)
    if padding == "border":
        positions = [p.clamp(0, s - 1) for p, s in zip(positions, sizes, strict=True)]
    elif padding == "reflection" and mode != "cubic":
        positions = [_reflected(p, s, align) for p, s in zip(positions, sizes, strict=True)]
        positions = [p.clamp(0, s - 1) for p, s in zip(positions, sizes, strict=True)]
    axes: list[list[tuple[Tensor, Tensor]]] = []  # for each axis: positions and weights
    for p in positions:
        low = p.floor()
        if mode == "nearest":
            axes.append([(p.round(), p * 0 + 1)])
        elif mode == "linear":
            axes.append([(low, 1 - (p - low)), (low + 1, p - low)])
        else:
            axes.append([(low + i - 1, w) for i, w in enumerate(_cubic_weights(p - low))])
    flat = x.reshape(*x.shape[:2], -1)
    result: Tensor | None = None
    for corner in itertools.product(*axes):
        index: Tensor | None = None
        weight: Tensor | None = None
        for (at, w), size in zip(corner, sizes, strict=True):
            entry, inside = _entry(at, size, padding, align)
            index = entry if index is None else index * size + entry
            w = where(inside, w, w._own(0))
            weight = w if weight is None else weight * w
        assert index is not None
        assert weight is not None
        read = flat.gather(2, index.unsqueeze(1).expand(flat.shape[0], flat.shape[1], index.shape[1]))
        part = read * weight.unsqueeze(1).cast(x.dtype)
        result = part if result is None else result + part
    assert result is not None
    return result


@operator("GridSample")
def grid_sample(
    x: Tensor, grid: Tensor, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Tensor:
    mode = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    rank = x.ndim - 2
    flat = grid.reshape(grid.shape[0], -1, rank)
    positions = list[Tensor]()
    for axis, size in enumerate(x.shape[2:]):
        g = flat[..., rank - 1 - axis]
        positions.append((g + 1) / 2 * (size - 1) if align_corners else ((g + 1) * size - 1) / 2)
    y = sampled(x, positions, mode, padding_mode, bool(align_corners))
    return y.reshape(*x.shape[:2], *grid.shape[1:-1])


@operator("AffineGrid")
def affine_grid(theta: Tensor, size: Host, *, align_corners: int = 0) -> Tensor:
    spatial = [int(s) for s in size[2:]]
    rank = len(spatial)
    lines = list[Any]()
    for n in spatial:
        line = np.linspace(-1, 1, n) if align_corners and n > 1 else (np.arange(n) * 2 + 1) / n - 1
        lines.append(line if n > 1 or not align_corners else np.full(1, -1.0))
    mesh = np.meshgrid(*lines, indexing="ij")
    points = np.stack([*mesh[::-1], np.ones_like(mesh[0])], -1).reshape(-1, rank + 1)
    y = Tensor(points).cast(theta.dtype) @ theta.transpose(1, 2)
    return y.reshape(theta.shape[0], *spatial, rank)


@operator("RoiAlign")
def roi_align(
    x: Tensor, rois: Tensor, batch: Tensor, *, coordinate_transformation_mode: str | None = None, mode: str = "avg",
    output_height: int = 1, output_width: int = 1, sampling_ratio: int = 0, spatial_scale: float = 1.0, opset: int,
    call: Any,
) -> Tensor:  # fmt: skip
    kind = coordinate_transformation_mode or ("half_pixel" if opset >= 16 else "output_half_pixel")
    shift = 0.5 if kind == "half_pixel" else 0.0
    boxes = rois * spatial_scale - shift
    results = list[Tensor]()
    images = x[batch.cast(dtypes.int64)]
    counts = [(sampling_ratio, sampling_ratio)] * rois.shape[0]
    if not sampling_ratio:  # as many points as the box has entries: its size must be known
        sides = call.read(boxes)
        bins = (output_height, output_width)
        spans = [[max(b[3] - b[1], 0 if shift else 1), max(b[2] - b[0], 0 if shift else 1)] for b in sides]
        counts = [tuple(max(1, math.ceil(s / n)) for s, n in zip(span, bins, strict=True)) for span in spans]
    for i, (rows, columns) in enumerate(counts):
        x1, y1, x2, y2 = (boxes[i, j] for j in range(4))
        high, wide = y2 - y1, x2 - x1
        if not shift:
            high, wide = high.maximum(1), wide.maximum(1)
        ys = y1 + _points(output_height, rows) * high
        xs = x1 + _points(output_width, columns) * wide
        results.append(_pooled(images[i], ys, xs, (output_height, rows, output_width, columns), mode))
    first, *others = results
    return first.stack(*others)


def _points(bins: int, each: int) -> Tensor:
    """The middles of `each` parts of each of `bins` parts of the interval from 0 to 1."""
    return Tensor(((np.arange(bins)[:, None] + (np.arange(each) + 0.5) / each) / bins).astype(np.float32).reshape(-1))


def _pooled(image: Tensor, ys: Tensor, xs: Tensor, counts: tuple[int, int, int, int], mode: str) -> Tensor:
    high, wide = image.shape[1:]

    def corners(at: Tensor, size: int) -> list[tuple[Tensor, Tensor]]:
        inside = at.ge(-1) & at.le(size)
        p = at.clamp(0, size - 1)
        low = p.floor().clamp(0, max(size - 2, 0) if size > 1 else 0)
        part = p - low
        keep = inside.cast(image.dtype)
        return [(low, (1 - part) * keep), ((low + 1).clamp(0, size - 1), part * keep)]

    parts = list[Tensor]()
    for (r, wr), (c, wc) in itertools.product(corners(ys, high), corners(xs, wide)):
        read = image[:, r.cast(dtypes.int64).unsqueeze(1), c.cast(dtypes.int64)]
        parts.append(read * wr.unsqueeze(1) * wc)
    bins, rows, columns_of, columns = counts
    shape = (image.shape[0], bins, rows, columns_of, columns)
    if mode == "max":
        whole = functools.reduce(lambda a, b: a.maximum(b), parts)
        return whole.reshape(shape).max((2, 4))
    return functools.reduce(lambda a, b: a + b, parts).reshape(shape).mean((2, 4))


@operator("ImageDecoder")
def image_decoder(data: Host, *, pixel_format: str = "RGB") -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise SettingError("images are decoded by the package pillow. Run: pip install pillow") from error
    with Image.open(io.BytesIO(data.tobytes())) as image:
        pixels = np.array(image.convert("L" if pixel_format == "Grayscale" else "RGB"))
    if pixel_format == "Grayscale":
        return pixels[..., None]
    return pixels[..., ::-1].copy() if pixel_format == "BGR" else pixels
