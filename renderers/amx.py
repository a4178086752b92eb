"""Intel's matrix unit (AMX): its products, the assignment of its eight tiles, and functions that emulate it.

A tile is a value of 1,024 bytes: 16 rows of 64. Tiles have immediate numbers, so they are assigned here, in one walk
over the list. On a CPU without the unit every instruction can be a call of a small function on memory instead. The rest
of a kernel is then compiled and run as with the unit.

Source: Intel 64 and IA-32 Architectures Software Developer's Manual, chapter 18 and LDTILECFG.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kernmill.ir import CompileError, DType, InternalError, Ops, Unit, UOp, dtypes

__all__ = ["AMX_CONFIG", "AMX_TILES", "AMX_UNITS", "amx_functions", "amx_instruction", "tile_numbers"]

AMX_TILES = 8
_TILE_BYTES = 1024
_S8, _U8, _BF16, _F16 = dtypes.int8, dtypes.uint8, dtypes.bfloat16, dtypes.float16
_NAMES: dict[tuple[DType, DType], str] = {
    (_S8, _S8): "tdpbssd",
    (_S8, _U8): "tdpbsud",
    (_U8, _S8): "tdpbusd",
    (_U8, _U8): "tdpbuud",
    (_BF16, _BF16): "tdpbf16ps",
    (_F16, _F16): "tdpfp16ps",
}
AMX_UNITS: dict[str, tuple[Unit, ...]] = {  # by LLVM's name of the feature
    "amx-int8": tuple(Unit(a, b, dtypes.int32, 16, 16, 64, 4) for a, b in _NAMES if a.is_int),
    "amx-bf16": (Unit(_BF16, _BF16, dtypes.float32, 16, 16, 32, 2),),
    "amx-fp16": (Unit(_F16, _F16, dtypes.float32, 16, 16, 32, 2),),
}
# palette 1, eight tiles of 64 bytes by 16 rows
AMX_CONFIG = bytes([1, *[0] * 15, *[64, 0] * AMX_TILES, *[0] * 16, *[16] * AMX_TILES, *[0] * 8])


def amx_instruction(u: UOp) -> str:
    """The instruction of a MMA."""
    name = _NAMES.get((u.src[0].dtype.scalar, u.src[1].dtype.scalar))
    if name is None or u.dtype.size_bytes != _TILE_BYTES:
        raise InternalError(f"amx: {u!r} is not a product of tiles")
    return name


def tile_numbers(uops: Sequence[UOp]) -> dict[UOp, int]:
    """Return the tile number of each value that is a tile; empty without products, however long vectors are. A sum
    stays in its tile, from its REG to the AFTER that ends it.

    Raises:
        CompileError: more values are live at a time than there are tiles.
    """
    if not any(u.op is Ops.MMA for u in uops):
        return {}
    owner: dict[UOp, UOp] = {}
    begin: dict[UOp, int] = {}
    last: dict[UOp, int] = {}
    ends = {u.src[0]: at for at, u in enumerate(uops) if u.op is Ops.END}
    loops: list[tuple[int, UOp]] = []
    for at, u in enumerate(uops):
        if u.op is Ops.RANGE:
            loops.append((at, u))
        elif u.op is Ops.END:
            loops.pop()
        elif u.dtype.size_bytes == _TILE_BYTES and u.op in (Ops.LOAD, Ops.REG, Ops.CARRY, Ops.AFTER, Ops.MMA):
            before = u.src[2] if u.op is Ops.MMA else u.src[0]
            owner[u] = owner.get(before, u)
            begin.setdefault(owner[u], at)
        for tile in {owner[s] for s in u.src if s in owner}:  # in a loop it is needed again until the loop ends
            around = next((ends[loop] for start, loop in loops if start > begin[tile]), at)
            last[tile] = max(last.get(tile, 0), around)
    numbers: dict[UOp, int] = {}
    used = dict.fromkeys(range(AMX_TILES), -1)  # until when
    for u in begin:
        free = [number for number in used if used[number] < begin[u]]
        if not free:
            raise CompileError(
                f"amx: a kernel needs more than {AMX_TILES} tiles at a time. Unroll fewer blocks of rows and columns."
            )
        numbers[u] = min(free, key=lambda number: used[number])
        used[numbers[u]] = last.get(u, 0)
    return {u: numbers[tile] for u, tile in owner.items()}


# --- the same as functions -------------------------------------------------------------------------------------------
_MOVE = """define internal void @{name}(ptr %tile, ptr %memory, i64 %step) #0 {{
  %v = load <256 x i32>, ptr %{source}, align 1
  store <256 x i32> %v, ptr %{target}, align 1
  ret void
}}"""
_ZERO = """define internal void @tilezero(ptr %a) #0 {
  store <256 x i32> zeroinitializer, ptr %a, align 64
  ret void
}"""
_DOT = """define internal void @{name}(ptr %c, ptr %a, ptr %b) #0 {{
entry:
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %row = lshr i64 %i, 4
  %k = and i64 %i, 15
  %ao = mul i64 %i, 4
  %bo = mul i64 %k, 64
  %co = mul i64 %row, 64
  %ap = getelementptr i8, ptr %a, i64 %ao
  %bp = getelementptr i8, ptr %b, i64 %bo
  %cp = getelementptr i8, ptr %c, i64 %co
  %one = load i32, ptr %ap, align 4
  %first = insertelement <16 x i32> poison, i32 %one, i64 0
  %a.s = shufflevector <16 x i32> %first, <16 x i32> poison, <16 x i32> zeroinitializer
  %b.s = load <16 x i32>, ptr %bp, align 64
  %c0 = load <16 x {kind}>, ptr %cp, align 64
{terms}
  store <16 x {kind}> %c{group}, ptr %cp, align 64
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, 256
  br i1 %more, label %loop, label %done
done:
  ret void
}}"""


def amx_functions(names: Iterable[str]) -> str:
    """Return functions that emulate the instructions of these names; tiles are passed to them in memory."""
    return "\n".join(_function(name) for name in sorted(names))


def _function(name: str) -> str:
    if name == "tilezero":
        return _ZERO
    if name in ("tileloadd64", "tilestored64"):
        source, target = ("memory", "tile") if name == "tileloadd64" else ("tile", "memory")
        return _MOVE.format(name=name, source=source, target=target)  # rows of a block follow each other
    a, b = next(pair for pair, own in _NAMES.items() if own == name)
    group, multiply, add, kind = (2, "fmul", "fadd", "float") if a.is_float else (4, "mul", "add", "i32")
    wide, sums = f"<{16 * group} x {kind}>", f"<16 x {kind}>"
    terms = [*_widened("a", a, group), *_widened("b", b, group), f"%m = {multiply} {wide} %a.w, %b.w"]
    for n in range(group):
        lanes = ", ".join(f"i32 {lane}" for lane in range(n, 16 * group, group))
        terms += [f"%m{n} = shufflevector {wide} %m, {wide} poison, <16 x i32> <{lanes}>",
                  f"%c{n + 1} = {add} {sums} %c{n}, %m{n}"]  # fmt: skip
    return _DOT.format(name=name, kind=kind, group=group, terms="\n".join(f"  {line}" for line in terms))


def _widened(side: str, dtype: DType, group: int) -> list[str]:
    """Lines that make int32 or float32 of the values in 16 words."""
    lanes, narrow = 16 * group, "half" if dtype is _F16 else f"i{dtype.bits}"
    bits = f"%{side}.b = bitcast <16 x i32> %{side}.s to <{lanes} x {narrow}>"
    if dtype is _BF16:
        return [bits, f"%{side}.z = zext <{lanes} x i16> %{side}.b to <{lanes} x i32>",
                f"%{side}.h = shl <{lanes} x i32> %{side}.z, splat (i32 16)",
                f"%{side}.w = bitcast <{lanes} x i32> %{side}.h to <{lanes} x float>"]  # fmt: skip
    verb, kind = ("fpext", "float") if dtype is _F16 else ("zext" if dtype is _U8 else "sext", "i32")
    return [bits, f"%{side}.w = {verb} <{lanes} x {narrow}> %{side}.b to <{lanes} x {kind}>"]
