"""The corpus of kernels for tests: the bench set's, and the targets whose schedules are frozen."""

from __future__ import annotations

from functools import cache

from bench.corpus.files import load_kernels
from kernmill.compiler import choose, merge_loops
from kernmill.ir import Target, UOp
from kernmill.runtime import cpu_target, cuda_target, host

_V2 = ("sse4.1", "ssse3")
_V3 = (*_V2, "avx", "avx2", "f16c", "fma")
_V4 = (*_V3, "avx512f", "avx512bw", "avx512vl", "avx512vnni", "avx512vbmi", "avx512bf16")
_XEON = (*_V4, "avx512fp16", "amx-tile", "amx-int8", "amx-bf16")


def _x86(cpu: str, features: tuple[str, ...], l2_bytes: int) -> Target:
    l1_bytes = (48 if cpu == "sapphirerapids" else 32) << 10
    return cpu_target.host_target(
        host.Host("x86_64", cpu, tuple(f"+{f}" for f in features), l1_bytes, l2_bytes, 32 << 20)
    )


TARGETS = {
    "zen4": _x86("znver4", (*_V4, "sse4a"), 1 << 20),
    "sapphire_rapids": _x86("sapphirerapids", _XEON, 2 << 20),
    "avx2": _x86("x86-64-v3", _V3, 1 << 20),
    "sse": _x86("x86-64-v2", _V2, 1 << 20),
    "neon": cpu_target.host_target(host.named_host("neoverse-n1")),
    "cuda": cuda_target.cuda_target(90),
}


@cache
def kernels() -> dict[str, UOp]:
    """The kernels as the optimizer gets them, by the name of their row and their own."""
    return {name: merge_loops(kernel.ast) for name, kernel in load_kernels().items()}


def schedule_lines(target: Target) -> str:
    """A line for each kernel of the corpus: its schedule."""
    lines = [f"{name}: {'; '.join(map(str, choose(ast, target).actions))}" for name, ast in kernels().items()]
    return "\n".join(lines)
