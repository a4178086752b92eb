"""class Entry: one captured call. Where the buffers of a recording come from, and where a replay puts what it made."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, is_
from sys import getrefcount
from typing import Any, NamedTuple

from kernmill.ir import KernmillError, Ops, UOp, reshape
from kernmill.runtime import STALE, Buffer, Recording, Replay, allocate_buffer, buffer_node, copy_between

from .guards import Guard, Walk
from .lazy import Lazy, _alive  # pyright: ignore[reportPrivateUsage]
from .nest import Kind, Parts, contents, kind_of, rebuild
from .reader import Reader
from .size import SymbolicSize
from .tensor import Tensor, _register, _stored  # pyright: ignore[reportPrivateUsage]

__all__ = [
    "Entry",
    "Holders",
    "Tensors",
    "alive_tensors",
    "assigned_tensors",
    "is_free",
    "make_real",
    "refresh",
    "stored",
    "tracked_tensors",
]

stored = _stored
_SPARE = 2  # buffers that a result may use again when its tensor is gone
_uop_of = attrgetter("uop")


# --- tensors and their memory ----------------------------------------------------------------------------------------
def tracked_tensors() -> list[tuple[int, Lazy]]:
    """Every tensor there is, with a number that it keeps."""
    return [(number, tensor) for number, ref in list(_alive.items()) if (tensor := ref()) is not None]


def alive_tensors() -> list[Lazy]:
    """Every tensor there is."""
    return [tensor for _, tensor in tracked_tensors()]


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


def is_free(tensor: Lazy) -> bool:
    """Made of constants only: it needs no memory."""
    return all(node.storage is None for node in tensor.uop.toposort(stop=lambda u: u.storage is not None))


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
            "jit: a tensor lost its memory to an assignment. Realize it before assigning, or keep a .clone()."
        )
    found: Buffer = node.storage
    return found


def hold(tensor: Lazy, node: UOp) -> None:
    """Give a tensor the memory behind a BUFFER node; a leaf stays a leaf."""
    is_leaf = tensor.requires_grad and isinstance(tensor, Tensor) and tensor._is_leaf()
    shape = tensor.uop.shape
    tensor.uop = reshape(node, shape)
    tensor._device = node.storage.device
    if is_leaf:
        tensor.uop = UOp(Ops.DETACH, tensor.dtype, (tensor.uop,), 0)
        _register(tensor)  # type: ignore[arg-type]


def refresh(tensors: Iterable[Lazy]) -> dict[int, list[UOp]]:
    """New nodes over the same memory: no expression of an earlier call counts as computed. The old nodes by buffer."""
    old: dict[int, list[UOp]] = {}
    new: dict[int, UOp] = {}
    for tensor in {id(t): t for t in tensors}.values():
        node = stored(tensor.uop)
        is_history = tensor.requires_grad and isinstance(tensor, Tensor) and not tensor._is_leaf()
        if node is None or node.storage is STALE or is_history:
            continue
        old.setdefault(id(node.storage), []).append(node)
        if id(node.storage) not in new:
            new[id(node.storage)] = buffer_node(node.storage)
        hold(tensor, new[id(node.storage)])
    return old


def own(tensor: Lazy) -> Buffer:
    """Memory that no other tensor, expression or NumPy view sees: what the tensor has, or a copy of it."""
    buffer, node = buffer_of(tensor), stored(tensor.uop)
    assert buffer is not None
    assert node is not None
    is_shared = buffer.is_borrowed or buffer.is_exported
    if is_shared or any(t is not tensor and _reaches(t.uop, buffer) for t in alive_tensors()):
        new = allocate_buffer(buffer.device, buffer.dtype, buffer.numel)
        copy_between(new, buffer)
    else:
        buffer.forget_makers()
        node.storage = STALE
        new = Buffer(buffer.device, buffer.dtype, buffer.numel, buffer.owner, buffer.address)
    hold(tensor, buffer_node(new))
    return new


def _reaches(uop: UOp, buffer: Buffer) -> bool:
    node = stored(uop)
    if node is not None:
        return node.storage is buffer
    return any(node.storage is buffer for node in uop.toposort(stop=lambda u: u.storage is not None))


def _chain(uop: UOp) -> list[UOp]:
    """The nodes from a realized tensor's down to its BUFFER."""
    found = [uop]
    while found[-1].src:
        found.append(found[-1].src[0])
    return found


class Tensors:
    """The tensors that there are before a capture: arguments, those at places the walk found, all others alive."""

    def __init__(self, arguments: Sequence[Lazy], places: Iterable[Lazy], everything: Sequence[Lazy]) -> None:
        self.arguments = list(arguments)
        self.grads = [tensor.grad for tensor in arguments]
        self.places = list(places)
        known = {id(t) for t in (*self.arguments, *self.places)}
        self.others = [t for t in everything if id(t) not in known]
        self.buffers = {id(t): buffer_of(t) for t in (*self.arguments, *self.places) if stored(t.uop) is not None}
        for tensor in self.others:
            node = stored(tensor.uop)
            if node is not None and node.storage is not STALE:
                self.buffers[id(tensor)] = node.storage
        self.nodes = {id(t): t.uop for t in self.others}

    def reachable(self) -> list[Lazy]:
        """Arguments and tensors at places."""
        return [*self.arguments, *self.places]

    def gradients(self) -> list[Lazy]:
        """Gradients that arguments were given since."""
        return [t.grad for t in self.arguments if t.grad is not None]

    def changed(self, recorded: Recording) -> list[Lazy]:
        """Tensors that were assigned since: arguments, those at places, and others whose values come from ours."""
        ours = {id(b) for t in self.reachable() if (b := self.buffers.get(id(t))) is not None}
        ours |= set(map(id, recorded.buffers()))
        lazy = [t for t in self.reachable() if stored(t.uop) is None and id(t) in self.buffers]
        for tensor in self.others:
            if tensor.uop is not self.nodes[id(tensor)] and stored(tensor.uop) is None:
                below = tensor.uop.toposort(stop=lambda u: u.storage is not None)
                if any(id(node.storage) in ours for node in below):
                    lazy.append(tensor)
        return lazy


class Holders:
    """The containers of arguments that can change, and what they held before a capture."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.before = [contents(holder, _kind(holder)) for holder in parts.holders]

    def value(self, holder: Any) -> _Value | None:
        """How a replay finds this container."""
        number = self.parts.number_of(holder)
        return None if number is None else _Value("holder", number)

    def changed(self) -> Iterator[tuple[int, Kind, dict[Any, Any], dict[Any, Any]]]:
        """Number, kind, and parts before and after, of each that holds others."""
        for number, (holder, before) in enumerate(zip(self.parts.holders, self.before, strict=True)):
            after = contents(holder, _kind(holder))
            if list(before) != list(after) or not all(map(is_, before.values(), after.values())):
                yield number, _kind(holder), before, after


def _kind(holder: Any) -> Kind:
    kind = kind_of(holder)
    assert kind is not None
    return kind


# --- what a replay makes ---------------------------------------------------------------------------------------------
class _Spare(NamedTuple):
    node: UOp
    uops: tuple[UOp, ...]
    counts: tuple[int, ...]


class _Fresh:
    """Memory for one result, new each time, or used again when nothing can see what was in it."""

    def __init__(self, buffer: Buffer) -> None:
        self.device, self.dtype, self.numel = buffer.device, buffer.dtype, buffer.numel
        self.shapes: list[Any] = []
        self._spares: list[_Spare] = []

    def shape(self, shape: Any) -> int:
        """The number of this shape."""
        if shape not in self.shapes:
            self.shapes.append(shape)
        return self.shapes.index(shape)

    def take(self) -> _Spare:
        """A buffer, with a node for each shape."""
        for spare in self._spares:
            buffer = spare.node.storage
            is_free = spare.counts == (getrefcount(spare.node), *map(getrefcount, spare.uops))
            if is_free and buffer is not STALE and not buffer.is_exported:
                return spare
        node = buffer_node(allocate_buffer(self.device, self.dtype, self.numel))
        uops = tuple([reshape(node, shape) for shape in self.shapes])
        spare = _Spare(node, uops, ())
        del node, uops
        counts = (getrefcount(spare.node), *map(getrefcount, spare.uops))
        spare = _Spare(spare.node, spare.uops, counts)
        self._spares = [spare, *self._spares[: _SPARE - 1]]
        return spare


@dataclass(slots=True)
class _Source:
    """A buffer of the recording that was there before; `members`: the tensors that held it, by number."""

    members: list[int]
    is_written: bool


class _Value(NamedTuple):
    """What a replay makes: a tensor (over a fresh buffer, a source as it was before, a constant; or the same one as
    before), a container of the arguments, or the number that a size is."""

    kind: str  # fresh, source, constant, same, holder, size
    which: int = 0
    shape: Any = None
    uop: UOp | None = None
    is_leaf: bool = False


class _Refill(NamedTuple):
    """A container of the arguments that other parts are put into. `parts`: by key, what makes one, or the old key."""

    holder: int
    kind: Kind
    parts: Mapping[Any, tuple[Any, Callable[[Any], Any] | None]]


@dataclass(slots=True)
class _Effects:
    """What a replay does to tensors and places, besides its result."""

    rebound: list[tuple[int, _Value]] = field(default_factory=list)
    grads: list[tuple[int, Callable[[Any], Any]]] = field(default_factory=list)  # argument, value
    refills: list[_Refill] = field(default_factory=list)
    places: Callable[[Any, Any], None] | None = None
    parts: list[Callable[[Any], Any]] = field(default_factory=list)
    known: list[tuple[int, int]] = field(default_factory=list)  # tensor at a guarded place, tensor made


class Entry:
    """One captured call, ready to be replayed."""

    def __init__(self, recorded: Recording, known: Tensors, guard: Guard, after: Walk, holders: Holders) -> None:
        self.guard = guard
        self._holders = holders
        self.read: Reader | None = None
        self._recorded, self._known, self._after = recorded, known, after
        self._arguments = len(known.arguments)
        self._tensors = [*known.arguments, *known.places]  # by number; `held` come after
        self._held: list[Lazy] = []
        self._number: dict[int, int] = {}
        for number, tensor in enumerate(self._tensors):
            self._number.setdefault(id(tensor), number)
        self._written = recorded.written()
        self._sources: dict[int, _Source] = {}
        self._source_buffers: list[Buffer] = []
        self._fresh: dict[int, tuple[int, _Fresh]] = {}
        self._fresh_buffers: list[Buffer] = []
        self._made: list[_Value] = []
        self._made_number: dict[int, int] = {}
        self._kept: list[Any] = []  # so that none of these ids becomes another's
        self._effects = _Effects()
        self._prepare()

    # --- sorting the buffers of the recording
    def _prepare(self) -> None:
        touched = {id(buffer) for buffer in self._recorded.buffers()}
        touched -= {id(self._known.buffers.get(id(tensor))) for tensor in self._tensors}
        for tensor in self._known.others:
            node = stored(tensor.uop)
            mine = self._known.buffers.get(id(tensor))
            is_moved = node is not None and node.storage is not mine
            if id(mine) in touched or (node is not None and is_moved and id(node.storage) in self._written):
                self._hold(tensor)
        self._owners: dict[int, list[int]] = {}
        reachable = self._arguments + len(self._known.places)
        for number, tensor in enumerate(self._tensors):
            buffer = self._known.buffers.get(id(tensor))
            if buffer is not None and (number < reachable or id(buffer) in touched):
                self._owners.setdefault(id(buffer), []).append(number)
        for buffer in self._recorded.buffers():
            if id(buffer) in self._owners:
                self._source(buffer)
            elif id(buffer) not in self._written:
                buffer.is_borrowed = True  # a constant of this capture: nobody may change it any more

    def _hold(self, tensor: Lazy) -> int:
        self._number[id(tensor)] = len(self._tensors)
        self._tensors.append(tensor)
        self._held.append(tensor)
        return len(self._tensors) - 1

    def _source(self, buffer: Buffer) -> int:
        if id(buffer) not in self._sources:
            self._sources[id(buffer)] = _Source(self._owners[id(buffer)], id(buffer) in self._written)
            self._source_buffers.append(buffer)
        return list(self._sources).index(id(buffer))

    def _value(self, tensor: Lazy) -> _Value:
        """How the memory of a tensor is found again in a replay."""
        node = stored(tensor.uop)
        shape = tensor.uop.shape
        is_leaf = tensor.requires_grad
        if node is None:  # made of constants
            return _Value("constant", 0, shape, tensor.uop, is_leaf)
        buffer = node.storage
        if id(buffer) in self._owners:
            return _Value("source", self._source(buffer), shape, None, is_leaf)
        if id(buffer) in self._written:
            if id(buffer) not in self._fresh:
                self._fresh[id(buffer)] = (len(self._fresh), _Fresh(buffer))
                self._fresh_buffers.append(buffer)
            number, fresh = self._fresh[id(buffer)]
            return _Value("fresh", number, fresh.shape(shape), None, is_leaf)
        buffer.is_borrowed = True
        return _Value("constant", 0, shape, reshape(node, shape), is_leaf)

    def _make(self, part: Any) -> int | None:
        """The number of a part of a result among those that a replay makes; None: a container that is made anew."""
        if id(part) not in self._made_number:
            value = self._part(part)
            if value is None:
                return None
            self._made_number[id(part)] = len(self._made)
            self._made.append(value)
            self._kept.append(part)
        return self._made_number[id(part)]

    def _part(self, part: Any) -> _Value | None:
        if isinstance(part, SymbolicSize):
            return _Value("size", shape=part)
        same = self._number.get(id(part))
        if isinstance(part, Lazy):
            return self._value(part) if same is None else _Value("same", same)
        return self._holders.value(part)

    # --- the end of a capture
    def finish(self, result: Any, renewed: dict[int, list[UOp]]) -> Any:
        """Put together how a replay ends; gives the result of the capture."""
        self._result = rebuild(result, self._make)
        self._note_arguments()
        self._note_places()
        for number, tensor in enumerate(self._tensors):
            before = self._known.buffers.get(id(tensor))
            if self._number[id(tensor)] == number and before is not None and buffer_of(tensor) is not before:
                self._effects.rebound.append((number, self._value(tensor)))
        replaced = self._replaced()
        moving = [*self._source_buffers, *self._fresh_buffers]
        self.replay = Replay(self._recorded, [*moving, *replaced])
        self._private = [allocate_buffer(b.device, b.dtype, b.numel) for b in replaced]
        sources = list(self._sources.values())
        for source, buffer in zip(sources, self._source_buffers, strict=True):
            if source.is_written:
                for node in renewed.get(id(buffer), ()):
                    node.storage = STALE
        self._list = sources
        self._slots_of = [
            [slot if len(s.members) == 1 else -1 for slot, s in enumerate(sources) if number in s.members]
            for number in range(len(self._tensors))
        ]
        values = [*self._made, *(value for _, value in self._effects.rebound)]
        self._goes_on = [value for value in values if value.kind == "source"]
        self._written_slots = [slot for slot, source in enumerate(sources) if source.is_written]
        self._rings = [fresh for _, fresh in self._fresh.values()]
        self._shapes = [(t.uop.shape, t.dtype) for t in self._tensors[self._arguments :]]
        self._devices = [b.device for b in self._source_buffers]
        places = self.guard.places
        self._set_state(self._tensors[self._arguments :])
        self._same = [self._numbers.get(id(t), -1) for t in self._tensors[: self._arguments]]
        self.changes_arguments = bool(self._effects.grads or self._effects.refills)
        self.changes_arguments |= any(value.kind == "holder" for value in self._made)
        del (
            self._recorded,
            self._known,
            self._holders,
            self._kept,
            self._after,
            self._tensors,
            self._number,
            self._source_buffers,
        )
        del self._fresh_buffers, self._owners, self._written, self._sources, self._fresh
        self._forget()
        assert len(self._state) == len(places) + len(self._held)
        return result

    def _note_arguments(self) -> None:
        """Containers of arguments that hold other parts, and gradients of arguments."""
        for number, kind, before, after in self._holders.changed():
            old = {id(part): key for key, part in before.items()}
            parts: dict[Any, tuple[Any, Callable[[Any], Any] | None]] = {
                key: (old[id(part)], None) if id(part) in old else (None, rebuild(part, self._make))
                for key, part in after.items()
            }
            self._effects.refills.append(_Refill(number, kind, parts))
        for number, (tensor, grad) in enumerate(zip(self._known.arguments, self._known.grads, strict=True)):
            if tensor.grad is not grad:
                self._effects.grads.append((number, rebuild(tensor.grad, self._make)))

    def _note_places(self) -> None:
        """Places that hold another tensor than before, or one where there was none."""
        before, after = self.guard.walk, self._after
        changed: dict[str, str] = {}
        for place in dict.fromkeys((*before.tensors, *after.tensors)):
            if before.tensors.get(place) is not after.tensors.get(place):
                changed.setdefault(after.owners.get(place, before.owners.get(place, place)), place)
        lines = []
        for number, place in enumerate(changed):
            try:
                value = self.guard.value(place)
            except (LookupError, AttributeError):
                continue
            lines.append(f" {place} = parts[{number}](made)\n")
            self._effects.parts.append(rebuild(value, self._make))
            if isinstance(value, Lazy) and place in self.guard.places:
                self._effects.known.append((self.guard.places.index(place), self._made_number[id(value)]))
        if lines:
            scope = dict(before.scope)
            exec(compile(f"def put(made, parts):\n{''.join(lines)}", "<places of a captured function>", "exec"), scope)
            self._effects.places = scope["put"]

    def _replaced(self) -> list[Buffer]:
        """Buffers of the recording that tensors unknown to it hold: replays write elsewhere."""
        kept = {id(b) for b in (*self._source_buffers, *self._fresh_buffers)}
        held = {id(node.storage) for t in alive_tensors() for node in (stored(t.uop),) if node is not None}
        found = []
        for buffer in self._recorded.buffers():
            if id(buffer) in self._written and id(buffer) not in kept and id(buffer) in held:
                found.append(buffer)
        return found

    # --- is this the captured situation?
    def matches(self, arguments: Sequence[Lazy], buffers: Sequence[Buffer] = ()) -> list[Lazy] | None:
        """The tensors of this call by number, or None when something the capture depended on is different.

        `buffers`: where each argument lies, if that is known.
        """
        places = self.guard.check()
        if places is None:
            return None
        state = [*places, *self._held] if self._held else places
        if not (
            all(map(is_, state, self._state)) and all(map(is_, map(_uop_of, state), [ref() for ref in self._uops]))
        ) and not self._look_again(state):
            return None
        if [self._numbers.get(id(t), -1) for t in arguments] != self._same:
            return None
        now = [*arguments, *state]
        if buffers:
            for slot, number in self._direct:
                self._buffers[slot] = buffers[number]
        for slot in self._shared if buffers else self._from_arguments:
            if not self._resolve(slot, now):
                return None
        return now

    def _set_state(self, state: Sequence[Lazy]) -> None:
        self._state: list[Lazy] = list(state)
        self._numbers = {id(tensor): number for number, tensor in reversed(list(enumerate(state)))}

    def _resolve(self, slot: int, now: Sequence[Lazy]) -> bool:
        """Find the memory of a source. False: its tensors no longer share it, or it went to another device."""
        members = self._list[slot].members
        buffer = buffer_of(now[members[0]])
        if buffer is None or buffer.device != self._devices[slot]:
            return False
        self._buffers[slot] = buffer
        return all(buffer_of(now[member]) is buffer for member in members[1:])

    def _forget(self) -> None:
        """Look everything up at the next call."""
        self._uops: list[Callable[[], UOp | None]] = [_nothing] * len(self._state)
        self._buffers: list[Any] = [None] * len(self._list)
        self._from_arguments = [i for i, s in enumerate(self._list) if min(s.members) < self._arguments]
        self._direct = [(i, self._list[i].members[0]) for i in self._from_arguments if len(self._list[i].members) == 1]
        self._shared = [i for i in self._from_arguments if len(self._list[i].members) > 1]
        self._nodes: list[weakref.ref[UOp]] = []
        self._counts: list[int] = []
        self._owned: list[int] = []

    def _look_again(self, state: Sequence[Lazy]) -> bool:
        """Tensors of the state were exchanged or have other memory: fitting ones are taken over."""
        for tensor, (shape, dtype) in zip(state, self._shapes, strict=True):
            if tensor.uop.shape != shape or tensor.dtype is not dtype:
                return False
        needed = {m - self._arguments for s in self._list for m in s.members if m >= self._arguments}
        make_real([state[i] for i in needed])
        self._set_state(state)
        now = [*[None] * self._arguments, *state]
        for slot, source in enumerate(self._list):
            if min(source.members) >= self._arguments and not self._resolve(slot, now):  # type: ignore[arg-type]
                self._forget()
                return False
        self._uops = [weakref.ref(t.uop) for t in state]
        self._nodes, self._counts = [], []
        return True

    # --- the replay
    def run(self, holders: Sequence[Any], now: list[Lazy], values: Mapping[str, int]) -> Any:
        """Launch, and leave everything as plain execution would."""
        if self._written_slots:
            self._claim(now)
        spares = [ring.take() for ring in self._rings]
        old = self._before(now) if self._goes_on else {}
        given = [*self._buffers, *[spare.node.storage for spare in spares], *self._private]
        self.replay.run(given, values)
        for slot in self._from_arguments:
            self._buffers[slot] = None  # the caller's: not kept alive from here
        made: list[Any] = []
        for value in self._made:
            if value.kind == "same":
                made.append(now[value.which])
            elif value.kind == "holder":
                made.append(holders[value.which])
            elif value.kind == "size":
                made.append(value.shape.number(values))
            else:
                made.append(self._tensor(value, spares, old))
        effects = self._effects
        if effects.rebound:
            self._rebind(now, spares, old)
        for number, part in effects.grads:
            now[number].grad = part(made)
        if effects.refills:
            _refill(effects.refills, holders, made)
        if effects.places is not None:
            effects.places(made, effects.parts)
            self._learn(made)
        return self._result(made)

    def _learn(self, made: Sequence[Lazy]) -> None:
        """Guarded places hold other tensors now, and we know which."""
        for place, number in self._effects.known:
            tensor = self._state[place] = made[number]
            slots = self._slots_of[place + self._arguments]
            self._uops[place] = weakref.ref(tensor.uop)
            if slots == [-1]:
                self._uops[place] = _nothing  # one of several that share memory: look again
            elif slots:
                self._buffers[slots[0]] = buffer_of(tensor)
        self._set_state(self._state)

    def _claim(self, now: list[Lazy]) -> None:
        """What the recording writes in place must be seen by its own tensor only."""
        written = self._written_slots
        nodes = [ref() for ref in self._nodes]
        is_alone = nodes and list(map(getrefcount, nodes)) == self._counts
        del nodes
        is_same = is_alone and [id(now[self._list[slot].members[0]].uop) for slot in written] == self._owned
        if is_same and not any(self._buffers[i].is_exported for i in written):
            return
        for slot in written:
            tensor = now[self._list[slot].members[0]]
            self._buffers[slot] = own(tensor)
        mine = [now[self._list[slot].members[0]] for slot in written]
        for slot in written:
            for member in self._list[slot].members:
                if member >= self._arguments:
                    self._uops[member - self._arguments] = weakref.ref(now[member].uop)
        self._owned = [id(tensor.uop) for tensor in mine]
        self._nodes = [weakref.ref(node) for tensor in mine for node in _chain(tensor.uop)]
        found = [ref() for ref in self._nodes]
        self._counts = list(map(getrefcount, found))

    def _before(self, now: list[Lazy]) -> dict[int, UOp]:
        """The nodes of sources as they are before, for tensors that go on seeing them."""
        found: dict[int, UOp] = {}
        for value in self._goes_on:
            node = stored(now[self._list[value.which].members[0]].uop)
            assert node is not None
            found[value.which] = node
        return found

    def _node(self, value: _Value, spares: list[_Spare], old: dict[int, UOp]) -> UOp:
        if value.kind == "fresh":
            fresh: UOp = spares[value.which].uops[value.shape]
            return fresh
        if value.kind == "source":
            return reshape(old[value.which], value.shape)
        assert value.uop is not None
        return value.uop

    def _tensor(self, value: _Value, spares: list[_Spare], old: dict[int, UOp]) -> Lazy:
        uop = self._node(value, spares, old)
        if value.kind == "fresh":
            new = Tensor._make(uop, self._rings[value.which].device)
        else:
            node = stored(uop)
            new = Tensor._make(uop, None if node is None else node.storage.device)
        return new.requires_grad_() if value.is_leaf else new

    def _rebind(self, now: list[Lazy], spares: list[_Spare], old: dict[int, UOp]) -> None:
        for number, value in self._effects.rebound:
            tensor = now[number]
            node = stored(self._node(value, spares, old))
            assert node is not None
            hold(tensor, node)
        changed = {id(now[number]) for number, _ in self._effects.rebound}
        for place, tensor in enumerate(self._state):
            if id(tensor) in changed:
                self._uops[place] = _nothing  # its memory is another: look again


def _refill(refills: Sequence[_Refill], holders: Sequence[Any], made: Sequence[Any]) -> None:
    """Put parts into containers of the arguments; all are read before any is written."""
    new = []
    for refill in refills:
        old = contents(holders[refill.holder], refill.kind)
        new.append([old[key] if part is None else part(made) for key, part in refill.parts.values()])
    for refill, parts in zip(refills, new, strict=True):
        refill.kind.fill(holders[refill.holder], list(refill.parts), parts)


def _nothing() -> None:
    return None
