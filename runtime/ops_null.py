"""NULL: renders every kernel as LLVM IR and runs nothing. Results are undefined memory contents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kernmill.ir import Target, cached_property, dtypes
from kernmill.renderers import LLVM_OPS, LLVMRenderer, Renderer

from .device import Batch, Call, Device, Program

__all__ = ["NullDevice"]


class _NoBatch(Batch):
    def native(self) -> Sequence[int]:
        """No entries."""
        return ()

    def place(self, entry: int, slot: int) -> tuple[Any, int]:
        """A word that nobody reads."""
        return [0], 0


class NullDevice(Device):
    """A machine with wide vectors that does not exist."""

    CONTRACT = 1
    description = "compiles, runs nothing"

    @cached_property
    def renderer(self) -> Renderer:
        """LLVM IR for 512-bit vectors, whatever this machine has."""
        computed = frozenset(dtypes.data) - {dtypes.bfloat16, dtypes.float16}
        target = Target("null", vector_bytes=64, vector_registers=32, instructions="x86", ops=LLVM_OPS,
                        compute_dtypes=computed, has_threads=True, has_masks=True)  # fmt: skip
        return LLVMRenderer(target)

    def compile(self, name: str, source: str) -> bytes:
        """The text itself."""
        return source.encode()

    def load(self, name: str, binary: bytes) -> Program:
        """A program that is never entered."""
        return Program(name, None)

    def prepare(self, calls: Sequence[Call]) -> Batch:
        """Nothing to repeat."""
        return _NoBatch(self, calls)

    def run(self, calls: Sequence[Call], *, is_timed: bool = False) -> list[int]:
        """Nothing happens."""
        return [0] * len(calls) if is_timed else []
