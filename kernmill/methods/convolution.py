"""Tensor methods: convolutions and pooling over any number of spatial axes, by one WINDOW a spatial axis.

x has shape (batch, channels, *spatial). `stride`, `padding`, `dilation` are one number for all spatial axes, or one
each.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, Self, TypeVar, overload

from kernmill.ir import (
    DTypeError,
    Ops,
    SettingError,
    ShapeError,
    Size,
    UOp,
    pad,
    permute,
    promote,
    reduce_axes,
    reshape,
    show_shape,
    shrink,
    unwindow,
    window,
)

from ..lazy import accumulator
from ..size import as_node
from .matrices import Matrices

__all__ = ["Convolution", "each", "factors_of", "scaled_sizes"]

_MOST_BETWEEN = 1 << 27  # elements of an axis: the host computes a table of 8 bytes for each, 1 GiB

Each = int | Sequence[int]
C = TypeVar("C", bound=Matrices)


def each(value: Each, count: int, name: str) -> tuple[int, ...]:
    """One number per spatial axis.

    Raises:
        ShapeError: another number of numbers, or one that is too small.
    """
    if isinstance(value, str):
        raise ShapeError(f"{name}={value!r}: give an integer, or one for each axis.")
    value = as_node(value)
    values = (value,) * count if isinstance(value, int) else tuple(map(as_node, value))
    if len(values) != count:
        raise ShapeError(f"{name}={values} for {count} spatial axes. Give one number, or one for each axis.")
    if any(not isinstance(number, (int, UOp)) for number in values):
        raise DTypeError(f"{name}={values}: must be integers, one for each axis.")
    least = 0 if name.endswith("padding") else 1
    if any(isinstance(number, int) and number < least for number in values):
        raise ShapeError(f"{name}={value}: give at least {least} for each axis.")
    return values


class Convolution(Matrices):
    """Convolutions, pooling, resizing."""

    def _windows(self, sizes: Sequence[int], strides: Sequence[int], dilations: Sequence[int]) -> Self:
        """The last axes as window positions, and one new last axis per window."""
        node = self.uop
        first = self.ndim - len(sizes)
        for i, (size, stride, dilation) in enumerate(zip(sizes, strides, dilations, strict=True)):
            node = window(node, first + i, size, stride, dilation)
        return self._result(node)

    def conv2d(
        self,
        weight: Self,
        bias: Self | None = None,
        stride: Each = 1,
        padding: Each | str = 0,
        dilation: Each = 1,
        groups: int = 1,
    ) -> Self:
        """The convolution (cross-correlation) with weight of shape (out, in / groups, *kernel): 1-d, 2-d, 3-d, ...

        `padding` is also "valid" (none) or "same" (stride 1, output as large as the input).

        Raises:
            ShapeError: ranks, channels or groups that do not fit together.
        """
        rank = weight.ndim - 2
        shown = f"conv: {show_shape(self.uop.shape)} with weight {show_shape(weight.uop.shape)}, groups {groups}"
        if rank < 1 or self.ndim not in (rank + 1, rank + 2):
            raise ShapeError(f"{shown}: the weight needs 2 axes and one per spatial axis, the input as many.")
        if self.ndim == rank + 1:
            return self.unsqueeze(0).conv2d(weight, bias, stride, padding, dilation, groups).squeeze(0)
        channels, out = self.node_shape[1], weight.shape[0]
        if groups < 1 or channels != weight.shape[1] * groups or out % groups:
            raise ShapeError(
                f"{shown}: {channels} input channels are not {groups} x {weight.shape[1]}, or {out} output channels "
                "do not divide into the groups. Change the groups or the weight."
            )
        kernel = weight.shape[2:]
        steps, gaps = each(stride, rank, "stride"), each(dilation, rank, "dilation")
        x = self.pad(spatial_padding(padding, kernel, steps, gaps, self.ndim))
        spans = [g * (k - 1) + 1 for k, g in zip(kernel, gaps, strict=True)]
        if any(isinstance(s, int) and span > s for s, span in zip(x.shape[2:], spans, strict=True)):
            raise ShapeError(f"{shown}: the kernel spans {tuple(spans)}, the padded input {x.shape[2:]}. Pad more.")
        seen = x._windows(kernel, steps, gaps)
        sizes_after = seen.shape[2 : 2 + rank]
        seen = seen.reshape((x.shape[0], groups, 1, channels // groups, *sizes_after, *kernel))
        wide = weight.reshape((1, groups, out // groups, channels // groups, *(1,) * rank, *kernel))
        result = seen._contract(wide, (3, *range(4 + rank, 4 + 2 * rank))).reshape((x.shape[0], out, *sizes_after))
        return result if bias is None else result.add(_for_channels(bias, out, rank, shown))

    conv1d = conv3d = conv2d

    def conv_transpose2d(
        self,
        weight: Self,
        bias: Self | None = None,
        stride: Each = 1,
        padding: Each = 0,
        output_padding: Each = 0,
        groups: int = 1,
        dilation: Each = 1,
    ) -> Self:
        """The adjoint of conv2d, weight of shape (in, out / groups, *kernel).

        Raises:
            ShapeError: ranks, channels or groups that do not fit together, or a padding that leaves nothing.
        """
        rank = weight.ndim - 2
        if rank >= 1 and self.ndim == rank + 1:
            whole = self.unsqueeze(0).conv_transpose2d(weight, bias, stride, padding, output_padding, groups, dilation)
            return whole.squeeze(0)
        channels = weight.shape[0]
        if rank < 1 or self.ndim != rank + 2 or self.node_shape[1] != channels or groups < 1 or channels % groups:
            raise ShapeError(
                f"conv_transpose: {show_shape(self.uop.shape)} with weight {show_shape(weight.uop.shape)}, groups "
                f"{groups}: the input is (batch, in, one axis or more), the weight (in, out / groups, as many), and "
                "in a multiple of the groups. Change the groups or the weight."
            )
        check_output_padding("conv_transpose", rank, stride, dilation, output_padding)
        kernel, dtype, own = weight.shape[2:], promote(self.dtype, weight.dtype), channels // groups
        ones = (1,) * rank  # adjacent elements are positions, as in the result, and not taps
        x = self.reshape((self.node_shape[0], groups, own, 1, *ones, *self.node_shape[2:]))
        wide = weight.reshape((1, groups, own, weight.shape[1], *kernel, *ones))
        parts = x.cast(accumulator(dtype))._contract(wide.cast(accumulator(dtype)), (2,))
        rows = list(zip(each(stride, rank, "stride"), each(dilation, rank, "dilation"), each(padding, rank, "padding"),
                        each(output_padding, rank, "output_padding"), strict=True))  # fmt: skip
        known = [isinstance(size, int) for size in self.node_shape[2:]]  # two symbolic sizes cannot be interleaved
        phases = [step if gap == 1 and is_known else 1 for (step, gap, _, _), is_known in zip(rows, known, strict=True)]
        has_phases = max(phases) > 1
        node = (parts._stored() if has_phases else parts).uop
        bounds: list[tuple[Size, Size]] = []
        behind: list[int] = []  # positions that no tap reaches
        for i, (step, gap, before, extra) in enumerate(rows):
            size, taps = node.shape[3 + rank + i], kernel[i]
            length = (size - 1) * step + gap * (taps - 1) + 1 + extra
            if isinstance(length, int) and length <= 2 * before:
                raise ShapeError(
                    f"conv_transpose: padding {before} on both sides removes all {length} elements. Give a smaller "
                    "one.")  # fmt: skip
            node = _summed(node, rank, i, phases[i], step // phases[i], gap)
            bounds.append((before, length - before))
            behind.append(max(0, extra - -taps % phases[i]))  # taps that fill up the last phases reach some of them
        if has_phases and any(taps > number for taps, number in zip(kernel, phases, strict=True)):
            node = parts._result(node)._stored().uop  # sums are contiguous before they are interleaved
        node = _phases_interleaved(reshape(node, (node.shape[0], groups * node.shape[2], *node.shape[3:])), rank)
        node = pad(node, [(0, 0), (0, 0), *((0, padding_after) for padding_after in behind)])
        result = parts._result(shrink(node, [*((0, size) for size in node.shape[:2]), *bounds])).cast(dtype)
        shown = f"conv_transpose: {show_shape(self.uop.shape)} with weight {show_shape(weight.uop.shape)}"
        out = groups * weight.shape[1]
        return result if bias is None else result.add(_for_channels(bias, out, rank, shown))

    conv_transpose1d = conv_transpose3d = conv_transpose2d

    # --- pooling
    @overload
    def max_pool2d(self, kernel_size: Each = ..., stride: Each | None = ..., padding: Each = ..., dilation: Each = ...,
                   ceil_mode: bool = ..., *, return_indices: Literal[False] = ...) -> Self: ...  # fmt: skip

    @overload
    def max_pool2d(self, kernel_size: Each = ..., stride: Each | None = ..., padding: Each = ..., dilation: Each = ...,
                   ceil_mode: bool = ..., *, return_indices: Literal[True]) -> tuple[Self, Self]: ...  # fmt: skip

    def max_pool2d(
        self,
        kernel_size: Each = 2,
        stride: Each | None = None,
        padding: Each = 0,
        dilation: Each = 1,
        ceil_mode: bool = False,
        *,
        return_indices: bool = False,
    ) -> Self | tuple[Self, Self]:
        """The largest value of each window; with one number, windows over the last two axes.

        `return_indices` gives its index in the flattened spatial axes as well, for `max_unpool2d`.
        """
        pool = PoolWindow(self.node_shape, kernel_size, stride, padding, dilation, ceil_mode)
        low = -math.inf if self.dtype.is_float else int(self.dtype.min)
        seen = self.pad(pool.around(pool.pads, pool.remainders), value=low)._windows(pool.kernel, pool.steps, pool.gaps)
        largest = seen.max(tuple(range(-pool.rank, 0)))
        return (largest, self._spatial_index(seen, pool)) if return_indices else largest

    def _spatial_index(self, seen: Self, pool: PoolWindow) -> Self:
        """The index of the first largest value of each window in the flattened spatial axes."""
        local = seen.flatten(-pool.rank).argmax(-1)
        found = local._filled(0)
        for n in range(pool.rank):
            axis = local.ndim - pool.rank + n
            entry = local.floor_divide(math.prod(pool.kernel[n + 1 :])).remainder(pool.kernel[n])
            start = local._positions(axis).mul(pool.steps[n]).sub(pool.pads[n])
            start = start.reshape([-1 if a == axis else 1 for a in range(local.ndim)])
            found = found.mul(self.node_shape[axis]).add(start.add(entry.mul(pool.gaps[n])))
        return found

    def max_unpool2d(
        self,
        indices: Self,
        kernel_size: Each = 2,
        stride: Each | None = None,
        padding: Each = 0,
        output_size: Sequence[int] | None = None,
    ) -> Self:
        """The inverse of `max_pool2d`: each value at its index in the flattened spatial axes, zeros elsewhere."""
        rank = 2 if isinstance(kernel_size, int) else len(kernel_size)
        if output_size is None:
            kernel, pads = each(kernel_size, rank, "kernel_size"), each(padding, rank, "padding")
            steps = each(kernel_size if stride is None else stride, rank, "stride")
            before = self.node_shape[-rank:]
            output_size = [(n - 1) * s - 2 * p + k for n, s, p, k in zip(before, steps, pads, kernel, strict=True)]
        shape = (*self.node_shape[:-rank], *output_size[-rank:])
        flat = self.zeros((*shape[:-rank], math.prod(shape[-rank:])), dtype=self.dtype)
        return flat.scatter(-1, indices.flatten(-rank), self.flatten(-rank)).reshape(shape)

    def avg_pool2d(
        self,
        kernel_size: Each = 2,
        stride: Each | None = None,
        padding: Each = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> Self:
        """The mean of each window; padding counts as zeros, unless `count_include_pad` is False."""
        pool = PoolWindow(self.node_shape, kernel_size, stride, padding, 1, ceil_mode)
        axes = tuple(range(-pool.rank, 0))
        seen = self.pad(pool.around(pool.pads, pool.remainders))._windows(pool.kernel, pool.steps, pool.gaps)
        if count_include_pad and not any(pool.remainders):
            return seen.mean(axes)
        zeros = (0,) * pool.rank
        ones = self.detach()._filled(1).pad(pool.around(pool.pads, zeros), value=1 if count_include_pad else 0)
        ones = ones.pad(pool.around(zeros, pool.remainders))
        return seen.sum(axes).div(ones._windows(pool.kernel, pool.steps, pool.gaps).sum(axes))

    def adaptive_avg_pool2d(self, output_size: Each) -> Self:
        """Return the means of blocks, as many as the last two axes have entries in `output_size`.

        Block i of n begins at floor(i * size / n) and ends before ceil((i + 1) * size / n): they overlap if n does not
        divide the size.

        Raises:
            ShapeError: fewer than two axes, or empty ones.
        """
        wanted = each(output_size, 2, "output_size")
        sizes = self.node_shape[-2:]
        if len(sizes) < 2:
            raise ShapeError(
                f"adaptive_avg_pool2d: shape {show_shape(self.uop.shape)} has fewer than two axes. Unsqueeze it."
            )
        if not any(s % w for s, w in zip(sizes, wanted, strict=True)):
            return self.avg_pool2d([s // w for s, w in zip(sizes, wanted, strict=True)])
        x = self._floating()
        pooled = x.cast(accumulator(x.dtype))._pool_blocks(self.ndim - 2, wanted[0])
        return pooled._pool_blocks(self.ndim - 1, wanted[1]).cast(x.dtype)

    def _pool_blocks(self, axis: int, count: int) -> Self:
        """The means of `count` blocks of an axis, each gathered in the length of the longest."""
        size = self.node_shape[axis]
        even, rest = divmod(size, count)
        longest = even + (0 if not rest else 1 if rest == math.gcd(size, count) else 2)
        number = self.arange(count)
        first, end = _share(number, size, count), _share(number.add(1).neg(), size, count).neg()  # rounded up
        indices = first.unsqueeze(1).add(self.arange(longest))
        before, after = self.node_shape[:axis], self.node_shape[axis + 1 :]
        blocks = self.index_select(axis, indices.minimum(size - 1).flatten()).reshape((*before, count, longest, *after))
        is_rest = indices.ge(end.unsqueeze(1)).reshape((count, longest, *(1,) * len(after)))
        lengths = end.sub(first).reshape((count, *(1,) * len(after)))
        return blocks.masked_fill(is_rest, 0).sum(axis + 1).div(lengths)

    def interpolate(
        self,
        size: Each | None = None,
        scale_factor: float | Sequence[float] | None = None,
        mode: str = "nearest",
        align_corners: bool = False,
    ) -> Self:
        """Resize the spatial axes: each output is the entry floor(i * in / out), or interpolated between two entries.

        `mode` is "nearest", or "linear", "bilinear" or "trilinear": interpolated along every axis, whatever the name.
        Positions are the centers of entries; with `align_corners` the first and last ones keep their positions.

        Raises:
            SettingError: unknown mode, or neither or both of size and scale_factor.
        """
        if mode not in ("nearest", "linear", "bilinear", "trilinear") or (size is None) == (scale_factor is None):
            raise SettingError(
                "interpolate: mode must be 'nearest', 'linear', 'bilinear' or 'trilinear', and exactly one of "
                "size and scale_factor must be given."
            )
        if align_corners and mode == "nearest":
            raise SettingError("interpolate: align_corners applies to the linear modes only. Leave it out.")
        rank, old = self.ndim - 2, self.node_shape[2:]
        if rank < 1 or any(isinstance(s, int) and not s for s in old):
            raise ShapeError(
                f"interpolate: shape {show_shape(self.uop.shape)} has no spatial entries. Give (batch, channels, "
                "*spatial), none of them empty."
            )
        factors = factors_of(scale_factor, rank)
        new = each(size, rank, "size") if size is not None else scaled_sizes(old, factors)
        result = self
        for axis, (before, after, factor) in enumerate(zip(old, new, factors, strict=True), 2):
            if mode != "nearest":
                step = 1 / factor if factor and after != before else before / after
                result = result._between(axis, after, align_corners, step)
            elif isinstance(factor, int) and (factor or after % before == 0):
                result = result.repeat_interleave(factor or after // before, axis)
            else:
                result = result.index_select(axis, _nearest(self.arange(after), before, after, factor))
        return result

    def _between(self, axis: int, after: int, align_corners: bool, step: float) -> Self:
        """Resize an axis, each element interpolated between two entries."""
        import numpy as np

        before = self.node_shape[axis]
        if isinstance(after, int) and after > _MOST_BETWEEN:
            raise ShapeError(
                f"interpolate: size {after} of axis {axis} must be at most {_MOST_BETWEEN}. "
                "Interpolate a slice of the tensor, or use mode='nearest'."
            )
        if align_corners:
            positions = np.arange(after) * ((before - 1) / max(1, after - 1))
        else:
            positions = np.maximum((np.arange(after) + 0.5) * step - 0.5, 0)
        first = np.minimum(positions.astype(np.int64), before - 1)
        second = np.minimum(first + 1, before - 1)
        x = self._floating()
        kind = np.float64 if x.dtype.name == "float64" else np.float32
        share = self._upload((positions - first).astype(kind), None, self._device).cast(x.dtype)
        low, high = x.index_select(axis, first), x.index_select(axis, second)  # type: ignore[arg-type]
        return low.lerp(high, share.reshape([after if a == axis else 1 for a in range(self.ndim)]))


def factors_of(given: float | Sequence[float] | None, count: int) -> tuple[float, ...]:
    """One factor per spatial axis; 0 where the size is given."""
    factors = tuple(given) if isinstance(given, Sequence) else (0 if given is None else given,) * count
    if len(factors) != count or (given is not None and not all(0 < factor < math.inf for factor in factors)):
        raise SettingError(
            f"interpolate: scale_factor={given} for {count} spatial axes. Give a number above 0, or one for each axis."
        )
    return factors


def _nearest(position: C, before: int, after: int, factor: float) -> C:
    """Return the source index of each position; with a factor it is rounded like PyTorch's."""
    if not factor or after in (before, 2 * before):
        return _share(position, before, after)
    import numpy as np

    number: Any = position
    return number.float().mul(float(np.float32(1 / factor))).long().clamp(0, before - 1)  # type: ignore[no-any-return]


def _share(number: C, size: int, count: int) -> C:
    """number * size // count, for each of `count` numbers."""
    return number.mul(size).floor_divide(count)


def scaled_sizes(sizes: Sequence[int], factors: Sequence[float]) -> tuple[int, ...]:
    """The sizes times their factors, rounded down."""
    new = tuple(s * f if isinstance(f, int) else math.floor(s * f) for s, f in zip(sizes, factors, strict=True))
    if any(isinstance(size, int) and not size for size in new):
        raise ShapeError(
            f"interpolate: sizes {tuple(sizes)} times {tuple(factors)} give an empty result. Give larger ones."
        )
    return new


def _summed(node: UOp, rank: int, number: int, phases: int, step: int, gap: int) -> UOp:
    """Sum the products of taps and positions that meet along spatial axis `number`, each phase separately.

    Positions with equal remainder by the stride are a phase: taps at that distance reach them, and they are contiguous.

    Shapes: (batch, groups, out, taps of this axis and the next ones, phases of those before, *spatial) to (batch,
        groups, out, taps of the next axes, phases, *spatial).
    """
    taps, axis, others = -(-node.shape[3] // phases), 3 + rank + number, len(node.shape) - 4  # taps of a phase
    node = pad(node, [(0, 0)] * 3 + [(0, taps * phases - node.shape[3])] + [(0, 0)] * others)
    node = reshape(node, (*node.shape[:3], taps, phases, *node.shape[4:]))
    node = permute(node, [0, 1, 2, *range(5, 4 + rank), 4, *range(4 + rank, 4 + 2 * rank), 3])
    length = (node.shape[axis] - 1) * step + gap * (taps - 1) + 1
    placed = reduce_axes(unwindow(node, axis, length, step, gap), Ops.ADD, [3 + 2 * rank])
    return reshape(placed, placed.shape[:-1])


def _phases_interleaved(node: UOp, rank: int) -> UOp:
    """Interleave phases and positions into one axis each: (batch, out, *phases, *positions) to (batch, out,
    *spatial)."""
    node = permute(node, [0, 1, *(a for i in range(2, 2 + rank) for a in (rank + i, i))])
    return reshape(node, (*node.shape[:2], *(node.shape[a] * node.shape[a + 1] for a in range(2, 2 + 2 * rank, 2))))


def _for_channels(bias: C, out: int, rank: int, shown: str) -> C:
    if bias.uop.shape != (out,):
        raise ShapeError(f"{shown}: a bias of shape {show_shape(bias.uop.shape)}. Give one of ({out},), or None.")
    return bias.reshape((1, out, *(1,) * rank))


def check_windows(call: str, rank: int, stride: Each, padding: Each | str, dilation: Each) -> None:
    """Raises ShapeError where the steps, the padding or the gaps of a convolution are not possible."""
    steps = each(stride, rank, "stride")
    each(dilation, rank, "dilation")
    if not isinstance(padding, str):
        each(padding, rank, "padding")
    elif padding not in ("same", "valid"):
        raise ShapeError(f"{call}: padding={padding!r} must be numbers, 'same' or 'valid'.")
    elif padding == "same" and any(step != 1 for step in steps):
        raise ShapeError(
            f"{call}: padding='same' with stride={stride}: the result cannot be as large as the input. "
            "Give the padding in numbers, or stride=1."
        )


def check_output_padding(call: str, rank: int, stride: Each, dilation: Each, output_padding: Each) -> None:
    """Raises ShapeError where `output_padding` is not smaller than the stride or the dilation of its axis."""
    steps, gaps = each(stride, rank, "stride"), each(dilation, rank, "dilation")
    extras = each(output_padding, rank, "output_padding")
    if any(extra >= max(step, gap) for extra, step, gap in zip(extras, steps, gaps, strict=True)):
        raise ShapeError(
            f"{call}: output_padding={output_padding} with stride={stride}, dilation={dilation}: on each axis it must "
            "be smaller than the stride or the dilation. Pad the result instead."
        )


def spatial_padding(
    padding: Each | str, kernel: Sequence[int], steps: Sequence[int], gaps: Sequence[int], axes: int
) -> list[tuple[int, int]]:
    """(before, after) per axis of the input."""
    rank = len(kernel)
    if isinstance(padding, str):
        check_windows("conv", rank, steps, padding, gaps)
        spare = [g * (k - 1) if padding == "same" else 0 for k, g in zip(kernel, gaps, strict=True)]
        around = [(s // 2, s - s // 2) for s in spare]
    else:
        around = [(p, p) for p in each(padding, rank, "padding")]
    return [(0, 0)] * (axes - rank) + around


class PoolWindow:
    """The numbers of a pooling call, one per pooled axis."""

    def __init__(
        self,
        shape: Sequence[int],
        kernel_size: Each,
        stride: Each | None,
        padding: Each,
        dilation: Each,
        ceil_mode: bool,
    ) -> None:
        kernel_size = as_node(kernel_size)
        self.rank = 2 if isinstance(kernel_size, int) else len(kernel_size)
        self.others = len(shape) - self.rank
        if self.others < 0:
            raise ShapeError(f"pooling: {self.rank} pooled axes of shape {tuple(shape)}. Unsqueeze it first.")
        self.kernel = each(kernel_size, self.rank, "kernel_size")
        self.steps = self.kernel if stride is None else each(stride, self.rank, "stride")
        self.gaps = each(dilation, self.rank, "dilation")
        self.pads = each(padding, self.rank, "padding")
        if any(2 * p > k for p, k in zip(self.pads, self.kernel, strict=True)):
            raise ShapeError(
                f"pooling: padding {self.pads} is more than half the kernel {self.kernel}. Pad the input first."
            )
        spans = [g * (k - 1) + 1 for k, g in zip(self.kernel, self.gaps, strict=True)]
        self.remainders = tuple(
            missing_for_ceil(size + 2 * p, span, step, size + p) if ceil_mode else 0
            for size, p, span, step in zip(shape[self.others :], self.pads, spans, self.steps, strict=True)
        )

    def around(self, pads: Sequence[int], remainders: Sequence[int]) -> list[tuple[int, int]]:
        """(before, after) per axis: pads on both sides, and remainders at the end."""
        return [(0, 0)] * self.others + [(p, p + rest) for p, rest in zip(pads, remainders, strict=True)]


def missing_for_ceil(padded: int, span: int, step: int, inside: int) -> int:
    """Return the padding at the end that makes the last window, which starts inside, complete."""
    count = -(-(padded - span) // step) + 1
    if (count - 1) * step >= inside:
        count -= 1
    return max(0, (count - 1) * step + span - padded)
