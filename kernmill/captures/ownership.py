"""Tensors and their memory in captures: which exist before one, are realized, shared, moved, owned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from operator import is_, sub
from sys import getrefcount
from typing import Any

from kernmill.ir import IndexRangeError, KernmillError, Ops, UOp, reshape, uops_in
from kernmill.runtime import STALE, Buffer, Recording, allocate_buffer, buffer_node, copy_between, take_over

from ..lazy import Lazy, tracked_tensors
from ..tensor import Tensor, _leaf_numbers, _leaves, _register, _stored
from ..views import mark
from .pytree import Kind, Parts, contents, kind_of

__all__ = [
    "LONE",
    "Holders",
    "Tensors",
    "alive_tensors",
    "assigned_tensors",
    "buffer_of",
    "chain",
    "constant_in",
    "hold",
    "is_free",
    "make_ready",
    "make_real",
    "own",
    "refresh",
    "release",
    "shared_memory",
    "stored",
]

LONE = next(map(getrefcount, [object()]))  # reference count of an object in one list

stored = _stored


def alive_tensors() -> list[Lazy]:
    """Return every live tensor, except stale views: they are rebuilt from their tensor when they are read."""
    return [tensor for _, tensor in tracked_tensors() if "uop" in tensor.__dict__]


def assigned_tensors() -> list[Lazy]:
    """Tensors, known or not, with an assignment that is still to be done: a replay must find it done."""
    return [tensor for tensor in alive_tensors() if tensor.uop.op is Ops.ASSIGN]


def make_real(tensors: Sequence[Lazy], *, always: bool = False) -> None:
    """Realize these together; with `always` the state of the random numbers even if nothing else is lazy."""
    lazy = [t for t in {id(t): t for t in tensors}.values() if stored(t.uop) is None]
    if not lazy and always:
        lazy = [t for t in Tensor._states() if stored(t.uop) is None]
    if lazy:
        first: Any = lazy[0]
        first.realize(*lazy[1:])


def make_ready(tensors: Sequence[Lazy]) -> None:
    """Realize these tensors, except those that fail: an index is out of range, or memory is gone. Later reads raise
    the error."""
    try:
        make_real(tensors)
    except KernmillError as error:
        if type(error) not in (KernmillError, IndexRangeError):
            raise
        for tensor in tensors if len(tensors) > 1 else ():
            make_ready([tensor])


def is_free(tensor: Lazy) -> bool:
    """True if it consists of constants only: it needs no memory."""
    return all(node.storage is None for node in tensor.uop.toposort(stop=lambda u: u.storage is not None))


def constant_in(node: UOp) -> UOp:
    """Return the interned node in a tensor's own node: equal constants have the same one."""
    return node.src[0] if node.own and node.op is Ops.RESHAPE else node


def buffer_of(tensor: Lazy) -> Buffer | None:
    """The memory of a realized tensor.

    Raises:
        KernmillError: an assignment to another tensor took it over.
    """
    node = stored(tensor.uop)
    if node is None:
        return None
    if node.storage is STALE:
        raise KernmillError(
            "jit: a tensor was overwritten in place before it was computed. Realize it before assigning, or keep "
            "a .clone()."
        )
    found: Buffer = node.storage
    return found


def hold(tensor: Lazy, node: UOp) -> None:
    """Give a tensor the memory behind a BUFFER node; a leaf stays a leaf."""
    is_leaf = tensor.requires_grad and isinstance(tensor, Tensor) and tensor._is_leaf()
    shape = tensor.uop.shape
    tensor._put(reshape(node, shape))
    tensor._device = node.storage.device
    if is_leaf:
        leaf = UOp(Ops.DETACH, tensor.dtype, (tensor.uop,), 0)
        owner = _leaves.get(leaf)
        if owner is not None and owner() is not tensor:  # a copy, which shares the memory: each is a separate leaf
            leaf = UOp(Ops.DETACH, tensor.dtype, (tensor.uop,), next(_leaf_numbers))
        tensor._put(leaf)
        _register(tensor)  # type: ignore[arg-type]


def refresh(tensors: Iterable[Lazy]) -> dict[int, list[UOp]]:
    """Make new nodes over the same memory, one for each tensor, and return the old nodes by buffer. No expression of an
    earlier call then counts as computed, and a tensor that was given another one's memory can be distinguished from its
    owner."""
    old: dict[int, list[UOp]] = {}
    new: dict[int, UOp] = {}
    for tensor in {id(t): t for t in tensors}.values():
        node = stored(tensor.uop)
        is_history = tensor.requires_grad and isinstance(tensor, Tensor) and not tensor._is_leaf()
        if node is None or node.storage is STALE or is_history:
            continue
        old.setdefault(id(node.storage), []).append(node)
        new[id(node.storage)] = buffer_node(node.storage)
        hold(tensor, new[id(node.storage)])
    for tensor in alive_tensors() if new else []:  # tensors with the old node would not be counted any more
        node = stored(tensor.uop)
        is_history = tensor.requires_grad and isinstance(tensor, Tensor) and not tensor._is_leaf()
        if node is not None and node in old.get(id(node.storage), ()) and not is_history:
            hold(tensor, new[id(node.storage)])
    return old


def shared_memory() -> set[int]:
    """Return the ids of all memory that several tensors share, or that an expression reads: it must not be written
    in place."""
    owners: Counter[int] = Counter()
    lazy: list[UOp] = []
    for tensor in alive_tensors():
        node = stored(tensor.uop)
        if node is None:
            lazy.append(tensor.uop)
        else:
            owners[id(node.storage)] += 1
    below = UOp(Ops.SINK, lazy[0].dtype, tuple(lazy)).toposort(stop=lambda u: u.storage is not None) if lazy else []
    read = {id(node.storage) for node in below if node.storage is not None}
    return read.union(memory for memory, count in owners.items() if count > 1)


def release(gradients: Sequence[Lazy], references: Iterable[int], used: Iterable[Buffer] = ()) -> list[Lazy]:
    """Free the memory of gradients that a captured function drops, before the new ones need as much again, and return
    these. `references` of each do not count: with any other one it is kept, like memory that is `used` or shared."""
    counts = [*map(sub, map(getrefcount, gradients), references)]
    unused = [gradient for gradient, count in zip(gradients, counts, strict=True) if count == LONE]
    kept = shared_memory().union(map(id, used)) if unused else set[int]()
    released = []
    for gradient in unused:
        node = stored(gradient.uop)
        buffer = None if node is None else node.storage
        if node is not None and isinstance(buffer, Buffer) and buffer.is_ours and id(buffer) not in kept:
            take_over(node)
            released.append(gradient)
    return released


def own(tensor: Lazy, shared: Container[int]) -> Buffer:
    """Return memory without other references by tensors, expressions or NumPy views: the tensor's own, or a copy.
    `shared`: the result of `shared_memory` before the first of several tensors."""
    buffer, node = buffer_of(tensor), stored(tensor.uop)
    assert buffer is not None
    assert node is not None
    is_taken = buffer.is_ours and id(buffer) not in shared
    if is_taken:
        new = Buffer(buffer.device, buffer.dtype, buffer.numel, buffer.owner, buffer.address)
    else:
        new = allocate_buffer(buffer.device, buffer.dtype, buffer.numel)
        copy_between(new, buffer)
    new.is_state = True
    hold(tensor, buffer_node(new))
    mark(tensor)
    if is_taken:
        take_over(node)  # last: another thread may read the tensor meanwhile
    return new


def chain(uop: UOp) -> list[UOp]:
    """The nodes from a realized tensor's down to its BUFFER."""
    found = [uop]
    while found[-1].src:
        found.append(found[-1].src[0])
    return found


class Tensors:
    """The tensors that exist before a capture: arguments, those at locations of the walk, all others alive."""

    def __init__(self, arguments: Sequence[Lazy], guarded: Iterable[Lazy], everything: Sequence[Lazy]) -> None:
        self.arguments = list(arguments)
        self.grads = [tensor.grad for tensor in arguments]
        self.guarded = list(guarded)
        known = {id(t) for t in (*self.arguments, *self.guarded)}
        self.others = [t for t in everything if id(t) not in known]
        self.buffers = {id(t): buffer_of(t) for t in (*self.arguments, *self.guarded) if stored(t.uop) is not None}
        for tensor in self.others:
            node = stored(tensor.uop)
            if node is not None and node.storage is not STALE:
                self.buffers[id(tensor)] = node.storage
        self.nodes = {id(t): t.uop for t in self.others}
        self.constants = {id(t): t.uop for t in self.guarded if id(t) not in self.buffers}  # they have no memory
        self._own_nodes: dict[int, UOp | None] = {}
        self.renewed: dict[int, list[UOp]] = {}  # the nodes of buffers before the capture

    def renew(self) -> None:
        """`refresh` arguments and tensors at locations."""
        self.renewed = refresh(self.reachable())
        self._own_nodes = {id(t): stored(t.uop) for t in self.reachable()}

    def release(self, gradients: Sequence[Lazy], held: Iterable[Iterable[Lazy | None]], used: Iterable[Buffer]) -> None:
        """`release` gradients that the function has dropped. `held`: what else refers to tensors in a capture; `used`:
        buffers that the recording reads."""
        lists: tuple[Iterable[Lazy | None], ...] = (self.arguments, self.grads, self.guarded, self.others, *held)
        ours = Counter(id(tensor) for tensors in lists for tensor in tensors)
        for gradient in release(gradients, [ours[id(gradient)] for gradient in gradients], used):
            for node in self.renewed.pop(id(self.buffers.pop(id(gradient), None)), ()):
                take_over(node)

    def is_given(self, tensor: Lazy) -> bool:
        """True if it may have been given memory of another tensor that it shared before."""
        return id(tensor) in self._own_nodes and stored(tensor.uop) is not self._own_nodes[id(tensor)]

    def reachable(self) -> list[Lazy]:
        """Return arguments and tensors at locations."""
        return [*self.arguments, *self.guarded]

    def gradients(self) -> list[Lazy]:
        """Gradients that arguments were given since."""
        return [t.grad for t in self.arguments if t.grad is not None]

    def changed(self, recorded: Recording) -> list[Lazy]:
        """Return tensors that were assigned since: arguments, those at locations, and others whose values depend on
        ours."""
        alive = [t for t in self.others if "uop" in t.__dict__]  # a stale view is rebuilt from its tensor
        lazy = [t for t in alive if t.uop is not self.nodes[id(t)] and stored(t.uop) is None]
        return [
            *[t for t in self.reachable() if stored(t.uop) is None and t.uop is not self.constants.get(id(t))],
            *self.coming_from(lazy, recorded),
        ]

    def coming_from(self, tensors: Iterable[Lazy], recorded: Recording) -> list[Lazy]:
        """Return those of the tensors whose values depend on ours, on the recording or on variables, which have values
        in this call only, and not on another thread."""
        ours = {id(b) for t in self.reachable() if (b := self.buffers.get(id(t))) is not None}
        ours |= set(map(id, recorded.buffers()))
        comes: dict[UOp, bool] = {}  # one walk for all: assignments of later layers depend on the earlier ones
        for tensor in tensors:
            for node in tensor.uop.toposort(stop=lambda u: u.storage is not None or u in comes):
                if node not in comes:
                    is_kept = node.storage is not None
                    # another thread may have taken its memory over since: then nothing below was looked at
                    has_variable = node.op is Ops.VARIABLE or bool(uops_in(node.arg))
                    is_from_below = has_variable or any(comes.get(s) for s in node.src)
                    comes[node] = id(node.storage) in ours if is_kept else is_from_below
        return [t for t in tensors if comes[t.uop]]


class Holders:
    """The mutable containers of arguments, and their parts before a capture."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.before = [contents(holder, _kind(holder)) for holder in parts.holders]

    def changed(self) -> Iterator[tuple[int, Kind, dict[Any, Any], dict[Any, Any]]]:
        """Yield number, kind, and parts before and after, of each container that changed."""
        for number, (holder, before) in enumerate(zip(self.parts.holders, self.before, strict=True)):
            after = contents(holder, _kind(holder))
            if list(before) != list(after) or not all(map(is_, before.values(), after.values())):
                yield number, _kind(holder), before, after


def _kind(holder: Any) -> Kind:
    kind = kind_of(holder)
    assert kind is not None
    return kind
