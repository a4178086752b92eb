"""Hexagon: byte products and comparisons, compiled here."""

from __future__ import annotations

import pytest

from kernmill.compiler import parse_schedule
from kernmill.ir import DType, Op, Ops, Target, UOp, const, dtypes, elementwise, permute
from kernmill.renderers import LLVM_OPS, LLVMRenderer
from kernmill.runtime import hexagon, host, llvm_codegen, llvm_process
from tests.compiler.kernels import data, lowered, only

V67 = host.Host("hexagon", "hexagonv67", ("+hvxv67", "+hvx-length128b", "-small-data"), 32 << 10, 256 << 10, 0,
                "hexagon-unknown-linux-musl")  # fmt: skip
HVX = Target("hexagon", vector_bytes=128, instructions="hexagon", ops=LLVM_OPS)
PAIRS = [(dtypes.uint8, dtypes.int8), (dtypes.int8, dtypes.int8), (dtypes.uint8, dtypes.uint8)]


@pytest.mark.parametrize("lanes", [4, 32])
@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_dots(pair: tuple[DType, DType], lanes: int) -> None:
    places = [UOp(Ops.INDEX, kind.vec(4 * lanes), (UOp(Ops.PARAM, kind, (), (slot, 4 * lanes)), const(dtypes.index, 0)))
              for slot, kind in enumerate(pair)]  # fmt: skip
    a, b = (UOp(Ops.LOAD, place.dtype, (place,)) for place in places)
    kind = dtypes.int32.vec(lanes)
    dot = UOp(Ops.DOT, kind, (a, b, const(kind, 0)))
    out = UOp(Ops.INDEX, kind, (UOp(Ops.PARAM, dtypes.int32, (), (2, lanes)), const(dtypes.index, 0)))
    uops = [*UOp(Ops.STORE, dtypes.void, (out, dot)).toposort()]
    text = llvm_codegen.assembly(LLVMRenderer(HVX).render("k", uops), V67)
    assert "vrmpy" in text


@pytest.mark.parametrize("lanes", [16, 64, 128])
def test_tables(lanes: int) -> None:
    """Bytes of a table are every second one of a register."""
    kind, zero = dtypes.int8.vec(lanes), const(dtypes.index, 0)
    place = UOp(Ops.INDEX, dtypes.uint8.vec(lanes), (UOp(Ops.PARAM, dtypes.uint8, (), (0, lanes)), zero))
    found = UOp(Ops.TABLE, kind, (UOp(Ops.LOAD, place.dtype, (place,)),), tuple(range(-8, 8)))
    out = UOp(Ops.INDEX, kind, (UOp(Ops.PARAM, dtypes.int8, (), (1, lanes)), zero))
    source = LLVMRenderer(HVX).render("k", [*UOp(Ops.STORE, dtypes.void, (out, found)).toposort()])
    assert f"<i32 {248 | 249 << 16}, i32 {250 | 251 << 16}" in source
    assert "vlut32" in llvm_codegen.assembly(source, V67)


@pytest.mark.parametrize("op", [Ops.MAX, Ops.MIN, Ops.EXP, Ops.TANH])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64], ids=str)
def test_comparisons_keep_nan(op: Op, dtype: DType) -> None:
    """LLVM made `a < b ? b : a` the instruction sfmax, which drops nan."""
    target = Target("hexagon-scalar", instructions="hexagon", ops=LLVM_OPS)
    x = data(0, 64, dtype=dtype)
    root = elementwise(op, x, data(1, 64, dtype=dtype)) if op in (Ops.MAX, Ops.MIN) else elementwise(op, x)
    text = llvm_codegen.assembly(LLVMRenderer(target).render("k", lowered(only(root), target)), V67)
    assert not any(name in text for name in ("sfmax", "sfmin", "dfmax", "dfmin"))


@pytest.mark.parametrize("lanes", [16, 32])
def test_a_mask_of_few_bytes_is_kept(lanes: int) -> None:
    """Named regression: LLVM drops the mask of vectors below half a register, so stores wrote behind their tensor."""
    number = UOp(Ops.PARAM, dtypes.int8, (), (0, lanes))
    start, kind = const(dtypes.index, 0), dtypes.int8.vec(lanes)
    gate = const(dtypes.bool.vec(lanes), tuple(lane < lanes // 2 for lane in range(lanes)))
    out = UOp(Ops.INDEX, kind, (UOp(Ops.PARAM, dtypes.int8, (), (1, lanes)), start, gate))
    loaded = UOp(Ops.LOAD, kind, (UOp(Ops.INDEX, kind, (number, start, gate)),))
    text = LLVMRenderer(HVX).render("k", [*UOp(Ops.STORE, dtypes.void, (out, loaded)).toposort()])
    assert text.count("llvm.masked.load.v64i8") == text.count("llvm.masked.store.v64i8") == 2


def test_a_transpose_of_vectors_of_floats() -> None:
    """Named regression: LLVM's scheduler ended the process for v73, because of fences between the shuffles."""
    target, machine = hexagon.hexagon_target(73), hexagon.hexagon_host(73)
    root = permute(data(0, 512, 512), (1, 0)) + 0.0
    schedule = parse_schedule("vectorize i1 32; unroll i0 32")
    text = LLVMRenderer(target).render("k", lowered(only(root), target, schedule))
    assert text.count("shufflevector <32 x float>") >= 5 * 32
    apart = llvm_process.CompilerProcess()
    try:
        made = apart.submit(text, machine.cpu, ",".join(machine.features), machine.triple, how="emit_assembly")(60)
    finally:
        apart.close()
    assert made is not None
    assert made.count(b"vshuff") + made.count(b"vdeal") + made.count(b"vdelta") > 0
