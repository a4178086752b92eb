"""The fast path of a captured call, as straight-line code: read the arguments, check, set addresses, launch, return.

`write_fast_path` makes one function for one entry and calls of the same structure. For other calls it returns MISS,
before anything is done; then the slow path, `CapturedCall.matches` and `CapturedCall.run`, handles the call. An entry
that writes in place, or assigns tensors to locations, is straight-line code to the end if no other references exist
(`CapturedCall.is_alone`). An entry with further effects, such as replacing tensors or copying between devices, uses it
only to read its arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kernmill.runtime import Recorder, open_lanes, settle, watcher

from ..tensor import Tensor
from ..views import show
from .entry import CapturedCall, ReplayValue
from .reader import Reading, read_call

__all__ = ["write_fast_path"]


def write_fast_path(
    entry: CapturedCall, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Callable[[Any, Any], Any] | None:
    """Return the function of an entry for calls like this one; None if there is none."""
    reading = None if entry.effects.change_arguments or entry.shows_holders else read_call(args, kwargs)
    if reading is None:
        return None
    writer = _PathWriter(entry, reading)
    is_launched = entry.replay.is_bound_only and writer.has_plain_sources()
    if is_launched and entry.is_pure:
        writer.state("not entry.is_bound or not knows(state)")
        writer.launch("")
    else:
        writer.state("not knows(state)")
        if is_launched and entry.lasting is not None and not entry.gradients:
            reading.scope["owns"] = entry.owns
            writer.lines.append(" if entry.is_bound and owns():")
            writer.launch(" ")
        elif is_launched and entry.lasting is not None:
            reading.scope |= {"is_alone": entry.is_alone, "put_back": entry.put_back}
            writer.lines += [" try:", "  if entry.is_bound and is_alone(state):"]
            writer.launch("  ")
            writer.lines += [" finally:", "  put_back(state)"]
        writer.run()
    return reading.function(writer.lines)


class _PathWriter:
    """The code after reading. Names: t0 and b0 are the first argument and its memory, f0 the first fresh memory, m0 the
    first thing made; `at` the addresses of the replay's moving buffers."""

    def __init__(self, entry: CapturedCall, reading: Reading) -> None:
        self.entry, self.reading = entry, reading
        self.lines: list[str] = []
        scope = reading.scope
        scope |= {"check": entry.guard.check, "entry": entry, "at": entry.replay.addresses, "bind": entry.replay.bind}

    def state(self, is_other: str) -> None:
        """Check that the guards are true, and that tensors that are not arguments are those of the last replay."""
        entry, scope = self.entry, self.reading.scope
        self.lines += [" state = check()", " if state is None: return MISS"]
        if (more := entry.reaches - entry.count - len(entry.guard.locations)) > 0:  # the others are not checked
            scope["held"] = tuple(entry.held[:more])
            self.lines.append(" state = (*state, *held)")
        if entry.guard.locations or entry.held:
            scope["knows"] = entry.knows
            same = ", ".join(f"number(id(t{n}), -1)" for n in range(entry.count))
            self.lines += [
                f" if {is_other}: return MISS",
                " number = entry.numbers.get",
                f" if [{same}] != {entry.same}: return MISS",
            ]

    def has_plain_sources(self) -> bool:
        """True if each source is one argument, or only part of the state."""
        count = self.entry.count
        return all(len(s.members) == 1 or min(s.members) >= count for s in self.entry.sources)

    def launch(self, indent: str) -> None:
        """Fresh memory, addresses and variables that are others than before, the native call, and its result."""
        before, entry = len(self.lines), self.entry
        for number, fresh in enumerate(entry.fresh):
            if number not in (entry.lasting or ()):
                self.reading.scope[f"take{number}"] = fresh.take
                self.lines.append(f" f{number} = take{number}()")
        for slot, source in enumerate(entry.sources):
            if source.members[0] < entry.count:
                self.address(slot, f"b{source.members[0]}")
        for number in range(len(entry.fresh)):
            if number not in (entry.lasting or ()):
                self.address(len(entry.sources) + number, f"f{number}.buffer")
        self.call()
        self.result()
        self.lines[before:] = [indent + line for line in self.lines[before:]]

    def call(self) -> None:
        """The native call."""
        scope, replay = self.reading.scope, self.entry.replay
        if self.reading.values:
            scope["set_variables"] = replay.set_variables
            self.lines.append(f" set_variables({self.reading.values_text()})")
        launch = self.entry.launch if self.entry.lasting else replay.launch
        scope |= {"watcher": watcher, "ANYONE": object()}
        scope["record"] = partial(_launch_watched, launch) if replay.only is None else replay.record
        scope["run"] = partial(launch, (), is_timed=False) if replay.batch is None else replay.batch.run
        scope |= {"lanes": open_lanes, "settle": settle}
        self.lines.append(" if lanes: settle()")  # what other threads do for calls over several devices
        self.lines += [" now = watcher() if quiet[0] else ANYONE"]
        self.lines += [" if now is None: run()", " else: record(now)"]

    def address(self, slot: int, buffer: str) -> None:
        """One moving buffer: its address goes straight into the native table, if the device has one."""
        cells = self.entry.replay.places(slot)
        self.lines.append(f" a = {buffer}.address")
        if cells is None:
            self.lines.append(f" if a != at[{slot}]: bind({slot}, {buffer})")
            return
        self.lines += [f" if a != at[{slot}]:", f"  at[{slot}] = -1"]  # unbound while they are written, as in `bind`
        self.lines += [f"  {self.reading.name(array)}[{index}] = a" for array, index in cells]
        self.lines.append(f"  at[{slot}] = a")

    def result(self) -> None:
        """Write the new values in the structure that the function returned."""
        entry, scope = self.entry, self.reading.scope
        scope |= {"made": Tensor._make, "result": entry.result, "show": show}
        if len(entry.owners) < len(entry.effects.known):  # not gradients alone
            scope["put"] = entry.put
            index_of = {number: index for index, number in entry.effects.known if index in entry.owners}
            names = [f"state[{index_of[n]}]" if n in index_of else self.named(n) for n in range(len(entry.made))]
            self.lines += [f" new = [{', '.join(names)}]", " put(new)", " return result(new)"]
            return
        names = [self.named(number) for number in range(entry.shown)]
        if entry.is_tensor and len(names) == 1:
            self.lines.append(f" return {names[0]}")
        else:
            self.lines.append(f" return result([{', '.join(names)}])")

    def named(self, number: int) -> str:
        """`part`, with a name where a view shows it."""
        made = self.entry.made
        text = self.part(made[number])
        is_shown = any(value.kind == "view" and value.which == number for value in made)
        return f"(m{number} := {text})" if is_shown else text

    def part(self, value: ReplayValue) -> str:
        """Python for one of the things made."""
        entry = self.entry
        if value.kind == "same":
            is_argument = value.which < entry.count
            return f"t{value.which}" if is_argument else f"state[{value.which - entry.count}]"
        if value.kind == "fresh":
            device = entry.fresh[value.which].device
            leaf = ".requires_grad_()" if value.is_leaf else ""
            return f"made(f{value.which}.nodes[{value.shape}], {device!r}){leaf}"
        if value.kind == "view":
            return f"show(m{value.which}, {self.reading.name(value.shape)}, {self.reading.values_text()})"
        part = self.reading.name(value)
        return f"entry.part({part}, (), (), {self.reading.values_text()}, (), {{}})"

    def run(self) -> None:
        """All that is left, by the entry itself."""
        names = [[f"{letter}{n}" for n in range(self.entry.count)] for letter in "tb"]
        tensors, buffers = ("".join(f"{name}, " for name in of) for of in names)
        self.lines += [
            f" now = [{tensors}*state]",
            f" if not entry.set_sources(now, ({buffers})): return MISS",
            # released while they are still in the CPU's caches
            f" {' = '.join([*names[0], *names[1], 'state'])} = None",
            f" return entry.run((), now, {self.reading.values_text()})",
        ]


def _launch_watched(launch: Callable[..., None], now: object) -> None:
    launch((), is_timed=False if isinstance(now, Recorder) else None)
