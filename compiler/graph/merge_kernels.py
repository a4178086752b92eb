"""Multi-output fusion: kernels with the same loops over the same data become one with several results.

When: after find_hazards, on kernels in order. Why there: only now is it known what an assignment overwrites, and which
kernels share their loops. A step of Adam is three assignments. As one kernel it reads the gradient, both means and the
parameter once, and writes three of them once.

Two kernels without reductions are merged under three conditions. Each iteration accesses a common element in both. Each
reads what the other one writes only at the index where it is written. One of them can move to the other past all items
between them. Results of the first one are passed in registers; if nothing else reads them, they are not stored.
Guarantees: the same results, and never more live bytes. Tests: tests/compiler/graph/test_merge_kernels.py.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache

from kernmill.ir import GraphPlan, Item, Kernel, Ops, UOp, distinct, simplify, substitute

from ..kernel.facts import MOST_CODE, code_cost, loops_of, numbered, order_of, routine_of
from .plan_memory import Alive, buffers_of, outputs_of

__all__ = ["merge_kernels"]

_MOST_BUFFERS = 12  # of a kernel: each is a separate access stream


def merge_kernels(plan: GraphPlan) -> GraphPlan:
    """Return the plan, with fewer items if kernels could be merged."""
    items = _Items(plan)
    alike: dict[Hashable, set[int]] = {}  # kernels without reductions, by loops and an element that all of them access
    for at, item in enumerate(plan.items):
        if not isinstance(item, Kernel) or not _is_plain(item.ast):
            continue
        position, waiting = at, _earlier(item, alike, at)
        while waiting:
            n = waiting.pop()
            if items.join(n, at):
                position = n if items.items[at] is None else at
                waiting = _earlier(items.items[at], alike, n)
        for key in _keys(items.items[position]):
            alike.setdefault(key, set()).add(position)
    return replace(plan, items=[item for item in items.items if item is not None])


def _earlier(item: Item | None, alike: dict[Hashable, set[int]], before: int) -> list[int]:
    """Return the kernels that this one may be merged with, the last of them first to be popped."""
    return sorted({n for key in _keys(item) for n in alike.get(key, ()) if n < before})


def _keys(item: Item | None) -> Iterator[Hashable]:
    """Yield what two kernels must share: the loops, and an index in a buffer that differs in each iteration."""
    if isinstance(item, Kernel):
        loops = _loops(item.ast)
        for slot, indices in _accessed_indices(item.ast).items():
            for index in indices:
                if index.src[1].ranges == loops:
                    yield item.device, loops, item.buffers[slot], index


class _Items:
    """The items of a plan during merging: a kernel that was merged into another one leaves None."""

    def __init__(self, plan: GraphPlan) -> None:
        self.items: list[Item | None] = [*plan.items]
        self.alive = Alive(plan.items, plan.buffers)
        self.touching: dict[int, list[int]] = {}  # positions of items, by buffer
        self.writing: dict[int, list[int]] = {}
        for at, item in enumerate(plan.items):
            self._insert(at, item)

    def _insert(self, at: int, item: Item) -> None:
        self.items[at] = item
        for number in buffers_of(item):
            insort(self.touching.setdefault(number, []), at)
        for number in outputs_of(item):
            insort(self.writing.setdefault(number, []), at)

    def _remove(self, at: int, item: Item) -> None:
        self.items[at] = None
        for number in buffers_of(item):
            self.touching[number].remove(at)
        for number in outputs_of(item):
            self.writing[number].remove(at)

    def _can_pass(self, kernel: Kernel, first: int, second: int) -> bool:
        """True if the kernel can move past all that runs between two positions."""
        written = (self.writing.get(number, ()) for number in kernel.buffers)
        touched = (self.touching[number] for number in kernel.outputs)
        return not any(_is_between(positions, first, second) for positions in (*written, *touched))

    def join(self, first: int, second: int) -> bool:
        """Merge two kernels at the position of one of them, if it can be reached past all items between, and if it
        takes no more memory than before."""
        one, other = self.items[first], self.items[second]
        if not isinstance(one, Kernel) or not isinstance(other, Kernel):
            return False
        shared = [n for n in one.buffers if n in other.buffers]
        if not shared or len({*one.buffers, *other.buffers}) > _MOST_BUFFERS or not _fit(one, other, shared):
            return False
        if code_cost(one.ast) + code_cost(other.ast) > MOST_CODE:
            return False
        position = second if self._can_pass(one, first, second) else None
        position = first if self._can_pass(other, first, second) else position
        if position is None:
            return False
        both = {first, second}
        merged = _merged(one, other, {n for n in one.outputs if self.alive.touched.get(n) == both})
        if not self.alive.moved(both, position, {*one.buffers, *other.buffers}, merged.buffers):
            return False
        self._remove(first, one)
        self._remove(second, other)
        self._insert(position, merged)
        return True


def _is_between(positions: Sequence[int], first: int, second: int) -> bool:
    """True if one of the positions, which are in order, is after `first` and before `second`."""
    after = bisect_right(positions, first)
    return after < len(positions) and positions[after] < second


@lru_cache(maxsize=1024)
def _loops(ast: UOp) -> frozenset[UOp]:
    return frozenset(node for node in ast.toposort() if node.op is Ops.RANGE)


def _is_plain(ast: UOp) -> bool:
    """True if all loops are the output's: there are no reductions, no row buffers and no routine."""
    return routine_of(ast) is None and loops_of(ast).keys() <= set(order_of(ast))


@lru_cache(maxsize=1024)
def _accessed_indices(ast: UOp) -> dict[int, set[UOp]]:
    """Return for each slot the indices that a kernel accesses, written as if all were slot 0."""
    indices: dict[int, set[UOp]] = {}
    for node in ast.toposort():
        if node.op is Ops.INDEX:
            param = node.src[0]
            index = node.replace(src=(param.replace(arg=(0, param.arg[1])), *node.src[1:]))
            indices.setdefault(param.arg[0], set()).add(index)
    return indices


def _fit(one: Kernel, other: Kernel, shared: list[int]) -> bool:
    """True if both access a common element in each iteration, and what one of them writes the other only reads, at
    that index."""
    mine, theirs, is_same = _accessed_indices(one.ast), _accessed_indices(other.ast), False
    for n in shared:
        here, there = mine[one.buffers.index(n)], theirs[other.buffers.index(n)]
        is_same |= any(index.src[1].ranges == _loops(one.ast) for index in here & there)
        if (n in one.outputs or n in other.outputs) and (here != there or len(here) > 1):
            return False
    return is_same and set(one.outputs).isdisjoint(other.outputs)


def _merged(one: Kernel, other: Kernel, gone: set[int]) -> Kernel:
    """Merge both into one; results of the first are passed on, and those that are `gone` are not stored."""
    buffers = tuple(dict.fromkeys((*one.buffers, *other.buffers)))
    slots = tuple(buffers.index(n) for n in other.buffers)
    ast, used = _merged_asts(one.ast, other.ast, slots, tuple(n not in gone for n in one.outputs))
    outputs = tuple(n for n in (*one.outputs, *other.outputs) if n not in gone)
    origins = distinct((*one.made()[1], *other.made()[1]))
    return Kernel.of(ast, tuple(buffers[slot] for slot in used), outputs, one.device, origins)


@lru_cache(maxsize=1024)  # equal layers are merged once
def _merged_asts(one: UOp, other: UOp, slots: tuple[int, ...], kept: tuple[bool, ...]) -> tuple[UOp, tuple[int, ...]]:
    params = [node for node in other.toposort() if node.op is Ops.PARAM]
    other = substitute(other, {param: param.replace(arg=(slots[param.arg[0]], *param.arg[1:])) for param in params})
    stored = {store.src[0]: store.src[1] for store in one.src}
    loads = [node for node in other.toposort() if node.op is Ops.LOAD and node.src[0] in stored]
    other = substitute(other, {load: stored[load.src[0]] for load in loads})
    stores = [store for store, is_kept in zip(one.src, kept, strict=True) if is_kept]
    return numbered(simplify(one.replace(src=(*stores, *other.src))))
