"""Tensor methods: distinct values, histograms, covariance."""

from __future__ import annotations

import math
from typing import Any, Self

from kernmill.ir import SettingError, ShapeError, dtypes, show_shape

from .elementwise import choose
from .incomplete import Incomplete
from .indexing import data_dependent, is_recording

__all__ = ["Statistics"]


class Statistics(Incomplete):
    """Distinct values, histograms, covariance."""

    # --- distinct values
    def unique(
        self,
        return_index: bool = False,
        return_inverse: bool = False,
        return_counts: bool = False,
        *,
        size: int | None = None,
        equal_nan: bool = True,
    ) -> Any:
        """The distinct values in ascending order, as numpy.unique; without `size` their number is computed first.

        With the flags a tuple: the first index of each value, the index of each element's value (in the shape of the
        tensor), how often each occurs; all int64. With `size` the last value repeats where there are fewer, with a
        count of 0.

        Raises:
            ShapeError: without `size` in a captured function, or a size of 0 for elements.
        """
        if size is None and is_recording():
            raise data_dependent("unique", "Pass size=")
        x = self.detach().flatten()
        count = x.node_shape[0]
        if not count:
            first = self.zeros(0, dtype=dtypes.int64, device=self._device)
            empty = [first, self.zeros(*self.node_shape, dtype=dtypes.int64), first]
            chosen = [t for t, f in zip(empty, (return_index, return_inverse, return_counts), strict=True) if f]
            return (x, *chosen) if chosen else x
        order = x.argsort(0)
        values = x[order]
        before, after = values.shrink([(0, count - 1)]), values.shrink([(1, count)])
        is_new = after.ne(before)
        if equal_nan and x.dtype.is_float:
            is_new = is_new.logical_and(before.isnan().logical_and(after.isnan()).logical_not())
        is_first = is_new.pad([(1, 0)], value=True)
        number = is_first.cast(dtypes.int64).cumsum(0).sub(1)
        if size is None:
            size = int(number[count - 1].add(1).item())  # type: ignore[attr-defined]
        if size < 1:
            raise ShapeError(f"unique: size={size} of {count} elements: must be 1 or more.")
        starts = number.searchsorted(self._make(self.arange(size + 1).uop))
        first = starts.shrink([(0, size)]).minimum(number.searchsorted(number.shrink([(count - 1, count)])))
        results = [values[first]]
        if return_index:
            results.append(order[first])
        if return_inverse:
            results.append(number._filled(0).scatter(0, order, number).minimum(size - 1).reshape(self.node_shape))
        if return_counts:
            results.append(starts.shrink([(1, size + 1)]).sub(starts.shrink([(0, size)])))
        return tuple(results) if len(results) > 1 else results[0]

    def bucketize(self, boundaries: Self, *, right: bool = False) -> Self:
        """The interval of sorted boundaries that each element is in, int64: `boundaries.searchsorted(self)`."""
        return boundaries.searchsorted(self, right=right)

    def segment_mean(self, index: Self, num_segments: int) -> Self:
        """Return the mean of the entries (axis 0) with each number in `index`; nan for no entries."""
        total = self._floating().segment_sum(index, num_segments)
        count = index.reshape((-1,))._filled(1).cast(total.dtype).segment_sum(index.reshape((-1,)), num_segments)
        return total.div(count.reshape((-1, *(1 for _ in self.node_shape[1:]))))

    # --- histograms
    def histogram(
        self,
        bins: int | Self = 10,
        range: tuple[float, float] | None = None,
        *,
        weight: Self | None = None,
        density: bool = False,
    ) -> tuple[Self, Self]:
        """Counts, and the edges of the bins, as numpy.histogram: `bins` are equal intervals over the range, by default
        that of the values, or a vector of edges. A value on an edge counts above it, the last edge below.

        Counts are int64, the sums of the weights, or densities.

        Raises:
            SettingError: no bins, or a range that is none.
            ShapeError: weights of another shape.
        """
        x = self._wide_float("histogram").flatten()
        edges = x._edges(bins, range)
        count = edges.node_shape[0] - 1
        found = edges.searchsorted(x, right=True).sub(1)
        last = edges.shrink([(count, count + 1)])
        found = choose(x.eq(last), found._filled(count - 1), found)
        outside = found.lt(0).logical_or(found.ge(count)).logical_or(x.isnan())
        found = choose(outside, found._filled(count), found)
        if weight is not None and weight.node_shape != self.node_shape:
            raise ShapeError(
                f"histogram: weights of shape {show_shape(weight.shape)} for values of shape "
                f"{show_shape(self.shape)}: must be equal."
            )
        counts = found.bincount(None if weight is None else weight.flatten(), minlength=count + 1)
        counts = counts.shrink([(0, count)])
        if density:
            widths = edges.shrink([(1, count + 1)]).sub(edges.shrink([(0, count)]))
            counts = counts.cast(edges.dtype)
            counts = counts.div(widths).div(counts.sum())
        return counts, edges

    def _edges(self, bins: int | Self, ends: tuple[float, float] | None) -> Self:
        if not isinstance(bins, int):
            edges = self._tensor(bins).cast(self.dtype)
            if edges.ndim != 1 or edges.node_shape[0] < 2:
                raise ShapeError(f"histogram: edges of shape {show_shape(edges.shape)}: must be a vector of 2 or more.")
            return edges
        if bins < 1 or (ends is not None and not -math.inf < ends[0] <= ends[1] < math.inf):
            raise SettingError(f"histogram: bins={bins}, range={ends}: must be 1 or more, and finite low <= high.")
        if ends is None and self.node_shape[0]:
            low, high = self.detach().min(), self.detach().max()
        else:
            low, high = (self._make(self._tensor(float(v)).uop) for v in ends or (0.0, 1.0))
        is_one = low.eq(high)
        low, high = choose(is_one, low.sub(0.5), low), choose(is_one, high.add(0.5), high)
        number = self._make(self.arange(bins + 1, dtype=self.dtype).uop)
        return choose(number.eq(bins), high, low.add(number.mul(high.sub(low).div(bins))))

    # --- covariance
    def cov(self, *, correction: int = 1) -> Self:
        """The covariance of variables, which are rows, over their observations, which are columns.

        Shapes: (n, m) -> (n, n); (m,) -> ().

        Raises:
            ShapeError: more than two axes.
        """
        if self.ndim > 2:
            raise ShapeError(f"cov: shape {show_shape(self.shape)}: must be a matrix of variables by observations.")
        x = self._floating()
        rows = x if x.ndim == 2 else x.reshape((1, -1))
        apart = rows.sub(rows.mean(-1, keepdim=True))
        result = apart.matmul(apart.mT).div(rows.node_shape[-1] - correction)
        return result if x.ndim == 2 else result.reshape(())

    def corrcoef(self) -> Self:
        """The correlation of variables, which are rows, from -1 to 1.

        Shapes: (n, m) -> (n, n); (m,) -> ().
        """
        c = self.cov()
        if not c.ndim:
            return c.div(c)
        root = c.diagonal().sqrt()
        return c.div(root.unsqueeze(-1)).div(root).clamp(-1, 1)
