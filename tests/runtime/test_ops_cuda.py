"""CUDA without a GPU: a library that stands for the driver, whose memory is the host's and whose launches are noted."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

from kernmill.ir import DeviceError, OutOfMemoryError, dtypes
from kernmill.runtime import Buffer, Call, cuda_driver, get_device, ops_cuda

PTX = b".version 7.8\n.target sm_90\n.visible .entry k()\n.reqntid 128\n{ ret; }\n"
NUMBERS = {8: 49152, 75: 9, 76: 0}


class Library:
    """The driver's functions, by name."""

    def __init__(self) -> None:
        self.held: dict[int, Any] = {}
        self.launches: list[tuple[int, int, list[int]]] = []
        self.status: dict[str, int] = {}
        self.free_bytes = 1 << 30
        for name in cuda_driver._FUNCTIONS:
            setattr(self, name, self._function(name))

    def _function(self, name: str) -> Any:
        kinds = cuda_driver._FUNCTIONS[name]
        act = getattr(self, f"_{name}", lambda *_: 0)

        def run(*arguments: Any) -> int:
            return self.status.get(name) or int(act(*arguments) or 0)

        return ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(run)

    def _cuDeviceGetCount(self, out: int) -> None:
        ctypes.c_int.from_address(out).value = 1

    def _cuDeviceGetAttribute(self, out: int, number: int, device: int) -> None:
        ctypes.c_int.from_address(out).value = NUMBERS[number]

    def _cuDeviceGetName(self, out: int, size: int, device: int) -> None:
        ctypes.memmove(out, b"Paper GPU\0", 10)

    def _cuMemGetInfo_v2(self, free: int, total: int) -> None:
        ctypes.c_size_t.from_address(free).value = ctypes.c_size_t.from_address(total).value = self.free_bytes

    def _cuMemAlloc_v2(self, out: int, size: int) -> int:
        if size > self.free_bytes:
            return 2
        block = ctypes.create_string_buffer(size)
        self.held[ctypes.addressof(block)] = block
        ctypes.c_uint64.from_address(out).value = ctypes.addressof(block)
        return 0

    def _cuMemFree_v2(self, address: int) -> None:
        del self.held[address]

    def _cuMemcpyHtoD_v2(self, target: int, source: int, size: int) -> None:
        ctypes.memmove(target, source, size)

    _cuMemcpyDtoH_v2 = _cuMemcpyHtoD_v2

    def _cuFuncGetAttribute(self, out: int, number: int, function: int) -> None:
        ctypes.c_int.from_address(out).value = 256

    def _cuModuleGetFunction(self, out: int, module: int, name: int) -> None:
        ctypes.c_uint64.from_address(out).value = 7

    def _cuLaunchKernel(self, function: int, *rest: Any) -> None:
        blocks, group, places = rest[0], rest[3], rest[8]
        self.launches.append((blocks, group, [
            ctypes.c_int64.from_address(ctypes.c_uint64.from_address(places + 8 * n).value).value for n in range(3)
        ]))  # fmt: skip


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    made = Library()
    driver = cuda_driver.CudaDriver(made)
    monkeypatch.setattr(ops_cuda, "cuda_driver", lambda: driver)
    monkeypatch.setattr(ops_cuda, "cuda_missing", lambda: "")
    return made


def test_a_launch(library: Library) -> None:
    device = ops_cuda.CudaDevice("CUDA")
    assert device.description == "Paper GPU, sm_90"
    assert device.props().total_bytes == 1 << 30
    program = device.load("k", PTX)
    assert program.handle.group == 128
    blocks = [device.allocate(400) for _ in range(2)]
    a, b = (Buffer("CUDA", dtypes.float32, 100, block, block.address) for block in blocks)
    source = np.arange(100, dtype=np.float32)
    device.copy_in(a, source.data.cast("B"))
    device.copy_in(b, memoryview(bytes(400)))
    back = np.empty(100, np.float32)
    device.copy_out(back.data.cast("B"), a)
    assert (back == source).all()
    batch = device.prepare([Call(program, (a, b), (3,), 1000)])
    batch.run()
    batch.setter([(0, 0)])(5)
    batch.binder(0, 1)(a)
    assert len(batch.run(is_timed=True)) == 1
    assert library.launches == [
        (8, 128, [a.address, b.address, 3]),
        (8, 128, [a.address, a.address, 5]),
    ]


def test_no_memory(library: Library) -> None:
    with pytest.raises(OutOfMemoryError, match="the GPU is out of memory"):
        ops_cuda.CudaDevice("CUDA").allocate(2 << 30)


def test_an_error_of_the_driver(library: Library) -> None:
    library.status["cuCtxSynchronize"] = 700
    with pytest.raises(DeviceError, match=r"cuCtxSynchronize failed: unknown error \(CUDA error 700\)"):
        ops_cuda.CudaDevice("CUDA").synchronize()


def test_without_a_driver() -> None:
    if not cuda_driver.cuda_missing():
        pytest.skip("there is a GPU")
    with pytest.raises(DeviceError, match=r"CUDA: .*(no NVIDIA driver is installed|finds no GPU)"):
        get_device("CUDA")
