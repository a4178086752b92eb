"""NVIDIA's matrix unit in OpenCL C: what it multiplies, who holds what, its instruction, and a function in its place.

32 work-items that follow each other do a step together. A block of a has 16 rows, one of b 8 columns, of 32 bytes each;
an item holds 4 and 2 words of them and 4 results. Elsewhere a function passes these words through shared memory, and
says in its own way which item has which: all else of a kernel is then run as it would be with the unit.

Source: PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type" and "for mma.m16n8k32".
"""

from __future__ import annotations

from kernmill.ir import Unit, UOp, dtypes

__all__ = ["HELD", "MMA_ITEMS", "MMA_UNITS", "mma_function"]

_NAMES = {dtypes.float16: "f16", dtypes.bfloat16: "bf16", dtypes.int8: "s8", dtypes.uint8: "u8",
          dtypes.float32: "f32", dtypes.int32: "s32"}  # fmt: skip
MMA_ITEMS = 32
_ITEMS = ((8, 8), (4, 2))
MMA_UNITS = (
    *(Unit(d, d, dtypes.float32, 16, 8, 16, 2, _ITEMS) for d in (dtypes.float16, dtypes.bfloat16)),
    *(Unit(a, b, dtypes.int32, 16, 8, 32, 4, _ITEMS) for a in (dtypes.int8, dtypes.uint8)
      for b in (dtypes.int8, dtypes.uint8)),
)  # fmt: skip
# Of an item: its first word of a and of b, its first result, and how far from that its others are.
HELD = (
    ("item % 32 / 4 * 8 + item % 4", (0, 64, 4, 68)),
    ("item % 4 * 8 + item % 32 / 4", (0, 32)),
    ("item % 32 / 4 * 8 + item % 4 * 2", (0, 1, 64, 65)),
)
_STANDS_IN = """static {c}4 {name}(uint4 a, uint2 b, {c}4 c, __local uint *all, uint item) {{
  uint own[6] = {{a.s0, a.s1, a.s2, a.s3, b.s0, b.s1}}, lane = item % 32, n, k;
  __local uint *held = all + item / 32 * 192;
  {sum} r[4] = {{c.s0, c.s1, c.s2, c.s3}};
  barrier(CLK_LOCAL_MEM_FENCE);
  for (n = 0; n < 6; ++n) held[lane * 6 + n] = own[n];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (n = 0; n < 4; ++n) for (k = 0; k < {k}; ++k) {{
    uint row = lane / 4 + n / 2 * 8, column = lane % 4 * 2 + n % 2, word = k / {group}, part = k % {group};
    const __local uint *x = held + (row % 8 * 4 + word % 4) * 6 + row / 8 + word / 4 * 2;
    const __local uint *y = held + (column * 4 + word % 4) * 6 + 4 + word / 4;
    r[n] += ({sum})({a} * {b});
  }}
  return ({c}4)(r[0], r[1], r[2], r[3]);
}}"""
_VALUES = {  # number `part` of a word, as it is multiplied
    dtypes.float16: "vload_half(part, (const __local half *){word})",
    dtypes.bfloat16: "as_float((uint)((const __local ushort *){word})[part] << 16)",
    dtypes.int8: "((const __local char *){word})[part]",
    dtypes.uint8: "((const __local uchar *){word})[part]",
}


def mma_function(u: UOp, name: str, *, has_unit: bool) -> str:
    """A function of that name that does what a TILE does: the instruction, or what stands in its place."""
    a, b, c = (s.dtype.scalar for s in u.src)
    _, _, k, group = u.arg
    kind = "float" if c.is_float else "int"
    if not has_unit:
        values = {side: _VALUES[dtype].format(word=word) for side, dtype, word in (("a", a, "x"), ("b", b, "y"))}
        return _STANDS_IN.format(c=kind, sum="float" if c.is_float else "uint", name=name, k=k, group=group, **values)
    types = ".".join(_NAMES[d] for d in (c, a, b, c))
    places = "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13}"
    results = ", ".join(f'"={kind[0].replace("i", "r")}"(r{n})' for n in range(4))
    operands = [f'"r"({x}.s{n})' for x, count in (("a", 4), ("b", 2)) for n in range(count)]
    operands += [f'"{kind[0].replace("i", "r")}"(c.s{n})' for n in range(4)]
    return (
        f"static {kind}4 {name}(uint4 a, uint2 b, {kind}4 c) {{\n  {kind} r0, r1, r2, r3;\n"
        f'  asm volatile("mma.sync.aligned.m16n8k{k}.row.col.{types} {places};"\n'
        f"    : {results} : {', '.join(operands)});\n  return ({kind}4)(r0, r1, r2, r3);\n}}"
    )
