"""What generated code may use on a CPU: its Target, from LLVM's names of its features."""

from __future__ import annotations

from kernmill.ir import MACHINES, DType, Machine, Ops, Target, Unit, dtypes
from kernmill.renderers import LLVM_OPS, NEON_UNITS

from .host import Host

__all__ = ["host_target", "machine_of"]

_FAMILIES = {"znver4": "zen4", "sapphirerapids": "golden_cove", "x86-64-v4": "skylake_avx512", "x86-64-v3": "x86_avx2",
             "x86-64-v2": "x86_sse", "x86-64": "x86_sse"}  # fmt: skip

_S8, _U8, _BF16 = dtypes.int8, dtypes.uint8, dtypes.bfloat16


def host_target(host: Host, units: tuple[Unit, ...] = ()) -> Target:
    """Return the features for generated code on this CPU, with these matrix units."""
    make = {"x86_64": _x86_target, "aarch64": _aarch64_target}.get(host.arch, _other_target)
    return make(host, units)


def machine_of(host: Host) -> Machine:
    """Return the row of this CPU's family, with the sizes of its caches."""
    row = MACHINES[_FAMILIES.get(host.cpu, "neon" if host.arch == "aarch64" else "generic")]
    return row.with_caches((host.l1, host.l2, host.l3 // 2))  # other cores use the last one as well


def _x86_target(host: Host, units: tuple[Unit, ...]) -> Target:
    wide, is_amd = host.has("avx512f"), host.has("sse4a")  # which AMD's CPUs alone have
    vector = 64 if wide else 32 if host.has("avx2") or host.has("avx") else 16
    ops = LLVM_OPS | ({Ops.SCALE} if wide else set())
    ops = ops if host.has("fma") else ops - {Ops.FMA}
    if not (host.has("sse4.1") or host.has("avx")):
        ops = ops - {Ops.FLOOR, Ops.CEIL, Ops.TRUNC, Ops.ROUND}
    return Target(
        name=f"llvm-{host.arch}-{vector * 8}{'-amx' if units else ''}",
        vector_bytes=vector,
        vector_registers=32 if wide else 16,
        instructions="x86",
        ops=ops,
        storage_dtypes=frozenset(dtypes.data) - (set() if host.has("f16c") else {dtypes.float16}),
        compute_dtypes=_compute_dtypes(host.has("avx512fp16")),
        dots=_x86_dots(host),
        dot_most=255 if has_vnni(host) else 127,
        table_lanes=64 if host.has("avx512bw") else 32 if host.has("avx2") else 16 if host.has("ssse3") else 0,
        table_bytes=128 if host.has("avx512vbmi") else 0,
        units=units,
        emulates_units=bool(units) and not host.has("amx-tile"),
        has_threads=True,
        has_gathers=host.has("avx512fp16"),  # CPUs made with the mend against Downfall, not mended by microcode
        has_masks=wide or host.has("avx2"),
        min_mask_lane_bytes=1 if host.has("avx512bw") else 4,
        has_fast_nontemporal_stores=host.cpu == "sapphirerapids" or is_amd,
        has_hardware_prefetch=is_amd,
        l1_bytes=host.l1,
        l2_bytes=host.l2,
        machine=machine_of(host),
    )


def _aarch64_target(host: Host, units: tuple[Unit, ...]) -> Target:
    dots = {(_S8, _S8): "dotprod", (_U8, _U8): "dotprod", (_U8, _S8): "i8mm", (_BF16, _BF16): "bf16"}
    return Target(
        name=f"llvm-{host.arch}-128",
        vector_bytes=16,
        vector_registers=32,
        instructions="aarch64",
        ops=LLVM_OPS,
        compute_dtypes=_compute_dtypes(host.has("fullfp16")),
        dots=frozenset(pair for pair, feature in dots.items() if host.has(feature)),
        register_units=tuple(u for feature, several in NEON_UNITS.items() if host.has(feature) for u in several),
        table_lanes=16,
        table_bytes=64,
        units=units,
        has_threads=True,
        l1_bytes=host.l1,
        l2_bytes=host.l2,
        machine=machine_of(host),
    )


def _other_target(host: Host, units: tuple[Unit, ...]) -> Target:
    return Target(name=f"llvm-{host.arch}-128", vector_bytes=16, ops=LLVM_OPS, compute_dtypes=_compute_dtypes(False),
                  units=units, has_threads=True, l1_bytes=host.l1, l2_bytes=host.l2,
                  machine=machine_of(host))  # fmt: skip


def _compute_dtypes(has_half: bool) -> frozenset[DType]:
    """Return the dtypes with native arithmetic: never bfloat16, float16 if there are instructions for it."""
    return frozenset(dtypes.data) - ({_BF16} if has_half else {_BF16, dtypes.float16})


def has_vnni(host: Host) -> bool:
    """True if one instruction computes dot products of bytes: AVX512-VNNI, AVX-VNNI."""
    return host.has("avx512vnni") and host.has("avx512vl") if host.has("avx512f") else host.has("avxvnni")


def _x86_dots(host: Host) -> frozenset[tuple[DType, DType]]:
    """Return the operands of dot products: unsigned by signed bytes, in one instruction or in a few. With AVX512-BF16
    also pairs of bfloat16, on AMD's CPUs: they do twice as many as of float32, Intel's half as many."""
    wide = host.has("avx512f")
    has_bytes = has_vnni(host) or host.has("avx512bw" if wide else "ssse3")
    has_pairs = wide and host.has("avx512bf16") and host.has("avx512vl") and host.cpu == "znver4"
    found = {(_U8, _S8): has_bytes, (_BF16, _BF16): has_pairs}
    return frozenset(pair for pair, is_there in found.items() if is_there)
