"""The CUDA driver's functions through ctypes: nothing but NVIDIA's driver has to be installed."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from kernmill.ir import DeviceError, OutOfMemoryError

__all__ = ["CudaDriver", "cuda_driver", "cuda_missing"]

_OUT_OF_MEMORY: Final = 2
_P, _U, _U64, _I = ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint64, ctypes.c_int
_NAMES: Final = ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1", "libcuda.so")
_FUNCTIONS: Final[dict[str, tuple[Any, ...]]] = {  # parameters; a result is an int
    "cuInit": (_U,), "cuDriverGetVersion": (_P,), "cuDeviceGetCount": (_P,), "cuDeviceGet": (_P, _I),
    "cuDeviceGetName": (_P, _I, _I), "cuDeviceGetAttribute": (_P, _I, _I), "cuDeviceTotalMem_v2": (_P, _I),
    "cuDevicePrimaryCtxRetain": (_P, _I), "cuDevicePrimaryCtxRelease_v2": (_I,), "cuCtxSetCurrent": (_P,),
    "cuCtxSynchronize": (), "cuModuleLoadDataEx": (_P, _P, _U, _P, _P), "cuModuleGetFunction": (_P, _P, _P),
    "cuModuleUnload": (_P,), "cuFuncGetAttribute": (_P, _I, _P), "cuMemGetInfo_v2": (_P, _P),
    "cuMemAlloc_v2": (_P, ctypes.c_size_t), "cuMemFree_v2": (_U64,), "cuMemcpyHtoD_v2": (_U64, _P, ctypes.c_size_t),
    "cuMemcpyDtoH_v2": (_P, _U64, ctypes.c_size_t), "cuLaunchKernel": (_P, *[_U] * 7, _P, _P, _P),
    "cuEventCreate": (_P, _U), "cuEventRecord": (_P, _P), "cuEventElapsedTime": (_P, _P, _P),
    "cuEventDestroy_v2": (_P,), "cuGetErrorString": (_I, _P),
}  # fmt: skip
_LOG, _LOG_BYTES, _LOG_SIZE = 5, 6, 8192  # CU_JIT_ERROR_LOG_BUFFER and its size


class CudaDriver:
    """The driver's library. Each call returns a status; one that is not 0 raises."""

    def __init__(self, library: Any) -> None:
        self.library = library
        for name, parameters in _FUNCTIONS.items():
            function = getattr(library, name)
            function.argtypes, function.restype = parameters, ctypes.c_int

    def __call__(self, name: str, *arguments: Any) -> None:
        """Call a function.

        Raises:
            OutOfMemoryError: the device has no memory left.
            DeviceError: anything else; the message is the driver's.
        """
        status = getattr(self.library, name)(*arguments)
        if status == _OUT_OF_MEMORY:
            raise OutOfMemoryError(f"{name}: the GPU is out of memory. Free some tensors.")
        if status:
            raise DeviceError(f"{name} failed: {self.text(status)} (CUDA error {status}). Restart the program.")

    def text(self, status: int) -> str:
        """The driver's words for a status."""
        found = ctypes.c_char_p()
        self.library.cuGetErrorString(status, ctypes.byref(found))
        return (found.value or b"unknown error").decode(errors="replace")

    def number(self, name: str, *arguments: Any, kind: Any = ctypes.c_int) -> int:
        """Call a function that writes one number to its first argument, and return the number."""
        found = kind()
        self(name, ctypes.byref(found), *arguments)
        return int(found.value or 0)

    def module(self, ptx: bytes) -> int:
        """Load PTX, which the driver compiles. Raises DeviceError with its log."""
        log, found = ctypes.create_string_buffer(_LOG_SIZE), ctypes.c_void_p()
        options, values = (_I * 2)(_LOG, _LOG_BYTES), (_P * 2)(ctypes.addressof(log), _LOG_SIZE)
        status = self.library.cuModuleLoadDataEx(ctypes.byref(found), ptx + b"\0", 2, options, values)
        if status:
            text = log.value.decode(errors="replace").strip() or self.text(status)
            raise DeviceError(f"the CUDA driver rejects a kernel: {text}. Update the driver.")
        return int(found.value or 0)

    def devices(self) -> Sequence[int]:
        """The numbers of the GPUs."""
        return range(self.number("cuDeviceGetCount"))


@cache
def cuda_driver() -> CudaDriver:
    """Return the driver, ready for use.

    Raises:
        DeviceError: there is none, or it cannot start.
    """
    errors = []
    for name in _NAMES:
        try:
            driver = CudaDriver(ctypes.CDLL(name))
        except (OSError, AttributeError) as error:
            errors.append(str(error))
            continue
        driver("cuInit", 0)
        return driver
    raise DeviceError(
        f"CUDA: no NVIDIA driver is installed ({errors[0]}). Install NVIDIA's driver, or use DEVICE=CL or DEVICE=LLVM."
    )


def cuda_missing() -> str:
    """Return why no GPU can be used; empty if one can."""
    try:
        return "" if cuda_driver().devices() else "CUDA: the driver finds no GPU."
    except DeviceError as error:
        return str(error)
