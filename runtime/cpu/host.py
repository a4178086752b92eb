"""The host CPU: its LLVM name and features, its caches, and how many threads this process may use.

On Linux everything comes from /proc and /sys, so that a warm start never imports llvmlite; elsewhere LLVM is queried.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kernmill.ir import LazyModule, SettingError, setting

from .arm import ARM_CORES, arm_from_cpuinfo, arm_from_macos, feature_list
from .elf import libc

__all__ = ["Host", "amx_refusal", "cpu_quota", "named_host", "request_amx", "this_host"]

_platform: Any = LazyModule("platform")  # slow to import

# /proc/cpuinfo flag -> LLVM feature. Absent features are disabled by name, since a CPU name implies more than a virtual
# machine may have.
X86_FEATURES: dict[str, str] = {
    "cx16": "cx16", "lahf_lm": "sahf", "popcnt": "popcnt", "pni": "sse3", "ssse3": "ssse3", "sse4_1": "sse4.1",
    "sse4_2": "sse4.2", "sse4a": "sse4a", "movbe": "movbe", "abm": "lzcnt", "aes": "aes", "pclmulqdq": "pclmul",
    "sha_ni": "sha", "rdrand": "rdrnd", "rdseed": "rdseed", "adx": "adx", "xsave": "xsave", "xsaveopt": "xsaveopt",
    "xsavec": "xsavec", "xsaves": "xsaves", "fsgsbase": "fsgsbase", "rdpid": "rdpid", "clflushopt": "clflushopt",
    "clwb": "clwb", "gfni": "gfni", "vaes": "vaes", "vpclmulqdq": "vpclmulqdq", "bmi1": "bmi", "bmi2": "bmi2",
    "avx": "avx", "avx2": "avx2", "fma": "fma", "f16c": "f16c", "fma4": "fma4", "xop": "xop",
    "3dnowprefetch": "prfchw", "avx_vnni": "avxvnni", "avx_ifma": "avxifma", "avx_vnni_int8": "avxvnniint8",
    "avx_vnni_int16": "avxvnniint16", "avx_ne_convert": "avxneconvert", "avx512f": "avx512f", "avx512cd": "avx512cd",
    "avx512bw": "avx512bw", "avx512dq": "avx512dq", "avx512vl": "avx512vl", "avx512ifma": "avx512ifma",
    "avx512vbmi": "avx512vbmi", "avx512_vbmi2": "avx512vbmi2", "avx512_vnni": "avx512vnni",
    "avx512_bitalg": "avx512bitalg", "avx512_vpopcntdq": "avx512vpopcntdq", "avx512_bf16": "avx512bf16",
    "avx512_fp16": "avx512fp16", "avx512_vp2intersect": "avx512vp2intersect", "amx_tile": "amx-tile",
    "amx_int8": "amx-int8", "amx_bf16": "amx-bf16", "amx_fp16": "amx-fp16", "amx_complex": "amx-complex",
}  # fmt: skip

# requirements of each x86-64 micro-architecture level (psABI), in LLVM's names
_V2 = {"cx16", "sahf", "popcnt", "sse3", "ssse3", "sse4.1", "sse4.2"}
_V3 = _V2 | {"avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
_TARGETS: dict[str, tuple[str, set[str]]] = {
    "sse": ("x86-64-v2", _V2),
    "avx2": ("x86-64-v3", _V3),
    "avx512": ("", _V4),  # under a CPU name that fits its features
    "amx": ("", set()),  # all features, with functions that emulate the matrix unit
}
_NEEDS_AVX = {"avx", "avx2", "fma", "f16c", "fma4", "xop", "vaes", "vpclmulqdq"}
_DEFAULT_CACHES = (32 << 10, 1 << 20, 8 << 20)


class Host(NamedTuple):
    """One CPU as LLVM should see it. Units: `l1`, `l2`, `l3` are bytes, as one core sees them."""

    arch: str
    cpu: str
    features: tuple[str, ...]
    l1: int
    l2: int
    l3: int
    triple: str = ""  # of another machine, for which code is compiled and not run

    def has(self, feature: str) -> bool:
        """True if an LLVM feature (`"avx512f"`) may be used."""
        return f"+{feature}" in self.features

    def threads(self) -> int:
        """Return the threads that a device should use: `own_cpus()`, or `THREADS` of those that the process may use."""
        usable = _usable_lately(int(time.monotonic()))
        return min(int(setting("THREADS")) or max(1, usable // _sharers), usable)


def this_host() -> Host:
    """Return the CPU of this process, lowered to `TARGET` if that is set.

    Raises:
        SettingError: `TARGET` needs more than the CPU has.
    """
    target = str(setting("TARGET"))
    return _host("" if target in ("gpu", "cpu", "mma") else target)  # shapes of kernels, not levels of a CPU


@functools.cache
def _host(target: str) -> Host:
    if target == "small":
        return _host("")._replace(l1=1 << 10, l2=4 << 10, l3=64 << 10)
    machine = _platform.machine() if sys.platform == "win32" else os.uname().machine
    arch = {"AMD64": "x86_64", "arm64": "aarch64"}.get(machine, machine)
    if arch == "aarch64":
        cpu, features = _arm(target)
    elif arch == "x86_64" and sys.platform == "linux":
        cpu, features = _linux_x86(target)
    else:
        cpu, features = _ask_llvm(arch, target)
    return Host(arch, cpu, features, *_caches())


def named_host(cpu: str) -> Host:
    """Return an AArch64 CPU by LLVM's name, for code that is compiled here and not run.

    Raises:
        SettingError: the name is unknown.
    """
    if cpu not in ARM_CORES:
        raise SettingError(f"named_host({cpu!r}): must be one of {', '.join(ARM_CORES)}.")
    found, caches = ARM_CORES[cpu]
    triple = "arm64-apple-macosx" if cpu.startswith("apple") else "aarch64-unknown-linux-gnu"
    return Host("aarch64", cpu, feature_list(found), *caches, triple)


def _arm(target: str) -> tuple[str, tuple[str, ...]]:
    if target:
        raise SettingError(f"TARGET={target}: that is an x86-64 level and this CPU is aarch64. Leave TARGET empty.")
    if sys.platform == "darwin":
        return arm_from_macos()
    if sys.platform != "linux":
        return _ask_llvm("aarch64", target)
    try:
        return arm_from_cpuinfo(_read("/proc/cpuinfo"))
    except OSError:
        return arm_from_cpuinfo("")


def _linux_x86(target: str) -> tuple[str, tuple[str, ...]]:
    vendor, flags = _cpuinfo()
    found = {feature for flag, feature in X86_FEATURES.items() if flag in flags}
    if "amx-tile" in found and not request_amx():
        found = {feature for feature in found if not feature.startswith("amx")}
    return x86_target(vendor, found, target)


@functools.cache
def _cpuinfo() -> tuple[str, set[str]]:
    try:
        return read_cpuinfo(_read("/proc/cpuinfo"))
    except OSError:
        return "", set()


def read_cpuinfo(text: str) -> tuple[str, set[str]]:
    """Vendor and flags of the first processor. A damaged or empty file gives no flags, that is plain x86-64."""
    lines = [line.split(":", 1) for line in text.split("\n\n", 1)[0].splitlines() if ":" in line]
    fields = {name.strip(): value.strip() for name, value in lines}
    return fields.get("vendor_id", ""), set(fields.get("flags", "").split())


def x86_target(vendor: str, found: set[str], target: str) -> tuple[str, tuple[str, ...]]:
    """Return the LLVM CPU name and feature list for the detected features, lowered to `target`."""
    name, needed = _TARGETS.get(target, ("", set[str]()))
    if missing := sorted(needed - found):
        raise SettingError(
            f"TARGET={target}: this CPU lacks {', '.join(missing)}. Leave TARGET empty to use all its features."
        )
    found = {feature for feature in found if _allowed(feature, target)}
    features = tuple(f"+{f}" if f in found else f"-{f}" for f in sorted({*X86_FEATURES.values()}))
    return name or _x86_cpu(vendor, found), features


def _allowed(feature: str, target: str) -> bool:
    if feature.startswith("amx"):
        return not target
    if target in ("", "avx512", "amx"):
        return True
    if feature.startswith("avx512"):
        return False
    return target == "avx2" or not (feature in _NEEDS_AVX or feature.startswith("avx"))


def _x86_cpu(vendor: str, found: set[str]) -> str:
    if found >= _V4:
        if vendor == "AuthenticAMD":
            return "znver4"
        # the name that LLVM detects on newer parts ("rocketlake" in some VMs) schedules GEMM 7 % slower
        return "sapphirerapids" if {"amx-tile", "avx512fp16"} & found else "x86-64-v4"
    if found >= _V3:
        return "x86-64-v3"
    return "x86-64-v2" if found >= _V2 else "x86-64"


def _ask_llvm(arch: str, target: str) -> tuple[str, tuple[str, ...]]:
    binding: Any = importlib.import_module("llvmlite.binding")  # only where /proc/cpuinfo cannot answer
    flags: dict[str, bool] = dict(binding.get_host_cpu_features())
    if arch == "x86_64":
        found = {f for f, on in flags.items() if on and f in set(X86_FEATURES.values()) and not f.startswith("amx")}
        return x86_target("", found, target)
    if target:
        raise SettingError(f"TARGET={target}: that is an x86-64 level and this CPU is {arch}. Leave TARGET empty.")
    return "generic", tuple(f"{'+' if on else '-'}{f}" for f, on in sorted(flags.items()))


@functools.cache
def request_amx() -> bool:
    """Ask the kernel, once, for the AMX tile state of this process. Threads and forked children inherit it."""
    if sys.platform != "linux" or os.uname().machine != "x86_64" or "amx_tile" not in _cpuinfo()[1]:
        return False
    arch_prctl, req_xcomp_perm, xtiledata = map(ctypes.c_long, (158, 0x1023, 18))
    return int(libc().syscall(arch_prctl, req_xcomp_perm, xtiledata)) == 0


def amx_refusal() -> str:
    """Return why an existing matrix unit is not used; empty if there is none, or if it may be used."""
    if "amx_tile" not in _cpuinfo()[1] or request_amx():
        return ""
    return "matrix unit: not used, the system denies it to this process (arch_prctl ARCH_REQ_XCOMP_PERM)"


# --- caches and threads -----------------------------------------------------------------------------------------------


def _caches() -> tuple[int, int, int]:
    root = "/sys/devices/system/cpu/cpu0/cache"
    sizes: list[int] = list(_DEFAULT_CACHES)
    for index in range(5):
        try:
            level, kind, text = (_read(f"{root}/index{index}/{name}") for name in ("level", "type", "size"))
            if kind != "Instruction" and 1 <= int(level) <= 3:
                sizes[int(level) - 1] = _size_bytes(text) or sizes[int(level) - 1]
        except (OSError, ValueError):
            break
    return sizes[0], sizes[1], sizes[2]


def _size_bytes(text: str) -> int:
    unit = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
    return int(text.rstrip("KMG")) * unit


def _read(path: str) -> str:
    """The start of a small system file; of /proc/cpuinfo the first processors are enough."""
    with open(path, "rb", buffering=0) as file:
        return file.read(16384).decode("ascii", "replace").strip()


_sharers = 1


@functools.lru_cache(maxsize=1)
def _usable_lately(second: int) -> int:
    """The answer of this second: a limit that is changed from outside is seen soon, and no launch reads files."""
    return usable_cpus()


def share_cpus(processes: int) -> None:
    """Divide the CPUs that this process may use between `processes`, this one included."""
    global _sharers
    _sharers = processes


def cpu_sharers() -> int:
    """Return how many processes divide the CPUs that this one may use."""
    return _sharers


def own_cpus() -> int:
    """Return this process's part of `usable_cpus()`, at least 1."""
    return max(1, usable_cpus() // _sharers)


def usable_cpus() -> int:
    """Return the CPUs this process may use: the affinity mask, limited by the quota of its control group."""
    mask = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    return max(1, mask if quota is None else min(mask, math.ceil(quota)))


def cpu_quota(groups: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> float | None:
    """CPUs that the control groups of this process grant (v2 and v1), the tightest of all parents; None: no limit."""
    if sys.platform != "linux":
        return None
    try:
        lines = _read(groups).splitlines()
    except OSError:
        return None
    quotas: list[float] = []
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if not controllers:
            quotas += _quotas(root, path, _quota_v2)
        elif "cpu" in controllers.split(","):
            for mount in dict.fromkeys((f"{root}/{controllers}", f"{root}/cpu")):
                quotas += _quotas(mount, path, _quota_v1)
    return min(quotas, default=None)


def _quotas(mount: str, path: str, read: Callable[[str], float | None]) -> Iterator[float]:
    if not os.path.isdir(mount):
        return
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for depth in range(len(parts) + 1):
        try:
            quota = read("/".join([mount, *parts[:depth]]))
        except (OSError, ValueError):
            continue
        if quota is not None and quota > 0:
            yield quota


def _quota_v2(folder: str) -> float | None:
    quota, period = _read(f"{folder}/cpu.max").split()
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(folder: str) -> float | None:
    quota = int(_read(f"{folder}/cpu.cfs_quota_us"))
    return None if quota < 0 else quota / int(_read(f"{folder}/cpu.cfs_period_us"))
