"""NVIDIA's matrix unit in OpenCL C: its products, the distribution over work-items, and its instruction.

32 consecutive work-items compute a step together. A block of a has 16 rows, one of b 8 columns, of 32 bytes each; a
work-item has 4 and 2 words of them and 4 results. Tests replace the instruction by a function that passes these words
through shared memory, with an independent description of the distribution (tests/renderers/mma_stand_in.py).

Source: PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type".
"""

from __future__ import annotations

from kernmill.ir import Unit, UOp, dtypes

__all__ = ["HELD", "MMA_ITEMS", "MMA_UNITS", "mma_function"]

_NAMES = {dtypes.float16: "f16", dtypes.bfloat16: "bf16"}
MMA_ITEMS = 32
MMA_UNITS = tuple(Unit(d, d, dtypes.float32, 16, 8, 16, 2, ((8, 8), (4, 2))) for d in _NAMES)
# Of an item: its first word of a and of b, its first result, and how far from that its others are.
HELD = (
    ("item % 32 / 4 * 8 + item % 4", (0, 64, 4, 68)),
    ("item % 4 * 8 + item % 32 / 4", (0, 32)),
    ("item % 32 / 4 * 8 + item % 4 * 2", (0, 1, 64, 65)),
)
_FUNCTION = """static float4 mma_{kind}(uint4 a, uint2 b, float4 c) {{
  float r0, r1, r2, r3;
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.{kind}.{kind}.f32 "
    "{{%0,%1,%2,%3}}, {{%4,%5,%6,%7}}, {{%8,%9}}, {{%10,%11,%12,%13}};"
    : "=f"(r0), "=f"(r1), "=f"(r2), "=f"(r3)
    : "r"(a.s0), "r"(a.s1), "r"(a.s2), "r"(a.s3), "r"(b.s0), "r"(b.s1), "f"(c.s0), "f"(c.s1), "f"(c.s2), "f"(c.s3));
  return (float4)(r0, r1, r2, r3);
}}"""


def mma_function(u: UOp) -> tuple[str, str]:
    """Return the name and the text of a function that computes a MMA."""
    kind = _NAMES[u.src[0].dtype.scalar]
    return f"mma_{kind}", _FUNCTION.format(kind=kind)
