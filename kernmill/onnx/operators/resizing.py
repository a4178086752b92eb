"""Resize: an axis at a time, each a product with a small matrix of weights, or a choice of entries."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from kernmill.ir import SettingError, ShapeError

from ...methods.elementwise import where
from ...tensor import Tensor
from ..table import operator
from ..values import Host


def _positions(mode: str, after: int, before: int, scale: float, roi: tuple[float, float]) -> Any:
    """The position in the input of each entry of the result."""
    at = np.arange(after, dtype=np.float64)
    if mode == "half_pixel":
        return (at + 0.5) / scale - 0.5
    if mode == "half_pixel_symmetric":
        whole = scale * before
        return before / 2 * (1 - after / whole) + (at + 0.5) / scale - 0.5
    if mode == "pytorch_half_pixel":
        return (at + 0.5) / scale - 0.5 if after > 1 else np.full(after, -0.5)
    if mode == "align_corners":
        return at * (before - 1) / (scale * before - 1) if after > 1 else at * 0
    if mode == "asymmetric":
        return at / scale
    if mode == "tf_half_pixel_for_nn":
        return (at + 0.5) / scale
    if mode == "tf_crop_and_resize":
        first, last = roi
        if after > 1:
            return first * (before - 1) + at * (last - first) * (before - 1) / (after - 1)
        return np.full(after, 0.5 * (first + last) * (before - 1))
    raise SettingError(f"coordinate_transformation_mode={mode!r} is unknown. Change the model.")


def _nearest(positions: Any, mode: str) -> Any:
    if mode == "round_prefer_floor":
        return np.ceil(positions - 0.5)
    if mode == "round_prefer_ceil":
        return np.floor(positions + 0.5)
    return np.floor(positions) if mode == "floor" else np.ceil(positions)


def _cubic(t: Any, a: float) -> Any:
    t = np.abs(t)
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((a * t - 5 * a) * t + 8 * a) * t - 4 * a
    return np.where(t <= 1, near, np.where(t < 2, far, 0))


def _matrix(positions: Any, before: int, mode: str, a: float, stretch: float, outside: bool) -> Any:
    """The weight of each entry of the input (axis 1) in each of the result (axis 0)."""
    reach = (2 if mode == "cubic" else 1) / stretch
    width = math.ceil(reach) + 1
    low = np.floor(positions).astype(int)[:, None] + np.arange(-width, width + 1)
    distance = (low - positions[:, None]) * stretch
    weights = _cubic(distance, a) if mode == "cubic" else np.maximum(0, 1 - np.abs(distance))
    if outside:
        weights = np.where((low < 0) | (low >= before), 0, weights)
    weights = weights / weights.sum(1, keepdims=True)
    matrix = np.zeros((len(positions), before))
    np.add.at(matrix, (np.arange(len(positions))[:, None], low.clip(0, before - 1)), weights)
    return matrix


def _sizes(
    shape: Sequence[int], axes: Sequence[int], scales: Any, sizes: Any, policy: str
) -> tuple[list[int], list[float]]:
    """The new size of each named axis, and its scale."""
    if sizes is None:
        return [math.floor(shape[a] * s + 1e-6 * 0) for a, s in zip(axes, scales, strict=True)], [
            float(s) for s in scales
        ]
    new = [int(s) for s in sizes]
    if policy != "stretch":
        ratios = [n / shape[a] for a, n in zip(axes, new, strict=True)]
        one = min(ratios) if policy == "not_larger" else max(ratios)
        new = [math.floor(one * shape[a] + 0.5) for a in axes]
        return new, [one] * len(axes)
    return new, [n / shape[a] if shape[a] else 1.0 for a, n in zip(axes, new, strict=True)]


@operator("Resize")
def resize(
    x: Tensor, roi: Host = None, scales: Host = None, sizes: Host = None, *, antialias: int = 0,
    axes: Sequence[int] | None = None, coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75, exclude_outside: int = 0, extrapolation_value: float = 0.0,
    keep_aspect_ratio_policy: str = "stretch", mode: str = "nearest", nearest_mode: str = "round_prefer_floor",
    opset: int,
) -> Tensor:  # fmt: skip
    if opset < 11:  # (x, scales)
        roi, scales, coordinate_transformation_mode, nearest_mode = None, roi, "asymmetric", "floor"
    which = [a % x.ndim for a in axes] if axes is not None else list(range(x.ndim))
    given = scales if scales is not None and scales.size else None
    if (given is None) == (sizes is None or not sizes.size):
        raise ShapeError("Resize: it needs scales or sizes, and one of them only. Change the model.")
    new, by = _sizes(x.shape, which, given, None if given is not None else sizes, keep_aspect_ratio_policy)
    ends = roi.tolist() if roi is not None and roi.size else [0.0] * len(which) + [1.0] * len(which)
    y = x
    outside = Tensor([False])
    for i, (axis, after, scale) in enumerate(zip(which, new, by, strict=True)):
        before = x.shape[axis]
        is_crop = coordinate_transformation_mode == "tf_crop_and_resize"
        if after == before and scale == 1 and not is_crop:
            continue
        positions = _positions(coordinate_transformation_mode, after, before, scale, (ends[i], ends[i + len(which)]))
        if is_crop:
            out = Tensor((positions < 0) | (positions > before - 1))
            outside = outside | out.reshape(-1, *[1] * (x.ndim - axis - 1))
        if mode == "nearest":
            index = _nearest(positions, nearest_mode).clip(0, before - 1).astype(np.int64)
            y = y.index_select(axis, Tensor(index))
            continue
        stretch = min(1.0, scale) if antialias else 1.0
        matrix = _matrix(positions, before, mode, cubic_coeff_a, stretch, bool(exclude_outside))
        wide = y if y.dtype.is_float else y.float()
        y = (wide.movedim(axis, -1) @ Tensor(matrix.T.astype(np.float64)).cast(wide.dtype)).movedim(-1, axis)
    if coordinate_transformation_mode == "tf_crop_and_resize":
        y = where(outside, y._own(extrapolation_value), y)
    if not x.dtype.is_float and y.dtype.is_float:
        y = y.round().clamp(int(x.dtype.min), int(x.dtype.max)).cast(x.dtype)
    return y


@operator("Upsample")
def upsample(
    x: Tensor, scales_in: Host = None, *, scales: Sequence[float] | None = None, mode: str = "nearest"
) -> Tensor:
    given = scales_in if scales_in is not None else np.array(scales)
    return resize(x, None, given, mode=mode if mode == "nearest" else "linear",
                  coordinate_transformation_mode="asymmetric", nearest_mode="floor", opset=11)  # fmt: skip
