"""class Device: the contract, with a default for all that is optional; and finding devices by name.

A device is a class `<Name>Device` in `runtime/ops_<name>.py`, or anywhere else through the entry-point group
`kernmill.devices` (name: the device's name, value: the class). Nothing is opened before it is used. `DEVICE=NAME` or
`NAME:1` chooses, `NAME:1?key=value` with options of the device's own.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from time import perf_counter_ns
from typing import Any, NamedTuple

from kernmill.ir import (
    SETTINGS,
    CompileError,
    DeviceError,
    KernmillError,
    Op,
    SettingError,
    Target,
    UOp,
    before_forks,
    cached_property,
    debug,
    np,
    process_lock,
    setting,
    text_hooks,
)
from kernmill.renderers import Renderer

from .cpu.located import located
from .local_rank import spread
from .memory.allocator import CachingAllocator, HostAllocator, finishing
from .memory.buffer import Buffer
from .opening import (
    asked,
    check_class,
    check_limits,
    checked_options,
    own_files,
    parse_options,
    split_names,
    target_text,
)  # fmt: skip
from .tape import Tape

__all__ = [
    "SLICE_NS",
    "Batch",
    "BufferCopy",
    "Call",
    "Device",
    "Event",
    "GroupTooLarge",
    "Program",
    "Properties",
    "batch_of",
    "canonical_devices",
    "canonical_name",
    "close_device",
    "default_device",
    "device_indices",
    "device_list",
    "device_names",
    "devices_of_rank",
    "failure",
    "get_device",
    "loaded",
    "lose",
    "read_buffer",
    "room",
    "write_buffer",
]  # fmt: skip

SLICE_NS = 10_000_000.0  # of one thread's work, after which it may be interrupted: a person notices 100 ms


class Properties(NamedTuple):
    """Limits and capabilities. Units: bytes; 0 if unknown."""

    total_bytes: int = 0
    free_bytes: int = 0
    max_alloc_bytes: int = 1 << 62  # one buffer
    max_mapped_bytes: int = 1 << 62  # all buffers together
    alignment: int = 64  # of a buffer's address; a power of two
    is_async: bool = False  # `run` may return before the work is done
    slice_alignment: int = 1  # of a slice of a buffer that is passed as a buffer; a power of two
    orders_copies: bool = False  # its copies wait by themselves for the kernels that use the same memory
    is_host_visible: bool = True  # the host can address its memory
    wraps_host_memory: bool = True  # a kernel may work on memory that the host allocated
    max_buffers: int = 1 << 30  # that a kernel may work on
    group: str = ""  # devices of one group use the same memory at the same addresses: a copy between them is a move


class GroupTooLarge(CompileError):
    """A group has more work-items, or shares more memory, than this kernel may have on the device."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class Program:
    """A loaded kernel. `threads` is the size of its outermost parallel loop, `work_ns` the estimated time of one
    thread; `smaller` makes the same kernel with smaller work-groups, for a device that rejects this one;
    `touched` describes the slices of each buffer that an iteration accesses (compiler/kernel/locality.py)."""

    name: str
    handle: Any
    threads: int = 1
    work_ns: float = 0.0
    smaller: Callable[[], Program | None] = lambda: None
    touched: str = ""


class Call(NamedTuple):
    """One launch: a program, its buffers by slot, the values of its variables, and the size of its parallel loop."""

    program: Program
    buffers: tuple[Buffer, ...]
    variables: tuple[int, ...] = ()
    threads: int = 1

    def chunk(self, least_ns: float, shared_ns: float, most: int) -> int:
        """Return the iterations of the parallel loop per chunk: at least `least_ns` of work, at most `most` chunks;
        all iterations if the whole takes less than `shared_ns`."""
        if self.threads <= 1 or self.program.work_ns < shared_ns:
            return max(1, self.threads)
        return max(1 + int(least_ns * self.threads / self.program.work_ns), -(-self.threads // most))

    def slice(self, chunk: int, slice_ns: float) -> int:
        """How many chunks take about `slice_ns`, at least one; 0 where the whole takes much less."""
        if self.program.work_ns < slice_ns / 100:
            return 0
        return max(1, int(slice_ns * self.threads / (self.program.work_ns * chunk)))


class BufferCopy(NamedTuple):
    """A copy in a replay, between devices that use the same memory."""

    target: Buffer
    source: Buffer


class Batch:
    """Calls that are run again and again, some of them on other buffers. The default runs them as new ones."""

    is_chained = False  # some run tile by tile, which is right for these addresses only
    tape: Tape | None = None  # of the profile that is under way, and had runs of it

    def __init__(self, device: Device, calls: Sequence[Call]) -> None:
        self.device = device
        self.calls = list(calls)
        self._bound: dict[int, Buffer] = {}  # by id of a buffer that the batch was made with: what is there now

    def binder(self, entry: int, slot: int) -> Callable[[Buffer], object]:
        """Return a function that binds another buffer, which the caller keeps alive, to slot `slot` of call `entry` for
        all later runs. A call that was submitted is not changed: it may still be in a queue."""
        first, found = self.calls[entry].buffers[slot], self.place(entry, slot)
        if found is not None:
            return lambda buffer: found[0].__setitem__(found[1], buffer.address)

        def bind(buffer: Buffer) -> None:
            bound, call = self._bound.get(id(first), first), self.calls[entry]
            if (bound.address, bound.block) != (buffer.address, buffer.block):
                bound = self._bound[id(first)] = buffer.without_lease()
            self.calls[entry] = call._replace(buffers=(*call.buffers[:slot], bound, *call.buffers[slot + 1 :]))

        return bind

    def place(self, entry: int, slot: int) -> tuple[Any, int] | None:
        """(default: None) The array and the index that `binder` writes an address to, if it does."""
        return None

    def native(self) -> Sequence[int] | None:
        """(default: None) The calls as entries of a launch table: five words each, as `joined` of another device takes
        them; none where there is nothing to do."""
        return None

    def joined(self, parts: Sequence[Batch | BufferCopy]) -> Batch | None:
        """(default: None) These batches, each of which is `native`, and copies as one batch; its table has the
        arguments of the copies, three each: target, source and bytes."""
        return None

    def setter(self, places: Sequence[tuple[int, int]]) -> Callable[[int], object]:
        """A function that gives these variables, (call, its variable) each, another value for all runs to come."""

        def give(value: int) -> None:
            for entry, number in places:
                call = self.calls[entry]
                values = (*call.variables[:number], value, *call.variables[number + 1 :])
                self.calls[entry] = call._replace(variables=values)

        return give

    def run(self, *, is_timed: bool = False) -> list[int]:
        """Execute all calls in order; with `is_timed` the nanoseconds of each."""
        return self.device.run([*self.calls], is_timed=is_timed)

    @property
    def ends(self) -> Sequence[int]:
        """(default: of each call) How many calls precede the end of each entry of the clock. An entry is one call, or
        several that run interleaved."""
        return range(1, len(self.calls) + 1)

    def timed(self, tape: Tape) -> None:
        """(default: `run`, timed) Execute as `run` without times does. Write the clock in ns before the first entry
        and after each to the next row of the tape."""
        clock = [perf_counter_ns()]
        for took in self.run(is_timed=True):
            clock.append(clock[-1] + took)
        tape.write(clock)
        tape.has_driver = True


class Event:
    """A point in a device's work. The default marks none: whoever waits for it waits for all that was submitted."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def record(self) -> None:
        """(default: nothing) Mark the work submitted so far."""

    def wait(self) -> None:
        """(default: synchronize) Return when everything before the mark is done."""
        self.device.synchronize()


class Device(ABC):
    """One device. `must`: renderer, compile, load, run. Everything else has a default that is right for host memory."""

    CONTRACT: int | None = None  # the version of the contract that it was written for
    OPTIONS: Mapping[str, str] = {}  # options of `NAME?key=value`, with the meaning of each key
    kind: str = "cpu"  # cpu, gpu, igpu or accel
    description: str = ""

    def __init__(self, name: str, index: int = 0, options: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.index = index
        self.options = options or {}
        self.lost = ""  # why it cannot be used any more
        self._tag = ""

    # --- must
    @cached_property
    @abstractmethod
    def renderer(self) -> Renderer:
        """The renderer from linear UOps to this device's language; its `target` has the features for generated code."""

    @abstractmethod
    def compile(self, name: str, source: str) -> bytes:
        """Compile source to a binary that may be stored. Raises CompileError with the log next to the source line."""

    @abstractmethod
    def load(self, name: str, binary: bytes) -> Program:
        """A binary, ready to be called."""

    @abstractmethod
    def run(self, calls: Sequence[Call], *, is_timed: bool = False) -> list[int]:
        """Execute in order; with `is_timed` the nanoseconds of each, else an empty list."""

    # --- may
    def prepare(self, calls: Sequence[Call]) -> Batch:
        """(default: a list that is submitted each time) Return calls in the format that is fastest to repeat."""
        return Batch(self, calls)

    @property
    def target(self) -> Target:
        """(default: the renderer's) The features for the compiler."""
        return self.renderer.target

    @classmethod
    def devices(cls) -> list[int]:
        """(default: one) The indices of the devices of this kind that are there."""
        return [0]

    @classmethod
    def _equal_devices(cls) -> list[int]:
        """(default: all) The indices that are as good as the first one: ranks on this machine take one each."""
        return cls.devices()

    @classmethod
    def index_of(cls, text: str) -> int | None:
        """(default: there are no such names) Return the index of the device that `NAME:text` means."""
        return None

    def details(self) -> list[str]:
        """(default: nothing) Further lines about this device, for `kernmill info`."""
        return []

    def props(self) -> Properties:
        """(default: host memory) Limits and capabilities."""
        return Properties(group="host")

    @cached_property
    def limits(self) -> Properties:
        """The first `props`, for constant values: free memory takes a while to find."""
        found = asked(self.name, "props", self.props)
        check_limits(self.name, found, has_memory=type(self).copy_in is not Device.copy_in)
        return found

    def allocate(self, size_bytes: int) -> Any:
        """(default: host memory) A block: any object with an `address`. Raises OutOfMemoryError or MemoryError; the
        runtime then makes room and calls again, and writes the message."""
        return _host_allocator().alloc(size_bytes)

    def free(self, block: Any) -> None:
        """(default: host memory) Give a block back. May come late, and from any thread."""
        _host_allocator().free(block)

    @cached_property
    def allocator(self) -> HostAllocator:
        """(default: a pool over `allocate`; the host's memory) The allocator of the runtime's blocks."""
        if type(self).allocate is Device.allocate:
            return _host_allocator()
        make, limits = self._new_block, self.limits
        return CachingAllocator(make, self._release, limits, device=self.name, free=lambda: self.props().free_bytes)

    def _new_block(self, size_bytes: int) -> Any:
        try:
            return self.allocate(size_bytes)
        except MemoryError:
            raise
        except Exception as error:  # whatever the author's code raises
            raise failure(self, error, f"allocate of {size_bytes:,} bytes") from error

    def _release(self, block: Any) -> None:
        """Give a block back. No error for a lost device, or for one that is lost now: its next use reports that."""
        if not self.lost:
            try:
                self.finish_before_copy()
                self.free(block)
            except Exception as error:  # whatever the author's code raises
                failure(self, error, "free")

    def copy_in(self, target: Buffer, source: memoryview) -> None:
        """(default: host memory) Bytes of the host into a buffer."""
        target.host_array().data.cast("B")[:] = source

    def copy_out(self, target: memoryview, source: Buffer) -> None:
        """(default: host memory) A buffer into bytes of the host."""
        target[:] = self.host_array(source).data.cast("B")

    def host_array(self, buffer: Buffer) -> Any:
        """(default: a view where the host sees the memory) The values as a 1-D NumPy array (bfloat16: as uint16)."""
        self.finish_before_copy()
        if self.limits.is_host_visible:
            return buffer.host_array()
        out = np.empty(buffer.numel, buffer.dtype.stored_as)
        if buffer.numel:
            self.copy_out(out.data.cast("B"), buffer)
        return out

    def copy_from(self, target: Buffer, source: Buffer, device: Device) -> None:
        """(default: one copy where the host sees one of them, else two) A buffer of another device into one of this
        one's, of the same size. Kernels that use this memory were waited for."""
        mine, other = self.limits, device.limits
        if mine.group and mine.group == other.group:
            ctypes.memmove(target.address, source.address, source.nbytes)
        elif mine.is_host_visible:
            device.copy_out(target.host_array().data.cast("B"), source)
        elif other.is_host_visible:
            self.copy_in(target, source.host_array().data.cast("B"))
        else:
            between = self.host_buffer(source.nbytes)
            device.copy_out(between, source)
            self.copy_in(target, between)

    def host_buffer(self, size_bytes: int) -> memoryview:
        """(default: ordinary memory) Memory of the host that this device copies quickly to and from, such as pinned
        pages. A copy between two devices goes through it."""
        return memoryview(bytearray(size_bytes))

    def finish_before_copy(self) -> None:
        """Wait for kernels that may use the memory that a copy is about to touch, where the copy itself does not."""
        if self.limits.is_async and not self.limits.orders_copies:
            self.synchronize()

    def assembly(self, source: str) -> str:
        """(default: none) Return the machine code as text."""
        return ""

    def assembly_later(self, source: str) -> Callable[[float | None], tuple[str, list[int]]]:
        """(default: `assembly`, at the call) Start making it, and return a function that waits for it.

        The function takes a limit in seconds. It returns the text, and for each of its lines that of the source, from
        0, or -1.

        Raises:
            TimeoutError: from that function, which can be called again.
        """
        return lambda limit_s: located(source, self.assembly)

    def expect_many(self) -> None:
        """(default: nothing) Get ready for many calls of `compile_later`."""
        return

    def compile_later(self, name: str, source: str) -> Callable[[], bytes]:
        """(default: `compile`, at the call) Start a compilation, and return a function that waits for it."""
        return lambda: self.compile(name, source)

    def supports(self, op: Op, node: UOp) -> bool | str:
        """(default: the features of the target) Return True, or why this op cannot be computed here with the node's
        dtypes. The result may depend on op and dtypes only, not on the shape."""
        return True

    def cache_tag(self) -> str:
        """(default: the target's name) Return what a stored binary depends on in addition to its source."""
        return self.target.name

    @property
    def tag(self) -> str:
        """The key of everything that a stored binary depends on in addition to its source and kernmill.

        That is `cache_tag`, all of the Target, and the files of a device and a renderer from other packages.
        """
        if not self._tag:  # no cached property: its lock, in Python 3.11, outlives a fork
            files = own_files((type(self), type(self.renderer)))
            self._tag = "\n".join([self.cache_tag(), target_text(self.target), *files])
        return self._tag

    def synchronize(self) -> None:  # noqa: B027 - a default that does nothing, not a forgotten method
        """(default: nothing is pending) Return when all work is done."""

    def close(self) -> None:  # noqa: B027 - as above
        """(default: nothing) Release resources of the machine. No other method is called afterwards."""

    def event(self) -> Event:
        """(default: an event that synchronizes fully) A new event."""
        return Event(self)


def failure(device: Device, error: Exception, what: str) -> Exception:
    """The error to raise for one from a device's own code: ours unchanged, else a DeviceError. After an OSError or
    EOFError the device is lost: its tensors say so when they are used, and its name opens a new one."""
    if isinstance(error, KernmillError) or is_ours(device):
        return error
    text = f"{device.name}: {what} failed ({type(error).__name__}: {error})."
    if not isinstance(error, OSError | EOFError):
        return DeviceError(f"{text} This is a fault of the device's code ({type(device).__module__}).")
    lose(device, text)
    return DeviceError(device.lost)


def lose(device: Device, text: str) -> None:
    """Mark a device and its buffers as lost, and forget its plans and programs; others continue."""
    device.lost = (
        f"{text} The device is lost, and so are its tensors: make them again, and call reset() of captured functions. "
        f"{device.name} is opened again when it is next used; other devices go on."
    )
    with _lock:
        for key in [key for key, opened in _open.items() if opened is device]:
            del _open[key]
        for forget in forgetting:
            forget()
    name = f"{device.name} (lost)"
    _lost[name] = device.lost
    for found in gc.get_objects():
        if type(found) is Buffer and found.device == device.name:
            found.device = name  # which `get_device` refuses with this sentence
    with contextlib.suppress(Exception):  # whatever the author's code raises: it is gone
        device.close()


class GuardedBatch(Batch):
    """A batch of a device from elsewhere, whose errors become ours."""

    def __init__(self, device: Device, calls: Sequence[Call]) -> None:
        super().__init__(device, calls)
        self.batch = device.prepare(calls)
        self.binder, self.place, self.setter = self.batch.binder, self.batch.place, self.batch.setter  # type: ignore[method-assign]
        self.native, self.joined = self.batch.native, self.batch.joined  # type: ignore[method-assign]

    def run(self, *, is_timed: bool = False) -> list[int]:
        """As the device's own."""
        if self.device.lost:
            raise DeviceError(self.device.lost)
        try:
            return self.batch.run(is_timed=is_timed)
        except Exception as error:  # whatever the author's code raises
            names = ", ".join(dict.fromkeys(call.program.name for call in self.calls[:3]))
            raise failure(self.device, error, f"run of {names}") from error


def is_ours(device: Device) -> bool:
    """True if the device is part of kernmill, so that its errors need no message around them."""
    return type(device).__module__.startswith("kernmill.")


def room(device: Device) -> int:
    """Bytes that can still be allocated on a device, as far as it says; else 1 << 62.

    Raises:
        DeviceError: it cannot say, and is lost where its connection ended.
    """
    try:
        kept = device.allocator.held_bytes()[1]  # for reuse: it is given back where memory is short
        now = device.props()
    except Exception as error:  # whatever the author's code raises
        raise failure(device, error, "props") from error
    if device.limits.free_bytes:  # it says, and 0 means 0
        free = now.free_bytes + kept
    else:
        free = max(0, now.total_bytes - device.allocator.live_bytes) if now.total_bytes else 1 << 62
    return min(free, now.max_mapped_bytes)


def write_buffer(device: Device, target: Buffer, source: memoryview) -> None:
    """Copy bytes of the host into a buffer, after the kernels that were submitted before."""
    try:
        device.finish_before_copy()
        device.copy_in(target, source)
    except Exception as error:  # whatever the author's code raises
        raise failure(device, error, f"copy_in of {len(source):,} bytes") from error


def read_buffer(device: Device, buffer: Buffer) -> Any:
    """Return the values as a 1-D NumPy array, as `host_array` makes it."""
    buffer.wait()
    try:
        return device.host_array(buffer)
    except Exception as error:  # whatever the author's code raises
        raise failure(device, error, f"copy_out of {buffer.nbytes:,} bytes") from error


def loaded(device: Device, name: str, binary: bytes) -> Program:
    """Call `load`; a lost device is a DeviceError, an invalid binary is whatever `load` raises."""
    try:
        return device.load(name, binary)
    except (OSError, EOFError) as error:
        raise failure(device, error, f"load of {name}") from error


def batch_of(device: Device, calls: Sequence[Call]) -> Batch:
    """Call `prepare`, with errors of other packages' devices converted to ours."""
    return device.prepare(calls) if is_ours(device) else GuardedBatch(device, calls)


_lock = process_lock()
_lost: dict[str, str] = {}  # error messages of tensors on a lost device
_open: dict[tuple[str, Any], Device] = {}  # by name and TARGET
forgetting: list[Callable[[], object]] = []  # called when a device is forgotten
_options: dict[str, Mapping[str, str]] = {}  # by name: the options after the ?


@cache
def _host_allocator() -> HostAllocator:
    return HostAllocator(device="host memory")


def device_names() -> dict[str, str]:
    """Return every available device by name, with the module of its class. Searched at each call."""
    found = {
        file[4:-3].upper(): f"kernmill.runtime.{file[:-3]}"
        for file in sorted(os.listdir(os.path.dirname(__file__)))
        if file.startswith("ops_") and file.endswith(".py")
    }
    with before_forks():
        from importlib.metadata import entry_points
    for entry in entry_points(group="kernmill.devices"):
        found.setdefault(entry.name.upper(), entry.value)
    return found


def _named_by_variable(given: str) -> str:
    """Return the value of DEVICE: its own, or `MYDEV` if the environment has MYDEV=1 for a device MYDEV.

    Raises:
        SettingError: two devices are named.
    """
    on = [name for name, value in os.environ.items() if value == "1" and name.isalnum() and name.isupper()]
    on = [name for name in on if name not in SETTINGS and (name == "PYTHON" or not name.startswith("PYTHON"))]
    on = [name for name in on if name != "SHLVL"]  # of the first shell: a search for it would slow each start
    known = device_names() if on else {}
    named = [name for name in on if name in known]
    if len({*named, *([given.upper()] if given else [])}) > 1:
        said = [*([f"DEVICE={given}"] if given else []), *(f"{name}=1" for name in named)]
        raise SettingError(f"environment: {' and '.join(said)} name different devices. Set one of them.")
    return devices_of_rank(given or "".join(named))


def devices_of_rank(names: str) -> str:
    """Devices as the user names them: of several alike each rank here takes one, unless an index is given."""
    return spread(names, _equal_devices)


def _equal_devices(base: str) -> list[int]:
    with contextlib.suppress(DeviceError):  # who uses the device gets the error
        return _device_class(base, base)._equal_devices()
    return []


text_hooks["DEVICE"] = _named_by_variable


def canonical_name(name: str) -> str:
    """Return the canonical name: `llvm:0` -> `LLVM`, `cl:nvidia` -> `CL:1`, `far:1?key=value` -> `FAR:1`, which is
    opened with these options. Raises DeviceError for an unknown name, and for other options than those of an open
    device."""
    if "?" in name:
        name, _, text = name.partition("?")
        found = canonical_name(name)
        _note_options(found, parse_options(found, text))
        return found
    base, _, index = name.upper().partition(":")
    number: int | None = int(index) if index.isdecimal() else None
    if index and number is None and base in device_names():
        number = _device_class(base, base).index_of(name.partition(":")[2])
    if not base or (index and number is None):
        raise DeviceError(f"device {name!r}: expected a device name such as LLVM or LLVM:1.")
    return f"{base}:{number}" if number else base


def _note_options(name: str, options: Mapping[str, str]) -> None:
    before = _options.get(name)
    is_open = any(open_name == name for open_name, _ in _open)
    if options != before and (before is not None or is_open):
        said = ",".join(f"{key}={value}" for key, value in (before or {}).items()) or "none"
        raise DeviceError(f"device {name!r}: it has other options already ({said}). Give them once, at the first use.")
    _options[name] = options


def device_indices(base: str) -> list[int]:
    """The devices of a kind that are there. Raises DeviceError where none can be found, with the reason."""
    return _device_class(base, base).devices()


@cache
def _canonical_list(text: str) -> tuple[str, ...]:
    names = tuple([canonical_name(name) for name in split_names(text)])
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DeviceError(f"DEVICE={text}: {', '.join(twice)} is named twice. Name each device once.")
    if len(names) > 1:
        for name in names:
            get_device(name)
    return names


def device_list() -> tuple[str, ...]:
    """The devices that the setting DEVICE names, in order of preference.

    Raises:
        DeviceError: a name is unknown or comes twice, or a device of a list cannot be opened.
    """
    return _canonical_list(str(setting("DEVICE")))


def canonical_devices(text: str) -> str:
    """A device, or several in order of preference, as the setting DEVICE has them. Raises DeviceError."""
    return ",".join(_canonical_list(text))


def default_device() -> str:
    """The device of new tensors: the first that the setting DEVICE names."""
    return device_list()[0]


def get_device(name: str | None = None) -> Device:
    """Return the device of that name, opened at the first call; None: the first of the setting DEVICE.

    Raises:
        DeviceError: unknown device, or it cannot be opened; the message lists those that can.
    """
    name, level = name if name is not None else str(setting("DEVICE")), setting("TARGET")
    device = _open.get((name, level))
    if device is None:
        if name in _lost:
            raise DeviceError(_lost[name])
        name = canonical_name(name) if "," not in name and ".." not in name else _canonical_list(name)[0]
        with _lock:
            device = _open.get((name, level)) or _open.setdefault((name, level), _open_device(name))
    return device


def close_device(name: str) -> None:
    """Close a device, if it is open. Its tensors and captured functions are lost; the next use opens it again."""
    for finish in finishing:
        finish()
    for device in {opened for key, opened in _open.items() if key[0] == canonical_name(name)}:
        lose(device, f"{device.name}: it was closed.")


def _open_device(name: str) -> Device:
    python = ctypes.pythonapi
    python.PyInterpreterState_Get.restype, python.PyInterpreterState_GetID.restype = ctypes.c_void_p, ctypes.c_int64
    if number := python.PyInterpreterState_GetID(ctypes.c_void_p(python.PyInterpreterState_Get())):
        raise DeviceError(
            f"device {name!r}: this is sub-interpreter {number} of the process, and Python could not exit after a "
            "device was opened here. Use the main interpreter, or another process."
        )
    base, _, index = name.partition(":")
    cls = _device_class(base, name)
    check_class(name, cls, Device)
    there = asked(name, "devices()", cls.devices)
    if int(index or 0) not in there:
        names = ", ".join(f"{base}:{number}" if number else base for number in there)
        raise DeviceError(f"device {name!r}: not found. Available: {names}. `kernmill info` describes them.")
    for listed in split_names(str(setting("DEVICE"))):  # which may say this device's options
        if "?" in listed and canonical_name(listed.partition("?")[0]) == name:
            canonical_name(listed)
    options = checked_options(name, cls.OPTIONS, _options.get(name, {}))
    device = asked(name, f"{cls.__qualname__}.__init__", cls, name, int(index or 0), *([options] if options else []))
    if not is_ours(device):  # its faults are reported now
        try:
            asked(name, "renderer", lambda: (device.limits, device.tag))
        except KernmillError:
            with contextlib.suppress(Exception):  # whatever the author's code raises: it is not used
                device.close()
            raise
    if debug() >= 1:
        print(f"opened {name}: {device.description}, target {device.target.name}", file=sys.stderr)
    return device


def _device_class(base: str, name: str) -> type[Device]:
    builtin = f"ops_{base.lower()}"
    if os.path.exists(os.path.join(os.path.dirname(__file__), f"{builtin}.py")):
        module, attribute = f"kernmill.runtime.{builtin}", f"{base.capitalize()}Device"
    else:
        known = device_names()
        if base not in known:
            raise DeviceError(f"device {name!r}: not found. Available: {', '.join(known)}.")
        module, _, attribute = known[base].partition(":")
    try:
        with before_forks():
            loaded = importlib.import_module(module)
    except ImportError as error:
        raise DeviceError(
            f"device {name!r}: {module} cannot be imported ({error}). Install its dependencies, or choose another "
            "device."
        ) from error
    cls = next((v for k, v in vars(loaded).items() if k.lower() == attribute.lower()), None)
    if not (isinstance(cls, type) and issubclass(cls, Device)):
        raise DeviceError(f"device {name!r}: {module} has no class {attribute} that is a Device.")
    return cls
