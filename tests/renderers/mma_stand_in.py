"""A function in place of NVIDIA's matrix instruction, so that kernels with it run on any OpenCL driver.

Items pass the words that they hold through memory of the group. Which item has which is said here as the PTX ISA says
it, from the place in a block; renderers/mma.py says it the other way round.
"""

from __future__ import annotations

import importlib
from typing import Any

import pytest

from kernmill.ir import UOp, dtypes

_FUNCTION = """static __attribute__((always_inline))
float4 stands_in_{kind}(uint4 a, uint2 b, float4 c, __local uint *all, uint item) {{
  uint own[6] = {{a.s0, a.s1, a.s2, a.s3, b.s0, b.s1}}, lane = item % 32, n, k;
  __local uint *held = all + item / 32 * 192;
  float r[4] = {{c.s0, c.s1, c.s2, c.s3}};
  barrier(CLK_LOCAL_MEM_FENCE);
  for (n = 0; n < 6; ++n) held[lane * 6 + n] = own[n];
  barrier(CLK_LOCAL_MEM_FENCE);
  for (n = 0; n < 4; ++n) for (k = 0; k < 16; ++k) {{
    uint row = lane / 4 + n / 2 * 8, column = lane % 4 * 2 + n % 2, word = k / 2, part = k % 2;
    const __local uint *x = held + (row % 8 * 4 + word % 4) * 6 + row / 8 + word / 4 * 2;
    const __local uint *y = held + (column * 4 + word % 4) * 6 + 4 + word / 4;
    r[n] += {x} * {y};
  }}
  return (float4)(r[0], r[1], r[2], r[3]);
}}"""
_VALUES = {  # number `part` of a word
    dtypes.float16: "vload_half(part, (const __local half *){word})",
    dtypes.bfloat16: "as_float((uint)((const __local ushort *){word})[part] << 16)",
}


def put_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on MMA is a call of it."""

    def mma(self: Any, u: UOp) -> None:
        kind = u.src[0].dtype.scalar
        values = {word: _VALUES[kind].format(word=word) for word in "xy"}
        self.helpers[_FUNCTION.format(kind=kind.name, **values)] = None
        self.declare("vload_half", "float", "size_t", "const __local half *")
        words = f"  __local uint words[{6 * self.signature.group}];"
        if words not in self.shared:
            self.shared.append(words)
        self.define(u, f"stands_in_{kind.name}({', '.join(self.values[s] for s in u.src)}, words, item)")

    monkeypatch.setattr(importlib.import_module("kernmill.renderers.opencl")._Body, "mma", mma)
