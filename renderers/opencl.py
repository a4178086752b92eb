"""OpenCL C 1.2: vectors of 2 to 16 lanes, masks as ints, no dependence on a driver's fast-math.

A kernel is `name(buffer, offset, .., variables.., chunk)`: every buffer is passed with the number of values before its
first one. On a CPU work-item number n runs the iterations n*chunk to (n+1)*chunk of the THREAD loop. If the outer loops
are a grid (GLOBAL), a work-item runs one iteration of all of them, or with LOCAL loops a work-group does. Then `item`
is the number in the group, and code after a LOCAL loop of fewer iterations is for the others too.

With LEAN defined the text declares the functions that it calls. Drivers based on clang read a header of a megabyte
before every kernel, which takes longer than all the rest, and a device may omit it (runtime/ops_cl.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kernmill.ir import LINE_BYTES, AxisKind, DType, Op, Ops, Target, UOp, dtypes, memory_of

from .base import Renderer, grid_digits, identifier, is_aligned
from .mma import HELD, MMA_ITEMS, Share, mma_function
from .opencl_values import INTS, Values

__all__ = ["OpenCLRenderer"]

_ROLLED = "__attribute__((opencl_unroll_hint(1)))"  # unrolled, the rare path would take the registers of the other
_GROUP = 256  # work-items of a group where it does not matter
_GROUP_IDS = ("get_group_id", "get_local_id")
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

    def render_mapped(self, name: str, uops: Sequence[UOp]) -> tuple[str, list[tuple[int, int]]]:
        """The text, and the first line of each UOp's."""
        body = _Body(self.target, name, uops)
        text = body.text()
        above = len(text.split("\n")) - 2 - len("\n".join(body.lines).split("\n"))
        lines = [sum(line.count("\n") + 1 for line in body.lines[:start]) for start in body.starts]
        return text, [(number, above + line) for number, line in enumerate(lines)]


class _Body(Values):
    """The text of one kernel under construction: one statement a node."""

    def __init__(self, target: Target, name: str, uops: Sequence[UOp]) -> None:
        super().__init__(target, name, uops)
        self.grid = grid_digits(uops)
        stores = [u for u in uops if u.op is Ops.STORE and u.src[1].dtype.lanes > self.target.most_lanes]
        self.dealt = {memory for u in stores if (memory := memory_of(u.src[0])).op is Ops.LOCAL}
        self.shared: list[str] = []
        self.handlers: dict[Op, Callable[[UOp], None]] = {
            Ops.PARAM: self.param, Ops.VARIABLE: self.variable, Ops.CONST: self.constant, Ops.LOCAL: self.local,
            Ops.INDEX: lambda u: None, Ops.LOAD: self.load, Ops.STORE: self.store,
            Ops.PREFETCH: lambda u: self._ask_ahead(u.src[0], u.arg),
            Ops.RANGE: self.open, Ops.END: self.close, Ops.REG: self.copy, Ops.CARRY: self.copy, Ops.SET: self.set,
            Ops.AFTER: self.after, Ops.BARRIER: self.barrier, Ops.MMA: self.mma,
        }  # fmt: skip

    def text(self) -> str:
        """The kernel."""
        for u in self.uops:
            self.starts.append(len(self.lines))
            handler = self.handlers.get(u.op)
            if handler is not None:
                handler(u)
            elif u.dtype.lanes > 1 or any(s.dtype.lanes > 1 for s in u.src):
                self.vector(u)
            else:
                self.define(u, self.scalar(u))
                if self.is_place(u):
                    self.places.add(u)
        return "\n".join([*self.head(), *self.lines, "}"]) + "\n"

    def head(self) -> list[str]:
        """Everything above the first statement of the body, its opening brace included. Called last."""
        used = {d.scalar for u in self.uops for d in (u.dtype, *(s.dtype for s in u.src))}
        lines = [f"#pragma OPENCL FP_CONTRACT {'ON' if self.contracts else 'OFF'}"]
        if dtypes.float64 in used:
            lines.append("#pragma OPENCL EXTENSION cl_khr_fp64 : enable")
        if dtypes.float16 in used and dtypes.float16 in self.target.storage_dtypes:
            lines.append("#pragma OPENCL EXTENSION cl_khr_fp16 : enable")
        params = [f"__global {self.type_name(p.dtype, memory=True)} *b{p.arg[0]}, long o{p.arg[0]}"
                  for p in self.signature.params]  # fmt: skip
        names = [f"long {self.values[v]}" for v in self.signature.variables]
        items = self.signature.group or (min(_GROUP, self.target.group_items) if self.grid else 1)
        head = f"__kernel __attribute__((reqd_work_group_size({items}, 1, 1)))"
        start = f"void {self.name}({', '.join([*params, *names, 'long chunk'])}) {{"
        moved = [f"  b{p.arg[0]} += o{p.arg[0]};" for p in self.signature.params]
        declared = [f"{text};" for text in self.prototypes]
        lean = [
            "#ifdef LEAN",
            "#define F __attribute__((overloadable))",
            *(f"size_t F {name}(uint);" for name in (_GROUP_IDS if self.signature.group else ("get_global_id",))),
            *(["void __attribute__((convergent)) F barrier(uint);"] if self.signature.group else []),
            *declared,
            "#endif",
        ]
        return [*lines, *lean, *self.typedefs, *(_CONVERT if self.converts else ()), *self.helpers, head, start, *moved,
                *self.numbers(), *self.shared]  # fmt: skip

    # --- arguments, loops, accumulators
    def param(self, u: UOp) -> None:
        self.values[u] = f"b{u.arg[0]}"

    def variable(self, u: UOp) -> None:
        """VARIABLE."""
        self.values[u] = f"n_{identifier(str(u.arg[0]))}"  # the user's word, which may be one of the language's
        self.places.add(u)

    def bounds(self, u: UOp) -> tuple[str, str]:
        """First value and limit of a loop."""
        if u.arg[1] != AxisKind.THREAD:
            return "0", self.values[u.src[0]]
        limit, begin = self.values[u.src[0]], u.first_iteration
        part = "" if begin is None else f"_{identifier(str(u.arg[0]))}"
        self.emit(f"long first{part} = get_global_id(0) * chunk{f' - {begin}' if part else ''};")
        self.emit(f"long last{part} = first{part} + chunk < {limit} ? first{part} + chunk : {limit};")
        return f"first{part} > 0 ? first{part} : 0" if part else "first", f"last{part}"

    def numbers(self) -> list[str]:
        """Return the lines that compute the number of this work-item."""
        if self.signature.group:
            return ["  long group = get_group_id(0), item = get_local_id(0);"]
        if not self.grid:
            return []
        return ["  long item = get_global_id(0);", f"  if (item >= {self.signature.threads}L) return;"]

    def open(self, u: UOp) -> None:
        """Emit a RANGE; a GLOBAL one is a quotient or remainder of the group's or work-item's number, the last one
        fastest."""
        if u.arg[1] == AxisKind.LOCAL:
            self.values[u] = "item"
            self.emit("{" if u.src[0].arg == self.signature.group else f"if (item < {u.src[0].arg}L) {{")
            self.depth += 1
        elif u in self.grid:
            inner, size = self.grid[u]
            number = "group" if self.signature.group else "item"
            digit = number if inner == 1 else f"{number} / {inner}L"
            name = self.values[u] = identifier(str(u.arg[0]))
            self.emit(
                f"long {name} = {digit};" if u is next(reversed(self.grid)) else f"long {name} = {digit} % {size}L;"
            )
        else:
            name = self.values[u] = identifier(str(u.arg[0]))
            first, limit = self.bounds(u)
            self.emit(f"for (long {name} = {first}; {name} < {limit}; ++{name}) {{")
            self.depth += 1
        self.places.add(u)

    def close(self, u: UOp) -> None:
        """Emit an END; a GLOBAL loop needs none."""
        if u.src[0] not in self.grid:
            self.depth -= 1
            self.emit("}")

    def copy(self, u: UOp) -> None:
        """REG, a variable; CARRY of one, a copy: that may be set before its old value was last read; or of memory."""
        if u.op is Ops.CARRY and u.src[0].op is not Ops.REG:
            self.after(u)
        elif u.src[0] in self.masks:
            self.define_mask(u, self.masks[u.src[0]], self.values[u.src[0]])
        else:
            self.define(u, self.values[u.src[0]])

    def set(self, u: UOp) -> None:
        accumulator, value = memory_of(u.src[0]), u.src[1]
        text = self.mask(value, self.masks[accumulator]) if value in self.masks else self.values[value]
        self.emit(f"{self.values[accumulator]} = {text};")

    def after(self, u: UOp) -> None:
        """AFTER: the variable or array itself."""
        self.values[u] = self.values[u.src[0]]
        if u.src[0] in self.masks:
            self.masks[u] = self.masks[u.src[0]]

    def local(self, u: UOp) -> None:
        """Emit a LOCAL; an array shared by a work-group is declared at the head of the kernel, as drivers require."""
        name = self.values[u] = f"a{self.fresh()[1:]}"
        text = f"{self.type_name(u.dtype, memory=True)} {name}[{u.arg[1] // (MMA_ITEMS if u in self.dealt else 1)}]"
        if "shared" in u.arg:
            self.shared.append(f"  __local {text} __attribute__((aligned(16)));")
        else:
            aligned = f" __attribute__((aligned({LINE_BYTES})))" if self.target.has_threads else ""
            self.emit(f"{text}{aligned};")

    def barrier(self, u: UOp) -> None:
        """BARRIER: in local memory."""
        self.emit("barrier(CLK_LOCAL_MEM_FENCE);")

    # --- a matrix unit
    def mma(self, u: UOp) -> None:
        """MMA: its function."""
        name, text = mma_function(u)
        self.helpers[text] = None
        self.define(u, f"{name}({', '.join(self.values[s] for s in u.src)})")

    def load_block(self, u: UOp) -> None:
        """Emit the load of a work-item's words of a block."""
        kind, name, words = self.type_name(u.dtype), self.fresh(), f"const {self.space(u.src[0])} uint *"
        share = HELD[0 if kind[-1] == "4" else 1]
        self.emit(f"{words}{name} = ({words})({self.at(u.src[0])}) + {_first(share)};")
        self.define(u, f"({kind})({', '.join(f'{name}[{n}]' for n in share.others)})")

    def store_block(self, place: UOp, value: str) -> None:
        """Emit the store of a work-item's results: at their elements, or consecutively in a private buffer."""
        own = HELD[2]
        first, others = ("0", range(4)) if memory_of(place) in self.dealt else (_first(own), own.others)
        for n, number in enumerate(others):
            self.emit(f"({self.at(place)} + {first})[{number}] = {value}.s{n};")

    # --- loads
    def load(self, u: UOp) -> None:
        if u.dtype.lanes > self.target.most_lanes:
            self.load_block(u)
            return
        place, lanes = u.src[0], u.dtype.lanes
        _, index, *gates = place.src
        gate = _gate(index, gates)
        memory = self.type_name(u.dtype, memory=True)
        zero = self.literal(dtypes.uint8.vec(lanes), 0) if u.dtype.is_bool else self.zero(u.dtype)
        if lanes == 1:
            text = self.element(place, self.values[index])
        elif index.dtype.lanes > 1:
            text = self.gather(u, place, gate)
            gate = None
        elif gate is not None and gate.dtype.lanes > 1:
            text = self.masked_load(u, place, gate)
            gate = None
        else:
            text = self.load_lanes(u.dtype, self.space(place), self.at(place))
            if type(u.arg) is tuple:
                self._ask_ahead(place, *u.arg)
        if gate is not None:
            text = f"{self.values[gate]} ? {text} : {zero}"
        if not u.dtype.is_bool:
            self.define(u, text)
        elif lanes == 1:
            self.define(u, f"({text}) != 0")
        else:
            self.define_mask(u, 8, f"({text}) != ({memory})(0)")

    def gather(self, u: UOp, place: UOp, gate: UOp | None) -> str:
        """Emit a gather: each lane from a separate index."""
        lanes = u.dtype.lanes
        index, zero = self.named(place.src[1]), self.zero(dtypes.uint8 if u.dtype.is_bool else u.dtype.scalar)
        parts = [self.element(place, self.lane_of(index, n)) for n in range(lanes)]
        if gate is not None:
            mask = self.named(gate)
            parts = [f"{self.lane_of(mask, n)} ? {part} : {zero}" for n, part in enumerate(parts)]
        return f"({self.type_name(u.dtype, memory=True)})({', '.join(parts)})"

    def masked_load(self, u: UOp, place: UOp, gate: UOp) -> str:
        """Emit a contiguous masked load: all lanes are read if they are inside the buffer, else lane by lane."""
        lanes, memory = u.dtype.lanes, self.type_name(u.dtype, memory=True)
        bits = 8 if u.dtype.is_bool else u.dtype.bits
        space, mask = self.space(place), self.mask_type(lanes, bits)
        name = f"load_{space.strip('_')}_{memory}"
        scalar = self.type_name(u.dtype.scalar, memory=True)
        wanted = self.store_lanes(INTS[bits].vec(lanes), "__private", "wanted", "m")
        self.helpers[
            f"{_kind(space)} {memory} {name}(const {space} {scalar} *p, {mask} m, bool inside) {{\n"
            f"  {memory} r = ({memory})(0);\n"
            f"  if (inside) return {self.chosen(u.dtype, 'm', self.load_lanes(u.dtype, space, 'p'), 'r')};\n"
            f"  {scalar} lane[{lanes}] = {{0}};\n  {self.type_name(INTS[bits])} wanted[{lanes}];\n  {wanted}\n"
            f"  {_ROLLED}\n  for (int n = 0; n < {lanes}; ++n) if (wanted[n]) lane[n] = p[n];\n"
            f"  return {self.load_lanes(u.dtype, '__private', 'lane')};\n}}"
        ] = None
        return f"{name}({self.at(place)}, {self.mask(gate, bits)}, {self.inside(place, lanes)})"

    def inside(self, place: UOp, lanes: int) -> str:
        """Return the test that all lanes are inside the buffer; a negative index is a large unsigned one."""
        memory = memory_of(place)
        last = int(memory.arg[2 if memory.op is Ops.PARAM and len(memory.arg) > 2 else 1]) - lanes
        return f"(ulong){self.values[place.src[1]]} <= {last}UL" if last >= 0 else "false"

    def load_lanes(self, dtype: DType, space: str, address: str) -> str:
        """Return a contiguous load."""
        if "load" in self.target.plain:
            return f"*(const {space} {self._unaligned(dtype)} *)({address})"
        scalar = self.type_name(dtype.scalar, memory=True)
        self.declare(f"vload{dtype.lanes}", self.type_name(dtype, memory=True), "size_t", f"const {space} {scalar} *")
        return f"vload{dtype.lanes}(0, {address})"

    def whole(self, gate: UOp) -> str:
        """A scalar condition under which every lane of the mask is true."""
        if gate.op is Ops.LT and isinstance(gate.src[0].arg, tuple) and gate.src[1].op is Ops.BROADCAST:
            return f"{max(gate.src[0].arg)} < {self.values[gate.src[1].src[0]]}"
        if gate.op is Ops.CONST:
            return "true" if all(gate.arg if isinstance(gate.arg, tuple) else (gate.arg,)) else "false"
        lanes, name = gate.dtype.lanes, self.values[gate]
        while lanes > 1:
            lanes, half, halves = lanes // 2, self.fresh(), f"{name}.lo & {name}.hi"
            self.emit(f"{self.mask_type(lanes, self.masks[gate])} {half} = {halves};")
            name = half
        return f"{name} != 0"

    # --- stores
    def store(self, u: UOp) -> None:
        place, stored = u.src
        lanes = stored.dtype.lanes
        _, index, *gates = place.src
        gate = _gate(index, gates)
        value = self.values[stored]
        if lanes > self.target.most_lanes:
            self.store_block(place, value)
            return
        if stored.dtype.is_bool and lanes > 1:
            ones = self.literal(dtypes.int8.vec(lanes), 1)
            value = self.as_type(dtypes.uint8.vec(lanes), f"{self.mask(stored, 8)} & {ones}")
        if lanes == 1:
            text = f"{self.element(place, self.values[index])} = {value};"
        elif index.dtype.lanes > 1:
            self.scatter(place, gate, value, stored.dtype)
            return
        elif gate is not None and gate.dtype.lanes > 1:
            self.masked_store(place, gate, value, stored.dtype)
            return
        else:
            is_streamed = u.arg == "nt" and "hints" in self.target.plain and is_aligned(place, stored.dtype)
            text = (self._streamed if is_streamed else self.store_lanes)(
                stored.dtype, self.space(place), self.at(place), value
            )
        self.emit(text if gate is None else f"if ({self.values[gate]}) {text}")

    def scatter(self, place: UOp, gate: UOp | None, value: str, dtype: DType) -> None:
        index, name = self.named(place.src[1]), self.fresh()
        mask = None if gate is None else self.named(gate)
        self.emit(f"{self.type_name(dtype, memory=True)} {name} = {value};")
        for n in range(dtype.lanes):
            line = f"{self.element(place, self.lane_of(index, n))} = {self.lane_of(name, n)};"
            self.emit(line if mask is None else f"if ({self.lane_of(mask, n)}) {line}")

    def masked_store(self, place: UOp, gate: UOp, value: str, dtype: DType) -> None:
        """Emit a contiguous masked store: at once if all lanes are written, else lane by lane."""
        lanes, memory = dtype.lanes, self.type_name(dtype, memory=True)
        space, bits = self.space(place), self.masks[gate]
        mask = self.mask_type(lanes, bits)
        name = f"store_{space.strip('_')}_{memory}_{mask}"
        scalar, flag = self.type_name(dtype.scalar, memory=True), self.type_name(INTS[bits])
        kept = self.store_lanes(dtype, "__private", "lane", "x")
        wanted = self.store_lanes(INTS[bits].vec(lanes), "__private", "wanted", "m")
        self.helpers[
            f"{_kind(space)} void {name}({space} {scalar} *p, {memory} x, {mask} m, bool whole) {{\n"
            f"  if (whole) {{ {self.store_lanes(dtype, space, 'p', 'x')} return; }}\n"
            f"  {scalar} lane[{lanes}];\n  {flag} wanted[{lanes}];\n  {kept}\n  {wanted}\n"
            f"  {_ROLLED}\n  for (int n = 0; n < {lanes}; ++n) if (wanted[n]) p[n] = lane[n];\n}}"
        ] = None
        self.emit(f"{name}({self.at(place)}, {value}, {self.values[gate]}, {self.whole(gate)});")

    def store_lanes(self, dtype: DType, space: str, address: str, value: str) -> str:
        """Return a contiguous store."""
        if "load" in self.target.plain:
            return f"*({space} {self._unaligned(dtype)} *)({address}) = {value};"
        scalar = self.type_name(dtype.scalar, memory=True)
        vector = self.type_name(dtype, memory=True)
        self.declare(f"vstore{dtype.lanes}", "void", vector, "size_t", f"{space} {scalar} *")
        return f"vstore{dtype.lanes}({value}, 0, {address});"

    def _streamed(self, dtype: DType, space: str, address: str, value: str) -> str:
        """Return a store past the caches, of an aligned vector."""
        return f"__builtin_nontemporal_store({value}, ({space} {self.type_name(dtype, memory=True)} *)({address}));"

    def _ask_ahead(self, place: UOp, ahead: int | None, cache: int = 2) -> None:
        """PREFETCH, or that of a load; its address has no space, as the builtin's has none."""
        if "hints" in self.target.plain:
            kind = "1, 3" if ahead is None else f"0, {4 - cache}"
            self.emit(f"__builtin_prefetch((const void *)((ulong)({self.at(place)}) + {ahead or 0}), {kind});")

    def _unaligned(self, dtype: DType) -> str:
        """Return a vector type for memory that is aligned like one of its lanes."""
        vector, scalar = self.type_name(dtype, memory=True), self.type_name(dtype.scalar, memory=True)
        self.typedefs[f"typedef {vector} {vector}_at __attribute__((aligned(sizeof({scalar}))));"] = None
        return f"{vector}_at"

    # --- indices
    def at(self, place: UOp) -> str:
        """Return the address of a scalar index."""
        index = self.held(place, self.values[place.src[1]])
        memory = self.values[place.src[0]]
        return memory if index in ("0", "0L") else f"{memory} + {index}"

    def element(self, place: UOp, index: str) -> str:
        return f"{self.values[place.src[0]]}[{self.held(place, index)}]"

    def held(self, place: UOp, index: str) -> str:
        """Return the position of a matrix unit's result among those of a work-item, which reads only these."""
        far, near = HELD[2].run
        return f"({index}) / {far} * {near} + ({index}) % {near}" if memory_of(place) in self.dealt else index

    def space(self, place: UOp) -> str:
        """Return the address space of a buffer."""
        memory = memory_of(place)
        if memory.op is not Ops.LOCAL:
            return "__global"
        return "__local" if "shared" in memory.arg else "__private"


def _first(share: Share) -> str:
    """Return the expression of a work-item's first word or result of a block."""
    return f"item % 32 / {share.inner} * {share.down} + item % {share.inner} * {share.across}"


def _kind(space: str) -> str:
    """Return the qualifiers of a function that gets an address in this space. PoCL finds the arrays of a group in the
    kernel's own text. Into a function that is always given the same array clang puts its name, and then all groups have
    one array."""
    return "static __attribute__((always_inline))" if space == "__local" else "static"


def _gate(index: UOp, gates: Sequence[UOp]) -> UOp | None:
    """Return the gate of an access; for contiguous lanes with equal gates the scalar gate."""
    if gates and gates[0].op is Ops.BROADCAST and index.dtype.lanes == 1:
        return gates[0].src[0]
    return gates[0] if gates else None
