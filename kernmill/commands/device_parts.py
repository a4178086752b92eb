"""The parts of `kernmill conformance` in addition to arithmetic: memory, copies, replays, order, threads, properties.

Each part does what the runtime does too, with buffers that it chooses itself, and compares what comes back. For each
part, tests/runtime/test_device_parts.py has a device with one fault that this part alone finds.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from kernmill.ir import Ops, UOp, dtypes, elementwise, expand, reshape
from kernmill.runtime import (
    Buffer,
    Call,
    Device,
    Recording,
    Replay,
    allocate_buffer,
    copy_between,
    device_indices,
    download,
    get_device,
    read_buffer,
    realize,
    recording,
    upload,
    write_buffer,
)

__all__ = ["PARTS", "Fault", "failures"]

SIZES = (0, 1, 3, 64, 4097, (1 << 20) + 3)  # bytes of copies: none, odd ones, more than a page, more than a MiB
ROUNDS = 1000  # of allocations, after which as much is free as before
KINDS = ("cpu", "gpu", "igpu", "accel")
COUNT = 48  # values of a small buffer
QUEUED = 200  # launches, one after the other, that a device which queues still has to do when it is read
TURNS = 20  # replays, one after the other, of which none is read before the last
LARGE = 1 << 30  # bytes: a device with more memory is not filled


class Fault(Exception):
    """A fault that a part found."""


class Adder(NamedTuple):
    """A kernel `out = x + x` of COUNT float32, and how it is called."""

    device: Device
    call: Call
    output: int  # which of its buffers it writes

    @classmethod
    def of(cls, name: str) -> Adder:
        """Compiled for a device."""
        with recording() as recorded:
            x = upload(np.zeros(COUNT, np.float32), dtypes.float32, name)
            realize([elementwise(Ops.ADD, x, x)])
        kernel, call = first_launch(recorded)
        return cls(get_device(name), call, kernel.buffers.index(kernel.outputs[0]))

    def on(self, out: Buffer, x: Buffer) -> Call:
        """The call on these buffers."""
        return self.call._replace(buffers=tuple(out if n == self.output else x for n in range(2)))

    def run(self, out: Buffer, x: Buffer) -> None:
        """Launch it."""
        self.device.run([self.on(out, x)])


def first_launch(recorded: Recording) -> Any:
    """The kernel and the call of the only launch that was recorded."""
    step: Any = recorded.steps[0]
    return step.kernels[0], step.calls[0]


def ramp(start: float, count: int = COUNT) -> Any:
    """Values that differ from each other and from those of another start."""
    return np.arange(start, start + count, dtype=np.float32)


def filled(name: str, values: Any) -> Buffer:
    """A buffer with these values."""
    buffer: Buffer = upload(values, dtypes.float32, name).storage
    return buffer


def expect(got: Any, want: Any, what: str) -> None:
    """Raise Fault where two arrays differ."""
    if not np.array_equal(got, want):
        at = int(np.flatnonzero(np.asarray(got) != np.asarray(want))[0])
        raise Fault(f"{what}: value {at} is {got[at]}, not {want[at]}")


# --- the parts -------------------------------------------------------------------------------------------------------
def properties(name: str) -> None:
    """The device's statements about itself make sense, before and after an allocation."""
    device = get_device(name)
    if device.kind not in KINDS:
        raise Fault(f"its kind is {device.kind!r}, and has to be one of {', '.join(KINDS)}")
    before = device.props()
    if before.free_bytes and not before.is_host_visible:
        size = min(1 << 20, before.free_bytes // 4, before.max_alloc_bytes)
        block = device.allocate(size)
        after = device.props().free_bytes
        device.free(block)
        if before.free_bytes - after < size:
            raise Fault(f"after an allocation of {size:,} bytes, {before.free_bytes - after:,} fewer are free")


def offsets(name: str) -> None:
    """Two buffers in one block: copies and kernels find the right one, and leave the other unchanged."""
    adder, step = Adder.of(name), max(get_device(name).limits.alignment, 4 * COUNT)
    step = -(-step // get_device(name).limits.alignment) * get_device(name).limits.alignment
    whole = allocate_buffer(name, dtypes.uint8, 3 * step)
    parts = [Buffer(name, dtypes.float32, COUNT, whole, whole.address + n * step) for n in range(3)]
    for n, part in enumerate(parts):
        write_buffer(adder.device, part, ramp(100 * n).data.cast("B"))
    adder.run(parts[1], parts[2])
    for part, want in zip(parts, (ramp(0), 2 * ramp(200), ramp(200)), strict=True):
        expect(
            read_buffer(adder.device, part),
            want,
            "three buffers of one block, and a kernel",
        )


def alignment(name: str) -> None:
    """Blocks of any size begin at multiples of the alignment."""
    device = get_device(name)
    blocks = [device.allocator.new_block(size) for size in (1, 3, 100, 4097)]
    wrong = [block.address for block in blocks if block.address % device.limits.alignment]
    for block in blocks:
        block.release()
    if wrong:
        raise Fault(f"a block at {wrong[0]:#x}, and the alignment is {device.limits.alignment}")


def end_of_memory(name: str) -> None:
    """More than there is ends in an OutOfMemoryError, after which all is as before."""
    device, limits = get_device(name), get_device(name).limits
    if limits.is_host_visible or not 0 < limits.total_bytes < LARGE:
        return
    device.allocator.trim()
    before, held = device.props().free_bytes, list[Any]()
    size = min(limits.max_alloc_bytes, max(1, limits.total_bytes // 8))
    try:
        for _ in range(2 + limits.total_bytes // size):
            held.append(device.allocate(size))
    except MemoryError:
        pass
    except Exception as error:
        raise Fault(f"the end of memory is {type(error).__name__}, and has to be an OutOfMemoryError") from error
    else:
        raise Fault(f"{len(held)} blocks of {size:,} bytes, of {limits.total_bytes:,} in all")
    finally:
        for block in held:
            device.free(block)
    if (after := device.props().free_bytes) != before:
        raise Fault(f"{before - after:,} bytes fewer are free after the end of memory")
    x = filled(name, ramp(1))
    expect(read_buffer(device, x), ramp(1), "after the end of memory")


def copies(name: str) -> None:
    """To and from the host's devices and its own siblings, of all sizes, while other buffers live."""
    base = name.partition(":")[0]
    siblings = [f"{base}:{index}" if index else base for index in device_indices(base)]
    others = [other for other in dict.fromkeys(("LLVM", "PYTHON", *siblings[:3])) if other != name]
    for other in others:
        largest = min(get_device(device).limits.max_alloc_bytes for device in (name, other))
        for size in (size for size in SIZES if size <= largest):
            data = (np.arange(size) % 251).astype(np.uint8)
            source: Buffer = upload(data, dtypes.uint8, name).storage
            there, back = (allocate_buffer(device, dtypes.uint8, size) for device in (other, name))
            copy_between(there, source)
            copy_between(back, there)
            if size:
                expect(read_buffer(get_device(other), there), data, f"{size:,} bytes from {name} to {other}")
                expect(read_buffer(get_device(name), back), data, f"{size:,} bytes from {other} to {name}")


def variables(name: str) -> None:
    """A kernel gets the value that a variable has in this launch."""
    number = UOp(Ops.VARIABLE, dtypes.index, (), ("n", 1, 9)).cast(dtypes.float32)
    for value in (3, 7):
        x = upload(ramp(1), dtypes.float32, name)
        root = elementwise(Ops.MUL, x, expand(reshape(number, (1,)), (COUNT,)))
        realize([root], variables={"n": value})
        expect(download(root), value * ramp(1), f"a variable of value {value}")


def replays(name: str) -> None:
    """A repeated batch works on other buffers each time, and with other values of variables."""
    number = UOp(Ops.VARIABLE, dtypes.index, (), ("n", 1, 9)).cast(dtypes.float32)
    x = upload(ramp(1), dtypes.float32, name)
    root = elementwise(Ops.MUL, elementwise(Ops.ADD, x, x), expand(reshape(number, (1,)), (COUNT,)))
    with recording() as recorded:
        realize([root], variables={"n": 2})
    replay = Replay(recorded, [x.storage, root.storage])
    for turn, value in enumerate((5, 3, 3)):
        given, out = filled(name, ramp(turn)), allocate_buffer(name, dtypes.float32, COUNT)
        replay.run([given, out], {"n": value})
        expect(read_buffer(get_device(name), out), 2 * value * ramp(turn), f"replay {turn + 1} on other buffers")
    pairs = [(filled(name, ramp(turn)), allocate_buffer(name, dtypes.float32, COUNT)) for turn in range(TURNS)]
    for turn, pair in enumerate(pairs):
        replay.run(pair, {"n": 1 + turn % 9})
    for turn, (_, out) in enumerate(pairs):
        want = 2 * (1 + turn % 9) * ramp(turn)
        expect(read_buffer(get_device(name), out), want, f"replay {turn + 1} of {TURNS} before a read")


def timed_runs(name: str) -> None:
    """With `is_timed` the nanoseconds of each call, else an empty list."""
    adder = Adder.of(name)
    x, out = filled(name, ramp(0)), filled(name, ramp(0))
    times = adder.device.run([adder.on(out, x)] * 3, is_timed=True)
    if len(times) != 3 or any(not isinstance(time, int) or time < 0 for time in times):
        raise Fault(f"three timed calls gave {times!r}, and have to give three counts of nanoseconds")
    if untimed := adder.device.run([adder.on(out, x)]):
        raise Fault(f"a call that is not timed gave {untimed!r}, and has to give []")


def events(name: str) -> None:
    """After an event what was submitted before it is done; a second event is one of its own."""
    adder = Adder.of(name)
    x, outs, before = filled(name, ramp(3)), [filled(name, ramp(0)), filled(name, ramp(0))], filled(name, ramp(0))
    marks = [adder.device.event(), adder.device.event()]
    for out, event in zip(outs, marks, strict=True):
        adder.device.run([*[adder.on(before, x)] * QUEUED, adder.on(out, x)])
        event.record()
    for out, event in zip(outs, marks, strict=True):
        event.wait()
        got = np.zeros(COUNT, np.float32)
        adder.device.copy_out(got.data.cast("B"), out)  # which does not wait itself
        expect(got, 2 * ramp(3), "what a device was given before an event, read after it")


def stale_values(name: str) -> None:
    """A read returns what the last launch wrote, and a copy into memory waits for launches that still read it."""
    adder = Adder.of(name)
    x, out, last = filled(name, ramp(1)), filled(name, ramp(0)), filled(name, ramp(0))
    for turn in range(3):
        write_buffer(adder.device, x, ramp(turn).data.cast("B"))
        adder.device.run([adder.on(out, x)] * QUEUED)
        adder.run(last, out)
        write_buffer(adder.device, x, ramp(1000).data.cast("B"))
        expect(read_buffer(adder.device, last), 4 * ramp(turn), f"turn {turn + 1} of launches and copies")
        expect(read_buffer(adder.device, out), 2 * ramp(turn), f"turn {turn + 1}, an intermediate result")


def threads(name: str) -> None:
    """Four threads run, copy and free at the same time."""
    adder, found = Adder.of(name), list[BaseException]()

    def work(start: int) -> None:
        try:
            for turn in range(10):
                x, out = filled(name, ramp(start + turn)), allocate_buffer(name, dtypes.float32, COUNT)
                adder.run(out, x)
                expect(read_buffer(adder.device, out), 2 * ramp(start + turn), "with four threads")
        except Exception as error:
            found.append(error)

    started = [threading.Thread(target=work, args=(1000 * n,)) for n in range(4)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    if found:
        raise found[0]


def leaks(name: str) -> None:
    """After many allocations as much is free as before."""
    device = get_device(name)
    if device.limits.is_host_visible or not device.props().free_bytes:
        return
    device.allocator.trim()
    before, size = device.props().free_bytes, max(1, min(1 << 16, device.limits.max_alloc_bytes))
    if 2 * ROUNDS * size < before:
        size = min(device.limits.max_alloc_bytes, before // ROUNDS * 2)
    for _ in range(ROUNDS):
        device.free(device.allocate(size))
    if (after := device.props().free_bytes) != before:
        raise Fault(f"after {ROUNDS} blocks of {size:,} bytes, {before - after:,} bytes fewer are free")


def supports(name: str) -> None:
    """The answer is True or a reason, and depends on op and dtypes alone."""
    device = get_device(name)
    for op in (Ops.ADD, Ops.MUL, Ops.MAX, Ops.EXP, Ops.WHERE, Ops.CAST):
        for dtype in (dtypes.float32, dtypes.float64, dtypes.int32, dtypes.uint8):
            answers: set[object] = set()
            for count in (1, COUNT, 1 << 20):
                x = reshape(UOp(Ops.PARAM, dtype, (), (0, count)), (count,))
                answers.add(device.supports(op, supported_node(op, x)))
            if len(answers) > 1:
                raise Fault(f"{op.name} of {dtype.name} has another answer for other shapes: {answers}")
            (answer,) = answers
            if answer is not True and not (isinstance(answer, str) and answer):
                raise Fault(f"{op.name} of {dtype.name}: {answer!r}, and has to be True or why not")


def supported_node(op: Any, x: UOp) -> UOp:
    """A node of this op with operands of x's dtype."""
    if op is Ops.CAST:
        return x.cast(dtypes.float32 if x.dtype is not dtypes.float32 else dtypes.int32)
    if op is Ops.WHERE:
        return UOp(Ops.WHERE, x.dtype, (elementwise(Ops.LT, x, x), x, x))
    return UOp(op, x.dtype, (x,) if op is Ops.EXP else (x, x))


PARTS: dict[str, Callable[[str], None]] = {
    part.__name__.replace("_", " "): part
    for part in (properties, offsets, alignment, end_of_memory, copies, variables, replays, timed_runs, events,
                 stale_values, threads, leaks, supports)
}  # fmt: skip


def failures(device: str, names: Sequence[str] = tuple(PARTS)) -> dict[str, str]:
    """Return the faults that these parts find, by the name of the part. A device that computes nothing runs only the
    parts about its properties and its alignment."""
    found: dict[str, str] = {}
    for name in names:
        if device.partition(":")[0] == "NULL" and name not in ("properties", "alignment", "supports"):
            continue
        try:
            PARTS[name](device)
        except Fault as fault:
            found[name] = str(fault)
        except Exception as error:  # whatever the device's code raises: the next part goes on
            found[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return found
