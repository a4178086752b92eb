"""CUDA: NVIDIA's GPUs through their driver, for machines without NVIDIA's OpenCL. `CUDA:1` is the second one.

LLVM compiles a kernel to PTX here, and the driver compiles the PTX: no toolkit is needed. All kernels and copies of a
device are in one stream, so that they keep their order. No GPU was at hand when this was written. NVIDIA's assembler
checks the kernels, and a library that stands for the driver checks the calls. Run `kernmill conformance --device
CUDA` first.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any, Final, NamedTuple

from kernmill.ir import DeviceError, cached_property
from kernmill.renderers import GRID_GROUP, PTXRenderer, Renderer

from .cpu.llvm_codegen import assembly, llvm_version
from .cuda.cuda_driver import CudaDriver, cuda_driver, cuda_missing
from .cuda.cuda_target import cuda_host, cuda_target
from .device import Batch, Call, Device, GroupTooLarge, Program, Properties
from .memory.buffer import Buffer

__all__ = ["CudaDevice"]

_SHARED, _MAJOR, _MINOR = 8, 75, 76  # CU_DEVICE_ATTRIBUTE_..: bytes shared by a group, the generation
_MOST_ITEMS: Final = 0  # CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK


class _GpuMemory(NamedTuple):
    """Memory of a GPU."""

    address: int
    capacity_bytes: int


class _GpuKernel(NamedTuple):
    """A loaded kernel. `group`: its work-items; `is_grouped`: they share memory."""

    module: int
    function: int
    group: int
    is_grouped: bool


class CudaDevice(Device):
    """One GPU."""

    CONTRACT = 1
    kind = "gpu"

    def __init__(self, name: str, index: int = 0) -> None:
        super().__init__(name, index)
        self.driver: CudaDriver = cuda_driver()
        self.handle = self.driver.number("cuDeviceGet", index)
        self.context = self.driver.number("cuDevicePrimaryCtxRetain", self.handle, kind=ctypes.c_void_p)
        words = ctypes.create_string_buffer(256)
        self.driver("cuDeviceGetName", words, len(words), self.handle)
        self.generation = 10 * self.attribute(_MAJOR) + self.attribute(_MINOR)
        self.description = f"{words.value.decode(errors='replace')}, sm_{self.generation}"

    def attribute(self, number: int) -> int:
        """A fact of the GPU, by the driver's number."""
        return self.driver.number("cuDeviceGetAttribute", number, self.handle)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver for this GPU: the current one belongs to a thread."""
        self.driver("cuCtxSetCurrent", self.context)
        self.driver(name, *arguments)

    # --- properties
    @classmethod
    def devices(cls) -> list[int]:
        """All that the driver finds. Raises DeviceError without a driver."""
        if text := cuda_missing():
            raise DeviceError(text)
        return list(cuda_driver().devices())

    @cached_property
    def renderer(self) -> Renderer:
        """LLVM IR for the GPU's generation."""
        return PTXRenderer(cuda_target(self.generation, self.attribute(_SHARED)))

    def props(self) -> Properties:
        """The driver's figures. A slice that starts between 16 bytes would break a vector access."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return Properties(total.value, free.value, total.value, total.value, alignment=256, is_async=True,
                          slice_alignment=16, orders_copies=True, is_host_visible=False, wraps_host_memory=False,
                          max_buffers=500)  # fmt: skip

    def details(self) -> list[str]:
        """The driver's version."""
        version = self.driver.number("cuDriverGetVersion")
        return [f"driver for CUDA {version // 1000}.{version % 1000 // 10}; {llvm_version()} compiles to PTX"]

    def cache_tag(self) -> str:
        """The generation, and LLVM's version."""
        return f"{self.target.name} {llvm_version()}"

    # --- memory
    def allocate(self, size_bytes: int) -> _GpuMemory:
        """Memory of the GPU."""
        found = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(found), max(1, size_bytes))
        return _GpuMemory(found.value, size_bytes)

    def free(self, block: _GpuMemory) -> None:
        """Give it back."""
        self.call("cuMemFree_v2", block.address)

    def copy_in(self, target: Buffer, source: memoryview) -> None:
        """Behind all kernels before; the source may change when this returns."""
        if source.nbytes:
            data = (ctypes.c_char * source.nbytes).from_buffer_copy(source) if source.readonly else source
            host = data if source.readonly else (ctypes.c_char * source.nbytes).from_buffer(source)
            self.call("cuMemcpyHtoD_v2", target.address, host, source.nbytes)

    def copy_out(self, target: memoryview, source: Buffer) -> None:
        """When all kernels before are done."""
        if target.nbytes:
            host = (ctypes.c_char * target.nbytes).from_buffer(target)
            self.call("cuMemcpyDtoH_v2", host, source.address, target.nbytes)

    # --- programs
    def compile(self, name: str, source: str) -> bytes:
        """PTX, from LLVM."""
        return self.assembly(source).encode()

    def assembly(self, source: str) -> str:
        """PTX."""
        return assembly(source, cuda_host(self.generation))

    def load(self, name: str, binary: bytes) -> Program:
        """The driver's code for the PTX."""
        self.driver("cuCtxSetCurrent", self.context)
        module, function = self.driver.module(binary), ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        found = re.search(rb"\.reqntid\s+(\d+)", binary)
        kernel = _GpuKernel(module, function.value or 0, int(found[1]) if found else GRID_GROUP, b".shared" in binary)
        most = ctypes.c_int()
        self.call("cuFuncGetAttribute", ctypes.byref(most), _MOST_ITEMS, kernel.function)
        if kernel.group > most.value:
            raise GroupTooLarge(
                f"kernel {name}: a group of {kernel.group} work-items; the GPU takes groups of {most.value} for it."
                " Split its loops further."
            )
        return Program(name, kernel)

    # --- launches
    def prepare(self, calls: Sequence[Call]) -> Batch:
        """Arguments in the driver's form."""
        return _Launches(self, calls)

    def run(self, calls: Sequence[Call], *, is_timed: bool = False) -> list[int]:
        """Into the stream, one by one."""
        return _Launches(self, calls).run(is_timed=is_timed)

    def synchronize(self) -> None:
        """Return when the stream is empty."""
        self.call("cuCtxSynchronize")

    def close(self) -> None:
        """Give the context back."""
        self.driver("cuDevicePrimaryCtxRelease_v2", self.handle)


class _Launches(Batch):
    """Kernels with their arguments: an array of 8-byte values, and the addresses of these."""

    def __init__(self, device: CudaDevice, calls: Sequence[Call]) -> None:
        super().__init__(device, calls)
        self.gpu = device
        self.values: list[Any] = []
        self.entries: list[tuple[Any, ...]] = []
        for call in calls:
            numbers = [*(buffer.address or 0 for buffer in call.buffers), *call.variables]
            values = (ctypes.c_int64 * max(1, len(numbers)))(*numbers)
            first, kernel = ctypes.addressof(values), call.program.handle
            pointers = (ctypes.c_void_p * max(1, len(numbers)))(*(first + 8 * n for n in range(len(numbers))))
            blocks = max(1, -(-call.threads // kernel.group))
            self.values.append(values)
            self.entries.append((kernel.function, blocks, 1, 1, kernel.group, 1, 1, 0, None, pointers, None))

    def place(self, entry: int, slot: int) -> tuple[Any, int]:
        return self.values[entry], slot

    def setter(self, places: Sequence[tuple[int, int]]) -> Callable[[int], object]:
        found = [(self.values[entry], len(self.calls[entry].buffers) + number) for entry, number in places]
        return partial(_give, found)

    def run(self, *, is_timed: bool = False) -> list[int]:
        device, times = self.gpu, list[int]()
        device.driver("cuCtxSetCurrent", device.context)
        for entry in self.entries:
            if is_timed:
                device.driver("cuCtxSynchronize")
            start = perf_counter_ns()
            device.driver("cuLaunchKernel", *entry)
            if is_timed:
                device.driver("cuCtxSynchronize")
                times.append(perf_counter_ns() - start)
        return times


def _give(slots: Sequence[tuple[Any, int]], value: int) -> None:
    for values, index in slots:
        values[index] = value
