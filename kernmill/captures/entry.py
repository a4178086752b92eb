"""class CapturedCall: one captured call, ready to be replayed: match a call, launch, and return the results.

capture.py determines what to do. fast_path.py compiles the common cases to code for one entry; other cases are left to
`matches` and `run`, which are complete.
"""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from operator import attrgetter, is_
from sys import getrefcount
from typing import Any, NamedTuple

from kernmill.ir import DType, IndexRangeError, Ops, UOp, const, dtypes, reshape
from kernmill.runtime import Buffer, Replay, allocate_buffer, buffer_node

from ..lazy import Lazy, changes
from ..tensor import Tensor
from ..views import check_replay, mark, show
from .guards import Guard
from .ownership import LONE, buffer_of, chain, constant_in, hold, make_real, own, release, shared_memory, stored
from .pytree import Kind, contents

__all__ = ["CaptureResult", "CapturedCall", "Effects", "Fresh", "Refill", "ReplayValue", "Source"]

_POOLED = 2  # buffers that a result may use again when its tensor is gone
_SMALL_POOLED, _SMALL_BYTES = 4, 1 << 16  # more of small ones
_UNKNOWN = [-1]  # counts that nothing has
_GRAD, _NONE = repeat("grad"), repeat(None)
_uop_of = attrgetter("uop")


class _Pooled:
    """A reusable result buffer, with a node per shape. `counts`: reference counts when unused.

    The memory itself is counted too: other nodes or NumPy may refer to it, and a replay that writes it in place moves
    it to a new Buffer.
    """

    __slots__ = ("buffer", "counted", "counts", "nodes")

    def __init__(self, device: str, dtype: DType, numel: int, shapes: Sequence[Any]) -> None:
        self.buffer = allocate_buffer(device, dtype, numel)
        self.buffer.is_state = True
        node = buffer_node(self.buffer)
        self.nodes = (node, *[reshape(node, shape) for shape in shapes])
        del node
        self.counted = (self.buffer, self.buffer.owner, *self.nodes)
        self.counts = [*map(getrefcount, self.counted)]


class Fresh:
    """Memory for one result: new each time, or reused if no reference can see its old contents."""

    def __init__(self, buffer: Buffer) -> None:
        self.device, self.dtype, self.numel = buffer.device, buffer.dtype, buffer.numel
        self.shapes: list[Any] = []
        self._pool: list[_Pooled] = []

    def shape(self, shape: Any) -> int:
        """Return the number of this shape among the nodes of what `take` returns."""
        if shape not in self.shapes:
            self.shapes.append(shape)
        return self.shapes.index(shape) + 1

    def take(self) -> _Pooled:
        """Memory, with a node for each shape."""
        pooled = self._pool  # alternately: the last result often lives until the next one exists
        for index, one in enumerate(pooled):
            is_unused = [*map(getrefcount, one.counted)] == one.counts
            if is_unused and one.nodes[0].storage is one.buffer:  # else a replay has moved its memory
                pooled.append(pooled.pop(index))
                return one
        one = _Pooled(self.device, self.dtype, self.numel, self.shapes)
        pooled.append(one)
        del pooled[: -_POOLED if one.buffer.nbytes > _SMALL_BYTES else -_SMALL_POOLED]
        return one


class Source(NamedTuple):
    """A buffer of the recording that existed before; `members`: the tensors that shared it, by number; `staying`:
    those of them that still share it after a write in place. They come first."""

    members: list[int]
    staying: list[int]
    is_written: bool
    device: str


class ReplayValue(NamedTuple):
    """A value of a replay: a tensor, a container of the arguments, or the number of a symbolic size. A tensor is over a
    fresh buffer, over a source as it was before, a constant, the same tensor as before, or a view of a value before it:
    `shape` is its changes."""

    kind: str  # fresh, source, constant, same, view, holder, size
    which: int = 0
    shape: Any = None
    uop: UOp | None = None
    is_leaf: bool = False


class Refill(NamedTuple):
    """A mutable argument that a replay refills. `parts`: by key, the old key, or the function that makes a new part."""

    holder: int  # index into the arguments' containers, then those of `Effects.find`
    kind: Kind
    parts: Mapping[Any, tuple[Any, Callable[[Any], Any] | None]]


@dataclass(slots=True)
class Effects:
    """The effects of a replay on tensors and locations, in addition to its result."""

    rebound: list[tuple[int, ReplayValue]] = field(default_factory=list)
    grads: list[tuple[int, Callable[[Any], Any]]] = field(default_factory=list)  # argument, value
    refills: list[Refill] = field(default_factory=list)
    find: Callable[[], list[Any]] = list  # returns the containers at locations that are refilled
    write: Callable[[Any, Any], None] | None = None
    parts: list[Callable[[Any], Any]] = field(default_factory=list)
    known: list[tuple[int, int]] = field(default_factory=list)  # tensor at a guarded location, new tensor
    are_known: bool = True  # nothing is put anywhere else

    @property
    def change_arguments(self) -> bool:
        """True if containers of arguments change, or gradients of arguments."""
        return bool(self.refills or self.grads)


class CaptureResult(NamedTuple):
    """The result of a capture. Tensors have numbers: the arguments, then the state.

    `state`: tensors at guarded locations, then others that the recording used (`held`). `constants`: the nodes of those
    without memory, by index in the state. `private`: replacements for buffers that a user's tensor owns. The replay's
    moving buffers are those of sources, fresh ones, private ones.
    """

    arguments: list[Lazy]
    state: list[Lazy]
    held: list[Lazy]
    constants: dict[int, UOp]
    sources: list[Source]
    fresh: list[Fresh]
    private: list[Buffer]
    made: list[ReplayValue]
    shown: int  # the first of them: all that the result shows
    result: Callable[[Any], Any]
    is_tensor: bool  # the result, and nothing else
    effects: Effects


class CapturedCall:
    """One captured call."""

    def __init__(self, plan: CaptureResult, guard: Guard, replay: Replay) -> None:
        self.guard, self.replay = guard, replay
        self.sources, self.fresh, self.made, self.result = plan.sources, plan.fresh, plan.made, plan.result
        self.effects = plan.effects
        self.is_tensor = plan.is_tensor
        self.shows_holders = any(value.kind == "holder" for value in plan.made)
        self.is_bound = False  # True if the addresses of the state are set in the replay
        self._known_at = -1  # how many changes of tensors there were when the state was as it had been
        self.call: Callable[[Any, Any], Any] | None = None  # see fast_path.py
        self.count = len(plan.arguments)
        self.held, self._private = plan.held, plan.private
        self._shapes = [(t.uop.shape, t.dtype) for t in plan.state]
        self._constants = plan.constants
        made = [*plan.made, *(value for _, value in plan.effects.rebound)]
        self._goes_on = [value for value in made if value.kind == "source"]
        self._written = [slot for slot, source in enumerate(self.sources) if source.is_written]
        written = {self.sources[slot].members[0] for slot in self._written}
        self._changed = sorted(written.union(number for number, _ in plan.effects.rebound))  # tensors that it writes to
        self._of_arguments = [slot for slot, s in enumerate(self.sources) if min(s.members) < self.count]
        self._together = [slot for slot in self._of_arguments if len(self.sources[slot].members) > 1]
        self._alone = [slot for slot in self._of_arguments if len(self.sources[slot].members) == 1]
        self._alone_members = [self.sources[slot].members[0] for slot in self._alone]
        results = range(len(self.sources), len(self.sources) + len(self.fresh))
        self._moving = sorted({*self._of_arguments, *self._written, *results})  # while the state stays where it is
        self._lent = [*self._of_arguments, *results]
        is_seen = self.effects.rebound or self.effects.grads or any(value.kind == "same" for value in plan.made)
        self._lets_go = not is_seen  # of the tensors of a call, before it launches
        self._slot_of = {m: (slot, len(s.members) == 1) for slot, s in enumerate(self.sources) for m in s.members}
        self._set_state(plan.state)
        first = [self.numbers[id(t)] for t in plan.state]
        self._twins = [(index, other) for index, other in enumerate(first) if index != other]
        self._distinct = len(self.numbers)
        self.same = [self.numbers.get(id(t), -1) for t in plan.arguments]
        self.shown = plan.shown
        self.owners = self._find_owners()
        self.gradients = {self.numbers[id(self._state[owner])]: index for index, owner in self.owners.items()}
        self.lasting = self._find_lasting()
        self._forget()

    @property
    def reaches(self) -> int:
        """A replay looks at tensors with numbers below this one only."""
        slots = {*self._of_arguments, *self._written, *[value.which for value in self._goes_on]}
        numbers = [member for slot in slots for member in self.sources[slot].members]
        numbers += [number for number, _ in self.effects.rebound]
        return 1 + max([*numbers, *[value.which for value in self.made if value.kind == "same"]], default=-1)

    @property
    def is_pure(self) -> bool:
        """True if a replay makes a result and has no effects."""
        effects = self.effects
        return not (
            self._written or self._goes_on or effects.rebound or effects.change_arguments or effects.write is not None
        )

    def _find_owners(self) -> dict[int, int]:
        """Return the gradients that replays assign at guarded locations: the index of each, and that of its tensor."""
        names = {name: index for index, name in enumerate(self.guard.locations)}
        owners = {put: names.get(self.guard.locations[put].removesuffix(".grad"), put) for put, _ in self.effects.known}
        return {put: owner for put, owner in owners.items() if put != owner}

    def _find_lasting(self) -> set[int] | None:
        """Return fresh buffers of gradients that a replay may write where the last one put them, while no other
        reference exists (`is_alone`). None if replays write to arguments or have further effects, or if a result shows
        the gradients before or after. Also None if Python runs without its lock: a thread may then have read a location
        without having counted its reference."""
        effects, gradients = self.effects, self.owners
        put = [(self.made[number], index) for index, number in effects.known]
        found = {value.which for value, index in put if index in gradients}
        does_more = self._goes_on or effects.rebound or effects.change_arguments or not effects.are_known
        seen = [*self.made[: self.shown], *(value for value, index in put if index not in gradients)]
        before = {self.numbers[id(self._state[index])] for index in gradients}  # what a replay finds there
        same = [value.which for value in self.made if value.kind == "same"]
        is_shown = any(value.kind == "fresh" and value.which in found for value in seen) or any(
            (self.same[which] if which < self.count else which - self.count) in before for which in same
        )
        is_read = any(
            value.kind != "fresh" or value.is_leaf or index + self.count in self._slot_of for value, index in put
        )
        of_arguments = any(min(self.sources[slot].members) < self.count for slot in self._written)
        is_counted = not found or getattr(sys, "_is_gil_enabled", _yes)()
        return None if does_more or is_shown or is_read or of_arguments or not is_counted else found

    # --- is this the captured situation?
    def matches(self, arguments: Sequence[Lazy]) -> list[Lazy] | None:
        """The tensors of this call by number, or None when something the capture depended on is different."""
        tensors = self.guard.check()
        if tensors is None:
            return None
        state = [*tensors, *self.held] if self.held else tensors
        if not self.knows(state) and not self._look_again(state):
            return None
        if [self.numbers.get(id(t), -1) for t in arguments] != self.same:
            return None
        now = [*arguments, *state]
        return now if all(self._resolve(slot, now) for slot in self._of_arguments) else None

    def knows(self, state: Sequence[Lazy]) -> bool:
        """True if these are the tensors of the last replay, in the same memory, or only moved ones that are read.
        Held ones may be left out."""
        now = changes()
        if not all(map(is_, state, self._state)):
            return False
        if now != self._known_at:
            uops = [ref() for ref in self._uops]
            if not all(map(is_, map(_uop_of, self._state), uops)):
                moved = [index for index, t in enumerate(self._state) if t.uop is not uops[index]]
                if not all(map(self._follow, moved)):
                    return False
            self._known_at = now
        return True

    def _follow(self, index: int) -> bool:
        """Record new memory of one tensor of the state that is only read, such as a rate that is set before each
        step. False if it is not such a tensor, or the whole state must be checked."""
        uop = self._state[index].uop  # once: another thread may replace it meanwhile
        slot, is_alone = self._slot_of.get(index + self.count, (None, False))
        if slot is None or not is_alone or not self.is_bound or self.sources[slot].is_written:
            return False
        node = stored(uop)
        is_fitting = (uop.shape, uop.dtype) == self._shapes[index] and index not in self._constants
        if node is None or not is_fitting or node.storage.device != self.sources[slot].device:
            return False
        self._buffers[slot] = buffer = node.storage
        self.replay.bind(slot, buffer)
        self._uops[index] = weakref.ref(uop)  # last: from here on it is known
        return True

    def _set_state(self, state: Sequence[Lazy]) -> None:
        self._state: list[Lazy] = list(state)
        self.numbers = {id(tensor): number for number, tensor in reversed(list(enumerate(state)))}

    def _are_twins(self) -> bool:
        """True if the same indices of the state as in the capture refer to the same tensor, and no others."""
        state = self._state
        return len(self.numbers) == self._distinct and all(state[index] is state[other] for index, other in self._twins)

    def _resolve(self, slot: int, now: Sequence[Lazy]) -> bool:
        """Find the memory of a source. False: its tensors no longer share it, or it went to another device."""
        members = self.sources[slot].members
        buffer = buffer_of(now[members[0]])
        if buffer is None or buffer.device != self.sources[slot].device:
            return False
        self._buffers[slot] = buffer
        return all(buffer_of(now[member]) is buffer for member in members[1:])

    def set_sources(self, now: Sequence[Lazy], buffers: Sequence[Buffer]) -> bool:
        """Set the addresses of a call's arguments; False if a source has two different ones."""
        for slot, member in zip(self._alone, self._alone_members, strict=True):
            self._buffers[slot] = buffers[member]
        return all(self._resolve(slot, now) for slot in self._together)

    def _forget(self) -> None:
        """Look everything up at the next call."""
        self.is_bound = False
        self._known_at = -1
        self._uops: list[Callable[[], UOp | None]] = [_nothing] * len(self._state)
        self._buffers: list[Any] = [*[None] * (len(self.sources) + len(self.fresh)), *self._private]
        self._nodes: list[weakref.ref[UOp]] = []
        self._counts = _UNKNOWN if self._written else []  # how often these are referred to
        self._owned: list[int] = []
        self._gradient_parts: list[Any] = []  # tensors at locations, their nodes and memory
        self._gradient_counts = _UNKNOWN

    def _look_again(self, state: Sequence[Lazy]) -> bool:
        """Check a state whose tensors were replaced or moved; accept it if it fits."""
        for tensor, (shape, dtype) in zip(state, self._shapes, strict=True):
            if tensor.uop.shape != shape or tensor.dtype is not dtype:
                return False
        if any(constant_in(state[index].uop) is not constant_in(uop) for index, uop in self._constants.items()):
            return False
        needed = {m - self.count for s in self.sources for m in s.members if m >= self.count}
        make_real([state[i] for i in needed])
        self._forget()
        self._set_state(state)
        uops = [weakref.ref(t.uop) for t in state]  # first: another thread may give them others meanwhile
        now: list[Any] = [*[None] * self.count, *state]
        of_state = [slot for slot, source in enumerate(self.sources) if min(source.members) >= self.count]
        if not self._are_twins() or not all(self._resolve(slot, now) for slot in of_state):
            return False
        self._uops = [*uops]  # from here on it is known
        return True

    # --- the replay
    def run(self, holders: Sequence[Any], now: list[Lazy], values: Mapping[str, int]) -> Any:
        """Launch, and leave the same state as plain execution. `now`: the result of `matches`."""
        for number in self._changed:
            if now[number]._link is not None:
                check_replay(now[number], [tensor for n, tensor in enumerate(now) if n in self._slot_of])
        try:
            if self._written:
                self._claim(now)
            self._gradient_parts = []  # they would be counted
            if self.lasting and not self.is_bound:  # later a replay writes where the last one put them, if it can
                self._release_gradients(now)
            pooled = [fresh.take() for fresh in self.fresh]
            old = self._before(now) if self._goes_on else {}
            given, made_at = self._buffers, len(self.sources)
            given[made_at : made_at + len(pooled)] = [one.buffer for one in pooled]
            if self._lets_go:  # while caches still have them
                now.clear()
            try:
                self.replay.run(given, values, self._moving if self.is_bound else range(len(given)))
            except IndexRangeError:
                # after a failed check, assigned tensors have their new values, as in plain execution; locations are
                # unchanged
                if self.replay.checks_last:
                    self._rebind(now, pooled, old)
                raise
            self.is_bound = True
            return self._put(holders, now, values, pooled, old)
        except BaseException:
            self._forget()
            raise

    def _put(self, holders: Sequence[Any], now: list[Lazy], values: Mapping[str, int],
             pooled: Sequence[_Pooled], old: dict[int, UOp]) -> Any:  # fmt: skip
        """Store the new values in their tensors and locations."""
        for slot in self._lent:
            self._buffers[slot] = None  # the caller's: not kept alive by us
        made: list[Any] = []
        for value in self.made:
            is_view = value.kind == "view"
            made.append(
                show(made[value.which], value.shape, values)
                if is_view
                else self.part(value, holders, now, values, pooled, old)
            )
        effects = self.effects
        if effects.rebound:
            self._rebind(now, pooled, old)
        for number, part in effects.grads:
            now[number].grad = part(made)
        if effects.refills:
            _refill(effects.refills, [*holders, *effects.find()], made)
        if effects.write is not None:
            effects.write(made, effects.parts)
            self._learn(made)
        if self.lasting is not None:
            self._note_gradients(made, pooled)
        return self.result(made)

    def launch(self, given: Sequence[Buffer], *, is_timed: bool | None = None) -> None:
        """Launch, and if a check fails, make later reads of the written locations (`lasting`) raise the same error,
        like an expression that cannot be computed."""
        try:
            self.replay.launch(given, is_timed=is_timed)
        except IndexRangeError as error:
            for index, number in self.effects.known:
                tensor = self._state[index]
                if self.made[number].which in (self.lasting or ()):
                    zeros, failed = tensor._filled(0).uop, const(dtypes.bool, True)
                    tensor._put(UOp(Ops.CHECK, tensor.dtype, (zeros, failed), str(error)))
            self._forget()
            raise

    def part(self, value: ReplayValue, holders: Sequence[Any], now: Sequence[Lazy], values: Mapping[str, int],
              pooled: Sequence[_Pooled], old: dict[int, UOp]) -> Any:  # fmt: skip
        """One of the things that a replay makes."""
        if value.kind == "same":
            return now[value.which]
        if value.kind == "holder":
            return holders[value.which]
        if value.kind == "size":
            return value.shape.number(values)
        uop = self._node(value, pooled, old)
        node = stored(uop)
        new = Tensor._make(uop, None if node is None else node.storage.device)
        return new.requires_grad_() if value.is_leaf else new

    def _node(self, value: ReplayValue, pooled: Sequence[_Pooled], old: dict[int, UOp]) -> UOp:
        if value.kind == "fresh":
            return pooled[value.which].nodes[int(value.shape)]
        if value.kind == "source":
            return reshape(old[value.which], value.shape)
        assert value.uop is not None
        return value.uop

    def _before(self, now: Sequence[Lazy]) -> dict[int, UOp]:
        """Return the nodes of sources before the launch, for tensors that still refer to the old values."""
        found: dict[int, UOp] = {}
        for value in self._goes_on:
            node = stored(now[self.sources[value.which].members[0]].uop)
            assert node is not None
            found[value.which] = node
        return found

    def _claim(self, now: Sequence[Lazy]) -> None:
        """Give what the recording writes in place to its own tensor alone."""
        written = self._written
        if self.owns() and [id(now[self.sources[slot].members[0]].uop) for slot in written] == self._owned:
            return
        mine, is_shared = [now[self.sources[slot].members[0]] for slot in written], False
        shared = shared_memory()
        for slot, tensor in zip(written, mine, strict=True):
            self._buffers[slot] = own(tensor, shared)
            for other in (now[member] for member in self.sources[slot].staying):
                if other is not tensor:  # it was assigned the same
                    hold(other, buffer_node(self._buffers[slot]))
                    is_shared = True
        for slot in written:
            for member in self.sources[slot].members:
                if member >= self.count:
                    self._uops[member - self.count] = weakref.ref(now[member].uop)
        self._owned = [id(tensor.uop) for tensor in mine]
        self._nodes = [] if is_shared else [weakref.ref(node) for tensor in mine for node in chain(tensor.uop)]
        self._counts = _UNKNOWN if is_shared else self._counted()

    def _counted(self) -> list[int]:
        """Return the reference counts of what is written in place: nodes of its tensors, and memory, which NumPy
        views and aliased nodes refer to."""
        memory = [self._buffers[slot] for slot in self._written]
        return [*map(getrefcount, [ref() for ref in self._nodes]), *map(getrefcount, memory)]

    def owns(self) -> bool:
        """True if there is still no other reference to what is written in place."""
        return self._counted() == self._counts

    def is_alone(self, state: Sequence[Lazy]) -> bool:
        """True if no other reference exists to in-place outputs or to gradients of the last replay.

        The gradients are removed first: another thread either has one already, which is counted, or finds None until
        `put_back`.
        """
        any(map(setattr, map(state.__getitem__, self.gradients), _GRAD, _NONE))
        return [*map(getrefcount, self._gradient_parts)] == self._gradient_counts and self.owns()

    def put_back(self, state: Sequence[Lazy]) -> None:
        """The gradients to where `is_alone` took them out; no Ctrl-C comes between two."""
        gradients = self.gradients
        any(map(setattr, map(state.__getitem__, gradients), _GRAD, map(state.__getitem__, gradients.values())))

    def put(self, made: Sequence[Lazy]) -> None:
        """Assign all new values to their locations, including the recorded gradients."""
        try:
            assert self.effects.write is not None
            self.effects.write(made, self.effects.parts)
            self._learn(made)
            self.is_bound = True
        except BaseException:
            self._forget()
            raise

    def _note_gradients(self, made: Sequence[Lazy], pooled: Sequence[_Pooled]) -> None:
        """Record storage and baseline reference counts of guarded tensors: references by us, by the state and by the
        state of a call. The counts are computed, not measured: another thread may already have a reference."""
        counts = Counter(number for index, number in self.effects.known if index in self.owners)
        tensors = [made[number] for number in counts]
        parts = [
            part
            for number in self.lasting or ()
            for part in zip(pooled[number].counted, pooled[number].counts, strict=True)
        ]
        self._gradient_parts = [*tensors, *(thing for thing, _ in parts)]
        more = Counter(map(id, [*self._gradient_parts, *(tensor.uop for tensor in tensors)]))  # references than before
        self._gradient_counts = [LONE + 2 * count for count in counts.values()]
        self._gradient_counts += [count + more[id(thing)] for thing, count in parts]
        self.is_bound = True

    def _release_gradients(self, now: Sequence[Lazy]) -> None:
        """Free gradients that this replay replaces, if only their tensors refer to them. They are removed first, as in
        `is_alone`; those that are freed do not come back if this replay fails."""
        state, released = now[self.count :], set[int]()
        any(map(setattr, map(state.__getitem__, self.gradients), _GRAD, _NONE))
        try:
            gradients = [*{id(g): g for g in (state[index] for index in self.owners)}.values()]
            ours = Counter(map(id, (*now, *state, *self._state)))
            released.update(map(id, release(gradients, [ours[id(g)] for g in gradients])))
        finally:
            for owner, put in self.gradients.items():
                if id(state[put]) not in released:
                    state[owner].grad = state[put]

    def _rebind(self, now: Sequence[Lazy], pooled: Sequence[_Pooled], old: dict[int, UOp]) -> None:
        for number, value in self.effects.rebound:
            node = stored(self._node(value, pooled, old))
            assert node is not None
            hold(now[number], node)
            mark(now[number])
        changed = {id(now[number]) for number, _ in self.effects.rebound}
        for index, tensor in enumerate(self._state):
            if id(tensor) in changed:
                self._uops[index] = _nothing  # its memory has changed: check again

    def _learn(self, made: Sequence[Lazy]) -> None:
        """Record the new tensors of guarded locations."""
        self._known_at, self.is_bound = -1, False
        for index, number in self.effects.known:
            tensor = self._state[index] = made[number]
            self._uops[index] = weakref.ref(tensor.uop)
            slot, is_alone = self._slot_of.get(index + self.count, (None, False))
            buffer = buffer_of(tensor) if is_alone else None
            if slot is not None and buffer is not None:
                self._buffers[slot] = buffer
            elif slot is not None or index in self._constants:
                self._uops[index] = _nothing  # one of several that share memory, or not realized: check again
        self._set_state(self._state)
        if not self._are_twins():
            self._forget()


def _refill(refills: Sequence[Refill], holders: Sequence[Any], made: Sequence[Any]) -> None:
    """Put parts into containers of the arguments; all are read before any is written."""
    new = []
    for refill in refills:
        old = contents(holders[refill.holder], refill.kind)
        new.append([old[key] if part is None else part(made) for key, part in refill.parts.values()])
    for refill, parts in zip(refills, new, strict=True):
        refill.kind.fill(holders[refill.holder], list(refill.parts), parts)


def _nothing() -> None:
    return None


def _yes() -> bool:
    return True
