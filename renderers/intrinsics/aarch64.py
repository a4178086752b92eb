"""AArch64 with NEON: table lookups of up to 64 bytes, and products of bytes and bfloat16, of 16 bytes each."""

from __future__ import annotations

from collections.abc import Mapping

from kernmill.ir import DType, Unit, UOp, dtypes

from ..llvm_text import llvm_type
from .base import Intrinsics

__all__ = ["NEON_UNITS", "AArch64"]

_NEON = "llvm.aarch64.neon"
_DOTS = {
    (dtypes.int8, dtypes.int8): "sdot", (dtypes.uint8, dtypes.uint8): "udot", (dtypes.uint8, dtypes.int8): "usdot",
    (dtypes.bfloat16, dtypes.bfloat16): "bfdot",
}  # fmt: skip
_PRODUCTS = {
    (dtypes.int8, dtypes.int8): "smmla", (dtypes.uint8, dtypes.uint8): "ummla", (dtypes.uint8, dtypes.int8): "usmmla",
    (dtypes.bfloat16, dtypes.bfloat16): "bfmmla",
}  # fmt: skip


NEON_UNITS: dict[str, tuple[Unit, ...]] = {  # by LLVM's name of the feature
    "i8mm": tuple(Unit(a, b, dtypes.int32, 2, 2, 8, 8) for a, b in _PRODUCTS if a.is_int),
    "bf16": tuple(Unit(a, b, dtypes.float32, 2, 2, 4, 4) for a, b in _PRODUCTS if a.is_float),
}


class AArch64(Intrinsics):
    """Instructions of ARMv8.0 to 8.6; every register has 16 bytes."""

    loads_words = True

    def table(self, u: UOp) -> str:
        """`tbl` of one to four registers. It gives 0 for an index behind its table, so larger ones are masked."""
        w, kind = self.w, llvm_type(u.dtype)
        index, *tables = (w.values[s] for s in u.src)
        if tables:
            index = w.define(f"and {kind} {index}, splat (i8 {16 * len(tables) - 1})")
        else:
            tables = ["<" + ", ".join(f"i8 {byte}" for byte in u.arg) + ">"]
        operands = [(kind, value) for value in (*tables, index)]
        return w.define(w.call(kind, f"{_NEON}.tbl{len(tables)}.v16i8", *operands))

    def dot(self, u: UOp) -> str:
        """`sdot`, `udot` (dotprod), `usdot` (i8mm), `bfdot` (bf16)."""
        return self._products(u, _DOTS)

    def mma(self, u: UOp) -> None:
        """`smmla`, `ummla`, `usmmla` (i8mm), `bfmmla` (bf16): 2 x 2 results."""
        self.w.values[u] = self._products(u, _PRODUCTS)

    def _products(self, u: UOp, names: Mapping[tuple[DType, DType], str]) -> str:
        w, kind = self.w, llvm_type(u.dtype)
        name = names[u.src[0].dtype.scalar, u.src[1].dtype.scalar]
        given, kinds = ("<8 x bfloat>", "v4f32.v8bf16") if u.dtype.is_float else ("<16 x i8>", "v4i32.v16i8")
        values = [w.values[s] for s in u.src[:2]]
        if u.dtype.is_float:
            values = [w.define(f"bitcast {w.typed(s)} to {given}") for s in u.src[:2]]
        operands = (kind, w.values[u.src[2]]), *((given, value) for value in values)
        return w.define(w.call(kind, f"{_NEON}.{name}" + ("" if name == "bfmmla" else f".{kinds}"), *operands))
