"""AMD's GPUs: vectors of 16 bytes are one access where they are aligned, and four products of bytes are one word."""

from __future__ import annotations

from kernmill.ir import WORD_BYTES, UOp, dtypes

from ..llvm_text import llvm_type, mangled
from .base import Intrinsics

__all__ = ["Amdgcn"]


class Amdgcn(Intrinsics):
    """RDNA 3 and later."""

    aligned_bytes = 16

    def dot(self, u: UOp) -> str:
        """`v_dot4_i32_iu8` for each lane: bytes of either sign, and a sum that wraps."""
        left, right = (str(bool(s.dtype.is_signed)).lower() for s in u.src[:2])
        return self.dot_by_words(u, "llvm.amdgcn.sudot4", signs=(left, right))

    def mma(self, u: UOp) -> None:
        """`v_wmma_..`: 16 x 16 results of 32 work-items, of which each has eight."""
        w, (a, b, c), kind = self.w, u.src, llvm_type(u.dtype)
        given = [(llvm_type(s.dtype), w.values[s]) for s in (a, b)]
        total, to = (kind, w.values[c]), mangled(u.dtype)
        if u.dtype.is_float:
            of = "f16" if a.dtype.scalar is dtypes.float16 else "bf16"
            name = f"llvm.amdgcn.wmma.f32.16x16x16.{of}.{to}.{mangled(a.dtype)}"
            w.values[u] = w.define(w.call(kind, name, *given, total))
            return
        words = f"<{a.dtype.size_bytes // WORD_BYTES} x i32>"
        left, right = ((words, w.define(f"bitcast {of} {value} to {words}")) for of, value in given)
        signs = [("i1", str(bool(s.dtype.is_signed)).lower()) for s in (a, b)]
        name = f"llvm.amdgcn.wmma.i32.16x16x16.iu8.{to}.v{a.dtype.size_bytes // WORD_BYTES}i32"
        w.values[u] = w.define(w.call(kind, name, signs[0], left, signs[1], right, total, ("i1", "false")))
