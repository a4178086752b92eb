"""LLVM IR text: explicit vectors, SSA accumulators, nothing left for LLVM's middle end to do.

A kernel is `void name(ptr args, i64 begin, i64 end)`: args points to 8-byte slots (buffer addresses, then variables),
begin and end bound its THREAD loop. Accumulators are phis, written while the structured list is walked. No fast-math
flag is used: what the IR says is what NumPy does, nan and inf included; sums are reordered by the optimizer's
explicit lanes and groups only. What LLVM IR has no instruction for is in intrinsics/, a file for each architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd

from kernmill.ir import AxisKind, DType, InternalError, Op, Ops, Target, UOp, dtypes, is_in_order, memory_of

from .base import Renderer, is_aligned, multiple_of, signature
from .intrinsics.aarch64 import AArch64
from .intrinsics.amdgcn import Amdgcn
from .intrinsics.base import Intrinsics
from .intrinsics.hexagon import Hexagon
from .intrinsics.nvptx import Nvptx
from .intrinsics.x86 import X86
from .llvm_text import LINE, Writer, constant, llvm_type, mangled

__all__ = ["LLVM_OPS", "LLVMFunction", "LLVMRenderer"]

_ON_STACK = 64 << 10  # bytes of one array; Python threads may have 512 KB in all
_STEPS = 2  # of shuffles that LLVM may put together; with more it tries all chains of them
_BINARY: dict[Op, tuple[str, str, str]] = {  # float, signed, unsigned
    Ops.ADD: ("fadd", "add", "add"),
    Ops.SUB: ("fsub", "sub", "sub"),
    Ops.MUL: ("fmul", "mul", "mul"),
    Ops.DIV: ("fdiv", "", ""),
    Ops.CDIV: ("", "sdiv", "udiv"),
    Ops.CMOD: ("", "srem", "urem"),
    Ops.AND: ("", "and", "and"),
    Ops.OR: ("", "or", "or"),
    Ops.XOR: ("", "xor", "xor"),
    Ops.SHL: ("", "shl", "shl"),
    Ops.SHR: ("", "ashr", "lshr"),
}
_BOOL = {Ops.ADD: "or", Ops.MUL: "and", Ops.AND: "and", Ops.OR: "or", Ops.XOR: "xor", Ops.MAX: "or", Ops.MIN: "and"}
_COMPARE = {
    Ops.LT: ("fcmp olt", "icmp slt", "icmp ult"),
    Ops.LE: ("fcmp ole", "icmp sle", "icmp ule"),
    Ops.EQ: ("fcmp oeq", "icmp eq", "icmp eq"),
    Ops.NE: ("fcmp une", "icmp ne", "icmp ne"),
}
_INTRINSICS = {Ops.SQRT: "sqrt", Ops.TRUNC: "trunc", Ops.FLOOR: "floor", Ops.CEIL: "ceil", Ops.ROUND: "roundeven",
               Ops.ABS: "fabs", Ops.FMA: "fma"}  # fmt: skip
ARCHITECTURES: dict[str, type[Intrinsics]] = {
    "": Intrinsics,
    "x86": X86,
    "aarch64": AArch64,
    "hexagon": Hexagon,
    "nvptx": Nvptx,
    "amdgcn": Amdgcn,
}
LLVM_OPS = frozenset({*_BINARY, *_COMPARE, *_INTRINSICS, Ops.NEG, Ops.WHERE, Ops.CAST, Ops.BITCAST, Ops.FOLD})


def _numbers(lanes: Sequence[int]) -> str:
    return f"<{len(lanes)} x i32> <{', '.join(f'i32 {n}' for n in lanes)}>"


def _opcode(op: Op, dtype: DType) -> str:
    """The instruction for operands of this dtype."""
    if dtype.is_bool and op in _BOOL:
        return _BOOL[op]
    row = _COMPARE[op] if op in _COMPARE else _BINARY[op]
    return row[0 if dtype.is_float else 1 if dtype.is_signed else 2]


class LLVMRenderer(Renderer):
    """Text for llvmlite's parser (LLVM 20 or later: opaque pointers, `splat`)."""

    @property
    def function(self) -> type[LLVMFunction]:
        """The writer of a kernel."""
        return LLVMFunction

    def render(self, name: str, uops: Sequence[UOp]) -> str:
        """Source text of the kernel `name`."""
        return self.function(name, uops, self.target).text()

    def render_mapped(self, name: str, uops: Sequence[UOp]) -> tuple[str, list[tuple[int, int]]]:
        """The text, and the first line of each UOp's."""
        function = self.function(name, uops, self.target)
        text = function.text()
        above = text[: text.index("\nentry:\n", text.rindex("\ndefine ") if function.heap_bytes else 0)].count("\n") + 2
        above += len(function.allocas)
        return text, [(number, above + line) for number, line in enumerate(function.starts)]


# a kernel with memory from the heap: if the allocation fails, it reports that and computes nothing
_WITH_HEAP = """declare noalias ptr @malloc(i64)
declare void @free(ptr)
declare void @km_no_memory(i64)
{head}
entry:
  %memory = call ptr @malloc(i64 {bytes})
  %none = icmp eq ptr %memory, null
  br i1 %none, label %refused, label %given
refused:
  call void @km_no_memory(i64 {bytes})
  ret void
given:
  %inside = getelementptr i8, ptr %memory, i64 {line}
  %address = ptrtoint ptr %inside to i64
  %over = and i64 %address, {over}
  %back = sub i64 0, %over
  %heap = getelementptr i8, ptr %inside, i64 %back
  call void @{name}.inner(ptr %args, i64 %begin, i64 %end, ptr %heap)
  call void @free(ptr %memory)
  ret void
}}
"""


class LLVMLoop:
    """An open loop: its labels, and the accumulators that it changes."""

    def __init__(self, number: int, before: str, registers: list[UOp], step: int) -> None:
        self.body = f"loop{number}"
        self.exit = f"done{number}"
        self.before = before
        self.registers = registers
        self.step = step
        self.phis: dict[UOp, int] = {}  # accumulator -> its line, to be completed at the end
        self.counter = ""
        self.is_guarded = False


class LLVMFunction(Writer):
    """The text of one kernel under construction."""

    def __init__(self, name: str, uops: Sequence[UOp], target: Target) -> None:
        super().__init__(uops)
        self.name = name
        self.machine = ARCHITECTURES[target.instructions](target, self)
        self.signature = signature(uops)
        self.starts: list[int] = []  # of each UOp: how many lines precede its own
        self.heap_bytes = 0
        self.loops: list[LLVMLoop] = []
        self.block = "entry"
        self.has_streams = False
        self.spaces: dict[UOp, int] = {}  # of memory: the address space
        self.steps: dict[UOp, int] = {}  # of a network of shuffles
        self.changed = self._changed_registers()
        self.handlers: dict[Op, Callable[[UOp], None]] = {
            Ops.PARAM: self.argument, Ops.VARIABLE: self.argument, Ops.LOCAL: self.local, Ops.INDEX: self._index,
            Ops.LOAD: self._load, Ops.STORE: self._store, Ops.RANGE: self.open_loop, Ops.END: self.close_loop,
            Ops.REG: self._after, Ops.CARRY: self._after, Ops.SET: self._set, Ops.AFTER: self._after,
            Ops.CAST: self._cast, Ops.BITCAST: self._bitcast, Ops.WHERE: self._where, Ops.NEG: self._neg,
            Ops.BROADCAST: self._broadcast, Ops.FOLD: self._fold, Ops.LANE: self._lane, Ops.LANES: self._lanes,
            Ops.SHUFFLE: self.shuffle, Ops.TABLE: self._special, Ops.DOT: self._special, Ops.SCALE: self._special,
            Ops.MMA: lambda u: self.machine.mma(u), Ops.PREFETCH: lambda u: self._prefetch(u.src[0], u.arg),
        }  # fmt: skip

    def text(self) -> str:
        """The module."""
        self.begin_kernel()
        held = self.machine.unit_values
        self.machine.enter()
        for u in self.uops:
            self.starts.append(len(self.lines))
            if u in held or (u.op is Ops.STORE and u.src[1] in held):
                self.machine.mma(u)
            elif u.op is Ops.CONST:
                self.values[u] = constant(u.dtype, u.arg)
            elif u.op in self.handlers:
                self.handlers[u.op](u)
            else:
                self._elementwise(u)
        if self.has_streams:
            self.machine.end_streams()
        self.machine.leave()
        return "\n".join([self.head(), *self._body(), "}", *self.tail()]) + "\n"

    def begin_kernel(self) -> None:
        """Emit what precedes all ops."""

    def _body(self) -> list[str]:
        return ["entry:", *self.allocas, *self.lines, "  ret void"]

    def head(self) -> str:
        """The lines before the body."""
        parameters = "(ptr noundef %args, i64 noundef %begin, i64 noundef %end"
        head = f"define void @{self.name}{parameters}) #0 {{"
        if self.heap_bytes:
            head = _WITH_HEAP.format(head=head, name=self.name, bytes=self.heap_bytes + LINE, over=LINE - 1, line=LINE)
            head += f"define internal void @{self.name}.inner{parameters}, ptr noalias align {LINE} %heap) #0 {{"
        return head

    def tail(self) -> list[str]:
        """The lines behind the body."""
        attributes = 'attributes #0 = { nounwind "prefer-vector-width"="512" "no-trapping-math"="true" }'
        declared = [f"declare {text}" for text in self.declarations]
        return [*declared, attributes, "!0 = !{i32 1}", *self.machine.definitions()]

    def label(self, name: str) -> None:
        """Begin a block."""
        self.lines.append(f"{name}:")
        self.block = name

    # --- arguments and memory
    def argument(self, u: UOp) -> None:
        """PARAM or VARIABLE: variables come after the buffers."""
        slot = (*self.signature.params, *self.signature.variables).index(u)
        at = self.define(f"getelementptr i8, ptr %args, i64 {slot * 8}")
        self.values[u] = self.define(f"load {'ptr' if u.op is Ops.PARAM else 'i64'}, ptr {at}, align 8")

    def local(self, u: UOp) -> None:
        """LOCAL: on the stack, or from the C library's heap where a thread's stack may be too small."""
        name, size_bytes = self.fresh(), u.arg[1] * max(1, u.dtype.bits // 8)
        if size_bytes <= _ON_STACK:
            kind, aligned = llvm_type(u.dtype, True), max(LINE, self.machine.aligned_bytes)
            self.allocas.append(f"  {name} = alloca [{u.arg[1]} x {kind}], align {aligned}")
        else:
            self.allocas.append(f"  {name} = getelementptr i8, ptr %heap, i64 {self.heap_bytes}")
            self.heap_bytes += -(-size_bytes // LINE) * LINE
        self.values[u] = name

    def _index(self, u: UOp) -> None:
        """Emit an INDEX: an address, or a vector of them. A scalar gate that is false moves the address to the start
        of the buffer."""
        memory, index = self.values[u.src[0]], u.src[1]
        value = self.values[index]
        if u.gate is not None and u.gate.dtype.lanes == 1:
            value = self.define(f"select i1 {self.values[u.gate]}, i64 {value}, i64 0")
        kind = f"i64 {value}" if index.dtype.lanes == 1 else f"<{index.dtype.lanes} x i64> {value}"
        element, pointer = llvm_type(u.dtype.scalar, True), self.pointer(u)
        inside = "" if u.gate is not None and u.gate.dtype.lanes > 1 else "inbounds "  # masked lanes may be anywhere
        self.values[u] = self.define(f"getelementptr {inside}{element}, {pointer} {memory}, {kind}")

    def pointer(self, index: UOp) -> str:
        """The type of an address: with the number of the memory where the machine has several."""
        space = self.spaces.get(memory_of(index))
        return f"ptr addrspace({space})" if space else "ptr"

    def _masked(self, verbs: tuple[str, str], index: UOp, dtype: DType) -> tuple[str, tuple[tuple[str, object], ...]]:
        """Return the function for contiguous lanes with a mask, or for lanes with separate addresses; and the
        address. The lanes are as many as the machine needs for a mask."""
        gate, wide, is_apart = index.gate, self._with_mask(index, dtype), index.src[1].dtype.lanes > 1
        mask = "splat (i1 true)" if gate is None else self._lengthened(self.values[gate], gate.dtype, wide.lanes)
        pointer, space = self.pointer(index), f"p{self.spaces.get(memory_of(index), 0)}"
        where = f"<{wide.lanes} x {pointer}>" if is_apart else pointer, self.values[index]
        name = f"llvm.masked.{verbs[is_apart]}.{mangled(wide, True)}.{f'v{wide.lanes}' if is_apart else ''}{space}"
        return name, (where, ("i32", dtype.scalar.size_bytes), (f"<{wide.lanes} x i1>", mask))

    def _with_mask(self, index: UOp, dtype: DType) -> DType:
        is_apart = index.src[1].dtype.lanes > 1
        return dtype if is_apart else dtype.vec(max(dtype.lanes, self.machine.masked_bytes // dtype.scalar.size_bytes))

    def _lengthened(self, value: str, dtype: DType, lanes: int, *, in_memory: bool = False) -> str:
        """The value with more lanes, which are zero, or with its first ones."""
        if lanes == dtype.lanes:
            return value
        numbers = _numbers([min(lane, dtype.lanes) for lane in range(lanes)])
        kind = llvm_type(dtype, in_memory)
        return self.define(f"shufflevector {kind} {value}, {kind} zeroinitializer, {numbers}")

    def _masked_load(self, index: UOp, dtype: DType) -> str:
        wide = self._with_mask(index, dtype)
        name, where = self._masked(("load", "gather"), index, dtype)
        if self.machine.reads_behind_masks and index.src[1].dtype.lanes == 1:
            (of, address), *others = where
            where = (of, self._address_of_some(wide.lanes, others[-1][1], address, index)), *others
        kind = llvm_type(wide, True)
        return self._lengthened(self.define(self.call(kind, name, *where, (kind, "zeroinitializer"))), wide,
                                dtype.lanes, in_memory=True)  # fmt: skip

    def _address_of_some(self, lanes: int, mask: object, address: object, index: UOp) -> str:
        """The address, or the start of the buffer if the mask has no lane."""
        ones = f"<{lanes} x i32>"
        chosen = self.define(f"select <{lanes} x i1> {mask}, {ones} splat (i32 1), {ones} zeroinitializer")
        some = self.define(self.call("i32", f"llvm.vector.reduce.or.v{lanes}i32", (ones, chosen)))
        some = self.define(f"icmp ne i32 {some}, 0")
        pointer = self.pointer(index)
        return self.define(f"select i1 {some}, {pointer} {address}, {pointer} {self.values[index.src[0]]}")

    def _masked_store(self, index: UOp, dtype: DType, value: str) -> None:
        wide = self._with_mask(index, dtype)
        name, where = self._masked(("store", "scatter"), index, dtype)
        value = self._lengthened(value, dtype, wide.lanes, in_memory=True)
        self.emit(self.call("void", name, (llvm_type(wide, True), value), *where))

    def alignment(self, index: UOp, dtype: DType) -> int:
        """Return the alignment of an access that the text promises, in bytes."""
        each, most = dtype.scalar.size_bytes, self.machine.aligned_bytes
        if dtype.lanes == 1 or index.src[1].dtype.lanes > 1:
            return each
        memory = memory_of(index)
        if memory.op is Ops.LOCAL and memory.arg[1] * each > _ON_STACK:
            most = min(most, LINE)  # the heap's
        return max(each, gcd(multiple_of(index.src[1]) * each, dtype.size_bytes, most))

    def _load(self, u: UOp) -> None:
        index = u.src[0]
        kind, address, align = llvm_type(u.dtype, True), self.values[index], self.alignment(index, u.dtype)
        pointer = self.pointer(index)
        gate = index.gate
        lanes = u.dtype.lanes
        if index.src[1].dtype.lanes > 1 or (gate is not None and gate.dtype.lanes > 1):
            value = self._masked_load(index, u.dtype)
        else:
            how = "load volatile" if is_in_order(u) else "load"  # LLVM would reorder them by their uses
            if self.machine.loads_words and lanes > 1 and u.dtype.size_bytes == 4 and gate is None:
                self.words[u] = self.define(f"{how} i32, {pointer} {address}, align {align}")
                value = self.define(f"bitcast i32 {self.words[u]} to {kind}")
            else:
                value = self.define(f"{how} {kind}, {pointer} {address}, align {align}")
            if type(u.arg) is tuple and lanes > 1:
                self._prefetch(index, *u.arg)
            if gate is not None:
                zero = "0" if not u.dtype.is_float or u.dtype.scalar is dtypes.bfloat16 else "0.0"
                zero = zero if lanes == 1 else "zeroinitializer"
                value = self.define(f"select i1 {self.values[gate]}, {kind} {value}, {kind} {zero}")
        if u.dtype.is_bool:
            none = "0" if lanes == 1 else "zeroinitializer"
            value = self.define(f"icmp ne {kind} {value}, {none}")
        self.values[u] = value

    def _prefetch(self, index: UOp, ahead: int | None, cache: int = 2) -> None:
        address, pointer = self.values[index], self.pointer(index)
        address = self.define(f"getelementptr i8, {pointer} {address}, i64 {ahead}") if ahead else address
        kind = (1, 3) if ahead is None else (0, 4 - cache)  # 3: into L1
        self.emit(
            self.call(
                "void",
                f"llvm.prefetch.p{self.spaces.get(memory_of(index), 0)}",
                (pointer, address),
                *(("i32", n) for n in (*kind, 1)),
            )
        )

    def _store(self, u: UOp) -> None:
        index, stored = u.src
        kind, value = llvm_type(stored.dtype, True), self.values[stored]
        if stored.dtype.is_bool:
            value = self.define(f"zext {llvm_type(stored.dtype)} {value} to {kind}")
        address, align, pointer = self.values[index], self.alignment(index, stored.dtype), self.pointer(index)
        gate, is_apart = index.gate, index.src[1].dtype.lanes > 1
        is_one = gate is not None and gate.op is Ops.CONST and isinstance(gate.arg, tuple) and sum(gate.arg) == 1
        if gate is not None and is_one and not is_apart:
            # LLVM 22 stores one lane behind a constant mask in the size that it had before it was narrowed
            lane, one = gate.arg.index(True), llvm_type(stored.dtype.scalar, True)
            value = self.define(f"extractelement {kind} {value}, i32 {lane}")
            address = self.define(f"getelementptr {one}, {pointer} {address}, i64 {lane}")
            self.emit(f"store {one} {value}, {pointer} {address}, align {stored.dtype.scalar.size_bytes}")
        elif is_apart or (gate is not None and gate.dtype.lanes > 1):
            self._masked_store(index, stored.dtype, value)
        elif gate is not None:
            self.count += 1
            inside, after = f"store{self.count}", f"stored{self.count}"
            self.emit(f"br i1 {self.values[gate]}, label %{inside}, label %{after}")
            self.label(inside)
            self.emit(f"store {kind} {value}, {pointer} {address}, align {align}")
            self.emit(f"br label %{after}")
            self.label(after)
        else:
            self.emit(f"store {kind} {value}, {pointer} {address}, {self._store_flags(u, index, stored.dtype, align)}")

    def _store_flags(self, u: UOp, index: UOp, dtype: DType, align: int) -> str:
        """Streaming stores need whole aligned vectors."""
        if u.arg != "nt" or not is_aligned(index, dtype):
            return f"align {align}"
        self.has_streams = True
        return f"align {dtype.size_bytes}, !nontemporal !0"

    # --- loops and accumulators
    def _changed_registers(self) -> dict[UOp, list[UOp]]:
        """For each loop the accumulators that are set inside it and made outside it."""
        changed: dict[UOp, list[UOp]] = {}
        open_loops: list[UOp] = []
        made_at: dict[UOp, int] = {}
        for u in self.uops:
            if u.op is Ops.RANGE:
                changed[u] = []
                open_loops.append(u)
            elif u.op is Ops.END:
                open_loops.pop()
            elif u.op is Ops.REG:
                made_at[u] = len(open_loops)
            elif u.op is Ops.SET and u.src[1] not in self.machine.unit_values:
                for loop in open_loops[made_at[u.src[0]] :]:
                    if u.src[0] not in changed[loop]:
                        changed[loop].append(u.src[0])
        return changed

    def _set(self, u: UOp) -> None:
        self.values[u.src[0]] = self.values[u.src[1]]

    def _after(self, u: UOp) -> None:
        self.values[u] = self.values[u.src[0]]

    def open_loop(self, u: UOp) -> None:
        """RANGE."""
        is_thread = u.arg[1] == AxisKind.THREAD
        first, limit = ("%begin", "%end") if is_thread else ("0", self.values[u.src[0]])
        begin = u.first_iteration
        if is_thread and begin:
            first, limit = (self.define(f"sub i64 {at}, {begin}") for at in (first, limit))
            first = self.define(self.call("i64", "llvm.smax.i64", ("i64", first), ("i64", "0")))
        if is_thread and (begin is not None or u.src[0].op is not Ops.CONST):  # of all slices, or the greatest
            limit = self.define(self.call("i64", "llvm.smin.i64", ("i64", limit), ("i64", self.values[u.src[0]])))
        self.loop(u, first, limit, is_guarded=is_thread or not (u.src[0].op is Ops.CONST and u.src[0].arg > 0))

    def loop(self, u: UOp, first: str, limit: str, *, is_guarded: bool, step: int = 1) -> None:
        """Open a loop; `is_guarded`: it may run zero times."""
        self.count += 1
        loop = LLVMLoop(self.count, self.block, self.changed[u], step)
        self.emit(f"br label %{loop.body}")
        self.label(loop.body)
        self.values[u] = loop.counter = self.fresh()
        loop.phis[u] = len(self.lines)
        self.lines.append(f"  {loop.counter} = phi i64 [ {first}, %{loop.before} ]")
        for register in loop.registers:
            name = self.fresh()
            loop.phis[register] = len(self.lines)
            self.lines.append(f"  {name} = phi {llvm_type(register.dtype)} [ {self.values[register]}, %{loop.before} ]")
            self.values[register] = name
        if is_guarded:
            self._guard(loop, limit)
        self.loops.append(loop)

    def _guard(self, loop: LLVMLoop, limit: str) -> None:
        """A loop that may run zero times tests before its body."""
        loop.is_guarded = True
        more = self.define(f"icmp slt i64 {loop.counter}, {limit}")
        inside = f"{loop.body}.in"
        self.emit(f"br i1 {more}, label %{inside}, label %{loop.exit}")
        self.label(inside)

    def close_loop(self, u: UOp) -> None:
        """END."""
        loop, head = self.loops.pop(), u.src[0]
        following = self.define(f"add nuw nsw i64 {loop.counter}, {loop.step}")
        inner = {register: self.values[register] for register in loop.registers}
        for node, line in loop.phis.items():
            value = following if node is head else inner[node]
            self.lines[line] += f", [ {value}, %{self.block} ]"
        if loop.is_guarded:
            self.emit(f"br label %{loop.body}")
            for register in loop.registers:
                self.values[register] = self.lines[loop.phis[register]].split("=")[0].strip()
        else:
            more = self.define(f"icmp ult i64 {following}, {self.values[head.src[0]]}")
            self.emit(f"br i1 {more}, label %{loop.body}, label %{loop.exit}")
        self.label(loop.exit)

    # --- values
    def _elementwise(self, u: UOp) -> None:
        kind = llvm_type(u.src[0].dtype) if u.src else ""
        operands = [self.values[s] for s in u.src]
        if u.op in _INTRINSICS and u.src[0].dtype.is_float:
            name = f"llvm.{_INTRINSICS[u.op]}.{mangled(u.dtype)}"
            self.values[u] = self.define(self.call(kind, name, *((kind, o) for o in operands)))
        elif u.op in _INTRINSICS and u.op is not Ops.FMA:
            self.values[u] = operands[0]  # rounding an int
        elif u.op in _COMPARE or u.op in _BINARY:
            self.values[u] = self.define(f"{_opcode(u.op, u.src[0].dtype)} {kind} {operands[0]}, {operands[1]}")
        else:
            raise InternalError(f"llvmir: {u!r} has no instruction; it should have been decomposed")

    def _neg(self, u: UOp) -> None:
        kind, x = llvm_type(u.dtype), self.values[u.src[0]]
        self.values[u] = self.define(f"fneg {kind} {x}" if u.dtype.is_float else f"sub {kind} zeroinitializer, {x}")

    def _where(self, u: UOp) -> None:
        condition, yes, no = u.src
        self.values[u] = self.define(self.machine.select(condition, self.typed(yes), self.typed(no)))

    def _cast(self, u: UOp) -> None:
        (x,) = u.src
        a, b = x.dtype.scalar, u.dtype.scalar
        source, kind, value = llvm_type(x.dtype), llvm_type(u.dtype), self.values[x]
        if a is b or (a.is_int and b.is_int and a.bits == b.bits):
            self.values[u] = value
            return
        signed = a.is_signed
        if a.is_float and b.is_float:
            verb = "fpext" if b.bits > a.bits else "fptrunc"
        elif a.is_float:
            verb = "fptosi"  # the others are decomposed
        elif b.is_float:
            verb = "sitofp" if signed else "uitofp"
        else:
            verb = "trunc" if b.bits < a.bits else "sext" if signed else "zext"
        self.values[u] = self.define(f"{verb} {source} {value} to {kind}")

    def _bitcast(self, u: UOp) -> None:
        source, kind = llvm_type(u.src[0].dtype), llvm_type(u.dtype)
        same = source == kind
        self.values[u] = self.values[u.src[0]] if same else self.define(f"bitcast {self.typed(u.src[0])} to {kind}")

    # --- vectors
    def _broadcast(self, u: UOp) -> None:
        kind, lanes = llvm_type(u.dtype), u.dtype.lanes
        first = self.define(f"insertelement {kind} poison, {self.typed(u.src[0])}, i64 0")
        mask = f"<{lanes} x i32> zeroinitializer"
        self.values[u] = self.define(f"shufflevector {kind} {first}, {kind} poison, {mask}")

    def _lane(self, u: UOp) -> None:
        self.values[u] = self.define(f"extractelement {self.typed(u.src[0])}, i64 {u.arg}")

    def _lanes(self, u: UOp) -> None:
        value, kind = "poison", llvm_type(u.dtype)
        for number, s in enumerate(u.src):
            value = self.define(f"insertelement {kind} {value}, {self.typed(s)}, i64 {number}")
        self.values[u] = value

    def shuffle(self, u: UOp) -> None:
        """Emit a shuffle. After two steps of a network of shuffles (a transpose) LLVM is kept from looking through it.
        It would try all chains of shuffles, a third of its time for such a kernel, and find nothing shorter."""
        a, b = u.src
        if (found := self.machine.shuffle(u)) is not None:
            self.values[u] = found
            return
        self.values[u] = self.define(f"shufflevector {self.typed(a)}, {self.typed(b)}, {_numbers(u.arg)}")
        steps = self.steps.get(a, 0)
        self.steps[u] = steps + 1 if a is not b and steps == self.steps.get(b, 0) else 1
        is_float = u.dtype.scalar in (dtypes.float32, dtypes.float64)
        if self.machine.fences_shuffles and self.steps[u] == _STEPS and is_float:
            kind = llvm_type(u.dtype)
            fence = f"llvm.arithmetic.fence.{mangled(u.dtype)}"
            self.values[u], self.steps[u] = self.define(self.call(kind, fence, (kind, self.values[u]))), 0

    def _special(self, u: UOp) -> None:
        how = {Ops.TABLE: self.machine.table, Ops.DOT: self.machine.dot, Ops.SCALE: self.machine.scale}
        self.values[u] = how[u.op](u)

    def _fold(self, u: UOp) -> None:
        """Emit a sum of ints; other horizontal reductions are decomposed."""
        kind, vector = llvm_type(u.dtype), u.src[0]
        operand = llvm_type(vector.dtype), self.values[vector]
        self.values[u] = self.define(self.call(kind, f"llvm.vector.reduce.add.{mangled(vector.dtype)}", operand))
