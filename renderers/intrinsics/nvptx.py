"""NVIDIA's GPUs: vectors of 16 bytes are one access where they are aligned, and four products of bytes are one word."""

from __future__ import annotations

from kernmill.ir import WORD_BYTES, UOp, dtypes

from ..llvm_text import llvm_type
from .base import Intrinsics

__all__ = ["Nvptx"]


_NAMES = {dtypes.float16: "f16", dtypes.bfloat16: "bf16", dtypes.int8: "s8", dtypes.uint8: "u8"}


class Nvptx(Intrinsics):
    """PTX."""

    aligned_bytes = 16

    def dot(self, u: UOp) -> str:
        """`dp4a` (sm_61) for each lane: bytes of either sign."""
        left, right = ("s" if s.dtype.is_signed else "u" for s in u.src[:2])
        return self.dot_by_words(u, f"llvm.nvvm.idp4a.{left}.{right}")

    def mma(self, u: UOp) -> None:
        """`mma.sync` (sm_80): 16 x 8 results of 32 work-items, of which each has four."""
        w, (a, b, c), result = self.w, u.src, llvm_type(u.dtype.scalar)
        types = [_NAMES.get(s.dtype.scalar, "") for s in (a, b)]
        of = {"f16": "f32.f32", "bf16": "bf16"}.get(types[0], ".".join(dict.fromkeys(types)))
        kind = "<2 x half>" if types[0] == "f16" else "i32"
        operands: list[tuple[str, object]] = []
        for s in (a, b):
            count = s.dtype.size_bytes // WORD_BYTES
            words = w.define(f"bitcast {w.typed(s)} to <{count} x i32>")
            for n in range(count):
                word = w.define(f"extractelement <{count} x i32> {words}, i64 {n}")
                operands.append((kind, word if kind == "i32" else w.define(f"bitcast i32 {word} to {kind}")))
        numbers = range(c.dtype.lanes)
        operands += [(result, w.define(f"extractelement {w.typed(c)}, i64 {n}")) for n in numbers]
        name, several = f"llvm.nvvm.mma.m16n8k{u.arg[2]}.row.col.{of}", f"{{ {', '.join([result] * len(numbers))} }}"
        found, total = w.define(w.call(several, name, *operands)), "poison"
        for n in numbers:
            one = w.define(f"extractvalue {several} {found}, {n}")
            total = w.define(f"insertelement {llvm_type(u.dtype)} {total}, {result} {one}, i64 {n}")
        w.values[u] = total
