"""Tensor methods: t[..], t[..] = v, gather and scatter. NumPy's rules, advanced indexing included.

Known indices (ints, lists, arrays) are checked at the call. Computed indices are checked when the result is realized,
by a CHECK node. Sums at computed indices: segments.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from numbers import Integral
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

from kernmill.ir import (
    DeviceError,
    DTypeError,
    IndexRangeError,
    Ops,
    ShapeError,
    Size,
    UOp,
    as_size,
    assign,
    broadcast_shapes,
    dtypes,
    expand,
    flatten_axes,
    iota,
    numel,
    permute,
    reshape,
    show_shape,
    shrink,
    strided,
    take,
)
from kernmill.runtime import current_recording, device_list

from ..lazy import Lazy
from ..size import SymbolicSize, as_node
from .elementwise import choose
from .movement import expand_whole, with_empty
from .segments import added, last_named, looked_up
from .sorting import Sortable

Other = TypeVar("Other", bound="Lazy")

if TYPE_CHECKING:
    from ..lazy import Operand

    Index: TypeAlias = "int | slice | EllipsisType | Lazy | Sequence[Any] | Any | None"

__all__ = ["Indexing"]


class Indexing(Sortable):
    """Indexing."""

    # --- reading
    def __getitem__(self, index: Index) -> Self:
        """NumPy's indexing: ints, slices, None, `...`, int tensors and lists, and masks, which are computed to know the
        shape of the result; not in a captured function.

        As in NumPy ints and slices give a view: a write to it changes this tensor. Lists, tensors and masks copy.
        """
        if isinstance(index, Lazy) and index.dtype.is_int:
            return self._rows_at(index, index.uop.bounds)  # type: ignore[arg-type]
        source, known = self._unmasked(index)
        items, region, kept = source._parse(known)
        if kept:
            return source._region(region)._arranged(items)
        changes: list[tuple[Any, Any]] = [(shrink, [(start, stop) for start, stop, _ in region])]
        if any(step != 1 for _, _, step in region):
            changes.append((strided, [step for _, _, step in region]))
        if not all(isinstance(item, slice) for item in items):  # ints drop their axes, None makes new ones
            shape = [
                1 if item is None else _length(region[axis]) for item, axis in _with_axes(items) if not _is_int(item)
            ]
            changes.append((reshape, shape))
        return source._view(*changes)

    def _rows_at(self, index: Self, bounds: tuple[int, int]) -> Self:
        """The parts of axis 0 that an int tensor selects. Bounds of its values decide whether they must be checked:
        they are an argument because the nodes are recorded (kernmill/recorded.py)."""
        items, region, _ = self._parse(index)
        return self._region(region)._arranged(items)

    def _unmasked(self, index: Index) -> tuple[Self, Index]:
        """Convert masks known on the host to int arrays of indices; True and False index a new axis."""
        import numpy as np

        given = [_read_mask(i) for i in (index if isinstance(index, tuple) else (index,))]
        masks = [_known_mask(i) if _is_known_mask(i) else None for i in given]
        if all(mask is None for mask in masks):
            return self, index
        uses = [
            0 if i is None or i is Ellipsis else 1 if m is None else m.ndim for i, m in zip(given, masks, strict=True)
        ]
        shape, axis = list(self.uop.shape), 0  # of the source, with the axes of True and False
        items: list[Any] = []
        for item, mask, use in zip(given, masks, uses, strict=True):
            if mask is None:
                items.append(item)
                axis += max(0, self.ndim - sum(uses)) if item is Ellipsis else use
                if item is Ellipsis:  # in full: an axis of True and False counts, too
                    items[-1:] = [slice(None)] * max(0, self.ndim - sum(uses))
                continue
            if not mask.ndim:
                shape.insert(axis, 1)
                mask = mask.reshape(1)
                use = 1
            sizes = tuple(shape[axis : axis + use])
            if len(sizes) != use or any(isinstance(s, int) and s != m for s, m in zip(sizes, mask.shape, strict=True)):
                raise IndexRangeError(
                    f"t[mask]: a mask of shape {show_shape(mask.shape)} for axes of shape {show_shape(sizes)} of a "
                    f"tensor of shape {show_shape(self.uop.shape)}. Give a mask of their sizes."
                )
            items.extend(np.nonzero(mask))
            axis += use
        return self._result(reshape(self.uop, shape)), tuple(items)

    def _parse(self, index: Index) -> tuple[list[Any], list[tuple[Size, Size, int]], list[int]]:
        """An index in three: items without `...`; (start, stop, step) per axis; the axes that advanced items index."""
        given = list(index) if isinstance(index, tuple) else [index]
        for i in given:
            _refuse_mask(i, self.uop.shape)
        taken = sum(1 for i in given if i is not None and i is not Ellipsis)
        ellipses = sum(1 for i in given if i is Ellipsis)
        if ellipses > 1:
            raise IndexRangeError("t[..]: more than one `...`. Use one, and `:` for the other axes.")
        if taken > self.ndim:
            raise IndexRangeError(
                f"t[..]: {taken} indices for shape {show_shape(self.uop.shape)}. Give at most {self.ndim}."
            )
        ellipsis_at = next((n for n, i in enumerate(given) if i is Ellipsis), len(given))
        fill = [slice(None)] * (self.ndim - taken)
        items = [*given[:ellipsis_at], *fill, *given[ellipsis_at + (1 if ellipses else 0) :]]
        region: list[tuple[Size, Size, int]] = []
        kept: list[int] = []
        for item in items:
            if item is None:
                continue
            axis = len(region)
            size = self.uop.shape[axis]
            if isinstance(item, slice):
                region.append(_slice(item, size))
            elif _is_int(item):
                at = _checked(item, axis, size)
                region.append((at, at + 1, 1))
            else:
                region.append((0, size, 1))
                kept.append(axis)
        return items, region, kept

    def _region(self, region: Sequence[tuple[Size, Size, int]]) -> Self:
        """Return a slice of each axis; a negative step starts at its end."""
        node = shrink(self.uop, [(start, stop) for start, stop, _ in region])
        return self._result(strided(node, [step for _, _, step in region]))

    def _arranged(self, items: list[Any]) -> Self:
        """Int axes dropped, new axes put in, advanced items applied."""
        shape: list[Size] = []
        advanced: list[tuple[int, Any]] = []  # axis of the arranged tensor, index
        chosen: list[int] = []  # indices in the list of items that are advanced or an int
        axis = 0
        for n, item in enumerate(items):
            if item is None:
                shape.append(1)
                continue
            if isinstance(item, slice):
                shape.append(self.uop.shape[axis])
            elif _is_int(item):
                chosen.append(n)
            else:
                chosen.append(n)
                advanced.append((len(shape), item))
                shape.append(self.uop.shape[axis])
            axis += 1
        result = self._result(reshape(self.uop, shape))
        if not advanced:
            return result
        apart = any(b - a > 1 for a, b in itertools.pairwise(chosen))
        front = 0 if apart else sum(1 for i in items[: chosen[0]] if not _is_int(i))
        return result._advanced([a for a, _ in advanced], [i for _, i in advanced], front)

    def _advanced(self, axes: list[int], items: list[Any], front: int, call: str = "t[..]") -> Self:
        """Axes indexed by int tensors that broadcast; the result's axes go to `front`, NumPy's rule."""
        index = self._joint(axes, items, call)
        rest = [a for a in range(self.ndim) if a not in axes]
        before, after = rest[:front], rest[front:]
        node = permute(self.uop, [*before, *axes, *after])
        if len(axes) > 1:
            node = flatten_axes(node, front, front + len(axes) - 1)
        return self._result(take(node, index.uop, front), index)

    def _joint(self, axes: list[int], items: list[Any], call: str = "t[..]") -> Self:
        """Several indices as one into the merged axes, checked and not negative."""
        sizes = [self.uop.shape[a] for a in axes]
        parts = [self._index(item, axis, size, call) for item, axis, size in zip(items, axes, sizes, strict=True)]
        shape = broadcast_shapes(call, *(p.uop.shape for p in parts))
        joint = parts[0]
        for part, size in zip(parts[1:], sizes[1:], strict=True):
            joint = joint.mul(size).add(part)
        return joint._result(expand_whole(joint.uop, shape))

    def _index(self, item: Any, axis: int, size: Size, call: str = "t[..]") -> Self:
        """Return an index as an int64 tensor with every entry in 0..size-1.

        Raises:
            IndexRangeError: a known index is outside the axis.
            DTypeError: the index is not an int.
        """
        if isinstance(item, Lazy):
            if not item.dtype.is_int:
                raise DTypeError(
                    f"{call}: an index of dtype {item.dtype.name}. Indices must be ints; cast it with .long()."
                )
            return self._computed_index(item, axis, size, call)
        import numpy as np

        try:
            array = np.asarray(item)
        except ValueError:
            raise ShapeError(
                f"{call}: the inner lists of an index differ in length. Give lists of one length."
            ) from None
        if array.size == 0 and not hasattr(item, "dtype"):
            array = array.astype(np.int64)
        if array.dtype == object and all(isinstance(i, int) for i in array.flat):  # NumPy has no dtype for all of them
            raise _out_of_range(int(max(array.flat, key=abs)), axis, int(size) if isinstance(size, int) else 0, call)
        if array.dtype.kind not in "iu":
            raise DTypeError(
                f"{call}: an index of dtype {array.dtype}. Indices are ints, slices, None, `...` or int tensors."
            )
        if isinstance(size, int):
            bad = array[(array < -size) | (array >= size)]
            if bad.size:
                raise _out_of_range(int(bad.reshape(-1)[0]), axis, size, call)
            array = np.where(array < 0, array + size, array)
        index = self._upload(array.astype(np.int64), None, self._device)
        if self._device is None:
            index._device = index._device or None
        return index

    def _computed_index(self, index: Lazy, axis: int, size: Size, call: str) -> Self:
        given = self._make(index.uop, index._device)
        is_signed = given.dtype.min < 0  # else no index is negative: 2**64 - 1 becomes -1 by the cast, and is refused
        if isinstance(size, int) and given.uop.op is Ops.CONST and not -size <= given.uop.arg < size:
            raise _out_of_range(given.uop.arg, axis, size, call)
        own = given.cast(dtypes.int64)
        least, most = given.uop.bounds
        if isinstance(size, int) and least >= 0 and most < size:
            return own
        length = own._tensor(size)
        bad = own.lt(length.neg() if is_signed else 0).logical_or(own.ge(length))
        shown = show_shape((size,))[1:-2]
        checked = own._checked(
            bad,
            f"{call}: a computed index is outside axis {axis} of size {shown}. Clamp it, or mask what it selects.",
        )
        return choose(checked.lt(0), checked.add(length), checked) if is_signed else checked

    # --- writing
    def __setitem__(self, index: Index, value: Operand) -> None:
        """Replace the elements that an index selects; the value is broadcast and cast. Other tensors keep the old
        values."""
        new = self._stays(self._own(value), "t[..] = v")
        self._keeps_history_of(new)
        given = _mask_of(index)
        if given is not None:
            mask = self._tensor(given) if isinstance(given, Lazy) else self._from_host(_known_mask(given), self._device)
            if new.ndim + mask.ndim <= self.ndim or (mask is given and is_recording()):
                return self._write_masked(mask, new)
        source, known = self._unmasked(index)
        if source.node_shape != self.node_shape:  # True and False have new axes there
            source[known] = new
            return self._become(source.reshape(self.node_shape))
        items, region, kept = self._parse(known)
        if kept:
            return self._write_advanced(items, region, kept, new)
        inner = [i for i in items if i is not None]
        sizes = [_length(r) for r in region]
        shown = [1 if i is None else sizes[inner_at] for i, inner_at in _with_axes(items) if not _is_int(i)]
        wide = expand_value(new.uop, shown)
        if any(isinstance(size, int) and size == 0 for size in sizes):
            return self._become(with_empty(self, new._result(wide)))
        whole = strided(reshape(wide, sizes), [-1 if step < 0 else 1 for _, _, step in region])
        assert len(inner) == self.ndim
        node = assign(self.uop, whole, tuple(_forward(r) for r in region))
        self._become(self._result(node, new))
        return None

    def _stays(self, value: Other, call: str) -> Other:
        """The value; raises DeviceError where it is on another device: what is written in place keeps its own.
        Where DEVICE is a list, placement copies the value."""
        if value._device is not None and value._device != self.device and len(device_list()) == 1:
            raise DeviceError(
                f"{call}: the value is on {value._device}, and what it is written into on {self.device}, where it "
                f"stays. Write v.to({self.device!r}), or make the tensor with device={value._device!r}."
            )
        return value

    def _become(self, other: Lazy) -> None:
        raise NotImplementedError

    def _keeps_history_of(self, value: Lazy) -> None:
        """Raises GradientError: the gradient of a value that is written here would be lost. Tensor says when."""
        raise NotImplementedError

    def _write_masked(self, mask: Self, value: Self) -> None:
        shape = mask.uop.shape
        if shape != self.uop.shape[: mask.ndim]:
            raise IndexRangeError(
                f"t[mask] = v: a mask of shape {show_shape(shape)} on a tensor of shape {show_shape(self.uop.shape)}. "
                "The mask must have the sizes of the tensor's first axes."
            )
        trailing = self.uop.shape[mask.ndim :]
        if value.ndim > len(trailing):
            raise ShapeError(
                "t[mask] = v: the number of selected elements is not known in advance. Assign a scalar, or use "
                "where(mask, values, t)."
            )
        wide = mask._result(reshape(mask.uop, (*shape, *(1 for _ in trailing))))
        self._become(choose(wide, value, self))

    def _write_advanced(
        self, items: list[Any], region: list[tuple[Size, Size, int]], kept: list[int], value: Self
    ) -> None:
        """Write with advanced items: find for every element the last index position that selects it, then its value."""
        are_rows = len(items) == self.ndim and all(a in kept or i == slice(None) for a, i in enumerate(items))
        if are_rows:
            return self._write_rows(kept, [items[axis] for axis in kept], value)
        flat_indices = self._make(reshape(iota(numel(self.uop.shape)), self.uop.shape))
        target = flat_indices._region(region)._arranged(items)
        wide = value._result(expand_value(value.uop, target.uop.shape)).flatten()
        written = self.flatten().unsqueeze(-1)._replaced(target.flatten(), wide.unsqueeze(-1))
        self._become(written.reshape(self.node_shape))

    def _write_rows(self, axes: list[int], items: list[Any], value: Self) -> None:
        """Advanced items on some axes, all of the others."""
        index = self._joint(axes, items)
        rest = [a for a in range(self.ndim) if a not in axes]
        front = axes[0] if axes[-1] - axes[0] == len(axes) - 1 else 0
        order = [*axes, *rest]
        sizes, others = ([self.uop.shape[a] for a in some] for some in (order, rest))
        wide = expand_value(value.uop, [*others[:front], *index.uop.shape, *others[front:]])
        after = front + index.ndim
        first = permute(wide, [*range(front, after), *range(front), *range(after, len(wide.shape))])
        count, depth = numel(index.uop.shape), numel(tuple(others))
        rows = value._result(reshape(first, (count, depth)))
        own = self._result(reshape(permute(self.uop, order), (numel(tuple(sizes[: len(axes)])), depth)))
        node = reshape(own._replaced(index.flatten(), rows).uop, sizes)
        written = permute(node, [order.index(a) for a in range(self.ndim)])
        self._become(self._result(written, value))

    def _replaced(self, index: Self, rows: Self) -> Self:
        """2-D: self with rows `index` replaced; where an index comes twice the last one counts."""
        count = index.node_shape[0]
        if isinstance(count, int) and count == 0:
            return with_empty(self, rows)
        found, values = last_named(rows.unsqueeze(0), index.unsqueeze(0), self.node_shape[0])
        return choose(found.squeeze(0).unsqueeze(-1), values.squeeze(0), self)

    # --- by axis
    def index_select(self, axis: int, index: Self | Sequence[int]) -> Self:
        """Entries `index` (1-D) of an axis."""
        axis = self._there(axis, "index_select")
        return self._advanced([axis], [index], axis, "index_select")

    def gather(self, axis: int, index: Self) -> Self:
        """out[i][j][k] = self[i][index[i][j][k]][k] for axis 1; the other axes of `index` may be shorter."""
        axis = self._axis(axis, "gather")
        self._check_axes("gather", axis, index)
        if not self.ndim:
            return self.reshape((1,)).gather(0, index.reshape((1,))).reshape(())
        shape = index.uop.shape
        x = self.shrink([None if a == axis else (0, s) for a, s in enumerate(shape)])  # type: ignore[misc]
        positions = self._index(index, axis, self.uop.shape[axis], "gather")
        rows = looked_up(x._as_rows(axis).unsqueeze(-1), positions._as_rows(axis))
        return rows.squeeze(-1)._from_rows(axis, shape)

    def _check_axes(self, call: str, axis: int, index: Self) -> None:
        """Ensure that only along this axis `index` is longer than self."""
        own, shape = self.uop.shape, index.uop.shape
        pairs = [pair for a, pair in enumerate(zip(own, shape, strict=False)) if a != axis]
        if len(own) != len(shape) or any(isinstance(n, int) and isinstance(m, int) and n < m for n, m in pairs):
            raise ShapeError(
                f"{call}: an index of shape {show_shape(shape)} for shape {show_shape(own)}. "
                f"Both need the same number of axes, and the index may be longer on axis {axis} only."
            )

    def _check_source(self, call: str, index: Self, source: Self) -> None:
        """Check that there is a value for every entry of the index."""
        shape, own = index.uop.shape, source.uop.shape
        pairs = zip(own, shape, strict=False)
        if len(own) != len(shape) or any(isinstance(n, int) and isinstance(m, int) and n < m for n, m in pairs):
            raise ShapeError(
                f"{call}: values of shape {show_shape(own)} for an index of shape {show_shape(shape)}. "
                "Give a value for each entry of the index, or one number."
            )

    def _as_rows(self, axis: int) -> Self:
        """(rows, entries of the axis)."""
        node = self.movedim(axis, -1).uop
        return self._result(reshape(node, (numel(node.shape[:-1]), node.shape[-1])))

    def _from_rows(self, axis: int, shape: Sequence[Size]) -> Self:
        """Reshape rows to a shape, except for the size of the axis."""
        others = [size for a, size in enumerate(shape) if a != axis]
        return self._result(reshape(self.uop, (*others, self.node_shape[1]))).movedim(-1, axis)

    def _positions(self, axis: int) -> Self:
        return self._make(iota(self.uop.shape[axis]))

    def take_along_dim(self, index: Self, axis: int | None = None) -> Self:
        """As gather, with the other axes of self and `index` broadcast; without an axis in the flat tensor."""
        if axis is None:
            return self.flatten().gather(0, index.flatten())
        axis = self._axis(axis, "take_along_dim")
        shapes = [[1 if a == axis else s for a, s in enumerate(t.uop.shape)] for t in (self, index)]
        common = broadcast_shapes("take_along_dim", *(tuple(s) for s in shapes))
        wide = [
            t._result(expand(t.uop, [t.uop.shape[a] if a == axis else s for a, s in enumerate(common)]))
            for t in (self, index)
        ]
        return wide[0].gather(axis, wide[1])

    def scatter(self, axis: int, index: Self, value: Operand, reduce: str | None = None) -> Self:
        """Return self with self[i][index[i][j]] = value[i][j] (axis 1); for duplicate indices the last value is used.

        `reduce` is None, or the name of a reduction as in `scatter_reduce`: the old value and every new one are
        combined.
        """
        axis = self._axis(axis, "scatter")
        self._check_axes("scatter", axis, index)
        if not self.ndim:
            values = self._tensor(value).reshape((1,))
            return self.reshape((1,)).scatter(0, index.reshape((1,)), values, reduce).reshape(())
        source = self._own(value)
        if source.ndim:
            self._check_source("scatter", index, source)
        source = source._result(expand_value(source.uop, index.uop.shape) if not source.ndim else
                                shrink(source.uop, [(0, s) for s in index.uop.shape]))  # fmt: skip
        if reduce not in (None, "add", "multiply"):
            return self._combined(axis, index, source, reduce)
        positions = self._index(index, axis, self.uop.shape[axis], "scatter")
        shape, size = index.uop.shape, self.node_shape[axis]
        rows, named = source._as_rows(axis).unsqueeze(-1), positions._as_rows(axis)
        if reduce in ("add", "multiply"):
            op, unit = (Ops.ADD, 0) if reduce == "add" else (Ops.MUL, 1)
            total = added(rows, named, size, op).squeeze(-1)._from_rows(axis, shape)
            total = total.pad(self._missing(total), value=unit)
            return self.add(total) if op is Ops.ADD else self.mul(total)
        if any(isinstance(length, int) and length == 0 for length in shape):
            return with_empty(self._own_box(), source)
        found, values = last_named(rows, named, size)
        found, last = found._from_rows(axis, shape), values.squeeze(-1)._from_rows(axis, shape)
        missing = self._missing(last)
        return choose(found.pad(missing), last.pad(missing), self)

    def _combined(self, axis: int, index: Self, value: Self, reduce: str) -> Self:
        """`scatter_reduce`."""
        raise NotImplementedError

    def _missing(self, part: Self) -> list[tuple[int, int]]:
        return [(0, whole - own) for whole, own in zip(self.node_shape, part.node_shape, strict=True)]

    def scatter_add(self, axis: int, index: Self, value: Self) -> Self:
        """Scatter, adding to the old values."""
        return self.scatter(axis, index, value, reduce="add")

    def index_add(self, axis: int, index: Self, value: Self, *, alpha: float = 1) -> Self:
        """Return self with alpha * value[i] added to entry index[i] of an axis; duplicates are added each.

        Raises:
            DTypeError: floats, or a float alpha, for ints; numbers for bools.
        """
        axis, is_float = self._axis(axis, "index_add"), not isinstance(alpha, Integral) or value.dtype.is_float
        if is_float > self.dtype.is_float or value.dtype.is_bool < self.dtype.is_bool:
            raise DTypeError(
                f"index_add: {value.dtype.name} values, times {alpha}, cannot be stored in a {self.dtype.name} "
                "tensor. Cast one of them."
            )
        if not self.ndim:
            return self.reshape((1,)).index_add(0, index, value.reshape((-1,)), alpha=alpha).reshape(())
        positions = self._index(index, axis, self.uop.shape[axis], "index_add")
        rows = self._own(value).movedim(axis, 0)
        others = [s for a, s in enumerate(self.node_shape) if a != axis]
        if positions.ndim != 1 or rows.uop.shape != (*positions.uop.shape, *others):
            raise ShapeError(
                f"index_add: values of shape {show_shape(value.uop.shape)} and an index of shape "
                f"{show_shape(positions.uop.shape)} for axis {axis} of shape {show_shape(self.uop.shape)}. The index "
                "must be a vector, and the values must have its size on that axis and the tensor's sizes on the "
                "others."
            )
        flat = rows._result(reshape(rows.uop, (1, rows.node_shape[0], numel(tuple(others)))))
        total = added(flat, positions.unsqueeze(0), self.node_shape[axis])
        return self.add(total.reshape((self.node_shape[axis], *others)).movedim(0, axis).mul(alpha).cast(self.dtype))

    def bincount(self, weights: Self | None = None, minlength: int = 0) -> Self:
        """Count how often each number below minlength is in this vector, int64; with weights, return their sums.

        Unlike PyTorch's the result has at most minlength entries: a larger number fails when realized.
        """
        if self.ndim != 1 or not self.dtype.is_int:
            raise ShapeError(
                f"bincount: of a {self.dtype.name} tensor of shape {show_shape(self.uop.shape)}: must be a vector of "
                "ints."
            )
        if minlength < 1:
            if isinstance(weights, int):
                raise ShapeError(f"bincount: weights={weights}: must be a tensor. Write minlength={weights}.")
            raise ShapeError(
                f"bincount: minlength={minlength}: the size of the result must be known in advance. Pass "
                "minlength=, a number above all values."
            )
        values = self._filled(1).cast(dtypes.int64) if weights is None else weights
        return self.zeros(minlength, dtype=values.dtype).index_add(0, self._classes("bincount", minlength), values)


def data_dependent(call: str, remedy: str) -> ShapeError:
    return ShapeError(
        f"{call}: the shape of the result depends on the data, and shapes must be known in advance. "
        f"{remedy}, or NumPy: t.numpy()[mask.numpy()]."
    )


def _is_int(item: object) -> bool:
    return (
        isinstance(item, (int, UOp, SymbolicSize))
        or (hasattr(item, "__index__") and not isinstance(item, Lazy) and not _ndim(item))
    ) and not isinstance(item, bool)


def _ndim(item: object) -> int:
    return int(getattr(item, "ndim", 0))


def _mask_of(index: Any) -> Any:
    """The bool mask that is the whole index, if it is one."""
    if isinstance(index, tuple) and len(index) == 1:
        index = index[0]
    return index if _is_mask(index) and not isinstance(index, tuple) else None  # in a tuple each is for separate axes


def _is_mask(item: Any) -> bool:
    if isinstance(item, Lazy):
        return item.dtype.is_bool
    if isinstance(item, (list, tuple)):
        return len(item) > 0 and all(_is_mask(i) for i in item)
    return isinstance(item, bool) or getattr(getattr(item, "dtype", None), "kind", "") == "b"


def _is_known_mask(item: Any) -> bool:
    """A mask of bools or NumPy bools, no tensor among them."""
    if isinstance(item, (list, tuple)):
        return len(item) > 0 and all(_is_known_mask(i) for i in item)
    return not isinstance(item, Lazy) and _is_mask(item)


def _known_mask(item: Any) -> Any:
    import numpy as np

    try:
        return np.asarray(item)
    except ValueError:
        raise ShapeError("t[mask]: the mask's rows differ in length. Give rows of one length.") from None


def is_recording() -> bool:
    """True in a captured function, where shapes must not depend on values."""
    return current_recording() is not None


def _read_mask(item: Any) -> Any:
    """A mask as an array, whose values are known."""
    tensor: Any = item
    return tensor.numpy() if isinstance(item, Lazy) and item.dtype.is_bool and not is_recording() else item


def _refuse_mask(item: Any, shape: Sequence[Size]) -> None:
    if _is_mask(item):
        remedy = "Use where(mask, t, 0), for t[mask] *= 2 write t.assign(where(mask, t * 2, t))"
        raise data_dependent(f"t[mask] of shape {show_shape(tuple(shape))}", remedy)


def _out_of_range(index: int, axis: int, size: int, call: str = "t[..]") -> IndexRangeError:
    allowed = f"Valid are {-size} to {size - 1}." if size else "The axis is empty."
    return IndexRangeError(f"{call}: index {index} is outside axis {axis} of size {size}. {allowed}")


def _checked(item: Any, axis: int, size: Size) -> Size:
    item = as_node(item)
    if isinstance(item, UOp):
        return _from_end(item, size)
    at = int(item.__index__())
    if isinstance(size, int):
        if not -size <= at < size:
            raise _out_of_range(at, axis, size)
        return at % size
    return size + at if at < 0 else at


def _slice(item: slice, size: Size) -> tuple[Size, Size, int]:
    """(start, stop, step): the elements start..stop, of which every |step|-th is taken, from the end if step < 0."""
    if item.step is not None and not hasattr(item.step, "__index__"):
        raise DTypeError(f"t[..]: {item.step!r} as the step of a slice. Steps must be integers or None.")
    step = 1 if item.step is None else int(item.step.__index__())
    if step == 0:
        raise IndexRangeError("t[::0]: a step of 0 never ends. Give a nonzero step.")
    start, stop = as_node(item.start), as_node(item.stop)
    for end in (start, stop):
        if end is not None and not isinstance(end, UOp) and not hasattr(end, "__index__"):
            raise DTypeError(f"t[..]: {end!r} as an end of a slice. Ends must be integers or None.")
    if isinstance(size, UOp) or isinstance(start, UOp) or isinstance(stop, UOp):
        return _symbolic_slice(slice(start, stop), size, step)
    start, stop, step = item.indices(size)
    count = len(range(start, stop, step))
    if not count:
        return 0, 0, 1
    last = start + (count - 1) * step
    return (start, last + 1, step) if step > 0 else (last, start + 1, step)


def _symbolic_slice(item: slice, size: Size, step: int) -> tuple[Size, Size, int]:
    start: Size = 0 if item.start is None else _from_end(item.start, size)
    stop: Size = size if item.stop is None else _from_end(item.stop, size)
    return start, stop, step


def _from_end(index: Size, size: Size) -> Size:
    """Count an index from the end if it is negative for all values of its variables."""
    greatest = index if isinstance(index, int) else index.bounds[1]
    return size + index if greatest < 0 else index


def _length(part: tuple[Size, Size, int]) -> Size:
    start, stop, step = part
    if step in (1, -1):
        return as_size(stop - start)
    return as_size((stop - start + abs(step) - 1) // abs(step))


def _forward(part: tuple[Size, Size, int]) -> tuple[Size, Size, int]:
    """Return the same indices with a positive step, in ascending order."""
    start, stop, step = part
    return start, stop, abs(step)


def _with_axes(items: Sequence[Any]) -> list[tuple[Any, int]]:
    """Each item with the number of axes before it."""
    result, axis = [], 0
    for item in items:
        result.append((item, axis))
        axis += item is not None
    return result


def expand_value(value: UOp, shape: Sequence[Size]) -> UOp:
    """Broadcast a value to the shape it is written to; leading axes of size 1 are dropped, as in NumPy."""
    while len(value.shape) > len(shape) and value.shape[0] == 1:
        value = reshape(value, value.shape[1:])
    if len(value.shape) > len(shape) or broadcast_shapes("t[..] = v", value.shape, tuple(shape)) != tuple(shape):
        raise ShapeError(
            f"t[..] = v: a value of shape {show_shape(value.shape)} for a selection of shape "
            f"{show_shape(tuple(shape))}. "
            "Reshape or expand the value."
        )
    return expand_whole(value, shape)
