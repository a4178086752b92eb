"""Tensor methods: images resized by filters, sampled at points, and channels exchanged for pixels.

Resizing along an axis is a sum of taps: entries at indices that are known, with weights. Sources: PyTorch's and
Pillow's definitions of bicubic (Keys, 1981), area and antialiased filters.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

from kernmill.ir import SettingError, ShapeError, show_shape

from .convolution import each, factors_of, scaled_sizes
from .elementwise import choose
from .statistics import Statistics

if TYPE_CHECKING:
    import numpy as np

    Taps = tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]  # indices and weights, (size, taps)

__all__ = ["Images"]

_CUBIC, _CUBIC_SMOOTH = -0.75, -0.5  # Keys' parameter: of OpenCV and PyTorch, and of Pillow where it antialiases
_LINEAR = ("linear", "bilinear", "trilinear")
_MODES = ("nearest", *_LINEAR, "bicubic", "area", "nearest-exact")


class Images(Statistics):
    """Images."""

    def interpolate(
        self,
        size: Any = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest",
        align_corners: bool = False,
        *,
        antialias: bool = False,
    ) -> Self:
        """Resize the spatial axes: each output is the entry floor(i * in / out), or a weighted sum of entries.

        `mode` is "nearest" or "nearest-exact", the entry at the center; "area", the mean of the entries below an
        output; "bicubic", four entries; or "linear", "bilinear" or "trilinear". These take two entries along every
        axis, whatever the name. Positions are the centers of entries; with `align_corners` the first and last ones
        keep their positions. `antialias` widens the linear or cubic filter where the result is smaller.

        Raises:
            SettingError: unknown mode, or neither or both of size and scale_factor.
        """
        if mode not in _MODES:
            names = ", ".join(map(repr, _MODES))
            raise SettingError(f"interpolate: mode={mode!r}: must be one of {names}.")
        if antialias and mode not in (*_LINEAR, "bicubic"):
            raise SettingError(f"interpolate: antialias with mode={mode!r}: must be a linear mode or 'bicubic'.")
        if not antialias and mode in ("nearest", *_LINEAR):
            return super().interpolate(size, scale_factor, mode, align_corners)
        if align_corners and mode in ("area", "nearest-exact"):
            raise SettingError(f"interpolate: align_corners with mode={mode!r}: must be left out.")
        rank, old = self.ndim - 2, self.node_shape[2:]
        if (size is None) == (scale_factor is None):
            raise SettingError("interpolate: exactly one of size and scale_factor must be given.")
        if rank < 1 or not all(isinstance(s, int) and s for s in old):
            raise ShapeError(
                f"interpolate: shape {show_shape(self.uop.shape)}: must be (batch, channels, *spatial) of known sizes "
                "above 0."
            )
        factors = factors_of(scale_factor, rank)
        new = each(size, rank, "size") if size is not None else scaled_sizes(old, factors)
        result = self._floating()
        for axis, (before, after, factor) in enumerate(zip(old, new, factors, strict=True), 2):
            step = 1 / factor if factor else before / after
            if align_corners:
                step = (before - 1) / max(1, after - 1)
            if antialias and not align_corners and not factor:
                step = before / after
            index, weight = _taps(mode, before, after, step, (align_corners, antialias))
            result = result._tapped(axis, index, weight)
        return result

    def _tapped(self, axis: int, index: Any, weight: Any) -> Self:
        """Weighted sums of entries of an axis."""
        shape = self.node_shape
        taken = self.index_select(axis, index.reshape(-1).tolist())
        taken = taken.reshape((*shape[:axis], *index.shape, *shape[axis + 1 :]))
        kind = "float64" if self.dtype.name == "float64" else "float32"
        share = self._upload(weight.astype(kind), None, self._device).cast(self.dtype)
        share = share.reshape((*index.shape, *(1 for _ in shape[axis + 1 :])))
        return taken.mul(share).sum(axis + 1)

    def grid_sample(
        self, grid: Self, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool = False
    ) -> Self:
        """The values at points of images: the last axis of the grid has positions from -1 to 1, first along the last
        axis of the image. Gradients flow to both.

        `mode` is "bilinear", "nearest" or, for two axes, "bicubic"; `padding_mode` is "zeros", "border" or
        "reflection". -1 and 1 are the centers of the outermost entries with `align_corners`, else their outer edges.

        Shapes: (n, c, h, w), (n, p, q, 2) -> (n, c, p, q); (n, c, d, h, w), (n, o, p, q, 3) -> (n, c, o, p, q).

        Raises:
            ShapeError: shapes that do not belong together.
            SettingError: another mode.
        """
        rank = self.ndim - 2
        if rank not in (2, 3) or grid.ndim != self.ndim or grid.shape[-1] != rank or grid.shape[0] != self.shape[0]:
            raise ShapeError(
                f"grid_sample: shapes {show_shape(self.shape)} and {show_shape(grid.shape)}: must be (n, c, h, w) and "
                "(n, p, q, 2), or with one more axis each and 3."
            )
        modes = ("bilinear", "nearest", "bicubic") if rank == 2 else ("bilinear", "nearest")
        if mode not in modes or padding_mode not in ("zeros", "border", "reflection"):
            raise SettingError(
                f"grid_sample: mode={mode!r}, padding_mode={padding_mode!r}: must be 'bilinear' or 'nearest', or "
                "'bicubic' of two axes, and 'zeros', 'border' or 'reflection'."
            )
        sizes = self.node_shape[2:]
        if not math.prod(sizes):
            raise ShapeError(f"grid_sample: shape {show_shape(self.shape)}: images must not be empty.")
        positions = []
        for axis, size in enumerate(sizes):
            g = grid._last_entry(rank - 1 - axis)
            position = g.add(1).mul((size - 1) / 2) if align_corners else g.add(1).mul(size).sub(1).mul(0.5)
            positions.append(position)

        def inside(points: Sequence[Self]) -> list[Self]:
            return [_kept_inside(p, size, padding_mode, align_corners) for p, size in zip(points, sizes, strict=True)]

        if mode == "bicubic":  # each of the four entries is folded alone
            return self._blended(positions, (-1, 0, 1, 2), inside)
        positions = inside(positions)
        if mode == "nearest":
            return self._at_points([p.detach().round() for p in positions], None)
        return self._blended(positions, (0, 1), list)

    def _blended(
        self, positions: Sequence[Self], offsets: Sequence[int], inside: Callable[[Sequence[Self]], list[Self]]
    ) -> Self:
        """The sum of the entries around each position, by their shares: linear for two entries, cubic for four."""
        low = [p.detach().floor() for p in positions]
        total: Self | None = None
        for corner in itertools.product(offsets, repeat=len(positions)):
            share = None
            for position, base, c in zip(positions, low, corner, strict=True):
                rest = position.sub(base)
                away: Any = rest.sub(c) if c < 1 else rest.sub(c, reverse=True)
                part = away.sub(1, reverse=True) if len(offsets) == 2 else _cubic(away, _CUBIC, is_near=c in (0, 1))
                share = part if share is None else share.mul(part)
            found = self._at_points(inside([p.add(c) for p, c in zip(low, corner, strict=True)]), share)
            total = found if total is None else total.add(found)
        assert total is not None
        return total

    def _last_entry(self, number: int) -> Self:
        return self.shrink([*[None] * (self.ndim - 1), (number, number + 1)]).squeeze(-1)

    def _at_points(self, positions: Sequence[Self], share: Self | None) -> Self:
        """The entries at integer positions, by a share; 0 outside."""
        n, channels, *sizes = self.node_shape
        inside, flat = None, None
        for position, size in zip(positions, sizes, strict=True):
            fits = position.ge(0).logical_and(position.le(size - 1))
            inside = fits if inside is None else inside.logical_and(fits)
            index = choose(fits, position, position._filled(0)).cast("int64")
            flat = index if flat is None else flat.mul(size).add(index)
        assert flat is not None
        assert inside is not None
        out = flat.node_shape[1:]
        index = flat.reshape((n, 1, math.prod(out))).expand((n, channels, math.prod(out)))
        found = self.reshape((n, channels, math.prod(sizes))).gather(2, index).reshape((n, channels, *out))
        weight = inside.cast(self.dtype) if share is None else choose(inside, share, share._filled(0)).cast(self.dtype)
        return found.mul(weight.unsqueeze(1))

    def pixel_shuffle(self, upscale_factor: int) -> Self:
        """Channels become pixels: (.., c r r, h, w) -> (.., c, h r, w r).

        Raises:
            ShapeError: channels that r * r does not divide.
        """
        r = _factor(upscale_factor, "pixel_shuffle")
        if self.ndim < 3 or self.node_shape[-3] % (r * r):
            raise ShapeError(
                f"pixel_shuffle: shape {show_shape(self.shape)}: the third axis from the end must be a multiple of "
                f"{r * r}."
            )
        *lead, c, h, w = self.node_shape
        x = self.reshape((*lead, c // (r * r), r, r, h, w))
        k = len(lead)
        order = (*range(k), k, k + 3, k + 1, k + 4, k + 2)
        return x.permute(order).reshape((*lead, c // (r * r), h * r, w * r))

    def pixel_unshuffle(self, downscale_factor: int) -> Self:
        """The inverse of `pixel_shuffle`: (.., c, h r, w r) -> (.., c r r, h, w).

        Raises:
            ShapeError: sides that r does not divide.
        """
        r = _factor(downscale_factor, "pixel_unshuffle")
        if self.ndim < 3 or self.node_shape[-1] % r or self.node_shape[-2] % r:
            raise ShapeError(
                f"pixel_unshuffle: shape {show_shape(self.shape)}: the last two axes must be multiples of {r}."
            )
        *lead, c, h, w = self.node_shape
        x = self.reshape((*lead, c, h // r, r, w // r, r))
        k = len(lead)
        order = (*range(k), k, k + 2, k + 4, k + 1, k + 3)
        return x.permute(order).reshape((*lead, c * r * r, h // r, w // r))


def _factor(given: int, call: str) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or given < 1:
        raise SettingError(f"{call}: a factor of {given!r}: must be an integer of 1 or more.")
    return given


# --- positions -------------------------------------------------------------------------------------------------------
def _kept_inside(position: Any, size: int, mode: str, align_corners: bool) -> Any:
    if mode == "zeros":
        return position
    if mode == "reflection":
        low, span = (0.0, size - 1) if align_corners else (-0.5, size)
        if not span:
            return position.mul(0)
        apart = position.sub(low).abs()
        turns = apart.detach().div(span).floor()
        rest = apart.sub(turns.mul(span))
        is_odd = turns.sub(turns.mul(0.5).floor().mul(2)).ne(0)
        position = choose(is_odd, rest.sub(span, reverse=True), rest).add(low)
    return position.clamp(0, size - 1)


# --- filters ---------------------------------------------------------------------------------------------------------
def _taps(mode: str, before: int, after: int, step: float, options: tuple[bool, bool]) -> Taps:
    import numpy as np

    align_corners, antialias = options
    number = np.arange(after)
    if mode == "nearest-exact":
        index = np.minimum(((number + 0.5) * step).astype(np.int64), before - 1)
        return index[:, None], np.ones((after, 1))
    if mode == "area":
        low, high = number * before // after, -(-(number + 1) * before // after)
        index, weight = _window(low, high, before)
        return index, weight / (high - low)[:, None]
    filter_, support = _filter(mode, antialias)
    if antialias:
        wide = max(step, 1.0)
        center = step * (number + 0.5)
        low = np.maximum((center - support * wide + 0.5).astype(np.int64), 0)
        high = np.minimum((center + support * wide + 0.5).astype(np.int64), before)
        index, inside = _window(low, high, before)
        weight = filter_(((low[:, None] + np.arange(index.shape[1])) - center[:, None] + 0.5) / wide) * inside
        return index, weight / weight.sum(1, keepdims=True)
    position = number * step if align_corners else (number + 0.5) * step - 0.5
    at = np.floor(position).astype(np.int64)[:, None] + np.arange(1 - int(support), int(support) + 1)
    return np.clip(at, 0, before - 1), filter_(at - position[:, None])


def _window(low: Any, high: Any, size: int) -> Taps:
    """The indices from low to high - 1 of each row, and 1 where there is one."""
    import numpy as np

    at = low[:, None] + np.arange(int((high - low).max()))
    return np.minimum(at, size - 1), (at < high[:, None]).astype(float)


def _filter(mode: str, antialias: bool) -> tuple[Callable[[Any], Any], float]:
    import numpy as np

    if mode != "bicubic":
        return lambda x: np.maximum(1 - np.abs(x), 0), 1.0
    a = _CUBIC_SMOOTH if antialias else _CUBIC

    def cubic(x: Any) -> Any:
        x = np.abs(x)
        return np.where(x <= 1, _cubic(x, a, is_near=True), np.where(x < 2, _cubic(x, a, is_near=False), 0))

    return cubic, 2.0


def _cubic(x: Any, a: float, *, is_near: bool) -> Any:
    """The weight of an entry at a distance: of at most 1, or from 1 to 2."""
    return ((a + 2) * x - (a + 3)) * x * x + 1 if is_near else (((x - 5) * x + 8) * x - 4) * a
