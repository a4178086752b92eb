"""Graphs of traced functions, rewritten: other nodes for their inputs, or all values of a batch at once.

A traced function has read placeholders, which have no values. `Rewriter` builds its graph again, with a table that says
what each placeholder becomes. Gradients that nodes define themselves (`KNOWN`) are rewritten when they are needed. The
rule runs on the old node, with a placeholder for the gradient, and its graph is rewritten too. So a rewritten graph has
gradients of every order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kernmill.ir import (
    DType,
    Ops,
    Shape,
    UOp,
    apart,
    elementwise,
    expand,
    iota,
    numel,
    permute,
    reduce_axes,
    reshape,
    take,
    with_sources,
)
from kernmill.runtime import Placeholder, buffer_node

from ..lazy import KNOWN, SEALED

__all__ = ["Rewriter", "placeholder"]

_NOTHING = (
    "custom_gradient: the function of the gradient reads values (numpy(), item(), a comparison in an if). It is called "
    "before there are any. Use where()."
)


def placeholder(dtype: DType, shape: Shape, device: str, message: str = _NOTHING) -> UOp:
    """Make a node without values, which no movement looks through."""
    memory = Placeholder(device, dtype, numel(shape), message)  # type: ignore[arg-type]
    return apart(buffer_node(memory, shape), is_constant=False)


class Rewriter:
    """Rewrites graphs by a table of placeholders and other nodes.

    With `batch` the nodes of the table are batches: their first axis, of that size, has a value for each member. A
    rewritten node that depends on one of them is a batch as well.
    """

    def __init__(self, table: Mapping[UOp, UOp], batch: int | None = None) -> None:
        self.table, self.batch = dict(table), batch
        self._new: dict[UOp, UOp] = dict(table)

    def depends(self, node: UOp) -> bool:
        """True if the node was rewritten: it depends on the table."""
        return self._new.get(node, node) is not node

    def __call__(self, root: UOp) -> UOp:
        """The node that stands for `root`: itself, if it does not depend on the table."""
        for node in root.toposort(stop=self._new.__contains__):
            if node not in self._new:
                self._new[node] = self._rewritten(node)
        return self._new[root]

    def _rewritten(self, node: UOp) -> UOp:
        if not any(self._new[s] is not s for s in node.src):
            return node
        src = tuple([self._new[s] for s in node.src])
        new = with_sources(node, src) if self.batch is None else self._batched(node)
        if node.own:
            new = apart(new, is_constant=node.own == 2)
        if new.origin is None:
            new.origin = node.origin
        if (known := KNOWN.get(node)) is not None:
            self._keep_rule(node, new, *known)
        return new

    def _keep_rule(self, node: UOp, new: UOp, below: Any, rule: Callable[..., Any]) -> None:
        """Give the new node the gradient of the old one. The rule holds no new node: none would be released."""
        sources = below if isinstance(below, tuple) else (below,)
        for source in sources:
            self(source)
        depending = {s: self._new[s] for s in sources if self.depends(s)}
        table, batch = {**self.table, **depending}, self.batch
        if new in table.values() or not depending:
            return

        def rewritten_rule(_: UOp, __: Any, grad: UOp) -> list[UOp | None]:
            seed = placeholder(node.dtype, node.shape, "nowhere")
            found = rule(node, below, seed)
            parts = found if isinstance(below, tuple) else [found]
            again = Rewriter({**table, seed: grad}, batch)
            return [None if part is None else again._fitting(again(part), part, source)
                    for source, part in zip(sources, parts, strict=True)]  # fmt: skip

        KNOWN[new] = tuple([self._new[s] for s in sources]), rewritten_rule
        if node in SEALED:
            SEALED.add(new)

    def _fitting(self, new: UOp, old: UOp, source: UOp) -> UOp:
        """The gradient for a rewritten source. A source that is not a batch gets the sum over the batch."""
        if self.batch is None:
            return new
        wide = new if new is not old else self.wide(new, old)
        self(source)
        if self.depends(source):
            return wide
        return reshape(reduce_axes(wide, Ops.ADD, (0,)), source.shape)

    # --- batches
    def wide(self, new: UOp, old: UOp) -> UOp:
        """Repeat a node that is not a batch."""
        assert self.batch is not None
        return expand(reshape(new, (1, *old.shape)), (self.batch, *old.shape))

    def _batched(self, node: UOp) -> UOp:
        """The batch of a node of which some source is a batch."""
        assert self.batch is not None
        if node.op.is_elementwise:
            src = [self._new[s] if self.depends(s) else s if s.op is Ops.CONST and not s.shape else self._as_batch(s)
                   for s in node.src]  # fmt: skip
            return node.replace(src=tuple(src))
        return _RULES[node.op](self, node)

    def _as_batch(self, s: UOp) -> UOp:
        return self._new[s] if self.depends(s) else self.wide(s, s)


def _with_batch_axis(more: Callable[[Any, int], Any]) -> Callable[[Rewriter, UOp], UOp]:
    """A rule that changes the arg of an op of one source, for another first axis of a given size."""

    def rule(batch: Rewriter, node: UOp) -> UOp:
        assert batch.batch is not None
        return node.replace(src=(batch._as_batch(node.src[0]),), arg=more(node.arg, batch.batch))

    return rule


def _batched_reshape(batch: Rewriter, node: UOp) -> UOp:
    assert batch.batch is not None
    return reshape(batch._as_batch(node.src[0]), (batch.batch, *node.arg))


def _batched_permute(batch: Rewriter, node: UOp) -> UOp:
    return permute(batch._as_batch(node.src[0]), (0, *(axis + 1 for axis in node.arg)))


def _batched_take(batch: Rewriter, node: UOp) -> UOp:
    data, index = node.src
    axis, rank, b = node.arg, len(index.shape), batch.batch
    assert b is not None
    if not batch.depends(index):
        return node.replace(src=(batch._new[data], index), arg=axis + 1)
    if not batch.depends(data):  # the batch is the first axis of the index
        found = take(data, batch._new[index], axis)
        return permute(found, (axis, *range(axis), *range(axis + 1, len(found.shape))))
    size = data.shape[axis]
    rows = permute(batch._new[data], (0, axis + 1, *(a for a in range(1, len(data.shape) + 1) if a != axis + 1)))
    rows = reshape(rows, (b * size, *rows.shape[2:]))
    first = reshape(iota(b) * size, (b,) + (1,) * rank)
    found = take(rows, elementwise(Ops.ADD, batch._new[index].cast(first.dtype), first), 0)
    order = (0, *(1 + rank + a for a in range(axis)), *range(1, 1 + rank), *range(1 + rank + axis, len(found.shape)))
    return permute(found, order)


def _batched_assign(batch: Rewriter, node: UOp) -> UOp:
    old, value = node.src
    region = node.arg
    shape = old.shape if region is None else [-((a - z) // step) for a, z, step in region]
    wide = batch._as_batch(value)
    wide = reshape(wide, (wide.shape[0], *(1,) * (len(shape) - len(value.shape)), *value.shape))
    wide = expand(wide, (wide.shape[0], *shape))
    return node.replace(
        src=(batch._as_batch(old), wide), arg=None if region is None else ((0, wide.shape[0], 1), *region)
    )


def _batched_check(batch: Rewriter, node: UOp) -> UOp:
    x, bad = node.src
    flag = batch._new[bad]
    if batch.depends(bad):
        flag = reshape(reduce_axes(flag, Ops.OR, (0,)), ())
    return node.replace(src=(batch._as_batch(x), flag))


def _batched_wait(batch: Rewriter, node: UOp) -> UOp:
    return node.replace(src=(batch._as_batch(node.src[0]), *(batch._new[s] for s in node.src[1:])))


_SHARED = frozenset({("fft", 1)})  # sources of routines that all matrices of a batch read: tables


def _batched_routine(batch: Rewriter, node: UOp) -> UOp:
    """More matrices: the batch is the outermost axis, or with interleaved values that of matrices."""
    name, count, matrices, is_interleaved, *sizes = node.arg
    b = batch.batch
    assert b is not None

    def order(x: UOp, columns: int, outer: Sequence[int]) -> UOp:
        return permute(reshape(x, outer), (1, 0, 2)) if is_interleaved else x

    src = []
    for number, s in enumerate(node.src):
        if (name, number) in _SHARED:
            src.append(s)
            continue
        rows = order(batch._as_batch(s), matrices, (b, s.shape[0] // matrices, matrices))
        src.append(reshape(rows, (b * s.shape[0],)))
    made = UOp(Ops.ROUTINE, node.dtype, tuple(src), (name, b * count, b * matrices, is_interleaved, *sizes))
    return reshape(order(made, matrices, (count // matrices, b, matrices)), (b, count))


def _reduce_arg(arg: Any, _: int) -> Any:
    return arg[0], tuple(axis + 1 for axis in arg[1])


def _axis_first(arg: Any, _: int) -> Any:
    return arg[0] + 1, *arg[1:]


_RULES: dict[Any, Callable[[Rewriter, UOp], UOp]] = {
    Ops.RESHAPE: _batched_reshape,
    Ops.PERMUTE: _batched_permute,
    Ops.TAKE: _batched_take,
    Ops.ASSIGN: _batched_assign,
    Ops.CHECK: _batched_check,
    Ops.WAIT: _batched_wait,
    Ops.ROUTINE: _batched_routine,
    Ops.EXPAND: _with_batch_axis(lambda arg, b: (b, *arg)),
    Ops.PAD: _with_batch_axis(lambda arg, b: ((0, b), *arg)),
    Ops.SHRINK: _with_batch_axis(lambda arg, b: ((0, b), *arg)),
    Ops.STRIDE: _with_batch_axis(lambda arg, b: ((1, b), *arg)),
    Ops.WINDOW: _with_batch_axis(_axis_first),
    Ops.UNWINDOW: _with_batch_axis(_axis_first),
    Ops.REDUCE: _with_batch_axis(_reduce_arg),
    **dict.fromkeys((Ops.CONTIGUOUS, Ops.COPY, Ops.DETACH), _with_batch_axis(lambda arg, _: arg)),
}
