"""class Capture: analysis of a recording: where a replay finds its buffers, what it creates, and what it changes.

Each buffer of a recording is one of these:

- a source: it existed before, as the memory of an argument, of a tensor at a guarded location, or of another (`held`);
- fresh: the recording wrote it, and the result or an effect exposes it;
- private: the recording wrote it, and a tensor that jit does not inspect has it. Replays write elsewhere;
- others: an intermediate or a constant of this capture, which the replay owns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from kernmill.ir import Ops, reshape
from kernmill.runtime import STALE, Buffer, Recording, allocate_buffer, replay_of

from ..lazy import Lazy
from ..size import SymbolicSize
from .entry import CapturedCall, CaptureResult, Effects, Fresh, Refill, ReplayValue, Source
from .guards import Guard, Walk
from .ownership import Holders, Tensors, alive_tensors, buffer_of, stored
from .pytree import Kind, contents, kind_of, rebuild

__all__ = ["Capture", "OvertakenError", "Views"]


Views: TypeAlias = Mapping[int, tuple[Lazy, list[tuple[Any, Any]]]]  # by id: the tensor that is shown, the changes


class OvertakenError(Exception):
    """Another thread computed something that this one recorded as still to be computed: no replay would compute it."""


class Capture:
    """A recording and the state before it: `known` tensors, `holders`. `walks`: the guard of the walk before, and the
    walk since. `views`: of new tensors those that show elements of others."""

    def __init__(self, recorded: Recording, known: Tensors, walks: tuple[Guard, Walk], holders: Holders,
                 views: Views) -> None:  # fmt: skip
        self._recorded, self._known, self._holders, self._views = recorded, known, holders, views
        self._guard, self._after = walks
        self._written = recorded.written()
        self._touched = {id(buffer): buffer for buffer in recorded.buffers()}
        self._tensors = [*known.arguments, *known.guarded]  # by number
        self._held = self._others()
        self._tensors += self._held
        self._number: dict[int, int] = {}
        for number, tensor in enumerate(self._tensors):
            self._number.setdefault(id(tensor), number)
        self._owners = self._members()
        self._sources: dict[int, Buffer] = {}
        self._fresh: dict[int, tuple[int, Buffer, Fresh]] = {}
        self._made: list[ReplayValue] = []
        self._made_number: dict[int, int] = {}
        self._kept: list[Any] = []  # so that none of these ids becomes another's
        self._effects = Effects()
        self._constants = {id(buffer) for buffer in known.buffers.values()}  # or data: the buffer of a value
        for key, buffer in self._touched.items():
            if key in self._owners:
                self._sources[key] = buffer
            elif key not in self._written:
                if buffer.is_borrowed:
                    self._constants.add(key)
                buffer.is_borrowed = True  # a constant of this capture: it must not be changed any more

    # --- sorting buffers
    def _others(self) -> list[Lazy]:
        """Return tensors in no argument and at no location whose memory the recording used, or which share what it
        wrote, or whose elements a result shows."""
        known = self._known
        mine = {id(known.buffers.get(id(tensor))) for tensor in self._tensors}
        shown = {id(owner) for owner, _ in self._views.values()}
        found = []
        for tensor in (t for t in known.others if "uop" in t.__dict__):  # not of stale views
            node, before = stored(tensor.uop), known.buffers.get(id(tensor))
            is_written = node is not None and node.storage is not before and id(node.storage) in self._written
            if is_written or id(tensor) in shown or (id(before) in self._touched and id(before) not in mine):
                found.append(tensor)
        return sorted(found, key=lambda t: id(known.buffers.get(id(t))) not in self._written)

    def _members(self) -> dict[int, list[int]]:
        """Return the tensors that shared each buffer that existed before."""
        found: dict[int, list[int]] = {}
        reachable = len(self._tensors) - len(self._held)
        mine = {id(self._known.buffers.get(id(tensor))) for tensor in self._tensors[:reachable]}
        for number, tensor in enumerate(self._tensors):
            buffer = self._known.buffers.get(id(tensor))
            if buffer is not None and (number < reachable or (id(buffer) in self._touched and id(buffer) not in mine)):
                found.setdefault(id(buffer), []).append(number)
        return found

    def _source(self, buffer: Buffer) -> int:
        self._sources.setdefault(id(buffer), buffer)
        return list(self._sources).index(id(buffer))

    def _value(self, tensor: Lazy) -> ReplayValue:
        """How the memory of a tensor is found again in a replay.

        Raises:
            OvertakenError: another thread made it meanwhile.
        """
        node = stored(tensor.uop)
        shape = tensor.uop.shape
        is_leaf = tensor.requires_grad
        if node is None:  # computed from constants
            return ReplayValue("constant", 0, shape, tensor.uop, is_leaf)
        buffer = node.storage
        if id(buffer) in self._owners:
            return ReplayValue("source", self._source(buffer), shape, None, is_leaf)
        if id(buffer) in self._written:
            number, _, fresh = self._fresh.setdefault(id(buffer), (len(self._fresh), buffer, Fresh(buffer)))
            return ReplayValue("fresh", number, fresh.shape(shape), None, is_leaf)
        if id(buffer) not in self._constants and (id(buffer) in self._touched or not buffer.is_borrowed):
            raise OvertakenError
        buffer.is_borrowed = True
        return ReplayValue("constant", 0, shape, reshape(node, shape), is_leaf)

    # --- new values
    def _make(self, part: Any) -> int | None:
        """Return the number of a part of a result among the values of a replay; None: a container that is rebuilt."""
        if id(part) not in self._made_number:
            value = self._part(part)
            if value is None:
                return None
            self._made_number[id(part)] = len(self._made)
            self._made.append(value)
            self._kept.append(part)
        return self._made_number[id(part)]

    def _part(self, part: Any) -> ReplayValue | None:
        if isinstance(part, SymbolicSize):
            return ReplayValue("size", shape=part)
        if isinstance(part, Lazy):
            same, found = self._number.get(id(part)), self._views.get(id(part))
            if same is not None:
                return ReplayValue("same", same)
            if found is None:
                return self._value(part)
            owner, changes = found
            number = self._make(owner)  # first: it is shown
            assert number is not None
            return ReplayValue("view", number, changes)
        holder = self._holders.parts.number_of(part)
        return None if holder is None else ReplayValue("holder", holder)

    def entry(self, result: Any) -> CapturedCall:
        """Make the entry that replays this."""
        known = self._known
        of_result = rebuild(result, self._make)
        shown = len(self._made)
        self._note_arguments()
        self._note_locations()
        for number, tensor in enumerate(self._tensors):
            before = known.buffers.get(id(tensor))
            if before is None:  # a constant, or not known before
                is_changed = id(tensor) in known.constants and tensor.uop is not known.constants[id(tensor)]
            else:
                is_shared = len({id(self._tensors[member]) for member in self._owners.get(id(before), ())}) > 1
                is_given = id(before) not in self._written and known.is_given(tensor)
                is_changed = buffer_of(tensor) is not before or (is_shared and is_given)
                if is_given and not is_changed:  # in place, and not by this thread
                    raise OvertakenError
            if is_changed and self._number[id(tensor)] == number:
                self._effects.rebound.append((number, self._value(tensor)))
        replaced = self._replaced()
        fresh = [buffer for _, buffer, _ in self._fresh.values()]
        changes_state = bool(replaced) or not self._written.isdisjoint(self._sources)
        moving = [*self._sources.values(), *fresh, *replaced]
        replay = replay_of(self._recorded, moving, changes_state=changes_state)
        for key in self._sources.keys() & self._written:
            for node in known.renewed.get(key, ()):  # `take_over` would also forget the owner of the current memory
                node.storage = STALE if node.op is Ops.BUFFER else None
        count = len(known.arguments)
        state = self._tensors[count:]
        plan = CaptureResult(
            arguments=self._tensors[:count],
            state=state,
            held=self._held,
            constants={n: known.constants[id(t)] for n, t in enumerate(state) if id(t) in known.constants},
            sources=[self._found_again(key, buffer) for key, buffer in self._sources.items()],
            fresh=[fresh for _, _, fresh in self._fresh.values()],
            private=[allocate_buffer(b.device, b.dtype, b.numel) for b in replaced],
            made=self._made,
            shown=shown,
            result=of_result,
            is_tensor=isinstance(result, Lazy),
            effects=self._effects,
        )
        return CapturedCall(plan, self._guard, replay)

    def _found_again(self, key: int, buffer: Buffer) -> Source:
        """Make a source. Of tensors that share a written buffer, those that still share it afterwards come first."""
        others = {number for number, _ in self._effects.rebound}
        members = sorted(self._owners[key], key=lambda member: self._number[id(self._tensors[member])] in others)
        staying = [m for m in members if self._number[id(self._tensors[m])] not in others]
        return Source(members, staying if key in self._written else [], key in self._written, buffer.device)

    # --- effects
    def _note_arguments(self) -> None:
        """Record containers of arguments with changed parts, and gradients of arguments."""
        for number, kind, before, after in self._holders.changed():
            self._refill(number, kind, before, after)
        for number, (tensor, grad) in enumerate(zip(self._known.arguments, self._known.grads, strict=True)):
            if tensor.grad is not grad:
                self._effects.grads.append((number, rebuild(tensor.grad, self._make)))

    def _refill(self, number: int, kind: Kind, before: dict[Any, Any], after: dict[Any, Any]) -> None:
        old = {id(part): key for key, part in before.items()}
        parts: dict[Any, tuple[Any, Callable[[Any], Any] | None]] = {
            key: (old[id(part)], None) if id(part) in old else (None, rebuild(part, self._make))
            for key, part in after.items()
        }
        self._effects.refills.append(Refill(number, kind, parts))

    def _note_locations(self) -> None:
        """Record locations with a different tensor than before, or with a new one; and containers with other keys."""
        before, after = self._guard.walk, self._after
        owners = before.owners | after.owners
        changed, whole = self._note_containers(owners)
        for location in dict.fromkeys((*before.tensors, *after.tensors)):
            is_other = before.tensors.get(location) is not after.tensors.get(location)
            if is_other and not any(location.startswith(f"{container}[") for container in whole):
                changed.setdefault(owners.get(location, location), None)
        lines = []
        for location in changed:
            try:
                value = self._guard.value(location)
            except (LookupError, AttributeError, ValueError):
                lines.append(f" del {location}\n")
                continue
            lines.append(f" {location} = parts[{len(self._effects.parts)}](made)\n")
            self._effects.parts.append(rebuild(value, self._make))
            if isinstance(value, Lazy) and location in self._guard.locations:
                self._effects.known.append((self._guard.locations.index(location), self._made_number[id(value)]))
        self._effects.are_known = len(lines) == len(self._effects.known)
        if lines:
            self._effects.write = self._compiled("put", "made, parts", "".join(lines))

    def _note_containers(self, owners: dict[str, str]) -> tuple[dict[str, None], list[str]]:
        """Return the containers at locations that were replaced, and all whose parts need no separate check."""
        changed: dict[str, None] = {}
        whole: list[str] = []
        locations: list[str] = []
        for location, (container, parts) in self._guard.walk.containers.items():
            if any(location.startswith(f"{outer}[") for outer in whole):
                continue
            try:
                now = self._guard.value(location)
            except (LookupError, AttributeError, ValueError):
                continue
            kind = kind_of(now)
            if now is not container:
                whole.append(location)
                changed[owners.get(location, location)] = None
            elif kind is not None and list(contents(now, kind)) != list(parts):
                whole.append(location)
                self._refill(len(self._holders.parts.holders) + len(locations), kind, parts, contents(now, kind))
                locations.append(location)
        if locations:
            self._effects.find = self._compiled("find", "", f" return [{', '.join(locations)}]\n")
        return changed, whole

    def _compiled(self, name: str, arguments: str, body: str) -> Callable[..., Any]:
        """A function over the names of the walk."""
        scope = dict(self._guard.walk.scope)
        exec(compile(f"def {name}({arguments}):\n{body}", "<places of a captured function>", "exec"), scope)
        found: Callable[..., Any] = scope[name]
        return found

    def _replaced(self) -> list[Buffer]:
        """Buffers of the recording that tensors unknown to it hold: replays write elsewhere."""
        held = {id(node.storage) for t in alive_tensors() for node in (stored(t.uop),) if node is not None}
        moving = self._sources.keys() | self._fresh.keys()
        return [b for key, b in self._touched.items() if key in self._written and key in held and key not in moving]
