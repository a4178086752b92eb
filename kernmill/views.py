"""Views: which tensors show elements of another one, and the effect of a write to either on both.

A tensor is a box around a node that never changes, so a view (`t[0]`, `t.T`, `t.reshape(..)`) starts as an expression
of the node of its owner. In addition the path from the owner is recorded: a chain of links. A write to a view becomes
an assignment to the owner. After it, and after a write to the owner itself, all views of the owner are stale: their
node is removed, and rebuilt from the owner's when it is read. Tensors without views cost nothing.

Whether a reshape is a view follows from strides, as in NumPy and PyTorch: of a transposed tensor it is a copy.
"""

from __future__ import annotations

import contextlib
import contextvars
import weakref
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeAlias

from kernmill.ir import (
    GradientError,
    KernmillError,
    Ops,
    ShapeError,
    Size,
    UOp,
    assign,
    evaluate,
    expand,
    numel,
    pad,
    permute,
    process_lock,
    reshape,
    show_shape,
    shrink,
    strided,
)
from kernmill.runtime import Buffer, current_recording

if TYPE_CHECKING:
    from .lazy import Lazy

    Change: TypeAlias = Callable[[UOp, Any], UOp]
    Link: TypeAlias = tuple["Memory", Any, Change, Any]  # of the owner's; the link before; change(node, argument)
    Region: TypeAlias = list[tuple[Size, Size, int]]
    Layout: TypeAlias = tuple[Any, list[tuple[Any, Any]]]  # offset; size and stride of each axis

__all__ = [
    "Memory", "anchor", "check_replay", "cut_history", "detached", "diagonal", "link", "made_before", "mark", "renew",
    "separate", "show", "stale", "write",
]  # fmt: skip

_LEAST = 16  # views of one owner, before the dead ones among them are dropped
_WORK = 100_000  # steps for NumPy to find out whether two views overlap
_before: contextvars.ContextVar[Collection[int]] = contextvars.ContextVar("made_before", default=())
_lock = process_lock()


class Memory:
    """The shared state of a tensor and its views: the tensor, and the views that have a node."""

    __slots__ = ("fresh", "most", "owner", "shape")

    def __init__(self, owner: Lazy) -> None:
        self.owner, self.shape = weakref.ref(owner), owner.uop.shape
        self.fresh: list[weakref.ref[Lazy]] = []
        self.most = _LEAST

    def note(self, view: Lazy) -> None:
        """Add a view that has a node."""
        self.fresh.append(weakref.ref(view))
        if len(self.fresh) > self.most:
            self.fresh = [ref for ref in self.fresh if ref() is not None]
            self.most = 2 * len(self.fresh) + _LEAST

    def others(self, tensor: Lazy) -> list[Lazy]:
        """The views that are alive, but for one."""
        views = [view for ref in self.fresh if (view := ref()) is not None and view is not tensor]
        return [view for view in views if type(view._link) is tuple and view._link[0] is self]


def detached(node: UOp, _: None = None) -> UOp:
    """The change of a view by `detach`: a constant to gradients."""
    return UOp(Ops.DETACH, node.dtype, (node,)) if node.dtype.is_float else node


def diagonal(node: UOp, length: Any) -> UOp:
    """The diagonal of the last two axes, both of this length: each row of a matrix of one more column starts there."""
    others = node.shape[:-2]
    rows = _beside(node, length)
    first = shrink(rows, [*((0, size) for size in (*others, length)), (0, 1)])
    return reshape(first, (*others, length))


def _beside(node: UOp, length: Any) -> UOp:
    """Square matrices as rows that are one longer, so that a diagonal is the first column."""
    others = node.shape[:-2]
    flat = pad(reshape(node, (*others, length * length)), [*((0, 0) for _ in others), (0, length)])
    return reshape(flat, (*others, length, length + 1))


def _with_diagonal(node: UOp, value: UOp, length: Any) -> UOp:
    """Square matrices with another diagonal."""
    others = node.shape[:-2]
    column = (*_whole((*others, length)), (0, 1, 1))
    rows = assign(_beside(node, length), reshape(value, (*others, length, 1)), column)
    flat = reshape(rows, (*others, length * (length + 1)))
    return reshape(shrink(flat, [*((0, size) for size in others), (0, length * length)]), node.shape)


@contextlib.contextmanager
def made_before(tensors: Iterable[Lazy]) -> Generator[None]:
    """In this block a captured function runs, and these tensors were made before it."""
    token = _before.set({id(tensor) for tensor in tensors if type(tensor._link) is tuple})
    try:
        yield
    finally:
        _before.reset(token)


# --- making views ----------------------------------------------------------------------------------------------------
def link(view: Lazy, source: Lazy, changes: Sequence[tuple[Change, Any]]) -> None:
    """Note that `view` shows elements of `source`, by these changes; not where a reshape has to copy them."""
    before = source._link
    if before is None:
        before = source._link = Memory(source)
    if type(before) is tuple:
        memory, step = before[0], before
        if changes[0][0] is reshape and not _needs_no_copy(before, changes[0][1]):
            return
    else:
        memory, step = before, None
        source._pin = source.uop  # captures that write there in place count its references
    for change, argument in changes:
        step = memory, step, change, argument
    if source._requires_grad and not view._requires_grad and changes[-1][0] is not detached:  # made in no_grad()
        step = memory, step, detached, None
    view._link = step
    memory.note(view)


def separate(tensor: Lazy) -> None:
    """Make a view a separate tensor with its current values."""
    if type(tensor._link) is tuple:
        renew(tensor)
        tensor._link = None


def _chain(last: Any) -> list[Link]:
    """The links from the owner to a view."""
    found = []
    while last is not None:
        found.append(last)
        last = last[1]
    return found[::-1]


def _node(last: Any, node: UOp) -> UOp:
    for _, _, change, argument in _chain(last):
        node = change(node, argument)
    return node


def _needs_no_copy(before: Any, shape: Sequence[Size]) -> bool:
    """True if a reshape of a view to `shape` shows the same memory."""
    layout = _layout(before)
    if layout is None:
        return True  # sizes are known at each call only
    wanted = _whole_shape([size for size, _ in layout[1]], shape)
    return wanted is None or _reshaped(layout[1], wanted) is not None


def _whole_shape(own: Sequence[Any], shape: Sequence[Any]) -> list[Any] | None:
    """A shape without -1; None where a size is known at each call only."""
    if not all(isinstance(size, int) for size in (*own, *shape)):
        return None
    known = -numel(tuple(shape)) if -1 in shape else 0
    return [numel(tuple(own)) // known if size == -1 and known else size for size in shape]  # type: ignore[operator]


def _reshaped(layout: list[tuple[Any, Any]], shape: Sequence[Any]) -> list[tuple[Any, Any]] | None:
    """Size and stride of each axis after a reshape; None where it has to copy. Source: NumPy's
    _attempt_nocopy_reshape."""
    if 0 in shape:
        return [(size, 1) for size in shape]
    axes = [(size, stride) for size, stride in layout if size != 1]
    result: list[tuple[Any, Any]] = []
    left, stride = 1, 1  # elements of the old axes at hand that no new axis has taken
    for size in reversed(shape):
        if size != 1 and left == 1:
            left, stride = axes.pop()
        while left % size:
            if not axes or axes[-1][1] != stride * left:
                return None
            left *= axes.pop()[0]
        result.append((size, stride))
        left, stride = left // size, stride * size
    return result[::-1]


def _layout(last: Any) -> Layout | None:
    """Offset, and size and stride of each axis, of a view in its owner's elements; None where it has none."""
    axes: list[tuple[Any, Any]] = []
    offset, stride = 0, 1
    for size in reversed(last[0].shape):
        axes.insert(0, (size, stride))
        stride = stride * size
    for _, _, change, argument in _chain(last):
        if change is permute:
            axes = [axes[axis] for axis in argument]
        elif change is shrink:
            offset += sum(start * s for (start, _), (_, s) in zip(argument, axes, strict=True))
            axes = [(stop - start, s) for (start, stop), (_, s) in zip(argument, axes, strict=True)]
        elif change is strided:
            offset += sum((size - 1) * s for (size, s), k in zip(axes, argument, strict=True) if k < 0)
            axes = [(-(-size // abs(k)), s * k) for (size, s), k in zip(axes, argument, strict=True)]
        elif change is expand:
            axes = [
                (new, s if size is new or size == new else 0) for (size, s), new in zip(axes, argument, strict=True)
            ]
        elif change is reshape:
            wanted = _whole_shape([size for size, _ in axes], argument)
            found = None if wanted is None else _reshaped(axes, wanted)
            if found is None:
                return None
            axes = found
        elif change is diagonal:
            axes = [*axes[:-2], (argument, axes[-2][1] + axes[-1][1])]
    return offset, axes


# --- reading ---------------------------------------------------------------------------------------------------------
def mark(owner: Lazy) -> None:
    """Mark all views of an owner with new values as stale: they are rebuilt when they are read."""
    memory = owner._link
    if type(memory) is not Memory:
        return
    with _lock:
        owner._pin = None
        views = memory.others(owner)
        memory.fresh = []
        for view in views:
            view._owner = owner  # alive as long as the view needs it
            view._requires_grad = owner._requires_grad and not _is_constant(view._link)
            view._device = owner._device
            view.__dict__.pop("uop", None)


def _is_constant(last: Any) -> bool:
    return any(change is detached for _, _, change, _ in _chain(last))


def renew(view: Lazy) -> UOp:
    """The node of a view, made from its owner's if it was taken away.

    Raises:
        KernmillError: in a captured function, of a view that was made before it.
    """
    with _lock:
        node: UOp | None = view.__dict__.get("uop")
        owner = view._owner
        if node is not None or owner is None:
            return node  # type: ignore[return-value]
        if id(view) in _before.get():
            raise _read_by_capture(view._link[0].shape)
        node = _node(view._link, owner.uop)
        view.__dict__.update(uop=node, _owner=None, _is_named=False)  # `_put` has already announced the write
        node = view._named().uop
        owner._pin = owner.uop
        view._link[0].note(view)
        return node


# --- captured functions: their effects are replayed for one tensor, not for those that share its elements
def _read_by_capture(shape: Sequence[Size]) -> KernmillError:
    return KernmillError(
        "jit: the captured function reads a view that was made before it, and writes to the tensor of the view, of "
        f"shape {show_shape(tuple(shape))}. Make the view inside the function."
    )


def _written_by_capture(view: Lazy) -> KernmillError:
    return KernmillError(
        f"jit: the captured function writes to a view of shape {show_shape(view.uop.shape)} that was made before it. "
        "Write to the tensor itself, or make the view inside the function."
    )


def anchor(
    view: Lazy, links: Mapping[int, Lazy], values: Mapping[str, int]
) -> tuple[Lazy, list[tuple[Change, Any]]] | None:
    """Return the tensor that a replay finds or makes, and the changes from it to the view. `links`: views by the ids of
    their links; the last one of them below the view is returned, else its owner. `values`: of variables in this call.

    None: it is not a view, or no other tensor shows its elements. Then it is a separate tensor from here on.
    """
    if type(view._link) is tuple:
        with contextlib.suppress(KernmillError):  # of several views without their owner one may show all others
            _owner(view)
    steps = _chain(view._link) if type(view._link) is tuple else []
    owner = steps[0][0].owner() if steps else None
    if owner is None:
        separate(view)
        return None
    start = max((number for number, step in enumerate(steps[:-1], 1) if id(step) in links), default=0)
    found = links[id(steps[start - 1])] if start else owner
    changes = [(change, argument) for _, _, change, argument in steps]
    if values:
        view._link = None
        for change, argument in in_call(changes, values):
            view._link = steps[0][0], view._link, change, argument
    return found, changes[start:]


def in_call(argument: Any, values: Mapping[str, int]) -> Any:
    """The changes to a view, or the argument of one, with the sizes of a call."""
    if isinstance(argument, (list, tuple)):
        return [in_call(one, values) for one in argument]
    return int(evaluate(argument, None, values)) if isinstance(argument, UOp) else argument


def show(source: Lazy, changes: Sequence[tuple[Change, Any]], values: Mapping[str, int]) -> Lazy:
    """Make a view of `source`, without a node until it is read. `values`: of variables in this call."""
    if values:
        changes = in_call(changes, values)
    if type(source._link) is tuple:  # a reshape of a view may have to copy
        new = source
        for step in changes:
            new = new._view(step)
        return stale(new)
    memory = source._link
    if memory is None:
        memory = source._link = Memory(source)
    made = source._make(source.uop, source._device)
    for change, argument in changes:
        made._link = memory, made._link, change, argument
    return stale(made)


def stale(view: Lazy) -> Lazy:
    """Take the node of a view away: it is rebuilt from its owner's when it is read."""
    memory = view._link[0] if type(view._link) is tuple else None
    owner = None if memory is None else memory.owner()
    if memory is not None and owner is not None:
        with _lock:
            view._owner = owner
            view.__dict__.pop("uop", None)
            memory.fresh = [ref for ref in memory.fresh if ref() is not view]
            if not memory.others(view):
                owner._pin = None
    return view


def cut_history(view: Lazy) -> None:
    """Make a view constant to gradients, also after a write to its owner."""
    if type(view._link) is tuple:
        view._link = (view._link[0], view._link, detached, None)


def check_replay(tensor: Lazy, used: Iterable[Lazy]) -> None:
    """Before a replay that writes to a tensor.

    Raises:
        KernmillError: it is a view of another tensor, or one of the tensors that are used is a view of it.
    """
    if type(tensor._link) is tuple:
        if _owner(tensor) is not tensor:
            raise _written_by_capture(tensor)
    elif type(tensor._link) is Memory:
        views = set(map(id, tensor._link.others(tensor)))
        if views and any(id(one) in views for one in used):
            raise _read_by_capture(tensor.uop.shape)


# --- writing ---------------------------------------------------------------------------------------------------------
def write(tensor: Lazy, other: Lazy, no_grad: Callable[[], AbstractContextManager[None]]) -> None:
    """Give a tensor that is a view, or has views, the node of another one: its owner and all its views see it."""
    owner = _owner(tensor)
    if owner is tensor:
        tensor._take(other)
        return mark(tensor)
    if id(tensor) in _before.get():
        raise _written_by_capture(tensor)
    is_constant = _is_constant(tensor._link)
    if is_constant and other._requires_grad:
        raise GradientError(
            "a write of a value with requires_grad through detach(): its gradient would be lost. Write to the "
            "tensor itself, or give the value as .detach()."
        )
    if owner.uop.op is Ops.ASSIGN and isinstance(owner.uop.storage, Buffer) and current_recording() is None:
        owner._settle(owner.uop)  # the value of an earlier write is in memory: its graph is done with
    with no_grad() if is_constant else contextlib.nullcontext():
        node = owner.uop
        value, region = _lifted(tensor._link, node, *_parts(other.uop, tensor.uop))
        given = None if _is_whole(region, node.shape) else tuple(region)
        # a repeated write overwrites the earlier one
        while node.op is Ops.ASSIGN and node.storage is None and node.arg == given:
            node = node.src[0]
        owner._take(owner._result(assign(node, value, given), other))
    mark(owner)
    return None


def _owner(tensor: Lazy) -> Lazy:
    """The tensor that a write to this one goes to. Where the owner is gone it is the view that shows all others."""
    last = tensor._link
    if type(last) is not tuple:
        return tensor
    memory: Memory = last[0]
    owner = memory.owner()
    if owner is not None:
        return owner
    others = memory.others(tensor)
    overlapping = [view for view in others if _overlap(last, view._link)]
    if not overlapping:
        tensor._link = None
        return tensor
    chains = {id(view): {id(step) for step in _chain(view._link)} for view in (tensor, *others)}
    for root in sorted((tensor, *overlapping), key=lambda view: len(chains[id(view)])):
        own = root._link
        shown = [view for view in (tensor, *others) if view is not root and id(own) in chains[id(view)]]
        apart = [view for view in others if view is not root and not any(view is one for one in shown)]
        if (root is tensor or any(view is tensor for view in shown)) and not any(
            _overlap(own, view._link) for view in apart
        ):
            root._link = new = Memory(root)
            for view in shown:
                view._link = _moved(view._link, own, new)
                new.note(view)
            return root
    raise KernmillError(
        f"t[..] = v: a view of shape {show_shape(tensor.uop.shape)} overlaps another view, and their base tensor "
        "no longer exists. Keep a reference to the base tensor, or write x = x.clone() before."
    )


def _moved(last: Any, stop: Any, memory: Memory) -> Any:
    """The links after `stop` as links from another owner."""
    return None if last is stop else (memory, _moved(last[1], stop, memory), *last[2:])


def _overlap(a: Any, b: Any) -> bool:
    """True if two views of one owner may show the same element."""
    found = [_layout(a), _layout(b)]
    arrays: list[Any] = []
    import numpy as np

    for layout in found:
        if layout is None or not all(isinstance(n, int) for n in (layout[0], *(n for axis in layout[1] for n in axis))):
            return True
        arrays.append(np.asarray(_Extent(*layout)))
    try:
        return bool(np.shares_memory(arrays[0], arrays[1], max_work=_WORK))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


class _Extent:
    """Addresses of one byte for each element, which are never read."""

    def __init__(self, offset: int, axes: list[tuple[int, int]]) -> None:
        self.__array_interface__ = {
            "version": 3, "typestr": "|u1", "data": ((1 << 40) + offset, True),
            "shape": tuple(size for size, _ in axes), "strides": tuple(stride for _, stride in axes),
        }  # fmt: skip


def _is_whole(region: Region, shape: Sequence[Size]) -> bool:
    return region == [(0, size, 1) for size in shape]


def _whole(shape: Sequence[Size]) -> Region:
    return [(0, size, 1) for size in shape]


def _parts(new: UOp, old: UOp) -> tuple[UOp, Region]:
    """A value and the region that it replaces in a tensor of node `old`, which becomes `new`."""
    node = new.src[0] if new.op is Ops.DETACH else new
    if node.op is Ops.ASSIGN and node.src[0] is old:
        return node.src[1], _whole(old.shape) if node.arg is None else list(node.arg)
    return new, _whole(new.shape)


def _lifted(last: Any, node: UOp, value: UOp, region: Region) -> tuple[UOp, Region]:
    """Return the value and region of the owner's assignment for a write of `value` into a region of a view."""
    steps, nodes = _chain(last), [node]
    for _, _, change, argument in steps:
        nodes.append(change(nodes[-1], argument))
    for (_, _, change, argument), parent, child in zip(steps[::-1], nodes[-2::-1], nodes[:0:-1], strict=True):
        if change is permute:
            order = [list(argument).index(axis) for axis in range(len(argument))]
            value, region = permute(value, order), [region[axis] for axis in order]
        elif change is shrink:
            region = [
                (at + start, at + stop, step) for (at, _), (start, stop, step) in zip(argument, region, strict=True)
            ]
        elif change is strided:
            value = strided(value, [-1 if k < 0 else 1 for k in argument])
            region = [_stepped(k, size, part) for k, size, part in zip(argument, parent.shape, region, strict=True)]
        elif change is expand and child is not parent:
            raise ShapeError(
                f"t[..] = v: t repeats elements by expand, {show_shape(parent.shape)} -> {show_shape(child.shape)}. "
                "Write to the tensor that was expanded, or to t.clone()."
            )
        elif change is reshape:
            value, region = _merged(parent, child, value, region)
        elif change is diagonal:
            whole = value if _is_whole(region, child.shape) else assign(child, value, tuple(region))
            value, region = _with_diagonal(parent, whole, argument), _whole(parent.shape)
    return value, region


def _stepped(k: int, size: Any, part: tuple[Any, Any, int]) -> tuple[Any, Any, int]:
    """A region of one axis, of which a view shows every k-th entry."""
    start, stop, step = part
    if k == 1:
        return part
    first, last = start * abs(k), (start + (stop - start - 1) // step * step) * abs(k)
    if k < 0:
        first, last = size - 1 - last, size - 1 - first
    return first, last + 1, step * abs(k)


def _merged(parent: UOp, child: UOp, value: UOp, region: Region) -> tuple[UOp, Region]:
    """A region of a reshaped tensor as one of the tensor before: itself where only axes of size 1 differ."""
    axes = [part for part, size in zip(region, child.shape, strict=True) if not (isinstance(size, int) and size == 1)]
    sizes = [size for size in parent.shape if not (isinstance(size, int) and size == 1)]
    own = [size for size in child.shape if not (isinstance(size, int) and size == 1)]
    if len(own) == len(sizes) and all(a is b or a == b for a, b in zip(own, sizes, strict=True)):
        parts = iter(axes)
        region = [(0, 1, 1) if isinstance(size, int) and size == 1 else next(parts) for size in parent.shape]
        return reshape(value, [_length(part) for part in region]), region
    whole = value if _is_whole(region, child.shape) else assign(child, value, tuple(region))
    return reshape(whole, parent.shape), _whole(parent.shape)


def _length(part: tuple[Any, Any, int]) -> Any:
    start, stop, step = part
    return (stop - start + step - 1) // step
