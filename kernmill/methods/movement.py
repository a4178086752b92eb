"""Tensor methods: the same elements in another arrangement. Nothing is copied until it is realized."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Self, TypeVar

from kernmill.ir import (
    DTypeError,
    IndexRangeError,
    Ops,
    SettingError,
    ShapeError,
    Size,
    UOp,
    as_size,
    broadcast_shapes,
    elementwise,
    iota,
    numel,
    reduce_axes,
    show_shape,
    strided,
    window,
)
from kernmill.ir import expand as expand_node
from kernmill.ir import pad as pad_node
from kernmill.ir import permute as permute_node
from kernmill.ir import reshape as reshape_node
from kernmill.ir import shrink as shrink_node

from ..arguments import with_sentences
from ..lazy import Lazy
from ..size import SymbolicSize, as_node, shown
from ..views import diagonal as diagonal_node
from .elementwise import Arithmetic, choose

if TYPE_CHECKING:
    from ..lazy import Operand

__all__ = ["Joining", "Movement", "cat", "meshgrid", "stack"]

Axes = int | Sequence[int] | None
_MOST_PIECES = 16  # concatenated in one expression, which tests each of them for each element


def flat_sizes(sizes: tuple[int | Sequence[int], ...]) -> tuple[int, ...]:
    """reshape(2, 3) and reshape((2, 3)) are the same call."""
    first = sizes[0] if len(sizes) == 1 else None
    if isinstance(first, Iterable) and not isinstance(first, (UOp, str, bytes)) and getattr(first, "shape", 0) != ():
        sizes = tuple(first)
    if {int}.issuperset(map(type, sizes)):  # nearly always: this runs several times for each method of a shape
        return sizes  # type: ignore[return-value]
    sizes = tuple(map(as_node, sizes))
    for size in sizes:
        if not isinstance(size, UOp) and not hasattr(size, "__index__"):
            raise ShapeError(
                f"{size!r} as a size or an axis: a {type(size).__name__} is not an integer. Give integers."
            )
    return tuple(s if isinstance(s, UOp) else operator.index(s) for s in sizes)  # type: ignore[misc, arg-type]


class Movement(Arithmetic):
    """Shapes."""

    # --- axes
    def _axis(self, axis: int, call: str, extra: int = 0) -> int:
        """An axis number counted from the front; `extra` allows a new axis at the end."""
        axis = as_node(axis)
        if isinstance(axis, UOp):
            raise ShapeError(
                f"{call}: axis {shown(axis)!r}: this symbolic size changes per call of the captured function. "
                "Pass an int, which is captured once for each value."
            )
        if not hasattr(axis, "__index__"):
            raise ShapeError(f"{call}: axis {axis!r}: a {type(axis).__name__} is not an integer. Give an integer.")
        rank = self.ndim + extra
        if not -max(rank, 1) <= axis < max(rank, 1):
            raise IndexRangeError(
                f"{call}: axis {axis} of a tensor of shape {show_shape(self.uop.shape)}. "
                + (f"Axes run from {-rank} to {rank - 1}." if rank else "It has no axes.")
            )
        return axis % rank if rank else 0

    def _there(self, axis: int, call: str) -> int:
        """As `_axis`, where a 0-d tensor does not count as a vector of one."""
        if not self.ndim:
            raise ShapeError(f"{call}: a 0-d tensor has no axis. Unsqueeze it first.")
        return self._axis(axis, call)

    def _axes(self, axis: Axes, call: str) -> tuple[int, ...]:
        """Axis numbers; None is all of them."""
        if axis is None:
            return tuple(range(self.ndim))
        if isinstance(axis, Lazy) and axis.ndim:
            raise ShapeError(
                f"{call}: a tensor of shape {show_shape(axis.uop.shape)} as axis. Axes are integers; the larger of "
                "two tensors is x.maximum(y), the smaller x.minimum(y)."
            )
        axes = tuple(self._axis(a, call) for a in flat_sizes((axis,)))
        if len(set(axes)) != len(axes):
            raise ShapeError(f"{call}: axes {axes} name one axis twice. Name each axis once.")
        return axes if self.ndim else ()

    # --- rearranging
    def reshape(self, *shape: int | Sequence[int]) -> Self:
        """The same elements in row-major order; one size may be -1."""
        return self._view((reshape_node, flat_sizes(shape)))

    view = reshape

    def flatten(self, start_axis: int = 0, end_axis: int = -1) -> Self:
        """Axes start..end merged into one."""
        if not self.ndim:
            return self.reshape(1)
        first, last = self._axis(start_axis, "flatten"), self._axis(end_axis, "flatten")
        shape = self.node_shape
        if first > last:
            raise ShapeError(
                f"flatten: start axis {first} is after end axis {last} of shape {show_shape(self.uop.shape)}. "
                "Exchange them."
            )
        return self.reshape((*shape[:first], numel(shape[first : last + 1]), *shape[last + 1 :]))  # type: ignore[arg-type]

    def unflatten(self, axis: int, sizes: Sequence[int]) -> Self:
        """Split one axis into several; one size may be -1."""
        axis = self._there(axis, "unflatten")
        sizes, size = tuple(sizes), self.node_shape[axis]
        if sizes.count(-1) == 1 and (known := -prod(sizes)):
            sizes = tuple(size // known if s == -1 else s for s in sizes)
        return self.reshape((*self.node_shape[:axis], *sizes, *self.node_shape[axis + 1 :]))

    def permute(self, *axes: int | Sequence[int]) -> Self:
        """Axis i of the result is axis axes[i]."""
        order = tuple(a % self.ndim if -self.ndim <= a < self.ndim else a for a in flat_sizes(axes))
        return self._view((permute_node, order))

    def transpose(self, axis0: int = 1, axis1: int = 0) -> Self:
        """Two axes exchanged."""
        a, b = self._there(axis0, "transpose"), self._axis(axis1, "transpose")
        order = list(range(self.ndim))
        order[a], order[b] = order[b], order[a]
        return self.permute(order)

    swapaxes = transpose

    @property
    def T(self) -> Self:
        """All axes in reverse order."""
        return self.permute(tuple(reversed(range(self.ndim))))

    @property
    def mT(self) -> Self:
        """The last two axes exchanged."""
        return self.transpose(-1, -2)

    def movedim(self, source: int | Sequence[int], destination: int | Sequence[int]) -> Self:
        """Move axes to new positions; the others keep their order."""
        sources, targets = self._axes(source, "movedim"), self._axes(destination, "movedim")
        if len(sources) != len(targets):
            raise ShapeError(
                f"movedim: {len(sources)} axes to {len(targets)} destinations. Give one destination for each axis."
            )
        rest = iter([a for a in range(self.ndim) if a not in sources])
        table = dict(zip(targets, sources, strict=True))
        return self.permute([table[i] if i in table else next(rest) for i in range(self.ndim)])

    def squeeze(self, axis: Axes = None) -> Self:
        """Axes of size 1 dropped; a named axis of another size stays."""
        axes = self._axes(axis, "squeeze")
        return self.reshape(
            tuple(s for a, s in enumerate(self.node_shape) if not (a in axes and isinstance(s, int) and s == 1))
        )

    def unsqueeze(self, axis: int) -> Self:
        """Insert a new axis of size 1 at this position."""
        axis = self._axis(axis, "unsqueeze", extra=1)
        return self.reshape((*self.node_shape[:axis], 1, *self.node_shape[axis:]))

    # --- growing and cutting
    def expand(self, *sizes: int | Sequence[int]) -> Self:
        """Repeat axes of size 1, with new axes in front; -1 keeps a size."""
        shape = flat_sizes(sizes)
        new = len(shape) - self.ndim
        if new < 0:
            raise ShapeError(
                f"expand: {show_shape(self.uop.shape)} -> {show_shape(shape)}: the result has fewer axes. "
                "Give a size for each."
            )
        own = (1,) * new + self.node_shape
        wanted = tuple(own[i] if isinstance(s, int) and s == -1 else s for i, s in enumerate(shape))
        return self._view((reshape_node, own), (expand_node, wanted))

    def broadcast_to(self, shape: int | Sequence[int]) -> Self:
        """NumPy's broadcasting to a shape."""
        return self.expand(shape)

    def pad(
        self,
        padding: Sequence[int] | Sequence[tuple[int, int] | None],
        mode: str = "constant",
        value: float | Sequence[tuple[float, float]] = 0,
    ) -> Self:
        """Pad the tensor; a negative size crops.

        `padding` is PyTorch's flat form, last axis first, `(left, right, top, bottom, ..)`, or one pair (or None) per
        axis. `mode` is constant, reflect, replicate or circular. `value` is a number, or as in NumPy a pair per axis.
        """
        pairs = self._pairs(padding)
        if isinstance(value, Sequence):
            return self._pad_sides(pairs, mode, value)
        if mode != "constant":
            if isinstance(value, (int, float)) and value != 0:
                raise SettingError(
                    f"pad: value={value!r} with mode={mode!r}: value is for mode='constant' only. Leave it out."
                )
            return self._pad_from_within(pairs, mode)
        if any(isinstance(p, int) and p < 0 for pair in pairs for p in pair):
            cut = [(max(0, -a), s - max(0, -b)) for (a, b), s in zip(pairs, self.node_shape, strict=True)]
            return self.shrink(cut).pad([(max(0, a), max(0, b)) for a, b in pairs], value=value)
        padded = self._result(pad_node(self.uop, pairs))
        if value == 0 or all(p == (0, 0) for p in pairs):
            return padded
        inside = self._make(pad_node(self._filled(0).eq(0).uop, pairs))
        return choose(inside, padded, self._own(value))

    def _pad_sides(self, pairs: list[tuple[int, int]], mode: str, values: Sequence[tuple[float, float]]) -> Self:
        """Borders with a value for each side, one axis after the other."""
        if len(values) != self.ndim or not all(isinstance(v, Sequence) and len(v) == 2 for v in values):
            raise ShapeError(
                f"pad: value={values!r} for shape {show_shape(self.uop.shape)}: must be a number, or (before, after) "
                "for each axis."
            )
        if mode != "constant":
            return self.pad(pairs, mode)
        result = self._own_box()
        for axis, (sizes, sides) in enumerate(zip(pairs, values, strict=True)):
            for only, fill in (((sizes[0], 0), sides[0]), ((0, sizes[1]), sides[1])):
                result = result.pad([only if a == axis else (0, 0) for a in range(self.ndim)], value=fill)
        return result

    def _pairs(self, padding: Sequence[int] | Sequence[tuple[int, int] | None]) -> list[tuple[int, int]]:
        if not isinstance(padding, Iterable):
            raise ShapeError(
                f"pad: {padding!r} is not a (before, after) pair per axis. Give (before, after) for the last axis."
            )
        flat: list[Any] = [node for p in padding if isinstance(node := as_node(p), (int, UOp))]
        if not flat:
            pairs = [(0, 0) if p is None else (as_node(p[0]), as_node(p[1])) for p in padding]  # type: ignore[index]
        else:
            if len(flat) % 2 or len(flat) > 2 * self.ndim or len(flat) != len(padding):
                raise ShapeError(
                    f"pad: {tuple(padding)} for shape {show_shape(self.uop.shape)}: "
                    "give (before, after) for the last axis, then for the one before it, and so on."
                )
            halves = list(zip(flat[::2], flat[1::2], strict=True))
            pairs = [(0, 0)] * (self.ndim - len(halves)) + halves[::-1]
        if len(pairs) != self.ndim:
            raise ShapeError(f"pad: {len(pairs)} pairs for shape {show_shape(self.uop.shape)}: give one pair per axis.")
        return pairs

    def _pad_from_within(self, pairs: list[tuple[int, int]], mode: str) -> Self:
        """Pad with the tensor's own values. A negative size crops: before circular padding, after the other modes."""
        if mode not in ("reflect", "replicate", "circular"):
            raise SettingError(f"pad: mode={mode!r}: must be constant, reflect, replicate or circular.")
        cuts, result = [(min(0, a), min(0, b)) for a, b in pairs], self
        is_cut = any(a < 0 or b < 0 for a, b in cuts)
        if is_cut and mode == "circular":
            result = result.pad(cuts)
        for axis, (before, after) in enumerate((max(0, a), max(0, b)) for a, b in pairs):
            size = result.node_shape[axis]
            most = {"reflect": size - 1, "circular": size}.get(mode, before + after if size else 0)
            if max(before, after) > most:
                raise ShapeError(
                    f"pad: mode {mode} by ({before}, {after}) on axis {axis} of size {size}: at most {most}."
                )
            if before or after:
                result = result._border(axis, before, after, mode)
        return result.pad(cuts) if is_cut and mode != "circular" else result

    def _border(self, axis: int, before: int, after: int, mode: str) -> Self:
        size = self.node_shape[axis]

        def part(start: int, stop: int, *, flipped: bool = False, times: int = 1) -> list[Self]:
            piece = self.shrink([(start, stop) if a == axis else (0, s) for a, s in enumerate(self.node_shape)])
            if times != 1:
                piece = piece.expand([times if a == axis else s for a, s in enumerate(self.node_shape)])
            return [piece.flip(axis) if flipped else piece] if stop > start and times else []

        if mode == "reflect":
            pieces = [*part(1, before + 1, flipped=True), self, *part(size - 1 - after, size - 1, flipped=True)]
        elif mode == "circular":
            pieces = [*part(size - before, size), self, *part(0, after)]
        else:
            pieces = [*part(0, 1, times=before), self, *part(size - 1, size, times=after)]
        return join_pieces(pieces, axis)

    def shrink(self, bounds: Sequence[tuple[int, int] | None]) -> Self:
        """Return self[start:stop] per axis; None keeps an axis."""
        if len(bounds) > self.ndim:
            raise ShapeError(f"shrink: {len(bounds)} bounds for shape {show_shape(self.uop.shape)}: give one per axis.")
        given: list[Any] = []
        for bound, size in itertools.zip_longest(bounds, self.node_shape):
            start, stop = (0, size) if bound is None else bound
            given.append((as_node(start), as_node(stop)))
        return self._view((shrink_node, given))

    def flip(self, *axes: int | Sequence[int]) -> Self:
        """Axes in reverse order."""
        turned = self._axes(flat_sizes(axes), "flip")
        return self._result(strided(self.uop, [-1 if a in turned else 1 for a in range(self.ndim)]))

    def rot90(self, k: int = 1, axes: Sequence[int] = (0, 1)) -> Self:
        """Rotate k times by 90 degrees, from the first of two axes towards the second."""
        if len(axes) != 2:
            raise ShapeError(f"rot90: axes {tuple(axes)}: give two different axes.")
        first, second = self._axes(axes, "rot90")
        if k % 2:
            return (self.flip(second) if k % 4 == 1 else self.flip(first)).transpose(first, second)
        return self.flip(first, second) if k % 4 else self._own_box()

    def roll(self, shifts: int | Sequence[int], axis: Axes = None) -> Self:
        """Shift elements along axes, with wrap-around; no axis: the flat tensor."""
        if axis is None:
            return self.flatten().roll(shifts, 0).reshape(self.node_shape)
        result = self._own_box()
        moves = tuple(shifts) if isinstance(shifts, Iterable) else (shifts,)
        axes = self._axes(axis, "roll")
        if len(axes) != len(moves):
            raise ShapeError(f"roll: {len(moves)} shifts along {len(axes)} axes. Give one shift for each axis.")
        for a, shift in zip(axes, moves, strict=True):
            size, shift = self.shape[a], shift if isinstance(shift, SymbolicSize) else operator.index(shift)
            if isinstance(size, SymbolicSize) and isinstance(shift, int):
                if abs(shift) > size.bounds[0]:
                    raise ShapeError(f"roll: shift {shift} may exceed the symbolic size {size!r}. Use a mask.")
                cut = as_node(size + shift) if shift < 0 else shift
            else:
                cut = as_node(shift % size) if isinstance(size, SymbolicSize) or size else 0
            if isinstance(cut, UOp) or cut:
                size = as_node(size)
                parts = [
                    result.shrink([bounds if i == a else None for i in range(self.ndim)])
                    for bounds in ((size - cut, size), (0, size - cut))
                ]
                result = join_pieces(parts, a)
        return result

    def repeat(self, *repeats: int | Sequence[int]) -> Self:
        """The whole tensor repeated along each axis; more counts than axes add axes in front."""
        counts = _counts("repeat", flat_sizes(repeats))
        if len(counts) < self.ndim:
            raise ShapeError(f"repeat: {len(counts)} counts for shape {show_shape(self.uop.shape)}: give one per axis.")
        shape = (1,) * (len(counts) - self.ndim) + self.node_shape
        wide = self.reshape([size for s in shape for size in (1, s)])
        wide = wide.expand([size for c, s in zip(counts, shape, strict=True) for size in (c, s)])
        return wide.reshape([c * s for c, s in zip(counts, shape, strict=True)])._own_box()

    def tile(self, *repeats: int | Sequence[int]) -> Self:
        """As repeat; missing counts are 1."""
        counts = flat_sizes(repeats)
        return self.repeat((1,) * (self.ndim - len(counts)) + counts)

    def repeat_interleave(self, repeats: int, axis: int | None = None) -> Self:
        """Repeat every entry of an axis consecutively; without an axis every element of the flat tensor."""
        if axis is None:
            return self.flatten().repeat_interleave(repeats, 0)
        axis, (repeats,) = self._axis(axis, "repeat_interleave"), _counts("repeat_interleave", flat_sizes((repeats,)))
        shape = self.node_shape
        wide = self.unsqueeze(axis + 1).expand((*shape[: axis + 1], repeats, *shape[axis + 1 :]))
        return wide.reshape((*shape[:axis], shape[axis] * repeats, *shape[axis + 1 :]))._own_box()

    def unfold(self, axis: int, size: int, step: int) -> Self:
        """Sliding windows: the axis counts windows, a new last axis runs over each."""
        return self._result(window(self.uop, self._there(axis, "unfold"), as_node(size), as_node(step)))


def _counts(call: str, counts: tuple[int, ...]) -> tuple[int, ...]:
    """Raises ShapeError where one is negative."""
    if any(isinstance(count, int) and count < 0 for count in counts):
        raise ShapeError(f"{call}: {counts} times. Give 0 or more for each axis.")
    return counts


M = TypeVar("M", bound=Movement)


def join_pieces(pieces: Sequence[M], axis: int) -> M:
    """Concatenate tensors of one dtype along an axis: padded to the whole length, selected by index (-0 is
    preserved)."""
    if len(pieces) > _MOST_PIECES:  # each element is chosen in every group: in groups of groups the work stays linear
        groups = [pieces[n : n + _MOST_PIECES] for n in range(0, len(pieces), _MOST_PIECES)]
        return join_pieces([join_pieces(group, axis) for group in groups], axis)
    total = sum(p.node_shape[axis] for p in pieces)
    rank = pieces[0].ndim
    whole: M | None = None
    empty: list[M] = []
    offset = 0
    for piece in pieces:
        size = piece.node_shape[axis]
        if isinstance(size, int) and not size:
            empty.append(piece)
        else:
            padded = piece.pad([(offset, total - offset - size) if a == axis else (0, 0) for a in range(rank)])
            whole = padded if whole is None else choose(from_offset(padded, axis, offset), padded, whole)
        offset = offset + size
    if whole is None:
        return pieces[0]._own_box()
    return functools.reduce(with_empty, empty, whole)


def with_empty(x: M, empty: M) -> M:
    """x, computed from a tensor without elements too: then that has a gradient, which is empty."""
    if not x.dtype.is_float or not empty.dtype.is_float:
        return x
    nothing = reduce_axes(empty.uop, Ops.ADD, range(empty.ndim)).cast(x.dtype)
    return x._result(elementwise(Ops.SUB, x.uop, reshape_node(nothing, ())), empty)  # -0.0 - 0.0 is -0.0


def from_offset(like: M, axis: int, offset: int) -> M:
    """Return True on an axis from an index on; size 1 on the other axes."""
    size = like.node_shape[axis]
    positions = reshape_node(iota(size), [size if a == axis else 1 for a in range(like.ndim)])
    return like._make(positions)._binary(Ops.LT, offset).logical_not()


class Joining(Movement):
    """Several tensors made one, one made several, and triangles."""

    def _alike(self, others: Sequence[Movement], call: str, axis: int | None) -> list[Self]:
        """Tensors in their common dtype whose shapes agree, the axis apart."""
        for other in others:
            same = other.ndim == self.ndim and all(
                a is b or a == b or i == axis
                for i, (a, b) in enumerate(zip(self.node_shape, other.node_shape, strict=True))
            )
            if not same:
                where = "" if axis is None else f" outside axis {axis}"
                raise ShapeError(
                    f"{call}: shapes {show_shape(self.uop.shape)} and {show_shape(other.uop.shape)} differ{where}. "
                    "Reshape or expand one of them."
                )
        return self._join(*others)

    def cat(self, *others: Self, axis: int = 0) -> Self:
        """Concatenate this tensor and others along an axis; kernmill.cat takes a list."""
        Movement._are_tensors((self, *others), "cat", "cat([a, b], axis)")
        axis = self._axis(axis, "cat")
        if not self.ndim:
            raise ShapeError("cat: a 0-d tensor has no axis to join along. Use stack.")
        return join_pieces(self._alike(others, "cat", axis), axis)

    def stack(self, *others: Self, axis: int = 0) -> Self:
        """This tensor and others of its shape along a new axis; kernmill.stack takes a list."""
        Movement._are_tensors((self, *others), "stack", "stack([a, b], axis)")
        axis = self._axis(axis, "stack", extra=1)
        return join_pieces([t.unsqueeze(axis) for t in self._alike(others, "stack", None)], axis)

    def split(self, sizes: int | Sequence[int], axis: int = 0) -> tuple[Self, ...]:
        """Pieces along an axis: of one size (the last may be smaller), or of the sizes given."""
        axis = self._there(axis, "split")
        length, sizes = self.node_shape[axis], as_node(sizes)
        if isinstance(sizes, int):
            if sizes < 1:
                raise ShapeError(f"split: pieces of size {sizes}. Give a size of at least 1.")
            if isinstance(length, UOp):
                raise ShapeError(
                    f"split: the number of pieces of size {sizes} in the symbolic size {shown(length)!r} is not "
                    "fixed. Give a list of sizes.")  # fmt: skip
            sizes = [min(sizes, length - start) for start in range(0, length, sizes)] or [0]
        sizes = [as_node(size) for size in sizes]
        if shown(as_size(sum(sizes))) != shown(length):
            raise ShapeError(
                f"split: sizes {tuple(sizes)} make {sum(sizes)}, axis {axis} has {length}. They must add up to it."
            )
        ends = list(itertools.accumulate(sizes, initial=0))
        return tuple(
            self.shrink([bounds if a == axis else None for a in range(self.ndim)])
            for bounds in itertools.pairwise(ends)
        )

    def chunk(self, chunks: int, axis: int = 0) -> tuple[Self, ...]:
        """At most `chunks` pieces of equal size, the last may be smaller."""
        if chunks < 1:
            raise ShapeError(f"chunk: {chunks} chunks: must be at least 1.")
        length = self.shape[self._there(axis, "chunk")]
        if isinstance(length, SymbolicSize):  # the number of pieces cannot be symbolic
            if as_size(length.uop % chunks) != 0:
                raise ShapeError(
                    f"chunk: the symbolic size {length!r} may not divide evenly into {chunks} chunks. Pass a list "
                    "of sizes to split."
                )
            return self.split([length // chunks] * chunks, axis)
        return self.split(max(1, -(-length // chunks)), axis)

    def unbind(self, axis: int = 0) -> tuple[Self, ...]:
        """The entries of an axis, each without that axis."""
        axis = self._there(axis, "unbind")
        shape = (*self.node_shape[:axis], *self.node_shape[axis + 1 :])
        return tuple(piece.reshape(shape) for piece in self.split(1, axis)) if self.node_shape[axis] else ()

    def meshgrid(self, *others: Self, indexing: str = "ij") -> tuple[Self, ...]:
        """1-D tensors as the coordinates of a grid; indexing "xy" exchanges the first two axes."""
        tensors = (self, *others)
        if indexing not in ("ij", "xy"):
            raise SettingError(f"meshgrid: indexing={indexing!r}: must be 'ij' or 'xy'.")
        tensors = tuple(t if t.ndim else t.reshape(1) for t in tensors)  # a number is a vector of one, as in NumPy
        bad = next((t for t in tensors if t.ndim != 1), None)
        if bad is not None:
            raise ShapeError(f"meshgrid: a tensor of shape {show_shape(bad.uop.shape)}. Give vectors: flatten it.")
        shape = tuple(t.node_shape[0] for t in tensors)
        grids = [
            t.reshape([size if a == i else 1 for a, size in enumerate(shape)]).expand(shape)
            for i, t in enumerate(tensors)
        ]
        if indexing == "xy" and len(tensors) > 1:
            grids = [grid.transpose(0, 1) for grid in grids]
        return tuple(grids)

    def diff(self, n: int = 1, axis: int = -1, prepend: Operand | None = None, append: Operand | None = None) -> Self:
        """Return each entry of an axis minus the one before it, n times; for bools True where they differ.

        `prepend` and `append` are concatenated to the axis first; a number, or a tensor of this one's other sizes.
        """
        if prepend is not None or append is not None:
            return self._with_ends(axis, prepend, append).diff(n, axis)
        axis = self._axis(axis, "diff")
        if not self.ndim:
            raise ShapeError("diff: a 0-d tensor has no entries. Unsqueeze it first.")
        if n < 0:
            raise SettingError(f"diff: n={n} times. Give 0 or more.")
        result = self._own_box()
        for _ in range(n):
            size = result.node_shape[axis]
            if isinstance(size, int) and not size:
                break
            before, after = (
                result.shrink([bounds if a == axis else None for a in range(self.ndim)])
                for bounds in ((0, size - 1), (1, size))
            )
            result = after.ne(before) if self.dtype.is_bool else after.sub(before)
        return result

    def _with_ends(self, axis: int, before: Operand | None, after: Operand | None) -> Self:
        """This tensor with values in front of and behind the entries of an axis."""
        axis = self._there(axis, "diff")
        one = tuple(1 if a == axis else size for a, size in enumerate(self.node_shape))
        ends = [None if v is None else self._tensor(v) for v in (before, after)]
        parts = [end if end is None or end.ndim else end.expand(one) for end in (ends[0], self, ends[1])]
        first, *others = (part for part in parts if part is not None)
        return first.cat(*others, axis=axis)

    # --- triangles and diagonals
    def _below(self, diagonal: int) -> Self:
        """True on and below a diagonal of the last two axes."""
        rows, columns = self.node_shape[-2], self.node_shape[-1]
        row = self._make(reshape_node(iota(rows), (rows, 1)))
        return row.add(diagonal).ge(self._make(iota(columns)))

    def tril(self, diagonal: int = 0) -> Self:
        """The last two axes with zeros above a diagonal."""
        self._matrix("tril")
        return choose(self._below(diagonal), self, self._filled(0))

    def triu(self, diagonal: int = 0) -> Self:
        """The last two axes with zeros below a diagonal."""
        self._matrix("triu")
        return choose(self._below(diagonal - 1), self._filled(0), self)

    def _matrix(self, call: str) -> None:
        if self.ndim < 2:
            raise ShapeError(f"{call}: shape {show_shape(self.uop.shape)} has fewer than two axes. Unsqueeze it first.")

    def diagonal(self, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Self:
        """A diagonal of two axes, as the last axis."""
        self._matrix("diagonal")
        x = self.movedim((self._axis(axis1, "diagonal"), self._axis(axis2, "diagonal")), (-2, -1))
        rows, columns = x.node_shape[-2:]
        top, left = max(0, -offset), max(0, offset)
        length = max(0, min(rows - top, columns - left))
        others = x.node_shape[:-2]
        keep = [None] * len(others)
        rows_from, columns_from = min(top, rows), min(left, columns)
        square = x.shrink([*keep, (rows_from, rows_from + length), (columns_from, columns_from + length)])
        if not length:
            return square.reshape((*others, 0))
        return square._view((diagonal_node, length))

    def diag(self, diagonal: int = 0) -> Self:
        """A vector as the diagonal of a matrix, or the diagonal of a matrix."""
        if self.ndim != 1:
            return self.diagonal(diagonal)._own_box()
        n, k = self.node_shape[0], abs(diagonal)
        square = self.unsqueeze(1).pad([(0, 0), (0, n)]).flatten().shrink([(0, n * n)]).reshape((n, n))
        return square.pad([(k, 0) if diagonal < 0 else (0, k), (k, 0) if diagonal > 0 else (0, k)])

    def broadcast_tensors(self, *others: Self) -> tuple[Self, ...]:
        """This tensor and others expanded to their common shape."""
        tensors = (self, *others)
        shape = broadcast_shapes("broadcast_tensors", *(t.uop.shape for t in tensors))
        return tuple(t.expand(shape) for t in tensors)  # type: ignore[arg-type]


def expand_whole(node: UOp, shape: Sequence[Size]) -> UOp:
    """NumPy's broadcasting of a node, constants too."""
    return expand_node(reshape_node(node, (1,) * (len(shape) - len(node.shape)) + node.shape), shape)


J = TypeVar("J", bound=Joining)


@with_sentences
def cat(tensors: Iterable[J], axis: int = 0) -> J:
    """Concatenate tensors along an axis.

    Raises:
        ShapeError: no tensors, or their shapes differ outside the axis.
    """
    first, *others = _listed(tensors, "cat")
    return first.cat(*others, axis=axis)


@with_sentences
def stack(tensors: Iterable[J], axis: int = 0) -> J:
    """Tensors of one shape along a new axis.

    Raises:
        ShapeError: no tensors, or their shapes differ.
    """
    first, *others = _listed(tensors, "stack")
    return first.stack(*others, axis=axis)


def _listed(tensors: Iterable[J], call: str) -> list[J]:
    """Return a list of tensors. Raises ShapeError for no tensors, DTypeError for one tensor instead of a list."""
    if isinstance(tensors, Lazy):
        raise DTypeError(f"{call}: one tensor of shape {show_shape(tensors.uop.shape)}. Give a list of tensors.")
    found = list(tensors)
    if not found:
        raise ShapeError(f"{call}: no tensors. Give at least one.")
    return found


@with_sentences
def meshgrid(*tensors: J, indexing: str = "ij") -> tuple[J, ...]:
    """1-D tensors as the coordinates of a grid."""
    if not tensors:
        raise ShapeError("meshgrid: no tensors. Give at least one.")
    return tensors[0].meshgrid(*tensors[1:], indexing=indexing)
