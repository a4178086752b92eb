"""NVIDIA's GPUs: vectors of 16 bytes are one access where they are aligned."""

from __future__ import annotations

from .base import Intrinsics

__all__ = ["Nvptx"]


class Nvptx(Intrinsics):
    """PTX."""

    aligned_bytes = 16
