"""AMD's GPUs: vectors of 16 bytes are one access where they are aligned, and four products of bytes are one word."""

from __future__ import annotations

from kernmill.ir import UOp

from .base import Intrinsics

__all__ = ["Amdgcn"]


class Amdgcn(Intrinsics):
    """RDNA 3 and later."""

    aligned_bytes = 16

    def dot(self, u: UOp) -> str:
        """`v_dot4_i32_iu8` for each lane: bytes of either sign, and a sum that wraps."""
        left, right = (str(bool(s.dtype.is_signed)).lower() for s in u.src[:2])
        return self.dot_by_words(u, "llvm.amdgcn.sudot4", signs=(left, right))
