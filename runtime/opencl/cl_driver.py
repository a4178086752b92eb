"""Finding OpenCL: the binding, the platforms, their devices in a fixed order, and reasons not to use one.

Drivers fail in different ways: some return an error, some end the process (PoCL without a linker), some wait forever
(PoCL after a fork). Known problems are checked before the first launch.
"""

from __future__ import annotations

import importlib
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from typing import Any

from kernmill.ir import DeviceError

from ..programs.compile_cache import cache_key, default_cache

__all__ = ["ClFacts", "facts_of", "found_devices", "open_binding", "refuse_after_fork", "refuse_unusable"]

_INSTALL = (
    "Install `kernmill[cl]` where a driver is present; on Linux x86-64 `kernmill[cl-cpu]` brings a driver for the CPU "
    "(PoCL), and on Debian or Ubuntu the package pocl-opencl-icd does"
)
_TYPES = (("gpu", 4), ("accel", 8), ("cpu", 2))  # CL_DEVICE_TYPE_*, in the order of preference
_LAST = ("portable computing language", "rusticl", "clover", "oclgrind")  # general platforms, listed after vendors' own
_FP_CORRECT_DIVIDE, _FP_FMA = 1 << 7, 1 << 5  # CL_FP_*
_SELF_TEST_S = 60
_WITHOUT_AVX512 = ("-znver1", "-znver2", "-znver3")  # the CPU, at the end of PoCL's version
_started: list[int] = []  # the process in which the binding was opened


@dataclass(frozen=True, slots=True)
class ClFacts:
    """Facts about a device, without opening it. Units: bytes."""

    name: str
    platform: str
    version: str  # of the platform and of the driver: part of every key of a stored binary
    kind: str  # cpu, gpu, igpu or accel
    extensions: tuple[str, ...]
    total_bytes: int
    max_alloc_bytes: int
    local_bytes: int
    max_group: int
    parameter_bytes: int  # that the arguments of a kernel may have
    units: int
    float_lanes: int
    step_items: int  # work-items that run in step: a subgroup; 0 where the driver does not say
    is_unified: bool  # the host's memory is its memory
    has_float64: bool
    has_float16: bool
    divides_correctly: bool
    has_fma: bool

    @property
    def is_host_memory(self) -> bool:
        """True if kernels access host memory directly."""
        return self.kind == "cpu" and self.is_unified

    @property
    def lanes(self) -> int:
        """The float32 in a vector of a CPU's kernel; 4 where the driver does not say."""
        return min(16, self.float_lanes) if self.float_lanes > 1 else 4

    @property
    def is_checker(self) -> bool:
        """True for Oclgrind, which checks every access of a kernel."""
        return self.platform == "Oclgrind"

    @property
    def is_pocl(self) -> bool:
        """True if the driver is PoCL."""
        return self.platform.startswith("Portable Computing Language")

    def limits(self) -> str:
        """One line for people."""
        return (
            f"{self.units} units, {self.max_alloc_bytes / 2**30:.1f} GiB in one buffer, {self.local_bytes >> 10} KiB "
            f"local memory, groups of {self.max_group}{f', subgroups of {self.step_items}' * bool(self.step_items)}"
        )


@cache
def open_binding() -> Any:
    """The module pyopencl. Raises DeviceError where it cannot be imported."""
    os.environ["PYOPENCL_NO_CACHE"] = "1"  # its cache unpickles files; ours stores the binaries. Read once, at import
    _started.append(os.getpid())
    try:
        return importlib.import_module("pyopencl")
    except ImportError as error:
        raise DeviceError(f"CL: the Python package pyopencl cannot be imported ({error}). {_INSTALL}.") from error


def refuse_after_fork(name: str) -> None:
    """Raise DeviceError in a forked child: a driver's threads are not there, and it would wait for them forever."""
    if os.getpid() not in _started[:1]:
        raise DeviceError(
            f"{name}: this process was forked after OpenCL was opened, which drivers do not support. Start "
            'processes with multiprocessing.set_start_method("spawn"), or open the device in the child only.'
        )


def found_devices() -> list[Any]:
    """Return every device of every platform: GPUs first, then accelerators, then CPUs; vendors' drivers before general
    ones.

    Raises:
        DeviceError: no binding, no platform, or platforms without devices; the message says what to install.
    """
    cl = open_binding()
    refuse_after_fork("CL")
    try:
        platforms = list(cl.get_platforms())
    except cl.Error as error:
        raise DeviceError(_nothing(f"no OpenCL driver was found ({error})")) from None
    if not platforms:
        raise DeviceError(_nothing("no OpenCL driver was found"))
    found: list[tuple[tuple[int, int], Any]] = []
    for platform in platforms:
        try:
            devices = platform.get_devices()
        except cl.Error:  # a platform without devices is normal: Mesa's are there on machines without a GPU
            continue
        found += [(_rank(platform.name, int(device.type)), device) for device in devices]
    if not found:
        names = ", ".join(platform.name for platform in platforms)
        why = ". PoCL needs a POCL_CACHE_DIR that it can write and POCL_DEVICES that it knows" * ("Portable" in names)
        raise DeviceError(_nothing(f"the installed OpenCL drivers ({names}) offer no device{why}"))
    return [device for _, device in sorted(found, key=lambda pair: pair[0])]


def _rank(platform: str, kind: int) -> tuple[int, int]:
    behind = next((n + 1 for n, word in enumerate(_LAST) if platform.lower().startswith(word)), 0)
    if behind == len(_LAST):
        return len(_TYPES) + 1, behind  # a checker that claims to be everything
    return next((n for n, (_, bit) in enumerate(_TYPES) if kind & bit), len(_TYPES)), behind


def _nothing(why: str) -> str:
    pinned = [f"{n}={os.environ[n]}" for n in ("OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH") if os.environ.get(n)]
    where = f" {' and '.join(pinned)} sets the search path: correct or unset it." if pinned else ""
    return f"CL: {why}.{where} {_INSTALL}."


def facts_of(device: Any) -> ClFacts:
    """Read a device's limits."""
    platform = device.platform
    extensions = tuple(str(device.extensions).split())
    kind = next((name for name, bit in _TYPES if int(device.type) & bit), "accel")
    unified = bool(_info(device, "host_unified_memory", 0))
    single = int(_info(device, "single_fp_config", 0))
    return ClFacts(
        name=str(device.name).strip(),
        platform=str(platform.name).strip(),
        version=f"{platform.version}; {device.version}; {device.driver_version}".replace("  ", " "),
        kind="igpu" if kind == "gpu" and unified else kind,
        extensions=extensions,
        total_bytes=int(device.global_mem_size),
        max_alloc_bytes=int(device.max_mem_alloc_size),
        local_bytes=int(device.local_mem_size),
        max_group=int(device.max_work_group_size),
        parameter_bytes=int(_info(device, "max_parameter_size", 1024)),
        units=int(device.max_compute_units),
        float_lanes=_float_lanes(device),
        step_items=int(
            _info(device, "warp_size_nv", 0)
            or _info(device, "wavefront_width_amd", 0)
            or max(_info(device, "sub_group_sizes_intel", ()), default=0)
        ),
        is_unified=unified,
        has_float64="cl_khr_fp64" in extensions or bool(_info(device, "double_fp_config", 0)),
        has_float16="cl_khr_fp16" in extensions,
        divides_correctly=bool(single & _FP_CORRECT_DIVIDE),
        has_fma=bool(single & _FP_FMA) or str(platform.name) == "Oclgrind",  # fma() is always exact, here never fast
    )


def _info(device: Any, name: str, default: Any) -> Any:
    try:
        return getattr(device, name)
    except (open_binding().Error, AttributeError):
        return default


def _float_lanes(device: Any) -> int:
    """As many as the device says, but where PoCL's compiler does not know the CPU: LLVM 14 takes a Zen 4 for a Zen 3,
    without AVX-512, and a library for AVX-512 is linked nevertheless."""
    lanes = int(_info(device, "native_vector_width_float", 0))
    return min(lanes, 8) if str(device.version).endswith(_WITHOUT_AVX512) else lanes


def refuse_unusable(device: Any, facts: ClFacts, name: str) -> None:
    """Raise DeviceError for a device that could not run a kernel, or would end the process trying."""
    if not device.available:
        raise DeviceError(f"{name}: {facts.name} is reported as not available. Choose another device.")
    if not device.compiler_available:
        raise DeviceError(
            f"{name}: the driver of {facts.name} ({facts.platform}) has no compiler. Install its compiler "
            "package, or choose another device."
        )
    if "EMBEDDED" in str(device.profile):
        raise DeviceError(f"{name}: {facts.name} offers the embedded profile only, which may lack 64-bit ints.")
    if facts.is_pocl:
        _refuse_pocl_without_linker(facts, name)


def _refuse_pocl_without_linker(facts: ClFacts, name: str) -> None:
    """PoCL before 7 links every kernel with the system's `ld`, and ends the process where that fails."""
    if _pocl_version(facts.version) >= 7:
        return
    linker = shutil.which("ld")
    if linker is None:
        raise DeviceError(
            f"{name}: this PoCL ({facts.version.partition(';')[0]}) needs the linker `ld`, which is not on PATH; "
            "without it the process would end. Install the package binutils, or Debian's pocl-opencl-icd of version 7."
        )
    status = os.stat(linker)
    key = cache_key("PoCL self-test", facts.version, sys.executable, linker, f"{status.st_size} {status.st_mtime_ns}")
    if default_cache().get(key) is not None:
        return
    log = _self_test(facts)
    if log is not None:
        remedy = (
            "The driver is older than this CPU. Install a newer one, such as Debian's package pocl-opencl-icd."
            if "unknown target CPU" in log
            else "Install the packages binutils and libc6-dev (PoCL links with them), or Debian's pocl-opencl-icd of "
            "version 7 or later."
        )
        raise DeviceError(f"{name}: a self-test kernel failed (run in a separate process): {log} {remedy}")
    default_cache().put(key, b"", {"name": "PoCL self-test"})


def _pocl_version(text: str) -> int:
    digits = text.partition("PoCL ")[2].partition(".")[0]
    return int(digits) if digits.isdigit() else 0


_SELF_TEST = """
import pyopencl as cl
for p in cl.get_platforms():
    for d in p.get_devices() if p.version.replace("  ", " ") == {version!r} else ():
        c = cl.Context([d])
        k = cl.Kernel(cl.Program(c, '__kernel void k(__global float *b) {{ b[0] = exp(b[0]); }}').build(), 'k')
        b = cl.Buffer(c, cl.mem_flags.READ_WRITE, 4)
        k.set_args(b)
        q = cl.CommandQueue(c)
        cl.enqueue_nd_range_kernel(q, k, (1,), (1,))
        q.finish()
        break
"""


def _self_test(facts: ClFacts) -> str | None:
    """Run a kernel in a separate process; return None on success, else the end of its output."""
    try:
        with tempfile.TemporaryDirectory() as fresh:  # from PoCL's cache a kernel comes without the linker
            done = subprocess.run(
                [sys.executable, "-c", _SELF_TEST.format(version=facts.version.partition(";")[0])],
                capture_output=True, text=True, timeout=_SELF_TEST_S, check=False,
                env={**os.environ, "POCL_CACHE_DIR": fresh},
            )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"no answer in {_SELF_TEST_S} s."
    if done.returncode == 0:
        return None
    said = (done.stderr or done.stdout).strip().splitlines() or [f"exit status {done.returncode}"]
    errors = [line for line in said if line.startswith("error: ")]  # of the driver's compiler
    return f"{(errors or said)[-1].rstrip('.')}."
