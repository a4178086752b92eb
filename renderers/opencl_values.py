"""class Values: OpenCL C's types, literals, expressions, vectors and masks; opencl.py adds loops, memory and the head.

Signed ints wrap in the op table and not in C, so their sums are computed in the unsigned type. Indices (computed from
loop variables and sizes, with known bounds) never wrap and stay signed. A vector of bools is a vector of ints, -1 for
true, as wide as what it was compared from: the language selects lanes by masks of equal width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from kernmill.ir import DType, DTypeError, InternalError, Op, Ops, Target, UOp, bits_of, dtypes

from .base import signature
from .mma import MMA_ITEMS

__all__ = ["OPENCL_OPS", "Values", "float_text", "lane_runs", "mask_op"]

_INFIX = {
    Ops.ADD: "+", Ops.SUB: "-", Ops.MUL: "*", Ops.DIV: "/", Ops.CDIV: "/", Ops.CMOD: "%", Ops.AND: "&", Ops.OR: "|",
    Ops.XOR: "^", Ops.SHL: "<<", Ops.SHR: ">>", Ops.LT: "<", Ops.LE: "<=", Ops.EQ: "==", Ops.NE: "!=",
}  # fmt: skip
_BOOL_INFIX = {Ops.ADD: "|", Ops.MUL: "&"}
_WRAPPING = frozenset({Ops.ADD, Ops.SUB, Ops.MUL, Ops.SHL})
_FUNCTIONS = {Ops.SQRT: "sqrt", Ops.TRUNC: "trunc", Ops.FLOOR: "floor", Ops.CEIL: "ceil", Ops.ROUND: "rint",
              Ops.ABS: "fabs", Ops.FMA: "fma"}  # fmt: skip
OPENCL_OPS = frozenset({*_INFIX, *_FUNCTIONS, Ops.NEG, Ops.WHERE, Ops.CAST, Ops.BITCAST})

_TYPES = {
    "bool": "bool", "int8": "char", "int16": "short", "int32": "int", "int64": "long", "uint8": "uchar",
    "uint16": "ushort", "uint32": "uint", "uint64": "ulong", "float16": "half", "bfloat16": "ushort",
    "float32": "float", "float64": "double", "index": "long",
}  # fmt: skip
_UNSIGNED = {8: dtypes.uint8, 16: dtypes.uint16, 32: dtypes.uint32, 64: dtypes.uint64}
INTS = {8: dtypes.int8, 16: dtypes.int16, 32: dtypes.int32, 64: dtypes.int64}
_WIDTHS = (2, 4, 8, 16)
_MASK_WIDTH = 32  # bits of a lane of a mask that was not made by comparing vectors
LANE = "0123456789abcdef"


class Values:
    """The values of one kernel: `values` has the expression of each node."""

    def __init__(self, target: Target, name: str, uops: Sequence[UOp]) -> None:
        self.target, self.name, self.uops = target, name, uops
        self.signature = signature(uops)
        self.lines: list[str] = []
        self.starts: list[int] = []  # of each UOp: how many lines precede its own
        self.values: dict[UOp, str] = {}
        self.places: set[UOp] = set()  # ints that are computed from loop variables and sizes, and do not wrap
        self.depth, self.count = 1, 0
        self.masks: dict[UOp, int] = {}  # vectors of bools: bits of a lane
        self.helpers: dict[str, None] = {}
        self.prototypes: dict[str, None] = {}
        self.typedefs: dict[str, None] = {}
        self.contracts = False  # a statement has a product and its sum
        self.converts = False
        self.vectors: dict[Op, Callable[[UOp], None]] = {
            Ops.CAST: self._cast_vector, Ops.WHERE: self._select, Ops.BROADCAST: self._lanes, Ops.LANE: self._lane,
            Ops.LANES: self._lanes, Ops.SHUFFLE: self._shuffle, Ops.DOT: self._dot,
        }  # fmt: skip

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

    def type_name(self, dtype: DType, *, memory: bool = False) -> str:
        """Return the type of a value, or of its storage in memory."""
        scalar = dtype.scalar
        if scalar not in self.target.storage_dtypes and scalar is dtypes.float64:
            raise DTypeError(
                f"kernel {self.name}: the device has no float64. Bring float32 to it (array.astype('float32'), "
                "x.to('LLVM').float()), or choose a device that has it: `kernmill info` lists them."
            )
        name = _TYPES[scalar.name]
        if scalar is dtypes.float16 and scalar not in self.target.storage_dtypes:
            name = "ushort"
        if scalar.is_bool and (memory or dtype.lanes > 1):
            name = "uchar" if memory else "int"
        if _WIDTHS[-1] < dtype.lanes <= self.target.most_lanes:
            wide = f"{name}{dtype.lanes}"
            self.typedefs[f"typedef {name} {wide} __attribute__((ext_vector_type({dtype.lanes})));"] = None
            return wide
        if dtype.lanes > _WIDTHS[-1]:  # a block of a matrix unit: a work-item's words of it
            return f"{name if scalar.bits == 32 else 'uint'}{dtype.lanes * scalar.bits // (32 * MMA_ITEMS)}"
        if dtype.lanes > 1 and dtype.lanes not in _WIDTHS:
            raise InternalError(f"{self.name}: OpenCL has no vectors of {dtype.lanes} lanes")
        return name if dtype.lanes == 1 else f"{name}{dtype.lanes}"

    def is_bits(self, dtype: DType) -> bool:
        """True if a float dtype is only moved, as the ushort of its bits."""
        missing = dtypes.float16 not in self.target.storage_dtypes
        return dtype.scalar is dtypes.bfloat16 or (dtype.scalar is dtypes.float16 and missing)

    def literal(self, dtype: DType, value: float) -> str:
        """A constant, scalar or vector."""
        if dtype.lanes > 1 and isinstance(value, tuple):
            return f"({self.type_name(dtype)})({', '.join(self.literal(dtype.scalar, item) for item in value)})"
        if dtype.lanes > 1:
            return f"({self.type_name(dtype)})({self.literal(dtype.scalar, value)})"
        if dtype.is_bool:
            return "true" if value else "false"
        if self.is_bits(dtype):
            return f"(ushort)0x{bits_of(dtype, float(value)):04x}"
        if dtype.is_float:
            return self.float_literal(dtype, value)
        if dtype.bits == 64:
            if value == dtype.min != 0:
                return "(-0x7fffffffffffffffL - 1)"
            return _signed(f"{value}L" if dtype.min else f"{value}UL")
        if dtype is dtypes.int32 and value == dtype.min:
            return "(-0x7fffffff - 1)"
        return _signed(f"{value}u" if dtype is dtypes.uint32 else f"{value}")

    def float_literal(self, dtype: DType, value: float) -> str:
        """A float with its suffix: one without would be a float64."""
        suffix = "" if dtype is dtypes.float64 else "f"
        if math.isfinite(value):
            text = _signed(float_text(value, suffix))
        else:
            text = "NAN" if value != value else "INFINITY" if value > 0 else "(-INFINITY)"
        return text if dtype is dtypes.float32 else f"({self.type_name(dtype)}){text}"

    def bitcast(self, to: DType, of: DType, a: str) -> str:
        """The same bits in another type."""
        kind = self.type_name(to)
        return a if kind == self.type_name(of) else self.as_type(to, a)

    def as_type(self, to: DType, text: str) -> str:
        """The bits of a value in another type."""
        kind = self.type_name(to)
        return f"as_{kind}({text})" if to.lanes <= _WIDTHS[-1] else f"__builtin_astype({text}, {kind})"

    def constant(self, u: UOp) -> None:
        """CONST, written where it is used; one of bools is a mask."""
        if u.dtype.lanes == 1 or not u.dtype.is_bool:
            self.values[u] = self.literal(u.dtype, u.arg)
            self.places.add(u)
            return
        self.masks[u] = _MASK_WIDTH
        values = u.arg if isinstance(u.arg, tuple) else (u.arg,)
        kind = self.mask_type(u.dtype.lanes, _MASK_WIDTH)
        self.values[u] = f"({kind})({', '.join(str(-int(v)) for v in values)})"

    def call(self, name: str, result: DType, *operands: tuple[DType, str]) -> str:
        """A call; it is declared, for builds without the language's own headers. The language has no function of more
        than 16 lanes: these are computed in parts."""
        if result.lanes > _WIDTHS[-1]:
            return self._in_parts(name, result, *operands)
        self.declare(name, self.type_name(result), *(self.type_name(dtype) for dtype, _ in operands))
        return f"{name}({', '.join(text for _, text in operands)})"

    def _in_parts(self, name: str, result: DType, *operands: tuple[DType, str]) -> str:
        half = result.scalar.vec(result.lanes // 2)
        parts = [self.call(name, half, *((half, f"({text}).{part}") for _, text in operands)) for part in ("lo", "hi")]
        return f"({self.type_name(result)})({', '.join(parts)})"

    def declare(self, name: str, result: str, *types: str) -> None:
        """A function of the language that the text calls."""
        self.prototypes[f"{result} F {name}({', '.join(types)})"] = None

    def convert(self, kind: str, text: str) -> str:
        """A vector in lanes of another type."""
        self.converts = True
        return f"CONVERT({kind}, {text})"

    def zero(self, dtype: DType) -> str:
        """Zero, in a dtype."""
        return self.literal(dtype, 0.0 if dtype.is_float else 0)

    def lane_of(self, text: str, number: int) -> str:
        """One lane of a named vector."""
        return f"{text}.s{LANE[number]}" if number < len(LANE) else f"{text}[{number}]"

    def named(self, u: UOp) -> str:
        """A name for a vector that may be a literal, so that its lanes can be taken one by one."""
        if u.op is Ops.CONST:
            name = self.fresh()
            kind = self.mask_type(u.dtype.lanes, self.masks[u]) if u in self.masks else self.type_name(u.dtype)
            self.emit(f"{kind} {name} = {self.values[u]};")
            return name
        return self.values[u]

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
        return self.arithmetic(u.op, u.src[0].dtype, operands, wraps=not self.is_place(u))

    def is_place(self, u: UOp) -> bool:
        """True if it is computed from loop variables and sizes and cannot wrap, unlike a user's numbers."""
        is_bounded = u.bounds != (u.dtype.min, u.dtype.max)
        return u.dtype is dtypes.int64 and is_bounded and all(s in self.places for s in u.src)

    def arithmetic(self, op: Op, dtype: DType, operands: Sequence[str], *, wraps: bool = True) -> str:
        """An op on operands of one dtype."""
        if op is Ops.FMA and "fma" in self.target.plain and dtype.is_float:
            self.contracts = True
            return "{} * {} + {}".format(*operands)
        if op in _FUNCTIONS and dtype.is_float:
            return self.call(_FUNCTIONS[op], dtype, *((dtype, operand) for operand in operands))
        if op in _FUNCTIONS and op is not Ops.FMA:
            return operands[0]  # rounding an int
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
        """An int op modulo 2**bits, lane by lane; narrow scalars are computed in 32 bits, as C does anyway."""
        sign, kind = _INFIX[op], self.type_name(dtype)
        if dtype.kind == "uint" and (dtype.lanes > 1 or dtype.bits >= 32):
            return f"{a} {sign} {b}"
        if dtype.lanes > 1:
            unsigned = _UNSIGNED[dtype.bits].vec(dtype.lanes)
            return self.as_type(dtype, f"{self.as_type(unsigned, a)} {sign} {self.as_type(unsigned, b)}")
        wide = self.type_name(dtypes.uint64 if dtype.bits == 64 else dtypes.uint32)
        return f"({kind})(({wide}){a} {sign} ({wide}){b})"

    def cast(self, to: DType, of: DType, a: str) -> str:
        """A conversion; C's own truncates floats, wraps ints and rounds to nearest even."""
        return f"{a} != 0" if to.is_bool else f"({self.type_name(to)}){a}"

    # --- bools in vectors
    def mask_type(self, lanes: int, bits: int) -> str:
        """Return the type of a mask with lanes of this many bits."""
        return self.type_name(INTS[bits].vec(lanes))

    def mask(self, u: UOp, bits: int) -> str:
        """Return a vector of bools as lanes of this many bits."""
        have = self.masks[u]
        return self.values[u] if have == bits else self.convert(self.mask_type(u.dtype.lanes, bits), self.values[u])

    def chosen(self, dtype: DType, mask: str, yes: str, no: str) -> str:
        """Lanes of one vector or another, by a mask of their width. Ints of 64 bits are joined by their bits: Mesa's
        compiler chose wrong lanes of them."""
        if dtype.bits < 64 or dtype.is_float:
            return f"{mask} ? {yes} : {no}"
        bits = self.bitcast(dtype, INTS[64].vec(dtype.lanes), mask)
        return f"({bits} & {yes}) | (~{bits} & {no})"

    def _as_mask(self, u: UOp, bits: int) -> str:
        """Return a named mask of this many bits."""
        name = self.fresh()
        self.emit(f"{self.mask_type(u.dtype.lanes, bits)} {name} = {self.mask(u, bits)};")
        return name

    def define_mask(self, u: UOp, bits: int, text: str) -> None:
        """A mask that is computed once."""
        self.masks[u] = bits
        self.values[u] = self.fresh()
        self.emit(f"{self.mask_type(u.dtype.lanes, bits)} {self.values[u]} = {text};")

    # --- vectors
    def vector(self, u: UOp) -> None:
        """Any node whose value or operands are vectors."""
        handler = self.vectors.get(u.op)
        if handler is not None:
            handler(u)
        elif u.op is Ops.BITCAST:
            self.define(u, self.bitcast(u.dtype, u.src[0].dtype, self.values[u.src[0]]))
        elif u.dtype.is_bool and u.src[0].dtype.is_bool:
            bits = self.masks[u.src[0]]
            self.define_mask(u, bits, mask_op(u.op, *(self.mask(s, bits) for s in u.src)))
        elif u.dtype.is_bool:
            of = u.src[0].dtype
            self.define_mask(u, of.bits, self.arithmetic(u.op, of, [self.values[s] for s in u.src]))
        else:
            self.define(u, self.arithmetic(u.op, u.dtype, [self.values[s] for s in u.src]))

    def _cast_vector(self, u: UOp) -> None:
        (x,) = u.src
        if u.dtype.is_bool:
            zero = self.zero(x.dtype)
            self.define_mask(u, x.dtype.bits, f"{self.values[x]} != {zero}")
        elif x.dtype.is_bool:
            one, zero = (self.literal(u.dtype, float(n) if u.dtype.is_float else n) for n in (1, 0))
            self.define(u, self.chosen(u.dtype, self.mask(x, u.dtype.bits), one, zero))
        else:
            self.define(u, self.convert(self.type_name(u.dtype), self.values[x]))

    def _select(self, u: UOp) -> None:
        condition, yes, no = u.src
        if u.dtype.is_bool:
            bits = self.masks[condition]
            c = self.values[condition]
            self.define_mask(u, bits, f"({c} & {self.mask(yes, bits)}) | (~{c} & {self.mask(no, bits)})")
        else:
            mask = self.mask(condition, u.dtype.bits)
            self.define(u, self.chosen(u.dtype, mask, self.values[yes], self.values[no]))

    def _lane(self, u: UOp) -> None:
        text = self.lane_of(self.named(u.src[0]), u.arg)
        self.define(u, f"{text} != 0" if u.dtype.is_bool else text)

    def _lanes(self, u: UOp) -> None:
        """LANES; or BROADCAST, for which one value is enough."""
        if u.dtype.is_bool:
            parts = ", ".join(f"-(int){self.values[s]}" for s in u.src)
            self.define_mask(u, _MASK_WIDTH, f"({self.mask_type(u.dtype.lanes, _MASK_WIDTH)})({parts})")
        else:
            self.define(u, f"({self.type_name(u.dtype)})({', '.join(self.values[s] for s in u.src)})")

    def _shuffle(self, u: UOp) -> None:
        """Emit a shuffle of two vectors; runs of lanes from one of them are subvectors."""
        a, b = u.src
        is_mask = u.dtype.is_bool
        bits = self.masks[a] if is_mask else 0
        names = [self.named(a), self.named(b)] if not is_mask else [self._as_mask(s, bits) for s in (a, b)]
        if max(u.dtype.lanes, a.dtype.lanes) > _WIDTHS[-1]:
            text = f"__builtin_shufflevector({', '.join(names)}, {', '.join(map(str, u.arg))})"
            if is_mask:
                self.define_mask(u, bits, text)
            else:
                self.define(u, text)
            return
        parts: list[str] = []
        for first, picked in lane_runs([int(n) for n in u.arg], a.dtype.lanes):
            parts.append(f"{names[first]}.s{''.join(LANE[n] for n in picked)}")
        kind = self.mask_type(u.dtype.lanes, bits) if is_mask else self.type_name(u.dtype)
        text = f"({kind})({', '.join(parts)})" if len(parts) > 1 else parts[0]
        if is_mask:
            self.define_mask(u, bits, text)
        else:
            self.define(u, text)

    def _dot(self, u: UOp) -> None:
        """Emit unsigned by signed bytes, by clang's builtins for x86. Sums of two products have 16 bits if one byte is
        below 128; others use every second byte as a number of 16 bits."""
        a, b, total = u.src
        pair, size = dtypes.int16.vec(2 * u.dtype.lanes), u.dtype.size_bytes * 8
        words = self.type_name(pair)
        if a.bounds[1] <= dtypes.int8.max:
            given = (self.bitcast(dtypes.int8.vec(s.dtype.lanes), s.dtype, self.values[s]) for s in (a, b))
            products = [(f"__builtin_ia32_pmaddubsw{size}({', '.join(given)})", f"({words})(1)")]
        else:
            x, y = self.fresh(), self.fresh()
            for name, s in ((x, a), (y, b)):
                self.emit(f"{words} {name} = {self.as_type(pair, self.values[s])};")
            byte, low = f"({words})(8)", f"({words})(255)"
            products = [(f"{x} & {low}", f"({y} << {byte}) >> {byte}"), (f"({x} >> {byte}) & {low}", f"{y} >> {byte}")]
        sums = [self.as_type(u.dtype, f"__builtin_ia32_pmaddwd{size}({', '.join(two)})") for two in products]
        self.define(u, " + ".join([self.values[total], *sums]))


_OF_MASKS: dict[Op, str] = {
    Ops.ADD: "{} | {}", Ops.OR: "{} | {}", Ops.MAX: "{} | {}", Ops.MUL: "{} & {}", Ops.AND: "{} & {}",
    Ops.MIN: "{} & {}", Ops.XOR: "{} ^ {}", Ops.NE: "{} ^ {}", Ops.EQ: "~({} ^ {})", Ops.LT: "~{} & {}",
    Ops.LE: "~{} | {}",
}  # fmt: skip


def mask_op(op: Op, a: str, b: str) -> str:
    """An op on bools that are -1 or 0."""
    if op not in _OF_MASKS:
        raise InternalError(f"opencl: {op.name} of bools has no expression")
    return _OF_MASKS[op].format(a, b)


def lane_runs(order: list[int], lanes: int) -> list[tuple[int, list[int]]]:
    """Split the lanes into pieces of 1, 2, 4, 8 or 16 from one of the two vectors."""
    pieces: list[tuple[int, list[int]]] = []
    at = 0
    while at < len(order):
        first = order[at] // lanes
        length = 0
        while at + length < len(order) and order[at + length] // lanes == first:
            length += 1
        size = 1 << (length.bit_length() - 1)
        pieces.append((first, [n % lanes for n in order[at : at + size]]))
        at += size
    return pieces


def float_text(value: float, suffix: str) -> str:
    """An exact finite literal: short decimal where that is exact, else hexadecimal."""
    short = repr(float(value))
    if math.isfinite(value) and len(short) <= 8 and float(short) == value and "e" not in short:
        return f"{short}{suffix}"
    return f"{float(value).hex()}{suffix}"


def _signed(text: str) -> str:
    """A negative literal in brackets: two minus signs in a row are another operator."""
    return f"({text})" if text.startswith("-") else text
