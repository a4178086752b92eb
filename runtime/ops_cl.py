"""CL: whatever has an OpenCL driver. `CL` is the first device, `CL:1` the next; `CL:nvidia` the one of that name.

A CPU gets the CPU's shape. A work-item runs a chunk of the outermost loop, groups have one item, vectors are explicit
and the memory is the host's own, without copies. Other devices keep buffers of the driver.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from kernmill.ir import (
    MACHINES,
    CompileError,
    DeviceError,
    Ops,
    OutOfMemoryError,
    Target,
    Unit,
    WeakTable,
    cached_property,
    dtypes,
    keep_until_death,
    setting,
)
from kernmill.renderers import MMA_ITEMS, MMA_UNITS, OPENCL_OPS, OpenCLRenderer, Renderer

from .cpu.cpu_target import host_target
from .cpu.host import this_host
from .device import SLICE_NS, Batch, Call, Device, GroupTooLarge, Program, Properties
from .memory.allocator import SMALLER, Block, HostAllocator
from .memory.buffer import Buffer
from .opencl.cl_driver import ClFacts, facts_of, found_devices, open_binding, refuse_after_fork, refuse_unusable
from .opencl.cl_memory import NO_ROOM, ClAllocator, ClBlock, ClHostAllocator, host_memory
from .opencl.cl_program import build_program, pack_program, quietly, unpack_program
from .opencl.cl_trial import ClCosts, measured_costs
from .programs.matrix_unit_trial import matrix_unit_trial

__all__ = ["ClDevice"]

_GROUP_REFUSED = (-5, -54, -55)  # CL_OUT_OF_RESOURCES, CL_INVALID_WORK_GROUP_SIZE, CL_INVALID_WORK_ITEM_SIZE
_CHUNK_NS = 20_000.0  # less work than this is not worth a separate work-item
_MOST_ITEMS = 64  # work-items of a kernel on a CPU
_MOST_GROUP = 256  # items of a group on a GPU; larger ones leave too few registers for each

_contexts: dict[Any, Any] = {}
_sessions: dict[int, _Session] = {}


class _Session(NamedTuple):
    """The state of one device, kept if it is opened again for another TARGET: launches wait for all earlier copies,
    and copies for all earlier launches."""

    context: Any
    queue: Any
    memory: ClAllocator
    lock: threading.RLock


def _session(cl: Any, facts: ClFacts, index: int, name: str) -> _Session:
    """Return the state of a device. Devices of one driver share a context if they have separate memory, which is
    then copied without the host."""
    if index not in _sessions:
        handle = found_devices()[index]
        key = index if facts.is_host_memory else (facts.platform, facts.kind)
        if key not in _contexts:
            alike = [d for d in handle.platform.get_devices() if int(d.type) == int(handle.type)]
            _contexts[key] = cl.Context([handle] if facts.is_host_memory else alike)
        timed = cl.command_queue_properties.PROFILING_ENABLE
        context, queue = _contexts[key], cl.CommandQueue(_contexts[key], handle, properties=timed)
        _sessions[index] = _Session(context, queue, ClAllocator(cl, context, queue, facts, name), threading.RLock())
    return _sessions[index]


class ClDevice(Device):
    """One device of an OpenCL driver."""

    CONTRACT = 1

    def __init__(self, name: str, index: int = 0) -> None:
        super().__init__(name, index)
        self.cl = open_binding()
        self.handle = found_devices()[index]
        self.facts = facts_of(self.handle)
        self.kind, self.description = self.facts.kind, f"{self.facts.name}, {self.facts.version.partition(';')[0]}"
        refuse_unusable(self.handle, self.facts, name)
        try:
            self.context, self.queue, self.memory, self.lock = _session(self.cl, self.facts, index, name)
        except self.cl.Error as error:
            raise DeviceError(f"{name}: {self.facts.name} cannot be opened ({error}). Choose another.") from error
        self.borrowed: WeakTable[Buffer, Any] = WeakTable()

    # --- properties
    @classmethod
    def devices(cls) -> list[int]:
        """All that the drivers offer."""
        return list(range(len(found_devices())))

    @classmethod
    def _equal_devices(cls) -> list[int]:
        """Return those of the first one's type: next to a GPU, a CPU is not."""
        types = [device.type for device in found_devices()]
        return [index for index, type in enumerate(types) if type == types[0]]

    @classmethod
    def index_of(cls, text: str) -> int:
        """The first device whose name or platform contains the text."""
        names = [f"{device.name} {device.platform.name}" for device in found_devices()]
        for index, name in enumerate(names):
            if text.lower() in name.lower():
                return index
        there = "; ".join(f"CL:{index} is {name}" for index, name in enumerate(names))
        raise DeviceError(
            f"CL:{text}: no OpenCL device has this in its name. Available: {there}. Use one of these numbers."
        )

    def details(self) -> list[str]:
        """Limits and extensions."""
        said = self.unit[1], self.costs.line(), self.costs.warning()
        return [self.facts.limits(), *filter(None, said), " ".join(self.facts.extensions)]

    def props(self) -> Properties:
        """The driver's figures."""
        facts = self.facts
        return Properties(
            facts.total_bytes, 0, facts.max_alloc_bytes, facts.total_bytes, is_async=not facts.is_host_memory,
            orders_copies=True, is_host_visible=facts.is_host_memory, wraps_host_memory=facts.is_unified,
            max_buffers=facts.parameter_bytes // 16,  # each comes with an offset
            group="host" if facts.is_host_memory else "",
        )  # fmt: skip

    @cached_property
    def renderer(self) -> Renderer:
        """OpenCL C for the device's features."""
        return OpenCLRenderer(cl_target(self.facts, str(setting("TARGET")), self.unit[0], self.costs.plain))

    @cached_property
    def costs(self) -> ClCosts:
        """The costs of the driver's functions; not measured on GPUs, where they are instructions."""
        if self.facts.kind != "cpu" or self.facts.is_checker:
            return ClCosts()
        with self.told(), self.lock:
            return measured_costs(self.cl, self.queue, self.facts, this_host())

    @cached_property
    def unit(self) -> tuple[tuple[Unit, ...], str]:
        """The supported matrix units, and a message; TARGET=mma relies on one without a self-test."""
        if setting("TARGET") == "mma":
            return MMA_UNITS, "matrix unit: not tried (TARGET=mma)"
        may_have = "cl_nv_device_attribute_query" in self.facts.extensions and self.facts.step_items == MMA_ITEMS
        if setting("TARGET") or not may_have:  # only NVIDIA's own driver takes its instructions
            return (), ""
        fault = next(filter(None, map(self.unit_fault, MMA_UNITS)), "")
        return ((), f"matrix unit: not used, {fault}") if fault else (MMA_UNITS, "matrix unit: float16, bfloat16")

    def unit_fault(self, unit: Unit) -> str:
        """Why a product of a matrix unit cannot be trusted, found by trying it once; empty if it can."""
        uops, memory, right = matrix_unit_trial(unit)
        flags = self.cl.mem_flags.READ_WRITE | self.cl.mem_flags.COPY_HOST_PTR
        try:
            source = OpenCLRenderer(cl_target(self.facts, "gpu")).render("check", uops)
            kernel = self.cl.Kernel(self.build("check", source), "check")
            buffers = [self.cl.Buffer(self.context, flags, hostbuf=array) for array in memory]
            kernel.set_args(*(value for buffer in buffers for value in (buffer, bytes(8))), bytes(8))
            self.cl.enqueue_nd_range_kernel(self.queue, kernel, (MMA_ITEMS,), (MMA_ITEMS,))
            self.cl.enqueue_copy(self.queue, memory[2], buffers[2])
        except (CompileError, self.cl.Error) as error:
            return f"the driver rejects its instruction: {str(error).splitlines()[0]}"
        return "" if memory[2].raw == right else "its products are wrong"

    @cached_property
    def build_options(self) -> tuple[str, ...]:
        """The build options, the first that work, with all exactness options that the driver supports.

        PoCL before 7 reads clang's header for every kernel, four fifths of the time of a build; -D_OPENCL_H_ leaves it
        out, and with LEAN the source declares what it calls.
        """
        exact = "-w"  # clang would count its warnings on the user's stderr
        if self.facts.divides_correctly:
            exact += " -cl-fp32-correctly-rounded-divide-sqrt"
        if self.facts.is_checker:  # it checks unoptimized code: it misreads masks after LLVM's optimization
            return (f"{exact} -cl-opt-disable",)
        return (f"{exact} -D_OPENCL_H_ -DLEAN", exact) if self.facts.is_pocl else (exact,)

    def cache_tag(self) -> str:
        """Platform, device and driver with their versions, and the build options."""
        return (
            f"{self.target.name} {self.facts.name} {self.facts.platform} {self.facts.version} {self.build_options[-1]}"
        )

    # --- programs
    def compile(self, name: str, source: str) -> bytes:
        """The source and the driver's binary."""
        refuse_after_fork(self.name)
        return pack_program(source, self._binary(self.build(name, source)))

    def build(self, name: str, source: str) -> Any:
        """A program of the driver for this device. Raises CompileError."""
        return build_program(self.cl, self.context, self.handle, source, self.build_options, name)

    def _binary(self, program: Any) -> bytes:
        """Return its binary for this device. Empty for a driver without binaries, which builds from source each
        time. Empty for PoCL too: it would compile for any group size, then again for ours, and it has a separate
        cache."""
        if self.facts.is_pocl:
            return b""
        try:
            return next((bytes(made) for made in program.get_info(self.cl.program_info.BINARIES) if made), b"")
        except self.cl.Error:
            return b""

    def load(self, name: str, binary: bytes) -> Program:
        """A kernel from the driver's binary, or from the source where the driver refuses it."""
        refuse_after_fork(self.name)
        source, stored = unpack_program(binary)
        program = None
        if stored:
            try:
                program = quietly(
                    self.cl.Program(self.context, [self.handle], [stored]), self.handle, self.build_options[-1]
                )
            except self.cl.Error:
                program = None
        with self.told():
            return Program(name, _Kernel(self, program or self.build(name, source), name))

    def assembly(self, source: str) -> str:
        """The driver's binary where that is text, as NVIDIA's is."""
        binary = self._binary(self.build("kernel", source))
        return binary.decode("ascii").rstrip("\0") if binary.isascii() else ""

    # --- memory
    @cached_property
    def allocator(self) -> HostAllocator:
        """Host memory where the device works on it, else buffers of the driver."""
        if not self.facts.is_host_memory:
            return self.memory
        return ClHostAllocator(self.facts, self.name)

    def _refuse_large(self, size_bytes: int) -> None:
        """Raise OutOfMemoryError for more than the driver takes in one piece."""
        if size_bytes > self.facts.max_alloc_bytes:
            raise OutOfMemoryError(
                f"{self.name}: a buffer of {size_bytes:,} bytes exceeds the largest allocation of {self.facts.name} "
                f"({self.facts.max_alloc_bytes:,} bytes). Use smaller tensors, or another device."
            )

    def copy_in(self, target: Buffer, source: memoryview) -> None:
        """Copy bytes of the host into a buffer, in parallel with running kernels."""
        if self.facts.is_host_memory:
            super().copy_in(target, source)
            return
        block = target.block
        after = block.after if isinstance(block, ClBlock) and block.is_fresh else self.memory.last
        memory, offset = self.place(target)
        with self.told():
            self.memory.write(memory, offset * target.dtype.size_bytes, source, [after] if after else [])

    def copy_out(self, target: memoryview, source: Buffer) -> None:
        """A buffer into bytes of the host."""
        if self.facts.is_unified:
            super().copy_out(target, source)
            return
        memory, offset = self.place(source)
        with self.told():
            self.memory.read(memory, offset * source.dtype.size_bytes, target)

    def host_array(self, buffer: Buffer) -> Any:
        """A view also of memory that the host shares while it is mapped."""
        if not self.facts.is_unified or self.facts.is_host_memory or not buffer.numel:
            return super().host_array(buffer)
        if buffer.is_exported:  # mapped, and not written while a view is alive
            return buffer.host_array()
        memory, offset = self.place(buffer)
        with self.told():
            flags, before = self.cl.map_flags.READ, self.memory.pending()
            start = offset * buffer.dtype.size_bytes
            mapped = self.memory.map(memory, start, buffer.nbytes, flags, before)
        seen = buffer.host_array(mapped.ctypes.data)
        keep_until_death(seen.base, mapped, self.memory.unseen)
        return seen

    def copy_from(self, target: Buffer, source: Buffer, device: Device) -> None:
        """Of a device in the same context: by the driver, in the order of both queues."""
        if not isinstance(device, ClDevice) or device.context is not self.context or self.facts.is_host_memory:
            super().copy_from(target, source, device)
            return
        (into, at), (out_of, start) = self.place(target), device.place(source)
        size = source.dtype.size_bytes
        one, other = sorted((self, device), key=lambda d: d.index)
        with one.lock, other.lock, self.enqueuing() as events:  # both: no other event of either may come between
            events.append(self.cl.enqueue_copy(
                self.queue, into, out_of, byte_count=source.nbytes, src_offset=start * size, dst_offset=at * size,
                wait_for=device.memory.pending() or None,
            ))  # fmt: skip
            self.queue.flush()
            device.memory.joined(events)
            device.memory.waits += events

    def place(self, buffer: Buffer) -> tuple[Any, int]:
        """Return the driver's memory of a buffer, and the number of values before it."""
        block = buffer.block
        if isinstance(block, ClBlock):
            block.is_fresh = False
            return block.memory, (buffer.address - block.address) // buffer.dtype.size_bytes
        if isinstance(block, Block):
            if block.wrapped is None or block.wrapped[0] is not self.context:
                block.wrapped = self.context, host_memory(self.cl, self.context, block.address, block.capacity_bytes)
            return block.wrapped[1], (buffer.address - block.address) // buffer.dtype.size_bytes
        whole = buffer.whole
        memory = self.borrowed.get(whole)
        if memory is None:
            self._refuse_large(whole.nbytes)
            memory = host_memory(self.cl, self.context, whole.address, whole.nbytes)
            self.borrowed[whole] = memory
        return memory, (buffer.address - whole.address) // buffer.dtype.size_bytes

    # --- running
    def prepare(self, calls: Sequence[Call]) -> Batch:
        """Kernels with their arguments set: repeating them costs the enqueues."""
        return _Prepared(self, calls)

    def run(self, calls: Sequence[Call], *, is_timed: bool = False) -> list[int]:
        """Enqueue in order."""
        with self.enqueuing() as events:
            for call in calls:
                events.append(self.launch(call, is_timed))  # one by one: an error leaves those before it
        return self.finish(events, is_timed=is_timed)

    def enqueuing(self) -> _Enqueuing:
        """Enqueue work after all earlier copies; its events are appended to the list, at least the last."""
        refuse_after_fork(self.name)
        return _Enqueuing(self)

    def launch(self, call: Call, is_timed: bool = False) -> Any:
        """Enqueue one kernel, in smaller groups where the driver finds that it has no registers for these."""
        program = call.program
        try:
            return program.handle.shared.bound(call).enqueue(is_timed)
        except self.cl.Error as error:
            other = program.smaller() if error.code in _GROUP_REFUSED and program.handle.is_grouped else None
            if other is None:
                raise
        program.handle, program.threads, program.smaller = other.handle, other.threads, other.smaller
        return self.launch(call._replace(threads=program.threads), is_timed)

    def finish(self, events: list[Any], *, is_timed: bool) -> list[int]:
        """Wait where the memory is the host's or times are wanted; the nanoseconds of each kernel."""
        with self.told():
            if is_timed or self.facts.is_host_memory:
                self.queue.finish()
            else:
                self.queue.flush()
        return [max(0, int(e.profile.end) - int(e.profile.start)) for e in events] if is_timed else []

    def synchronize(self) -> None:
        """Return when the queues are empty."""
        if not self.facts.is_host_memory:
            with self.told():
                self.queue.finish()
                self.memory.copies.finish()

    def told(self) -> _Told:
        """The driver's errors as sentences."""
        return _Told(self)


class _Told:
    """Raises a driver's errors as sentences. A class: a generator takes microseconds for each launch."""

    def __init__(self, device: ClDevice) -> None:
        self.device = device

    def __enter__(self) -> Any:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        device = self.device
        if error is None or not isinstance(error, device.cl.Error):
            return
        if getattr(error, "code", 0) in NO_ROOM:
            raise OutOfMemoryError(
                f"{device.name}: {device.facts.name} is out of memory ({error}). {device.memory.figures()} {SMALLER}"
            ) from error
        raise DeviceError(
            f"{device.name}: {device.facts.name} failed ({error}). The device may be lost: restart the program, "
            "and choose another device if it happens again."
        ) from error


class _Enqueuing(_Told):
    """A lock of the device, under which work is enqueued."""

    def __enter__(self) -> list[Any]:
        self.events: list[Any] = []
        self.device.lock.acquire()
        try:
            self.device.memory.begin()
        except BaseException as error:
            self.device.lock.release()
            super().__exit__(type(error), error, None)
            raise
        return self.events

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        try:
            self.device.memory.joined(self.events)  # later work also waits for what was enqueued before an error
        finally:
            self.device.lock.release()
        super().__exit__(kind, error, _)


class _Launch:
    """A kernel object and its current arguments: only changed ones are set."""

    def __init__(self, kernel: _Kernel) -> None:
        self.device = kernel.device
        self.kernel = kernel.device.cl.Kernel(kernel.program, kernel.name)
        self.values: dict[int, Any] = {}
        self.size: tuple[int] = (1,)
        self.slice = 0  # work-items that may be enqueued at once; 0: all
        self.group: tuple[int] = kernel.group

    def bound(self, call: Call) -> _Launch:
        """With the arguments of a call."""
        for slot, buffer in enumerate(call.buffers):
            self.bind(slot, buffer)
        first = 2 * len(call.buffers)
        for number, value in enumerate(call.variables):
            self.set_number(first + number, value)
        has_threads = self.device.target.has_threads
        most = max(_MOST_ITEMS, int(call.program.work_ns / SLICE_NS))
        chunk = call.chunk(_CHUNK_NS, 2 * _CHUNK_NS, most) if has_threads else 1  # iterations of a work-item
        self.set_number(first + len(call.variables), chunk)
        items, group = -(-call.threads // chunk), self.group[0]
        self.size = (-(-items // group) * group,)
        if has_threads and self.device.facts.is_host_memory:
            together = self.device.facts.units * call.slice(chunk, SLICE_NS)
            self.slice = together if together < items else 0
        return self

    def bind(self, slot: int, buffer: Buffer) -> None:
        """Buffer `slot` is this one from now on; one without memory is bound later."""
        if buffer.whole.owner is None:
            return
        memory, offset = self.device.place(buffer)
        if self.values.get(2 * slot) is not memory:
            self.kernel.set_arg(2 * slot, memory)
            self.values[2 * slot] = memory
        self.set_number(2 * slot + 1, offset)

    def set_number(self, place: int, value: int) -> None:
        """An int64 argument."""
        if self.values.get(place) != value:
            self.kernel.set_arg(place, value.to_bytes(8, "little", signed=True))
            self.values[place] = value

    def enqueue(self, is_timed: bool = False) -> Any:
        """Into the queue; the event. Long work goes in slices that are waited for: Python raises Ctrl-C between two."""
        enqueue, queue = self.device.cl.enqueue_nd_range_kernel, self.device.queue
        if is_timed or not self.slice:
            return enqueue(queue, self.kernel, self.size, self.group)
        event, end = None, self.size[0]
        for start in range(0, end, self.slice):
            event = enqueue(queue, self.kernel, (min(self.slice, end - start),), self.group, (start,))
            event.wait()
        return event


class _Kernel:
    """The handle of a Program."""

    def __init__(self, device: ClDevice, program: Any, name: str) -> None:
        self.device = device
        self.program = program
        self.name = name
        kernel, info = device.cl.Kernel(program, name), device.cl.kernel_work_group_info
        asked = kernel.get_work_group_info(info.COMPILE_WORK_GROUP_SIZE, device.handle)
        most = int(kernel.get_work_group_info(info.WORK_GROUP_SIZE, device.handle))
        local = int(kernel.get_work_group_info(info.LOCAL_MEM_SIZE, device.handle))
        self.group = (max(1, int(asked[0])),)
        self.is_grouped = self.group[0] > 1
        facts = device.facts
        if self.group[0] > most or (self.is_grouped and local > facts.local_bytes):
            raise GroupTooLarge(
                f"kernel {name}: a group of {self.group[0]} work-items with {local} bytes of local memory; {facts.name}"
                f" takes groups of {most} for it, with {facts.local_bytes} bytes. Split its loops further."
            )
        if 8 * kernel.num_args > facts.parameter_bytes and not facts.is_pocl:  # PoCL takes more than it says
            raise CompileError(
                f"kernel {name}: its arguments have {8 * kernel.num_args} bytes, and {facts.name} takes "
                f"{facts.parameter_bytes}. Realize some of what it reads first, so that it reads fewer tensors."
            )
        self.shared = _Launch(self)  # for calls that are not repeated, under the device's lock


class _Prepared(Batch):
    """Launches with their arguments set; a run is the enqueues and nothing else."""

    def __init__(self, device: ClDevice, calls: Sequence[Call]) -> None:
        super().__init__(device, calls)
        self.cl_device = device
        self.launches = [_Launch(call.program.handle).bound(call) for call in calls]

    def binder(self, entry: int, slot: int) -> Callable[[Buffer], object]:
        return partial(self.launches[entry].bind, slot)

    def setter(self, places: Sequence[tuple[int, int]]) -> Callable[[int], object]:
        def give(value: int) -> None:
            for entry, number in places:
                self.launches[entry].set_number(2 * len(self.calls[entry].buffers) + number, value)

        return give

    def run(self, *, is_timed: bool = False) -> list[int]:
        device = self.cl_device
        with device.enqueuing() as events:
            for launch in self.launches:
                event = launch.enqueue(is_timed)
                if is_timed or not events:
                    events.append(event)
                else:
                    events[0] = event  # the others are released at once: keeping a hundred costs more
        return device.finish(events, is_timed=is_timed)


def cl_target(facts: ClFacts, shape: str = "", units: tuple[Unit, ...] = (), plain: Iterable[str] = ()) -> Target:
    """Return the features for generated code on the device; `shape`: gpu, mma or cpu, if it is not the device's own;
    `plain`: Target's."""
    is_cpu = (shape if shape in ("gpu", "cpu", "mma") else facts.kind) == "cpu"
    lanes = facts.lanes if is_cpu else 4
    has = {dtypes.float64: facts.has_float64, dtypes.float16: facts.has_float16}
    missing = {dtype for dtype in has if not has[dtype]}
    items = 0 if is_cpu else 1 << min(facts.max_group, _MOST_GROUP).bit_length() - 1
    host = host_target(this_host()) if is_cpu else Target("")
    kind = "cpu" if is_cpu else f"gpu-{items}-{facts.local_bytes >> 10}"
    return Target(
        name=f"opencl-{kind}{'-mma' if units else ''}-{lanes * 32}"
        + "".join(f"-no-{d.name}" for d in sorted(missing, key=str))
        + "".join(f"-{form}" for form in sorted(plain)),
        vector_bytes=4 * lanes,
        most_lanes=64 if "dots" in plain else 16,
        dots=frozenset({(dtypes.uint8, dtypes.int8)}) if "dots" in plain else frozenset(),
        dot_most=127 if "dots" in plain else 255,
        vector_registers=32 if lanes in (4, 16) else 16,
        ops=OPENCL_OPS if facts.has_fma else OPENCL_OPS - {Ops.FMA},
        storage_dtypes=frozenset(dtypes.data) - missing,
        compute_dtypes=frozenset(dtypes.data) - {dtypes.bfloat16, dtypes.float16},
        has_threads=is_cpu,
        group_items=items,
        local_bytes=facts.local_bytes,
        units=units,
        has_masks=True,
        has_fast_nontemporal_stores="hints" in plain and host.has_fast_nontemporal_stores,
        has_hardware_prefetch=host.has_hardware_prefetch,
        l2_bytes=1 << 20,
        plain=frozenset(plain),
        machine=host.machine if is_cpu else MACHINES["gpu"],
    )
