"""Matrix units of GPUs: their products, and the distribution over 32 consecutive work-items, which compute a step.

A block of a is rows of k values, one of b rows of n words, which are k values deep; each work-item has some words and
some results (`Share`). Tests replace NVIDIA's instruction in OpenCL C by a function that passes these words through
shared memory, with an independent description of the distribution (tests/renderers/mma_stand_in.py).

Sources: PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type" and "for mma.m16n8k32"; AMD, "RDNA3
Instruction Set Architecture", 7.9: both halves of the 32 have the same words of a and b.
"""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

from kernmill.ir import Unit, UOp, dtypes

__all__ = ["AMD_UNITS", "HELD", "MMA_BYTE_UNITS", "MMA_ITEMS", "MMA_UNITS", "Share", "held_amd", "mma_function"]

_NAMES = {dtypes.float16: "f16", dtypes.bfloat16: "bf16"}
_BYTES = tuple(product((dtypes.int8, dtypes.uint8), repeat=2))
MMA_ITEMS = 32
MMA_UNITS = tuple(Unit(d, d, dtypes.float32, 16, 8, 16, 2, ((8, 8), (4, 2))) for d in _NAMES)
MMA_BYTE_UNITS = tuple(Unit(a, b, dtypes.int32, 16, 8, 32, 4, ((8, 8), (4, 2))) for a, b in _BYTES)
AMD_UNITS = (
    *(Unit(d, d, dtypes.float32, 16, 16, 16, 2, ((2, 16), (16, 1))) for d in _NAMES),
    *(Unit(a, b, dtypes.int32, 16, 16, 16, 4, ((2, 16), (16, 1))) for a, b in _BYTES),
)


class Share(NamedTuple):
    """A work-item's part of a block: its first word or result is at `item / inner * down + item % inner * across`,
    where item is below 32, and the others are at these distances from it."""

    inner: int
    down: int
    across: int
    others: tuple[int, ...]

    def first(self, item: int) -> int:
        """Return the position of a work-item's first word or result."""
        return item // self.inner * self.down + item % self.inner * self.across

    @property
    def run(self) -> tuple[int, int]:
        """The distance between runs of adjacent results, and the length of a run."""
        near = self.others[1] if self.others[1] > 1 else 2
        return (near, 1) if near > 2 else (self.others[2], 2)


HELD = Share(4, 8, 1, (0, 64, 4, 68)), Share(4, 1, 8, (0, 32)), Share(4, 8, 2, (0, 1, 64, 65))  # of a, b and c


def held_amd(unit_words: int) -> tuple[Share, Share, Share]:
    """Of a, b and c on RDNA 3; a row of a has `unit_words` words."""
    numbers = range(unit_words)
    return (Share(16, 0, unit_words, tuple(numbers)), Share(16, 0, 1, tuple(16 * n for n in numbers)),
            Share(16, 16, 1, tuple(range(0, 256, 32))))  # fmt: skip


_FUNCTION = """static float4 mma_{kind}(uint4 a, uint2 b, float4 c) {{
  float r0, r1, r2, r3;
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 "
    "{{%0,%1,%2,%3}}, {{%4,%5,%6,%7}}, {{%8,%9}}, {{%10,%11,%12,%13}};"
    : "=f"(r0), "=f"(r1), "=f"(r2), "=f"(r3)
    : "r"(a.s0), "r"(a.s1), "r"(a.s2), "r"(a.s3), "r"(b.s0), "r"(b.s1), "f"(c.s0), "f"(c.s1), "f"(c.s2), "f"(c.s3));
  return (float4)(r0, r1, r2, r3);
}}"""


def mma_function(u: UOp) -> tuple[str, str]:
    """Return the name and the text of a function of OpenCL C that computes a MMA."""
    kind = _NAMES[u.src[0].dtype.scalar]
    return f"mma_{kind}", _FUNCTION.format(kind=kind)
