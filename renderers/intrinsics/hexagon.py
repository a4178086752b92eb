"""Hexagon with HVX vectors of 128 bytes: dot products of bytes, table lookups, and comparisons that keep nan."""

from __future__ import annotations

from kernmill.ir import Ops, UOp, dtypes

from ..llvm_text import llvm_type
from .base import Intrinsics

__all__ = ["Hexagon"]

_WORDS = 32  # of a register
_DOTS = {
    (dtypes.uint8, dtypes.int8): "vrmpybusv", (dtypes.int8, dtypes.int8): "vrmpybv",
    (dtypes.uint8, dtypes.uint8): "vrmpyubv",
}  # fmt: skip
_INVERSE = {Ops.LT: "uge", Ops.LE: "ugt"}


class Hexagon(Intrinsics):
    """Instructions of HVX, from v66 on."""

    aligned_bytes = 128
    reads_behind_masks = True
    masked_bytes = 64  # LLVM drops the mask of a shorter vector
    loads_words = True
    fences_shuffles = False  # LLVM's scheduler ends with an assertion for a network with fences

    def dot(self, u: UOp) -> str:
        """`vrmpy`, for every pair of signs. Fewer lanes than a register has are widened."""
        w, lanes, wide = self.w, u.dtype.lanes, f"<{_WORDS} x i32>"
        name = f"llvm.hexagon.V6.{_DOTS[u.src[0].dtype.scalar, u.src[1].dtype.scalar]}.acc.128B"
        kind = llvm_type(u.dtype)
        words = [w.define(f"bitcast {w.typed(s)} to {kind}") for s in u.src[:2]]
        operands = [self._as_register(value, lanes) for value in (w.values[u.src[2]], *words)]
        return self._first_words(w.define(w.call(wide, name, *((wide, value) for value in operands))), lanes)

    def table(self, u: UOp) -> str:
        """`vlut32` of 16 bytes: they are the low bytes of the first halfwords of a register."""
        w, lanes, wide = self.w, u.dtype.lanes // 4, f"<{_WORDS} x i32>"
        table = [byte & 255 for byte in u.arg] + [0] * (2 * _WORDS - len(u.arg))
        words = [f"i32 {low | high << 16}" for low, high in zip(table[::2], table[1::2], strict=True)]
        index = w.define(f"bitcast {w.typed(u.src[0])} to {_kind_of_words(lanes)}")
        operands = (wide, self._as_register(index, lanes)), (wide, f"<{', '.join(words)}>"), ("i32", 0)
        found = self._first_words(w.define(w.call(wide, "llvm.hexagon.V6.vlutvvb.128B", *operands)), lanes)
        return w.define(f"bitcast {_kind_of_words(lanes)} {found} to {llvm_type(u.dtype)}")

    def _as_register(self, value: str, lanes: int) -> str:
        """Words in the first lanes of a register."""
        if lanes == _WORDS:
            return value
        kind = _kind_of_words(lanes)
        return self.w.define(f"shufflevector {kind} {value}, {kind} poison, {_mask(range(lanes), _WORDS)}")

    def _first_words(self, value: str, lanes: int) -> str:
        if lanes == _WORDS:
            return value
        kind = _kind_of_words(_WORDS)
        return self.w.define(f"shufflevector {kind} {value}, {kind} poison, {_mask(range(lanes), lanes)}")

    def select(self, condition: UOp, yes: str, no: str) -> str:
        """Compare by the inverse, with the arms exchanged: LLVM makes an ordered comparison and a selection of its
        operands a maximum or minimum, which returns the number where one of them is nan."""
        if condition.op not in _INVERSE or not condition.src[0].dtype.is_float:
            return super().select(condition, yes, no)
        a, b = condition.src
        kind = llvm_type(a.dtype)
        inverse = self.w.define(f"fcmp {_INVERSE[condition.op]} {kind} {self.w.values[a]}, {self.w.values[b]}")
        return f"select {llvm_type(condition.dtype)} {inverse}, {no}, {yes}"


def _kind_of_words(lanes: int) -> str:
    return f"<{lanes} x i32>"


def _mask(lanes: range, width: int) -> str:
    numbers = [f"i32 {n}" for n in lanes] + ["i32 poison"] * (width - len(lanes))
    return f"<{width} x i32> <{', '.join(numbers)}>"
