"""NVIDIA's GPUs: vectors of 16 bytes are one access where they are aligned, and four products of bytes are one word."""

from __future__ import annotations

from kernmill.ir import UOp

from .base import Intrinsics

__all__ = ["Nvptx"]


class Nvptx(Intrinsics):
    """PTX."""

    aligned_bytes = 16

    def dot(self, u: UOp) -> str:
        """`dp4a` (sm_61) for each lane: bytes of either sign."""
        left, right = ("s" if s.dtype.is_signed else "u" for s in u.src[:2])
        return self.dot_by_words(u, f"llvm.nvvm.idp4a.{left}.{right}")
