"""x86-64: table lookups, powers of two, dot products of bytes and bfloat16, and Intel's matrix unit (AMX)."""

from __future__ import annotations

from collections.abc import Sequence

from kernmill.ir import Ops, Target, UOp

from ..amx import AMX_CONFIG, amx_functions, amx_instruction, tile_numbers
from ..llvm_text import LINE, Writer, constant, llvm_type
from .base import Intrinsics

__all__ = ["X86"]

_TABLES = {16: "ssse3.pshuf.b.128", 32: "avx2.pshuf.b", 64: "avx512.pshuf.b.512", 128: "avx512.vpermi2var.qi.512"}
_HALF_BYTE = 127  # times a byte, twice, is a number of 16 bits
_PAIRS_OF_BYTES = ("ssse3.pmadd.ub.sw.128", "avx2.pmadd.ub.sw", "avx512.pmaddubs.w.512")  # by size, as the next ones
_PAIRS_OF_WORDS = ("sse2.pmadd.wd", "avx2.pmadd.wd", "avx512.pmaddw.d.512")


class X86(Intrinsics):
    """Instructions from SSSE3 to AVX512 and AMX."""

    def __init__(self, target: Target, writer: Writer) -> None:
        super().__init__(target, writer)
        self.unit_values = tile_numbers(writer.uops)
        self.has_tiles = not target.emulates_units
        self.functions: dict[str, None] = {}  # that emulate the matrix unit

    def end_streams(self) -> None:
        """Emit a fence: non-temporal stores are not ordered."""
        self.w.emit(self.w.call("void", "llvm.x86.sse.sfence"))

    def table(self, u: UOp) -> str:
        """SSSE3, AVX2, AVX512BW: indices within each 16 bytes; AVX512VBMI: within 128 bytes."""
        kind, lanes = llvm_type(u.dtype), u.dtype.lanes
        index, *tables = ((kind, self.w.values[s]) for s in u.src)
        table = ", ".join(f"i8 {byte}" for byte in (u.arg or ()) * (lanes // 16))
        operands = (tables[0], index, tables[1]) if tables else ((kind, f"<{table}>"), index)
        return self.w.define(self.w.call(kind, f"llvm.x86.{_TABLES[lanes << len(tables) // 2]}", *operands))

    def scale(self, u: UOp) -> str:
        """AVX512F, a whole register. Lanes whose 2**b is taken for 0 are masked: underflow takes an assist."""
        kind, is_short, lanes = llvm_type(u.dtype), u.dtype.bits == 32, u.dtype.lanes
        a, b = ((kind, self.w.values[s]) for s in u.src)
        some = self.w.define(f"fcmp une {kind} {b[1]}, {constant(u.dtype, -254.0 if is_short else -2046.0)}")
        mask = self.w.define(f"bitcast <{lanes} x i1> {some} to i{lanes}")
        name = f"llvm.x86.avx512.mask.scalef.p{'s' if is_short else 'd'}.512"
        more = (kind, "zeroinitializer"), (f"i{lanes}", mask), ("i32", 4)
        return self.w.define(self.w.call(kind, name, a, b, *more))

    def dot(self, u: UOp) -> str:
        """Unsigned by signed bytes, given as words of four (AVX512-VNNI, AVX-VNNI), or bfloat16 (AVX512-BF16)."""
        w = self.w
        if self.target.dot_most <= _HALF_BYTE and not u.dtype.is_float:
            return self._dot_in_steps(u)
        kind, is_float, size = llvm_type(u.dtype), u.dtype.is_float, u.dtype.bits * u.dtype.lanes
        name = f"llvm.x86.{'avx512bf16.dpbf16ps' if is_float else 'avx512.vpdpbusd'}.{size}"
        given = f"<{u.src[0].dtype.lanes} x bfloat>" if is_float else kind
        words = [w.define(f"bitcast {w.typed(s)} to {given}") for s in u.src[:2]]
        return w.define(w.call(kind, name, (kind, w.values[u.src[2]]), *((given, word) for word in words)))

    def _dot_in_steps(self, u: UOp) -> str:
        """Emit byte products for x86 before VNNI. Sums of two products have 16 bits if one byte is below 128; others
        use every second byte as a number of 16 bits."""
        w, kind, lanes, bits = self.w, llvm_type(u.dtype), u.dtype.lanes, u.dtype.bits * u.dtype.lanes
        pair, level = f"<{2 * lanes} x i16>", {128: 0, 256: 1, 512: 2}[bits]
        if w.most(u.src[0]) <= _HALF_BYTE:
            given = [(llvm_type(s.dtype), w.values[s]) for s in u.src[:2]]
            twos = w.define(w.call(pair, f"llvm.x86.{_PAIRS_OF_BYTES[level]}", *given))
            products = [(twos, "splat (i16 1)")]
        else:
            a, b = (w.define(f"bitcast {w.typed(s)} to {pair}") for s in u.src[:2])
            left = w.define(f"shl {pair} {b}, splat (i16 8)")
            steps = [("and", a, 255), ("ashr", left, 8), ("lshr", a, 8), ("ashr", b, 8)]
            even, even_b, odd, odd_b = (w.define(f"{op} {pair} {v}, splat (i16 {n})") for op, v, n in steps)
            products = [(even, even_b), (odd, odd_b)]
        total = w.values[u.src[2]]
        for two in products:
            sums = w.call(kind, f"llvm.x86.{_PAIRS_OF_WORDS[level]}", *((pair, value) for value in two))
            total = w.define(f"add {kind} {total}, {w.define(sums)}")
        return total

    # --- the matrix unit
    def enter(self) -> None:
        """Configure the tiles. Other code of the thread may rely on the unit's state, so it is saved."""
        if self.unit_values and self.has_tiles:
            self.w.allocas.append(f"  %config = alloca [{len(AMX_CONFIG)} x i8], align {LINE}")
            self._unit("sttilecfg", "ptr %config")
            self._unit("ldtilecfg", "ptr @tile_config")
        else:
            numbers = sorted({*self.unit_values.values()})
            self.w.allocas += [f"  %tile{n} = alloca [1024 x i8], align {LINE}" for n in numbers]

    def leave(self) -> None:
        """Restore the unit's state."""
        if self.unit_values and self.has_tiles:
            self._unit("ldtilecfg", "ptr %config")

    def definitions(self) -> Sequence[str]:
        """The configuration of the tiles, or functions that emulate the unit."""
        if not self.unit_values:
            return ()
        if not self.has_tiles:
            return (amx_functions(self.functions),)
        kind, config = f"[{len(AMX_CONFIG)} x i8]", "".join(f"\\{byte:02X}" for byte in AMX_CONFIG)
        return (f'@tile_config = private unnamed_addr constant {kind} c"{config}", align {LINE}',)

    def mma(self, u: UOp) -> None:
        """Emit a value that is a tile (amx.py assigns it): a sum stays in its tile."""
        tiles = self.unit_values
        self.w.values[u] = ""
        if u.op is Ops.REG or (u.op is Ops.MMA and u.src[2].is_const):
            self._unit("tilezero", tiles[u])
        if u.op is Ops.MMA:
            self._unit(amx_instruction(u), *(tiles[s] for s in (u, *u.src[:2])))
        elif u.op is Ops.LOAD:
            self._unit("tileloadd64", tiles[u], f"ptr {self.w.values[u.src[0]]}", f"i64 {LINE}")
        elif u.op is Ops.STORE:
            self._unit("tilestored64", tiles[u.src[1]], f"ptr {self.w.values[u.src[0]]}", f"i64 {LINE}")

    def _unit(self, name: str, *operands: int | str) -> None:
        """An instruction of the matrix unit; a number among its operands is a tile's."""
        tile = "i8 {}" if self.has_tiles else "ptr %tile{}"
        texts = [o if isinstance(o, str) else tile.format(o) for o in operands]
        if self.has_tiles:
            self.w.emit(self.w.call("void", f"llvm.x86.{name}", *((of, value) for of, value in map(str.split, texts))))
        else:
            self.functions[name] = None
            self.w.emit(f"call void @{name}({', '.join(texts)})")
