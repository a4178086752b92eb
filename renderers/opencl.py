"""OpenCL C 1.2: vectors of 2 to 16 lanes, masks as ints, nothing that depends on a driver's fast-math.

A kernel is `name(buffer, offset, .., variables.., chunk)`: every buffer comes with the number of values that lie
before its first one, and work-item number n runs the iterations n*chunk to (n+1)*chunk of the THREAD loop. A vector of
bools is a vector of ints, -1 for true, as wide as what it was compared from: the language selects lanes by masks of
equal width.

With LEAN defined the text declares the functions that it calls: drivers made from clang read a header of a megabyte
before every kernel, which takes longer than all the rest, and a device may leave it out (runtime/ops_cl.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from kernmill.ir import AxisKind, DType, DTypeError, InternalError, Kind, Op, Ops, UOp, dtypes

from .base import Renderer
from .clike import C_OPS, CLikeBody, float_text

__all__ = ["OPENCL_OPS", "OpenCLRenderer"]

OPENCL_OPS = C_OPS
_TYPES = {
    "bool": "bool", "int8": "char", "int16": "short", "int32": "int", "int64": "long", "uint8": "uchar",
    "uint16": "ushort", "uint32": "uint", "uint64": "ulong", "float16": "half", "bfloat16": "ushort",
    "float32": "float", "float64": "double",
}  # fmt: skip
_INTS = {8: dtypes.int8, 16: dtypes.int16, 32: dtypes.int32, 64: dtypes.int64}
_WIDTHS = (2, 4, 8, 16)
_MASK_WIDTH = 32  # bits of a lane of a mask that was not made by comparing vectors
_LANE = "0123456789abcdef"
_CONVERT = ("#ifdef __clang__", "#define CONVERT(type, x) __builtin_convertvector(x, type)", "#else",
            "#define CONVERT(type, x) convert_##type(x)", "#endif")  # fmt: skip


class OpenCLRenderer(Renderer):
    """Text for any driver of OpenCL 1.2 or later."""

    def render(self, name: str, uops: Sequence[UOp]) -> str:
        """Source text of the kernel `name`.

        Raises:
            DTypeError: the kernel needs float64 and the device has none.
        """
        return _Body(self.target, name, uops).text()


class _Body(CLikeBody):
    """One kernel."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)  # type: ignore[arg-type]
        self.masks: dict[UOp, int] = {}  # vectors of bools: bits of a lane
        self.helpers: dict[str, None] = {}
        self.prototypes: dict[str, None] = {}
        self.converts = False
        self.vectors: dict[Op, Callable[[UOp], None]] = {
            Ops.CAST: self.cast_vector, Ops.WHERE: self.select, Ops.BROADCAST: self.broadcast, Ops.LANE: self.lane,
            Ops.LANES: self.lanes, Ops.SHUFFLE: self.shuffle, Ops.FOLD: self.fold,
        }  # fmt: skip

    # --- spelling
    def head(self) -> list[str]:
        used = {d.scalar for u in self.uops for d in (u.dtype, *(s.dtype for s in u.src))}
        lines = ["#pragma OPENCL FP_CONTRACT OFF"]
        if dtypes.float64 in used:
            lines.append("#pragma OPENCL EXTENSION cl_khr_fp64 : enable")
        if dtypes.float16 in used and dtypes.float16 in self.target.storage_dtypes:
            lines.append("#pragma OPENCL EXTENSION cl_khr_fp16 : enable")
        params = [f"__global {self.type_name(p.dtype, memory=True)} *b{p.arg[0]}, long o{p.arg[0]}"
                  for p in self.signature.params]  # fmt: skip
        names = [f"long {self.values[v]}" for v in self.signature.variables]
        head = "__kernel __attribute__((reqd_work_group_size(1, 1, 1)))"
        start = f"void {self.name}({', '.join([*params, *names, 'long chunk'])}) {{"
        moved = [f"  b{p.arg[0]} += o{p.arg[0]};" for p in self.signature.params]
        declared = [f"{text};" for text in self.prototypes]
        lean = ["#ifdef LEAN", "#define F __attribute__((overloadable))", "size_t F get_global_id(uint);", *declared, "#endif"]
        return [*lines, *lean, *(_CONVERT if self.converts else ()), *self.helpers, head, start, *moved]

    def call(self, name: str, result: DType, *operands: tuple[DType, str]) -> str:
        self.declare(name, self.type_name(result), *(self.type_name(dtype) for dtype, _ in operands))
        return super().call(name, result, *operands)

    def declare(self, name: str, result: str, *types: str) -> None:
        """A function of the language that the text calls."""
        self.prototypes[f"{result} F {name}({', '.join(types)})"] = None

    def convert(self, kind: str, text: str) -> str:
        """A vector in lanes of another type."""
        self.converts = True
        return f"CONVERT({kind}, {text})"

    def load_lanes(self, dtype: DType, space: str, address: str) -> str:
        """Lanes that lie side by side."""
        scalar = self.type_name(dtype.scalar, memory=True)
        self.declare(f"vload{dtype.lanes}", self.type_name(dtype, memory=True), "size_t", f"const {space} {scalar} *")
        return f"vload{dtype.lanes}(0, {address})"

    def store_lanes(self, dtype: DType, space: str, address: str, value: str) -> str:
        """Lanes that will lie side by side."""
        scalar = self.type_name(dtype.scalar, memory=True)
        vector = self.type_name(dtype, memory=True)
        self.declare(f"vstore{dtype.lanes}", "void", vector, "size_t", f"{space} {scalar} *")
        return f"vstore{dtype.lanes}({value}, 0, {address});"

    def type_name(self, dtype: DType, *, memory: bool = False) -> str:
        scalar = dtype.scalar
        if scalar not in self.target.storage_dtypes and scalar is dtypes.float64:
            raise DTypeError(
                f"kernel {self.name}: the device has no float64. Compute in float32 (x.float()), or choose a device "
                "that has it: `kernmill info` lists them."
            )
        name = _TYPES[scalar.name]
        if scalar is dtypes.float16 and scalar not in self.target.storage_dtypes:
            name = "ushort"
        if scalar.is_bool and (memory or dtype.lanes > 1):
            name = "uchar" if memory else "int"
        if dtype.lanes > 1 and dtype.lanes not in _WIDTHS:
            raise InternalError(f"{self.name}: OpenCL has no vectors of {dtype.lanes} lanes")
        return name if dtype.lanes == 1 else f"{name}{dtype.lanes}"

    def is_bits(self, dtype: DType) -> bool:
        """Whether a float dtype is only moved about, as the ushort of its bits."""
        missing = dtypes.float16 not in self.target.storage_dtypes
        return dtype.scalar is dtypes.bfloat16 or (dtype.scalar is dtypes.float16 and missing)

    def literal(self, dtype: DType, value: float) -> str:
        if dtype.lanes > 1 and isinstance(value, tuple):
            return f"({self.type_name(dtype)})({', '.join(self.literal(dtype.scalar, item) for item in value)})"
        if dtype.lanes > 1:
            return f"({self.type_name(dtype)})({self.literal(dtype.scalar, value)})"
        if dtype.is_bool:
            return "true" if value else "false"
        if self.is_bits(dtype):
            return f"(ushort){_half_bits(dtype, value)}"
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
        suffix = "" if dtype is dtypes.float64 else "f"
        if math.isfinite(value):
            text = _signed(float_text(value, suffix))
        else:
            text = "NAN" if value != value else "INFINITY" if value > 0 else "(-INFINITY)"
        return text if dtype is dtypes.float32 else f"({self.type_name(dtype)}){text}"

    def bounds(self, u: UOp) -> tuple[str, str]:
        if u.arg[1] != AxisKind.THREAD:
            return "0", self.values[u.src[0]]
        self.emit("long first = get_global_id(0) * chunk;")
        limit = self.values[u.src[0]]
        self.emit(f"long last = first + chunk < {limit} ? first + chunk : {limit};")
        return "first", "last"

    def bitcast(self, to: DType, of: DType, a: str) -> str:
        a, b = a, self.type_name(to)
        return a if b == self.type_name(of) else f"as_{b}({a})"

    def constant(self, u: UOp) -> None:
        if u.dtype.lanes == 1 or not u.dtype.is_bool:
            super().constant(u)
            return
        self.masks[u] = _MASK_WIDTH
        values = u.arg if isinstance(u.arg, tuple) else (u.arg,)
        self.values[u] = f"(int{u.dtype.lanes})({', '.join(str(-int(v)) for v in values)})"

    # --- bools in vectors
    def mask_type(self, lanes: int, bits: int) -> str:
        return self.type_name(_INTS[bits].vec(lanes))

    def mask(self, u: UOp, bits: int) -> str:
        """A vector of bools as lanes of so many bits."""
        have = self.masks[u]
        return self.values[u] if have == bits else self.convert(self.mask_type(u.dtype.lanes, bits), self.values[u])

    def define_mask(self, u: UOp, bits: int, text: str) -> None:
        self.masks[u] = bits
        self.values[u] = self.fresh()
        self.emit(f"{self.mask_type(u.dtype.lanes, bits)} {self.values[u]} = {text};")

    def register(self, u: UOp) -> None:
        self.copy(u)

    def carry(self, u: UOp) -> None:
        self.copy(u)

    def copy(self, u: UOp) -> None:
        """A variable of its own with the value."""
        (source, *_) = u.src
        if u.dtype.is_bool and u.dtype.lanes > 1:
            self.define_mask(u, self.masks[source], self.values[source])
        else:
            self.define(u, self.values[source])

    def set(self, u: UOp) -> None:
        accumulator, value = u.src
        while accumulator.op is not Ops.REG:
            accumulator = accumulator.src[0]
        text = self.mask(value, self.masks[accumulator]) if value in self.masks else self.values[value]
        self.emit(f"{self.values[accumulator]} = {text};")

    def after(self, u: UOp) -> None:
        super().after(u)
        if u.src[0] in self.masks:
            self.masks[u] = self.masks[u.src[0]]

    # --- memory
    def at(self, place: UOp, index: str | None = None) -> str:
        """The address of a scalar place."""
        index = self.values[place.src[1]] if index is None else index
        memory = self.values[place.src[0]]
        return memory if index in ("0", "0L") else f"{memory} + {index}"

    def element(self, place: UOp, index: str) -> str:
        return f"{self.values[place.src[0]]}[{index}]"

    def load(self, u: UOp) -> None:
        place, lanes = u.src[0], u.dtype.lanes
        gate = place.src[2] if len(place.src) > 2 else None
        index = place.src[1]
        memory = self.type_name(u.dtype, memory=True)
        zero = self.literal(dtypes.uint8.vec(lanes), 0) if u.dtype.is_bool else self.zero(u.dtype)
        if lanes == 1:
            text = self.element(place, self.values[index])
        elif index.dtype.lanes > 1:
            text = self.gather(u, place, gate, zero)
            gate = None
        elif gate is not None and gate.dtype.lanes > 1:
            text = self.masked_load(u, place, gate)
            gate = None
        else:
            text = self.load_lanes(u.dtype, self.space(place), self.at(place))
        if gate is not None:
            text = f"{self.values[gate]} ? {text} : {zero}"
        if not u.dtype.is_bool:
            self.define(u, text)
        elif lanes == 1:
            self.define(u, f"({text}) != 0")
        else:
            self.define_mask(u, 8, f"({text}) != ({memory})(0)")

    def zero(self, dtype: DType) -> str:
        return self.literal(dtype, 0.0 if dtype.is_float else 0)

    def lane_of(self, text: str, number: int) -> str:
        return f"{text}.s{_LANE[number]}"

    def gather(self, u: UOp, place: UOp, gate: UOp | None, zero: str) -> str:
        """Each lane from a place of its own."""
        lanes = u.dtype.lanes
        index, zero = self.named(place.src[1]), self.zero(dtypes.uint8 if u.dtype.is_bool else u.dtype.scalar)
        parts = [self.element(place, self.lane_of(index, n)) for n in range(lanes)]
        if gate is not None:
            mask = self.named(gate)
            parts = [f"{self.lane_of(mask, n)} ? {part} : {zero}" for n, part in enumerate(parts)]
        return f"({self.type_name(u.dtype, memory=True)})({', '.join(parts)})"

    def named(self, u: UOp) -> str:
        """A name for a vector that may be a literal, so that its lanes can be taken one by one."""
        if u.op is Ops.CONST:
            name = self.fresh()
            kind = self.mask_type(u.dtype.lanes, self.masks[u]) if u in self.masks else self.type_name(u.dtype)
            self.emit(f"{kind} {name} = {self.values[u]};")
            return name
        return self.values[u]

    def whole(self, gate: UOp) -> str:
        """A scalar condition under which every lane of the mask is true."""
        if gate.op is Ops.LT and isinstance(gate.src[0].arg, tuple) and gate.src[1].op is Ops.BROADCAST:
            return f"{max(gate.src[0].arg)} < {self.values[gate.src[1].src[0]]}"
        kind = self.mask_type(gate.dtype.lanes, self.masks[gate])
        self.declare("all", "int", kind)
        return f"all({self.values[gate]})"

    def masked_load(self, u: UOp, place: UOp, gate: UOp) -> str:
        """Side by side, some lanes not touched: at once where all are, else lane by lane."""
        lanes, memory = u.dtype.lanes, self.type_name(u.dtype, memory=True)
        space, mask = self.space(place), self.mask_type(lanes, self.masks[gate])
        name = f"load_{space.strip('_')}_{memory}_{mask}"
        scalar = self.type_name(u.dtype.scalar, memory=True)
        each = " ".join(f"if (m.s{_LANE[n]}) r.s{_LANE[n]} = p[{n}];" for n in range(lanes))
        self.helpers[
            f"static {memory} {name}(const {space} {scalar} *p, {mask} m, bool whole) {{\n"
            f"  if (whole) return {self.load_lanes(u.dtype, space, 'p')};\n  {memory} r = ({memory})(0);\n  {each}\n  return r;\n}}"
        ] = None
        return f"{name}({self.at(place)}, {self.values[gate]}, {self.whole(gate)})"

    def space(self, place: UOp) -> str:
        """The address space of a place."""
        memory = place.src[0]
        while memory.op is Ops.AFTER:
            memory = memory.src[0]
        return "__private" if memory.op is Ops.LOCAL else "__global"

    def store(self, u: UOp) -> None:
        place, stored = u.src
        lanes = stored.dtype.lanes
        gate = place.src[2] if len(place.src) > 2 else None
        value = self.values[stored]
        if stored.dtype.is_bool and lanes > 1:
            value = f"as_uchar{lanes}({self.mask(stored, 8)} & (char{lanes})(1))"
        if lanes == 1:
            text = f"{self.element(place, self.values[place.src[1]])} = {value};"
        elif place.src[1].dtype.lanes > 1:
            self.scatter(place, gate, value, stored.dtype)
            return
        elif gate is not None and gate.dtype.lanes > 1:
            self.masked_store(place, gate, value, stored.dtype)
            return
        else:
            text = self.plain_store(u, place, value, stored.dtype)
        self.emit(text if gate is None else f"if ({self.values[gate]}) {text}")

    def plain_store(self, u: UOp, place: UOp, value: str, dtype: DType) -> str:
        return self.store_lanes(dtype, self.space(place), self.at(place), value)

    def scatter(self, place: UOp, gate: UOp | None, value: str, dtype: DType) -> None:
        index, name = self.named(place.src[1]), self.fresh()
        mask = None if gate is None else self.named(gate)
        self.emit(f"{self.type_name(dtype, memory=True)} {name} = {value};")
        for n in range(dtype.lanes):
            line = f"{self.element(place, self.lane_of(index, n))} = {self.lane_of(name, n)};"
            self.emit(line if mask is None else f"if ({self.lane_of(mask, n)}) {line}")

    def masked_store(self, place: UOp, gate: UOp, value: str, dtype: DType) -> None:
        lanes, memory = dtype.lanes, self.type_name(dtype, memory=True)
        space, mask = self.space(place), self.mask_type(lanes, self.masks[gate])
        name = f"store_{space.strip('_')}_{memory}_{mask}"
        scalar = self.type_name(dtype.scalar, memory=True)
        each = " ".join(f"if (m.s{_LANE[n]}) p[{n}] = x.s{_LANE[n]};" for n in range(lanes))
        self.helpers[
            f"static void {name}({space} {scalar} *p, {memory} x, {mask} m, bool whole) {{\n"
            f"  if (whole) {{ {self.store_lanes(dtype, space, 'p', 'x')} return; }}\n  {each}\n}}"
        ] = None
        self.emit(f"{name}({self.at(place)}, {value}, {self.values[gate]}, {self.whole(gate)});")

    # --- vectors
    def vector(self, u: UOp) -> None:
        handler = self.vectors.get(u.op)
        if handler is not None:
            handler(u)
        elif u.op is Ops.BITCAST:
            self.define(u, self.bitcast(u.dtype, u.src[0].dtype, self.values[u.src[0]]))
        elif u.dtype.is_bool and u.src[0].dtype.is_bool:
            bits = self.masks[u.src[0]]
            self.define_mask(u, bits, _mask_op(u.op, *(self.mask(s, bits) for s in u.src)))
        elif u.dtype.is_bool:
            of = u.src[0].dtype
            self.define_mask(u, of.bits, self.arithmetic(u.op, of, [self.values[s] for s in u.src]))
        else:
            self.define(u, self.arithmetic(u.op, u.dtype, [self.values[s] for s in u.src]))

    def wrapped(self, op: Op, dtype: DType, a: str, b: str) -> str:
        if dtype.lanes == 1:
            return super().wrapped(op, dtype, a, b)
        sign = {Ops.ADD: "+", Ops.SUB: "-", Ops.MUL: "*", Ops.SHL: "<<"}[op]
        if dtype.kind is Kind.UINT:
            return f"{a} {sign} {b}"
        unsigned = f"as_u{self.type_name(dtype)}"
        return f"as_{self.type_name(dtype)}({unsigned}({a}) {sign} {unsigned}({b}))"

    def int_abs(self, dtype: DType, a: str) -> str:
        kind = self.type_name(dtype)
        self.declare("abs", f"u{kind}", kind)
        return f"as_{kind}(abs({a}))"

    def cast_vector(self, u: UOp) -> None:
        (x,) = u.src
        if u.dtype.is_bool:
            zero = self.zero(x.dtype)
            self.define_mask(u, x.dtype.bits, f"{self.values[x]} != {zero}")
        elif x.dtype.is_bool:
            one, zero = (self.literal(u.dtype, float(n) if u.dtype.is_float else n) for n in (1, 0))
            self.define(u, f"{self.mask(x, u.dtype.bits)} ? {one} : {zero}")
        else:
            self.define(u, self.convert(self.type_name(u.dtype), self.values[x]))

    def select(self, u: UOp) -> None:
        condition, yes, no = u.src
        if u.dtype.is_bool:
            bits = self.masks[condition]
            c = self.values[condition]
            self.define_mask(u, bits, f"({c} & {self.mask(yes, bits)}) | (~{c} & {self.mask(no, bits)})")
        else:
            self.define(u, f"{self.mask(condition, u.dtype.bits)} ? {self.values[yes]} : {self.values[no]}")

    def broadcast(self, u: UOp) -> None:
        value = self.values[u.src[0]]
        if u.dtype.is_bool:
            self.define_mask(u, _MASK_WIDTH, f"({self.mask_type(u.dtype.lanes, _MASK_WIDTH)})(-(int){value})")
        else:
            self.define(u, f"({self.type_name(u.dtype)})({value})")

    def lane(self, u: UOp) -> None:
        text = self.lane_of(self.named(u.src[0]), u.arg)
        self.define(u, f"{text} != 0" if u.dtype.is_bool else text)

    def lanes(self, u: UOp) -> None:
        if u.dtype.is_bool:
            parts = ", ".join(f"-(int){self.values[s]}" for s in u.src)
            self.define_mask(u, _MASK_WIDTH, f"({self.mask_type(u.dtype.lanes, _MASK_WIDTH)})({parts})")
        else:
            self.define(u, f"({self.type_name(u.dtype)})({', '.join(self.values[s] for s in u.src)})")

    def shuffle(self, u: UOp) -> None:
        """Lanes of two vectors, runs out of one of them as a vector of their own."""
        a, b = u.src
        is_mask = u.dtype.is_bool
        bits = self.masks[a] if is_mask else 0
        names = [self.named(a), self.named(b)] if not is_mask else [self.as_mask(s, bits) for s in (a, b)]
        parts: list[str] = []
        for first, picked in _runs([int(n) for n in u.arg], a.dtype.lanes):
            parts.append(f"{names[first]}.s{''.join(_LANE[n] for n in picked)}")
        kind = self.mask_type(u.dtype.lanes, bits) if is_mask else self.type_name(u.dtype)
        text = f"({kind})({', '.join(parts)})" if len(parts) > 1 else parts[0]
        if is_mask:
            self.define_mask(u, bits, text)
        else:
            self.define(u, text)

    def as_mask(self, u: UOp, bits: int) -> str:
        name = self.fresh()
        self.emit(f"{self.mask_type(u.dtype.lanes, bits)} {name} = {self.mask(u, bits)};")
        return name

    def fold(self, u: UOp) -> None:
        """Halves onto each other until one lane is left."""
        vector = u.src[0]
        is_mask = u.dtype.is_bool
        name, lanes = self.named(vector), vector.dtype.lanes
        while lanes > 1:
            lanes //= 2
            low, high = (f"{name}.lo", f"{name}.hi")
            if is_mask:
                text, kind = _mask_op(u.arg, low, high), self.mask_type(lanes, self.masks[vector]) if lanes > 1 else ""
                kind = kind or self.type_name(_INTS[self.masks[vector]])
            else:
                text, kind = self.combine(u.arg, u.dtype.vec(lanes), low, high), self.type_name(u.dtype.vec(lanes))
            name = self.fresh()
            self.emit(f"{kind} {name} = {text};")
        if is_mask:
            self.define(u, f"{name} != 0")
        else:
            self.values[u] = name

    def combine(self, op: Op, dtype: DType, a: str, b: str) -> str:
        if op not in (Ops.MAX, Ops.MIN):
            return self.arithmetic(op, dtype, [a, b])
        better = f"{a} {'>' if op is Ops.MAX else '<'} {b}"
        return f"(({better}) | ({a} != {a})) ? {a} : {b}" if dtype.is_float else f"({better}) ? {a} : {b}"


def _mask_op(op: Op, a: str, b: str) -> str:
    """An op on bools that are -1 or 0."""
    match op:
        case Ops.ADD | Ops.OR | Ops.MAX:
            return f"{a} | {b}"
        case Ops.MUL | Ops.AND | Ops.MIN:
            return f"{a} & {b}"
        case Ops.XOR | Ops.NE:
            return f"{a} ^ {b}"
        case Ops.EQ:
            return f"~({a} ^ {b})"
        case Ops.LT:
            return f"~{a} & {b}"
        case Ops.LE:
            return f"~{a} | {b}"
    raise InternalError(f"opencl: {op.name} of bools has no expression")


def _runs(order: list[int], lanes: int) -> list[tuple[int, list[int]]]:
    """The lanes cut into pieces of 1, 2, 4, 8 or 16 that come from one of the two vectors."""
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


def _signed(text: str) -> str:
    """A negative literal in brackets: two minus signs in a row are another operator."""
    return f"({text})" if text.startswith("-") else text


def _half_bits(dtype: DType, value: float) -> str:
    from kernmill.ir import bits_of

    return f"0x{bits_of(dtype, float(value)):04x}"
