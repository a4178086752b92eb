"""AArch64 CPUs: their names and features in LLVM's words, from /proc/cpuinfo, from macOS, or of a named core.

LLVM's own list for a running ARM CPU lacks dotprod, i8mm, bf16 and the arithmetic of float16, and its CPU name is
`generic` under an emulator. SVE is disabled: LLVM uses its stores for vectors of 16 bytes, with predicates and spills.

Source: Arm Architecture Reference Manual, MIDR_EL1; Linux, arch/arm64/kernel/cpuinfo.c.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

__all__ = ["ARM_CORES", "arm_from_cpuinfo", "arm_from_macos", "feature_list"]

_FEATURES: dict[str, str] = {  # flag of /proc/cpuinfo -> LLVM feature
    "fp": "fp-armv8", "asimd": "neon", "asimddp": "dotprod", "i8mm": "i8mm", "bf16": "bf16", "asimdhp": "fullfp16",
    "asimdfhm": "fp16fml", "atomics": "lse", "crc32": "crc", "aes": "aes", "sha2": "sha2", "sha3": "sha3",
    "asimdrdm": "rdm", "lrcpc": "rcpc", "fcma": "complxnum", "jscvt": "jsconv",
}  # fmt: skip
_MACOS: dict[str, str] = {  # name below hw.optional.arm -> LLVM feature
    "FEAT_DotProd": "dotprod", "FEAT_I8MM": "i8mm", "FEAT_BF16": "bf16", "FEAT_FP16": "fullfp16",
    "FEAT_FHM": "fp16fml", "FEAT_LSE": "lse", "FEAT_AES": "aes", "FEAT_SHA256": "sha2", "FEAT_SHA3": "sha3",
    "FEAT_RDM": "rdm", "FEAT_LRCPC": "rcpc", "FEAT_FCMA": "complxnum", "FEAT_JSCVT": "jsconv",
}  # fmt: skip
_ALWAYS = {"fp-armv8", "neon"}
_NEVER = ("sve", "sve2", "sme", "sme2")
_ARM, _APPLE = "0x41", "0x61"
_PARTS: dict[tuple[str, str], str] = {  # implementer and part -> LLVM's name
    (_ARM, "0xd03"): "cortex-a53", (_ARM, "0xd05"): "cortex-a55", (_ARM, "0xd08"): "cortex-a72",
    (_ARM, "0xd0b"): "cortex-a76", (_ARM, "0xd0c"): "neoverse-n1", (_ARM, "0xd40"): "neoverse-v1",
    (_ARM, "0xd41"): "cortex-a78", (_ARM, "0xd44"): "cortex-x1", (_ARM, "0xd49"): "neoverse-n2",
    (_ARM, "0xd4f"): "neoverse-v2", (_ARM, "0xd8e"): "neoverse-n3", (_ARM, "0xd84"): "neoverse-v3",
    (_APPLE, "0x022"): "apple-m1", (_APPLE, "0x023"): "apple-m1", (_APPLE, "0x024"): "apple-m1",
    (_APPLE, "0x032"): "apple-m2", (_APPLE, "0x033"): "apple-m2",
}  # fmt: skip
_M1 = {"dotprod", "fullfp16", "fp16fml", "lse", "aes", "sha2", "sha3", "crc", "rdm", "rcpc", "complxnum", "jsconv"}
_N1 = {"dotprod", "fullfp16", "lse", "aes", "sha2", "crc", "rdm", "rcpc"}
_V1 = _N1 | {"i8mm", "bf16", "fp16fml", "complxnum", "jsconv", "sha3"}
# cores for which code can be compiled elsewhere: features, and bytes of L1, L2 and L3 as one core sees them
ARM_CORES: dict[str, tuple[set[str], tuple[int, int, int]]] = {
    "cortex-a72": ({"crc", "aes", "sha2"}, (32 << 10, 1 << 20, 0)),  # without dot products
    "neoverse-n1": (_N1, (64 << 10, 1 << 20, 32 << 20)),
    "neoverse-v1": (_V1, (64 << 10, 1 << 20, 32 << 20)),
    "neoverse-v2": (_V1, (64 << 10, 2 << 20, 64 << 20)),
    "apple-m1": (_M1, (128 << 10, 3 << 20, 8 << 20)),
}


def feature_list(found: set[str]) -> tuple[str, ...]:
    """Return LLVM's list: what is absent is disabled by name, since a CPU name implies more than a machine may have."""
    found = found | _ALWAYS
    names = sorted({*_FEATURES.values(), *_MACOS.values()})
    return (*(f"+{name}" if name in found else f"-{name}" for name in names), *(f"-{name}" for name in _NEVER))


def arm_from_cpuinfo(text: str) -> tuple[str, tuple[str, ...]]:
    """LLVM's CPU name and features, from the first processor. A damaged or empty file gives plain ARMv8."""
    lines = [line.split(":", 1) for line in text.split("\n\n", 1)[0].splitlines() if ":" in line]
    fields = {name.strip(): value.strip() for name, value in lines}
    flags = fields.get("Features", "").split()
    part = fields.get("CPU implementer", "").lower(), fields.get("CPU part", "").lower()
    return _PARTS.get(part, "generic"), feature_list({_FEATURES[flag] for flag in flags if flag in _FEATURES})


def arm_from_macos(query: Callable[[str], bool] | None = None) -> tuple[str, tuple[str, ...]]:
    """LLVM's CPU name and features of an Apple CPU. `query` says whether a name of sysctl is 1."""
    ask = query or _sysctl
    found = {feature for name, feature in _MACOS.items() if ask(f"hw.optional.arm.{name}")}
    return "apple-m2" if {"i8mm", "bf16"} <= found else "apple-m1", feature_list(found | {"crc"})


def _sysctl(name: str) -> bool:
    value, size = ctypes.c_int64(0), ctypes.c_size_t(8)
    status = ctypes.CDLL(None).sysctlbyname(name.encode(), ctypes.byref(value), ctypes.byref(size), None, 0)
    return status == 0 and value.value == 1
