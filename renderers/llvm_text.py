"""Parts of LLVM IR text that every kernel and every architecture share: types, constants, and a writer of lines."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernmill.ir import DType, Ops, UOp, bits_of, dtypes, memory_of

__all__ = ["LINE", "Writer", "constant", "llvm_type", "mangled"]

LINE = 64  # bytes, alignment of kernel-local buffers
_FLOATS = {"float16": "half", "bfloat16": "i16", "float32": "float", "float64": "double"}


def llvm_type(dtype: DType, memory: bool = False) -> str:
    """Return the LLVM type of a value, or of its storage in memory: a bool is i1 there and a byte here."""
    boolean = "i8" if memory else "i1"
    base = boolean if dtype.is_bool else _FLOATS.get(dtype.scalar.name, f"i{dtype.bits}")
    return base if dtype.lanes == 1 else f"<{dtype.lanes} x {base}>"


def mangled(dtype: DType, memory: bool = False) -> str:
    """Return the name of a type in names of intrinsics: `v8f32`."""
    kind = llvm_type(dtype.scalar, memory)
    base = {"half": "f16", "float": "f32", "double": "f64"}.get(kind, kind)
    return base if dtype.lanes == 1 else f"v{dtype.lanes}{base}"


def _literal(dtype: DType, value: float) -> str:
    if dtype.is_bool:
        return "true" if value else "false"
    if dtype.scalar is dtypes.bfloat16:
        return str(bits_of(dtype.scalar, value))
    if dtype.scalar is dtypes.float16:
        return f"0xH{bits_of(dtype, value):04X}"
    if dtype.is_float:
        return f"0x{bits_of(dtypes.float64, math.nan if value != value else value):016X}"
    return str(int(value))


def constant(dtype: DType, arg: object) -> str:
    """Return a constant of LLVM IR; a tuple has a number for each lane."""
    if isinstance(arg, tuple):
        scalar = llvm_type(dtype.scalar)
        return "<" + ", ".join(f"{scalar} {_literal(dtype, item)}" for item in arg) + ">"
    assert isinstance(arg, bool | int | float)
    text = _literal(dtype, arg)
    return text if dtype.lanes == 1 else f"splat ({llvm_type(dtype.scalar)} {text})"


class Writer:
    """The text of one kernel under construction: lines, declarations, and the name of each value."""

    def __init__(self, uops: Sequence[UOp]) -> None:
        self.uops = uops
        self.lines: list[str] = []
        self.allocas: list[str] = []
        self.values: dict[UOp, str] = {}
        self.words: dict[UOp, str] = {}  # loads of four bytes, as an int
        self.declarations: dict[str, None] = {}
        self.count = 0

    def fresh(self) -> str:
        """A name that is not used yet."""
        self.count += 1
        return f"%v{self.count}"

    def emit(self, text: str) -> None:
        """Add a line."""
        self.lines.append(f"  {text}")

    def define(self, text: str) -> str:
        """Add a line that computes a value, and return the value's name."""
        name = self.fresh()
        self.emit(f"{name} = {text}")
        return name

    def call(self, kind: str, name: str, *operands: tuple[str, object]) -> str:
        """Return a call of an external function, and declare it; `operands` are types and values."""
        self.declarations[f"{kind} @{name}({', '.join(of for of, _ in operands)})"] = None
        return f"call {kind} @{name}({', '.join(f'{of} {value}' for of, value in operands)})"

    def typed(self, u: UOp) -> str:
        """The type and name of a value."""
        return f"{llvm_type(u.dtype)} {self.values[u]}"

    def most(self, u: UOp) -> float:
        """Return the maximum of a value; for a load from a kernel-local buffer the maximum of what is stored there."""
        if u.op is not Ops.LOAD or (memory := memory_of(u.src[0])).op is not Ops.LOCAL:
            return u.bounds[1]
        stored = [s.src[1] for s in self.uops if s.op is Ops.STORE and memory_of(s.src[0]) is memory]
        return max((value.bounds[1] for value in stored), default=0)
