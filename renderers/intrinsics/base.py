"""The questions that a renderer of LLVM IR asks an architecture; here the answers of one without anything special."""

from __future__ import annotations

from collections.abc import Sequence

from kernmill.ir import InternalError, Target, UOp

from ..llvm_text import Writer, llvm_type

__all__ = ["Intrinsics"]


class Intrinsics:
    """Instructions of one architecture in one kernel. Each method adds lines, and returns the name of the value."""

    aligned_bytes = 1  # alignment of buffers that the text may state; 1: only that of one value
    masked_bytes = 1  # shorter vectors are widened to that many bytes where an access has a mask
    reads_behind_masks = False  # a load with a mask reads all lanes
    fences_shuffles = True  # LLVM is kept from looking through networks of them
    loads_words = False  # a repeated group of 4 bytes or 2 halves is broadcast as one int32

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

    def dot_by_words(self, u: UOp, name: str, signs: Sequence[str] = ()) -> str:
        """DOT by an instruction for one word of four bytes, lane by lane; it takes each sign before its operand."""
        w, lanes, kind = self.w, u.dtype.lanes, llvm_type(u.dtype)
        words = [w.define(f"bitcast {w.typed(s)} to {kind}") for s in u.src[:2]] + [w.values[u.src[2]]]
        total = "poison"
        for n in range(lanes):
            one = words if lanes == 1 else [w.define(f"extractelement {kind} {word}, i64 {n}") for word in words]
            operands: list[tuple[str, object]] = [("i32", value) for value in one]
            if signs:
                operands = [("i1", signs[0]), operands[0], ("i1", signs[1]), *operands[1:], ("i1", "false")]
            value = w.define(w.call("i32", name, *operands))
            total = value if lanes == 1 else w.define(f"insertelement {kind} {total}, i32 {value}, i64 {n}")
        return total

    def mma(self, u: UOp) -> None:
        """MMA, and values that are in registers of the matrix unit."""
        raise self._lacks(u)

    def enter(self) -> None:
        """Prepare the matrix unit, if the kernel uses it."""

    def leave(self) -> None:
        """Restore what `enter` changed."""

    def end_streams(self) -> None:
        """Add a fence after non-temporal stores, if the architecture may reorder them."""

    def definitions(self) -> Sequence[str]:
        """Constants and functions that the kernel uses."""
        return ()

    def select(self, condition: UOp, yes: str, no: str) -> str:
        """Return the instruction that selects between two typed values; nan must come out of it as IEEE 754 says."""
        return f"select {self.w.typed(condition)}, {yes}, {no}"

    def shuffle(self, u: UOp) -> str | None:
        """SHUFFLE: the value, where LLVM does not find the instruction by itself; None where it does.

        With `loads_words` a repeated word of bytes or halves is a broadcast of ints: LLVM widens four bytes before it
        repeats them.
        """
        w, source, each = self.w, u.src[0].dtype, 4 // u.dtype.scalar.size_bytes
        first = u.arg[0]
        is_word = (
            self.loads_words and u.dtype.scalar.size_bytes < 4 and first % each == 0 and source.size_bytes % 4 == 0
        )
        if not is_word or first >= source.lanes or u.arg != tuple(range(first, first + each)) * (u.dtype.lanes // each):
            return None
        words, count = source.size_bytes // 4, u.dtype.lanes // each
        kind = "i32" if words == 1 else f"<{words} x i32>"
        value = w.words.get(u.src[0]) or w.define(f"bitcast {w.typed(u.src[0])} to {kind}")
        if words == 1:
            kind, value = "<1 x i32>", w.define(f"insertelement <1 x i32> poison, i32 {value}, i64 0")
        mask = f"<{count} x i32> splat (i32 {first // each})"
        value = w.define(f"shufflevector {kind} {value}, {kind} poison, {mask}")
        return w.define(f"bitcast <{count} x i32> {value} to {llvm_type(u.dtype)}")

    def _lacks(self, u: UOp) -> InternalError:
        return InternalError(f"llvmir: {self.target.name} has no instruction for {u!r}")
