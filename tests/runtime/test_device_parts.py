"""Each part of `kernmill conformance` finds a device with one fault, which no other part finds."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kernmill.commands import conformance, device_parts
from kernmill.ir import setting
from kernmill.runtime import Batch, Event, get_device
from tests.far_device import FarDevice

Far = Any


@pytest.mark.parametrize("options", [{}, {"queueing": 1, "sleep_ns": 9000}, {"mib": 3, "most": 1 << 20, "align": 4096}])
def test_a_right_device_passes_all_parts(far: Far, options: dict[str, int]) -> None:
    assert device_parts.failures(far(**options)) == {}


class ByBlock(FarDevice):
    """`run` finds memory by the block of its own `allocate`."""

    def run(self, calls: Any, *, is_timed: bool = False) -> Any:
        for block, buffer in ((buffer.block, buffer) for call in calls for buffer in call.buffers):
            assert 0 <= buffer.address - block.address < 1 << 20
        return super().run(calls, is_timed=is_timed)  # type: ignore[no-untyped-call]


def test_replays_know_the_blocks_of_a_device(far: Far) -> None:
    """Named regression: in a replay `buffer.block` was None, where a device's memory has no other name."""
    name = far.announce("BYBLOCK", ByBlock)
    assert device_parts.failures(name, ("replays", "offsets")) == {}


def test_the_devices_here_pass(device: str) -> None:
    assert device_parts.failures(device) == {}


class Nonsense(FarDevice):
    """properties: free memory is always the same."""

    def props(self) -> Any:
        return super().props()._replace(free_bytes=1 << 20)  # type: ignore[no-untyped-call]


class NoOffsets(FarDevice):
    """offsets: `copy_out` reads from where the block begins."""

    def copy_out(self, target: memoryview, source: Any) -> None:
        target[:] = self.ask("get", source.block.address, source.nbytes)  # type: ignore[no-untyped-call]


class Unaligned(FarDevice):
    """alignment: blocks of odd sizes begin 4 bytes after where they have to."""

    def allocate(self, size_bytes: int) -> Any:
        block: Any = super().allocate(size_bytes + 4)  # type: ignore[no-untyped-call]
        return SimpleNamespace(address=block.address + 4 * (size_bytes == 100))

    def free(self, block: Any) -> None:
        self.ask("free", block.address - block.address % 64)  # type: ignore[no-untyped-call]


class BadEnd(FarDevice):
    """end of memory: not an error of memory."""

    def allocate(self, size_bytes: int) -> Any:
        try:
            return super().allocate(size_bytes)  # type: ignore[no-untyped-call]
        except MemoryError:
            raise RuntimeError("status 7") from None


class NoCopies(FarDevice):
    """copies: another device's buffer is never read."""

    def copy_from(self, target: Any, source: Any, device: Any) -> None:
        return


class NoVariables(FarDevice):
    """variables: they are 1 in a launch; a repeated batch gets them."""

    def run(self, calls: Any, *, is_timed: bool = False) -> Any:
        ones = [call._replace(variables=(1,) * len(call.variables)) for call in calls]
        return super().run(ones, is_timed=is_timed)  # type: ignore[no-untyped-call]

    def prepare(self, calls: Any) -> Batch:
        return RunsItself(self, calls)


class RunsItself(Batch):
    def run(self, *, is_timed: bool = False) -> list[int]:
        found: list[int] = FarDevice.run(self.device, self.calls, is_timed=is_timed)  # type: ignore[arg-type, no-untyped-call]
        return found


class Stays(Batch):
    def binder(self, entry: int, slot: int) -> Callable[[Any], object]:
        return lambda buffer: None


class NoBinding(FarDevice):
    """replays: a batch stays on the buffers that it was made with."""

    def prepare(self, calls: Any) -> Batch:
        return Stays(self, calls)


class NoTimes(FarDevice):
    """timed runs: no times."""

    def run(self, calls: Any, *, is_timed: bool = False) -> Any:
        super().run(calls, is_timed=is_timed)  # type: ignore[no-untyped-call]
        return []


class Passed(Event):
    def wait(self) -> None:
        return


class NoEvents(FarDevice):
    """events: nobody waits for them."""

    def event(self) -> Event:
        return Passed(self)


class Stale(FarDevice):
    """stale values: a buffer that was read before is not read again."""

    def copy_out(self, target: memoryview, source: Any) -> None:
        seen = self.__dict__.setdefault("seen", {})
        if seen.get(id(source), (None,))[0] is not source:
            seen[id(source)] = source, self.ask("get", source.address, source.nbytes)  # type: ignore[no-untyped-call]
        target[:] = seen[id(source)][1]


class Shared(FarDevice):
    """threads: what is to be run is kept in one place."""

    def run(self, calls: Any, *, is_timed: bool = False) -> Any:
        self.waiting = calls
        if threading.current_thread() is not threading.main_thread():
            time.sleep(0.002)
        return super().run(self.waiting, is_timed=is_timed)  # type: ignore[no-untyped-call]


class Leaks(FarDevice):
    """leaks: of a hundred blocks that are given back, one is kept."""

    def free(self, block: Any) -> None:
        self.given_back = getattr(self, "given_back", 0) + 1
        if self.given_back % 100:
            super().free(block)  # type: ignore[no-untyped-call]


class ByShape(FarDevice):
    """supports: a large product is refused, and a small one is not."""

    def supports(self, op: Any, node: Any) -> bool | str:
        return op.name != "MUL" or node.shape[-1:] != (1 << 20,) or "too large for the unit"


BROKEN: dict[str, tuple[type, str]] = {
    "properties": (Nonsense, "0 fewer are free"),
    "offsets": (NoOffsets, "three buffers of one block, .*: value 0 is 0.0, not 400.0"),
    "alignment": (Unaligned, "and the alignment is 64"),
    "end of memory": (BadEnd, "the end of memory is RuntimeError"),
    "copies": (NoCopies, "3 bytes from LLVM to BROKEN"),
    "variables": (NoVariables, "a variable of value 3: value 0 is 1.0, not 3.0"),
    "replays": (NoBinding, "192 bytes at 0x0 are in no block"),
    "timed runs": (NoTimes, r"three timed calls gave \[\]"),
    "events": (NoEvents, "read after it"),
    "stale values": (Stale, "turn 2"),
    "threads": (Shared, "with four threads"),
    "leaks": (Leaks, "bytes fewer are free"),
    "supports": (ByShape, "MUL of float32 has another answer for other shapes"),
}


def test_there_is_a_broken_device_for_each_part() -> None:
    assert BROKEN.keys() == device_parts.PARTS.keys()


@pytest.mark.parametrize("part", list(BROKEN))
def test_only_this_part_finds_it(far: Far, part: str) -> None:
    cls, message = BROKEN[part]
    name = far.announce("BROKEN", cls)
    name = get_device("BROKEN?queueing=1&sleep_ns=20000" if part == "events" else "BROKEN?mib=16").name
    found = device_parts.failures(name)
    assert list(found) == [part]
    assert re.search(message, found[part])


def test_the_command_judges_no_stored_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Named regression: with a warm cache it judged what the renderer had printed before an edit."""
    seen: list[object] = []
    monkeypatch.setattr(conformance, "check", lambda case, device: "")

    def failures(device: str) -> dict[str, str]:
        seen.append(setting("CACHE"))
        return {}

    monkeypatch.setattr(device_parts, "failures", failures)
    monkeypatch.setattr(conformance, "cases", lambda: iter([conformance.Case("unary", "none", (), len)]))  # type: ignore[arg-type]
    assert conformance.run("PYTHON")
    assert seen == ["0"]
