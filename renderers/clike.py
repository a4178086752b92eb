"""class CLikeBody: what languages with C's expressions and loops have in common: one statement a node, names, wrapping.

A language says how it spells types, numbers, the head of a kernel, and vectors (renderers/opencl.py). Signed ints wrap
in the op table and not in C, so their sums are made in the unsigned type; places (made of loop variables and sizes)
never wrap and stay plain.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from kernmill.ir import DType, InternalError, Kind, Op, Ops, Target, UOp, dtypes

from .base import identifier, signature

__all__ = ["C_OPS", "CLikeBody", "float_text"]

_INFIX = {
    Ops.ADD: "+", Ops.SUB: "-", Ops.MUL: "*", Ops.DIV: "/", Ops.CDIV: "/", Ops.CMOD: "%", Ops.AND: "&", Ops.OR: "|",
    Ops.XOR: "^", Ops.SHL: "<<", Ops.SHR: ">>", Ops.LT: "<", Ops.LE: "<=", Ops.EQ: "==", Ops.NE: "!=",
}  # fmt: skip
_BOOL_INFIX = {Ops.ADD: "|", Ops.MUL: "&"}
_WRAPPING = frozenset({Ops.ADD, Ops.SUB, Ops.MUL, Ops.SHL})
_FUNCTIONS = {Ops.SQRT: "sqrt", Ops.TRUNC: "trunc", Ops.FLOOR: "floor", Ops.CEIL: "ceil", Ops.ROUND: "rint",
              Ops.ABS: "fabs", Ops.FMA: "fma"}  # fmt: skip

C_OPS = frozenset({*_INFIX, *_FUNCTIONS, Ops.NEG, Ops.WHERE, Ops.CAST, Ops.BITCAST})


class CLikeBody(ABC):
    """The text of one kernel under construction. `values` holds the expression that stands for each node."""

    def __init__(self, target: Target, name: str, uops: Sequence[UOp]) -> None:
        self.target = target
        self.name = name
        self.uops = uops
        self.signature = signature(uops)
        self.lines: list[str] = []
        self.values: dict[UOp, str] = {}
        self.places: set[UOp] = set()  # ints that are made of loop variables and sizes
        self.depth = 1
        self.count = 0
        self.handlers: dict[Op, Callable[[UOp], None]] = {
            Ops.PARAM: self.param, Ops.VARIABLE: self.variable, Ops.CONST: self.constant, Ops.INDEX: self.place,
            Ops.LOAD: self.load, Ops.STORE: self.store, Ops.RANGE: self.open,
            Ops.END: self.close, Ops.REG: self.copy, Ops.CARRY: self.copy, Ops.SET: self.set,
            Ops.AFTER: self.after, Ops.PREFETCH: lambda u: None,
        }  # fmt: skip

    # --- what a language spells
    @abstractmethod
    def head(self) -> list[str]:
        """Everything above the first statement of the body, its opening brace included. Called last."""

    @abstractmethod
    def type_name(self, dtype: DType, *, memory: bool = False) -> str:
        """The type of a value, or of what lies in memory."""

    @abstractmethod
    def literal(self, dtype: DType, value: float) -> str:
        """A scalar constant."""

    @abstractmethod
    def bounds(self, u: UOp) -> tuple[str, str]:
        """First value and limit of a loop."""

    @abstractmethod
    def load(self, u: UOp) -> None:
        """LOAD."""

    @abstractmethod
    def store(self, u: UOp) -> None:
        """STORE."""

    @abstractmethod
    def vector(self, u: UOp) -> None:
        """Any node whose value or operands are vectors."""

    # --- the walk
    def text(self) -> str:
        """The kernel."""
        for u in self.uops:
            handler = self.handlers.get(u.op)
            if handler is not None:
                handler(u)
            elif u.dtype.lanes > 1 or any(s.dtype.lanes > 1 for s in u.src):
                self.vector(u)
            else:
                self.define(u, self.scalar(u))
                if u.dtype is dtypes.int64 and all(s in self.places for s in u.src):
                    self.places.add(u)
        return "\n".join([*self.head(), *self.lines, "}"]) + "\n"

    def emit(self, text: str) -> None:
        """One line."""
        self.lines.append("  " * self.depth + text)

    def fresh(self) -> str:
        """A name that was not used yet."""
        self.count += 1
        return f"v{self.count}"

    def define(self, u: UOp, text: str) -> None:
        """A value that is computed once."""
        self.values[u] = self.fresh()
        self.emit(f"{self.type_name(u.dtype)} {self.values[u]} = {text};")

    # --- arguments, loops, accumulators
    def param(self, u: UOp) -> None:
        """PARAM."""
        self.values[u] = f"b{u.arg[0]}"

    def variable(self, u: UOp) -> None:
        """VARIABLE."""
        self.values[u] = f"n_{identifier(str(u.arg[0]))}"  # the user's word, which may be one of the language's
        self.places.add(u)

    def constant(self, u: UOp) -> None:
        """CONST, written where it is used."""
        self.values[u] = self.literal(u.dtype, u.arg)
        self.places.add(u)

    def place(self, u: UOp) -> None:  # noqa: B027 - nothing to do, not a forgotten method
        """INDEX: only its loads and stores are written."""

    def open(self, u: UOp) -> None:
        """RANGE."""
        name = self.values[u] = identifier(str(u.arg[0]))
        self.places.add(u)
        first, limit = self.bounds(u)
        integer = self.type_name(dtypes.int64)
        self.emit(f"for ({integer} {name} = {first}; {name} < {limit}; ++{name}) {{")
        self.depth += 1

    def close(self, u: UOp) -> None:
        """END."""
        self.depth -= 1
        self.emit("}")

    def copy(self, u: UOp) -> None:
        """REG, a variable; or CARRY, a copy, since that may be set before its old value was last read."""
        self.define(u, self.values[u.src[0]])

    def set(self, u: UOp) -> None:
        """SET."""
        self.emit(f"{self.values[u.src[0]]} = {self.values[u.src[1]]};")

    def after(self, u: UOp) -> None:
        """AFTER: the variable or array itself."""
        self.values[u] = self.values[u.src[0]]

    # --- scalars
    def scalar(self, u: UOp) -> str:
        """The expression of a scalar node."""
        operands = [self.values[s] for s in u.src]
        match u.op:
            case Ops.WHERE:
                return f"{operands[0]} ? {operands[1]} : {operands[2]}"
            case Ops.CAST:
                return self.cast(u.dtype, u.src[0].dtype, operands[0])
            case Ops.BITCAST:
                return self.bitcast(u.dtype, u.src[0].dtype, operands[0])
        return self.arithmetic(u.op, u.src[0].dtype, operands, wraps=not all(s in self.places for s in u.src))

    def arithmetic(self, op: Op, dtype: DType, operands: Sequence[str], *, wraps: bool = True) -> str:
        """An op on operands of one dtype."""
        if op in _FUNCTIONS and dtype.is_float:
            return self.call(_FUNCTIONS[op], dtype, *((dtype, operand) for operand in operands))
        if op in _FUNCTIONS and op is not Ops.FMA:
            signed = op is Ops.ABS and dtype.kind is Kind.INT  # else: rounding an int, |x| of an unsigned one
            return self.int_abs(dtype, operands[0]) if signed else operands[0]
        if op is Ops.NEG:
            if dtype.is_float:
                return f"-{operands[0]}"
            return self.wrapped(Ops.SUB, dtype, self.literal(dtype, 0), *operands)
        if op not in _INFIX:
            raise InternalError(f"{self.name}: {op.name} of {dtype.name} has no expression; it should be decomposed")
        if dtype.is_int and op in _WRAPPING and (wraps or dtype.bits < 64):
            return self.wrapped(op, dtype, *operands)
        sign = (_BOOL_INFIX.get(op) if dtype.is_bool else None) or _INFIX[op]
        return f"{operands[0]} {sign} {operands[1]}"

    def wrapped(self, op: Op, dtype: DType, a: str, b: str) -> str:
        """An int op whose result is taken modulo 2**bits; narrow types are computed in 32 bits, as C does anyway."""
        if dtype.kind is Kind.UINT and dtype.bits >= 32:
            return f"{a} {_INFIX[op]} {b}"
        wide = self.type_name(dtypes.uint64 if dtype.bits == 64 else dtypes.uint32)
        return f"({self.type_name(dtype)})(({wide}){a} {_INFIX[op]} ({wide}){b})"

    def call(self, name: str, result: DType, *operands: tuple[DType, str]) -> str:
        """A call of one of the language's own functions."""
        return f"{name}({', '.join(text for _, text in operands)})"

    def int_abs(self, dtype: DType, a: str) -> str:
        """|x| of a signed int; wraps for the smallest."""
        return f"({self.type_name(dtype)})abs({a})"

    def cast(self, to: DType, of: DType, a: str) -> str:
        """A conversion; C's own truncates floats, wraps ints and rounds to nearest even."""
        return f"{a} != 0" if to.is_bool else f"({self.type_name(to)}){a}"

    @abstractmethod
    def bitcast(self, to: DType, of: DType, a: str) -> str:
        """The same bits in another type."""


def float_text(value: float, suffix: str) -> str:
    """An exact finite literal: short decimal where that is exact, else hexadecimal."""
    short = repr(float(value))
    if math.isfinite(value) and len(short) <= 8 and float(short) == value and "e" not in short:
        return f"{short}{suffix}"
    return f"{float(value).hex()}{suffix}"
