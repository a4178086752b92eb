"""The questions that a renderer of LLVM IR asks an architecture; here the answers of one without anything special."""

from __future__ import annotations

from collections.abc import Sequence

from kernmill.ir import InternalError, Target, UOp

from ..llvm_text import Writer

__all__ = ["Intrinsics"]


class Intrinsics:
    """Instructions of one architecture in one kernel. Each method adds lines, and returns the name of the value."""

    loads_words = False  # vectors of four bytes or two halves are loaded as an int, which is repeated in one step

    def __init__(self, target: Target, writer: Writer) -> None:
        self.target = target
        self.w = writer
        self.unit_values: dict[UOp, int] = {}  # values in registers of a matrix unit, by number

    def table(self, u: UOp) -> str:
        """TABLE: a table lookup in registers."""
        raise self._lacks(u)

    def scale(self, u: UOp) -> str:
        """SCALE: a * 2**b."""
        raise self._lacks(u)

    def dot(self, u: UOp) -> str:
        """DOT: sums of adjacent products, added to the third source."""
        raise self._lacks(u)

    def mma(self, u: UOp) -> None:
        """MMA, and values that are in registers of the matrix unit."""
        raise self._lacks(u)

    def enter(self) -> None:
        """Prepare the matrix unit, if the kernel uses it."""

    def leave(self) -> None:
        """Restore what `enter` changed."""

    def end_streams(self) -> None:
        """Order non-temporal stores before later ones, where they are not."""

    def definitions(self) -> Sequence[str]:
        """Constants and functions that the kernel uses."""
        return ()

    def select(self, condition: UOp, yes: str, no: str) -> str:
        """Return the instruction that selects between two typed values; nan must come out of it as IEEE 754 says."""
        return f"select {self.w.typed(condition)}, {yes}, {no}"

    def shuffle(self, u: UOp) -> str | None:
        """SHUFFLE: the value, where LLVM does not find the instruction by itself; None where it does."""
        return None

    def _lacks(self, u: UOp) -> InternalError:
        return InternalError(f"llvmir: {self.target.name} has no instruction for {u!r}")
