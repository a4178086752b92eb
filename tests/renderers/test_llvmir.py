"""LLVM IR: golden files of small kernels, and what must or must not be in the text."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kernmill.ir import DType, InternalError, Ops, Target, UOp, const, dtypes, elementwise, permute, reduce_axes, take
from kernmill.renderers import LLVM_OPS, LLVMRenderer
from kernmill.runtime import host, llvm_codegen
from tests.compiler.kernels import VECTORS, data, lowered, matmul, only, small_kernels
from tests.renderers.language import GOLDEN, X, has, lacks, render_with

if TYPE_CHECKING:
    from tests.conftest import Golden


def render(root: UOp, schedule: str | None = None, target: Target = VECTORS) -> str:
    return render_with(LLVMRenderer, root, schedule, target, "kernel")


# --- golden files ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", GOLDEN)
def test_of(name: str, golden: Golden) -> None:
    assert render(*GOLDEN[name]) == golden


def test_transposed_block(golden: Golden) -> None:
    assert render(permute(data(0, 16, 16), (1, 0)) + 1.0, "vectorize i1 4; unroll i0 4") == golden


def test_int8_product(golden: Golden) -> None:
    left, right = (data(slot, 32, 32, dtype=dtypes.int8).cast(dtypes.int32) for slot in (0, 1))
    target = replace(VECTORS, dots=frozenset({(dtypes.uint8, dtypes.int8)}))
    schedule = "vectorize i1 16; unroll i0 2; unroll k0 4; order i1 i0; stage 2 k0 i1.v k0.u"
    assert render(matmul(left, right), schedule, target) == golden


def test_bfloat16_product(golden: Golden) -> None:
    left, right = (data(slot, 32, 32, dtype=dtypes.bfloat16).cast(dtypes.float32) for slot in (0, 1))
    target = replace(VECTORS, dots=frozenset({(dtypes.bfloat16, dtypes.bfloat16)}))
    schedule = "vectorize i1 16; unroll i0 2; unroll k0 2; order i1 i0; stage 2 k0 i1.v k0.u"
    assert render(matmul(left, right), schedule, target) == golden


def test_bytes_of_a_table_in_registers(golden: Golden) -> None:
    places = data(1, 64, dtype=dtypes.uint8).cast(dtypes.int32)
    target = replace(VECTORS, table_bytes=128)
    assert render(take(data(0, 256, dtype=dtypes.int8), places, 0), "vectorize i0 64", target) == golden


# --- what must be there, and what must not ---------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("dtype", "has_fences"), [(dtypes.float32, True), (dtypes.float64, True), (dtypes.int32, False)]
)
def test_llvm_does_not_look_through_more_than_two_steps_of_a_transpose(dtype: DType, has_fences: bool) -> None:
    text = render(permute(data(0, 16, 16, dtype=dtype), (1, 0)), "vectorize i1 8; unroll i0 8")
    assert text.count("shufflevector") == 3 * 8
    assert text.count("= call <8 x ") == (8 if has_fences else 0)
    assert text.count("@llvm.arithmetic.fence.v8f") == (9 if has_fences else 0), "8 calls and a declaration"


@pytest.mark.parametrize(("dtype", "letter", "least"), [(dtypes.float32, "s", -254.0), (dtypes.float64, "d", -2046.0)])
def test_powers_of_two_of_a_register_are_one_instruction(dtype: DType, letter: str, least: float) -> None:
    """Where e**x is surely 0 the lanes are masked: an instruction that underflows takes a microcode assist."""
    lanes = 512 // dtype.bits
    target = replace(VECTORS, ops=LLVM_OPS | {Ops.SCALE})
    text = render(elementwise(Ops.EXP, data(0, 64, dtype=dtype)), f"vectorize i0 {lanes}", target)
    has(
        text,
        f"call <{lanes} x {'float' if dtype.bits == 32 else 'double'}> @llvm.x86.avx512.mask.scalef.p{letter}.512(",
    )
    has(text, "fcmp une", f"bitcast <{lanes} x i1>", "zeroinitializer")
    lacks(text, "lshr")
    lacks(render(elementwise(Ops.EXP, data(0, 64, dtype=dtype)), "vectorize i0 4", target), "scalef")
    assert np.float64(least).view(np.uint64) == int(re.findall(r"fcmp une .*splat \(\w+ 0x(\w+)\)", text)[0], 16)


def test_products_are_fused_into_sums() -> None:
    text = render(matmul(data(0, 64, 64), data(1, 64, 64)))
    has(text, "call <16 x float> @llvm.fma.v16f32(")
    lacks(text, "fmul", "fadd <16")


def test_what_the_user_wrote_keeps_its_two_roundings() -> None:
    text = render(elementwise(Ops.ADD, elementwise(Ops.MUL, X, data(1, 6, 32)), data(2, 6, 32)))
    has(text, "fmul <16 x float>", "fadd <16 x float>")
    lacks(text, "llvm.fma", "fmuladd", " fast ", "contract", "reassoc")


def test_without_the_instruction_there_is_no_fma() -> None:
    text = render(matmul(data(0, 64, 64), data(1, 64, 64)), None, replace(VECTORS, ops=LLVM_OPS - {Ops.FMA}))
    lacks(text, "llvm.fma")


def test_large_streams_go_around_the_caches() -> None:
    text = render(data(0, 4096, 4096) + 1.0)
    has(text, "!nontemporal !0", "@llvm.x86.sse.sfence")
    lacks(render(X + 1.0), "!nontemporal", "sfence")


def test_tails_are_masked_and_bodies_are_not() -> None:
    has(render(data(0, 37) * 2.0, "vectorize i0 16"), "@llvm.masked.load.v16f32.p0(", "@llvm.masked.store.v16f32.p0(")
    lacks(render(data(0, 64) * 2.0, "vectorize i0 16"), "masked")


def test_far_apart_is_gathered() -> None:
    has(render(permute(X, (1, 0)) + 1.0, "vectorize i1 2"), "@llvm.masked.gather.v2f32.v2p0")


def test_every_second_is_shuffled() -> None:
    from kernmill.ir import strided

    text = render(strided(X, (1, 2)) + 1.0, "vectorize i0 16")
    has(text, "shufflevector")
    lacks(text, "gather")


def test_a_dot_takes_words_of_four_bytes() -> None:
    ints = dtypes.int32
    a, b = (const(dtype.vec(64), 1) for dtype in (dtypes.uint8, dtypes.int8))
    uops = [a, b, c := const(ints.vec(16), 0), UOp(Ops.DOT, ints.vec(16), (a, b, c))]
    text = LLVMRenderer(VECTORS).render("kernel", uops)
    has(text, "bitcast <64 x i8>", "call <16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32>")


@pytest.mark.parametrize(("lanes", "bytes_", "words"), [
    (4, "ssse3.pmadd.ub.sw.128", "sse2.pmadd.wd"),
    (8, "avx2.pmadd.ub.sw", "avx2.pmadd.wd"),
    (16, "avx512.pmaddubs.w.512", "avx512.pmaddw.d.512"),
])  # fmt: skip
def test_a_dot_in_steps(lanes: int, bytes_: str, words: str) -> None:
    """Bytes below 128 are added up by twos in 16 bits; others become numbers of 16 bits first."""
    ints = dtypes.int32.vec(lanes)
    for most, has_pairs in ((127, True), (128, False)):
        a, b, c = const(dtypes.uint8.vec(4 * lanes), most), const(dtypes.int8.vec(4 * lanes), -128), const(ints, 0)
        text = LLVMRenderer(replace(VECTORS, dot_most=127)).render("kernel", [a, b, c, UOp(Ops.DOT, ints, (a, b, c))])
        assert (f"@llvm.x86.{bytes_}(" in text) is has_pairs
        assert text.count(f"call <{lanes} x i32> @llvm.x86.{words}(") == (1 if has_pairs else 2)
        lacks(text, "vpdpbusd")


def test_bytes_that_a_kernel_keeps_are_as_large_as_what_it_stored() -> None:
    x = data(0, 64, dtype=dtypes.uint8)
    kept = UOp(Ops.LOCAL, dtypes.uint8, (), ("t", 64))
    place = UOp(Ops.INDEX, dtypes.uint8.vec(64), (kept, const(dtypes.index.vec(64), tuple(range(64)))))
    codes = UOp(Ops.LOAD, dtypes.uint8.vec(64), (UOp(Ops.INDEX, dtypes.uint8.vec(64), (x, place.src[1])),))
    for mask, has_pairs in ((15, True), (255, False)):
        store = UOp(Ops.STORE, dtypes.void, (place, codes & mask))
        a = UOp(Ops.LOAD, dtypes.uint8.vec(64), (place,))
        b, c = const(dtypes.int8.vec(64), 1), const(dtypes.int32.vec(16), 0)
        dot = UOp(Ops.DOT, dtypes.int32.vec(16), (a, b, c))
        uops = [*dict.fromkeys(n for u in (store, dot) for n in u.toposort() if n.op is not Ops.SINK)]
        text = LLVMRenderer(replace(VECTORS, dot_most=127)).render("kernel", uops)
        assert ("pmaddubs" in text) is has_pairs


@pytest.mark.parametrize("lanes", [4, 8, 16])
def test_a_dot_takes_pairs_of_bfloat16(lanes: int) -> None:
    a, b = (const(dtypes.bfloat16.vec(2 * lanes), value) for value in (1, 2))
    kind = dtypes.float32.vec(lanes)
    uops = [a, b, c := const(kind, 0), UOp(Ops.DOT, kind, (a, b, c))]
    text = LLVMRenderer(VECTORS).render("kernel", uops)
    name = f"call <{lanes} x float> @llvm.x86.avx512bf16.dpbf16ps.{32 * lanes}(<{lanes} x float>"
    has(text, f"bitcast <{2 * lanes} x i16>", f"to <{2 * lanes} x bfloat>", name)


FUNCTIONS = [
    Ops.EXP,
    Ops.EXP2,
    Ops.LOG,
    Ops.LOG2,
    Ops.SIN,
    Ops.COS,
    Ops.TANH,
    Ops.ERF,
    Ops.SQRT,
    Ops.FLOOR,
    Ops.CEIL,
    Ops.ROUND,
]
OURS = {"fma", "sqrt", "floor", "ceil", "trunc", "roundeven", "fabs", "abs", "masked", "x86", "prefetch"}


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.float16, dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("op", FUNCTIONS, ids=str)
def test_no_function_of_a_library_is_called(op: object, dtype: DType) -> None:
    text = render(data(0, 64, dtype=dtype).alu(op))  # type: ignore[arg-type]
    called = set(re.findall(r"@llvm\.(\w+)", text))
    assert called <= OURS
    assert not re.findall(r"@(?!llvm\.|kernel)", text)


def test_no_fast_math_flag_is_ever_used() -> None:
    for ast in small_kernels().values():
        text = LLVMRenderer(VECTORS).render("k", lowered(ast, VECTORS))
        assert not re.search(r"\b(fast|nnan|ninf|nsz|arcp|contract|afn|reassoc)\b", text)


@pytest.mark.parametrize(("cache", "locality"), [("", 3), (" L2", 2)])
def test_prefetches_say_which_cache(cache: str, locality: int) -> None:
    text = render(data(0, 1 << 17) + 1.0, f"vectorize i0 16; prefetch 4096{cache}")
    assert re.findall(r"prefetch\.p0\(ptr \S+ i32 0, i32 (\d), i32 1\)", text) == [str(locality)]


def test_loads_in_order_are_volatile() -> None:
    """LLVM's scheduler orders others by what is made of them."""
    has(render(data(0, 1 << 17) + 1.0, "vectorize i0 16; inorder"), "load volatile <16 x float>")
    assert "volatile" not in render(data(0, 1 << 17) + 1.0, "vectorize i0 4; inorder")  # less than half a line


def test_bools_are_bytes_in_memory() -> None:
    text = render(elementwise(Ops.LT, X, data(1, 6, 32)))
    has(text, "fcmp olt <16 x float>", "zext <16 x i1>", "<16 x i8>")


def test_unsigned_ints_have_their_own_instructions() -> None:
    u, v = data(0, 64, dtype=dtypes.uint32), data(1, 64, dtype=dtypes.uint32)
    has(render(elementwise(Ops.MAX, u, v)), "icmp ult")
    has(render(reduce_axes(u, Ops.MAX, (0,)), "vectorize k0 16"), "icmp ult <8 x i32>")
    has(render(u.alu(Ops.SHR, 3)), "lshr")
    lacks(render(u.alu(Ops.ABS)), "llvm.abs")  # |x| of 254 was once 2
    has(render(u.cast(dtypes.float32)), "uitofp")


def test_bfloat16_is_never_added_as_a_number() -> None:
    b = data(0, 64, dtype=dtypes.bfloat16)
    text = render(elementwise(Ops.MUL, b, b))
    has(text, "i16", "fmul <")
    lacks(text, "bfloat", "fmul <16 x i16>", "fmul <32 x i16>")


def test_float64_becomes_float16_without_a_call() -> None:
    """fptrunc from double to half is a call of __truncdfhf2 on most machines."""
    text = render(data(0, 64, dtype=dtypes.float64).cast(dtypes.float16))
    assert not re.search(r"fptrunc <?\d* ?x? ?double>? .* to .*half", text)


def test_an_op_without_an_instruction_is_a_bug_of_ours() -> None:
    uops = lowered(only(X + 1.0), replace(VECTORS, ops=VECTORS.ops | {Ops.EXP}))
    broken = [u.replace(op=Ops.EXP, src=u.src[:1]) if u.op is Ops.ADD and u.dtype.is_float else u for u in uops]
    with pytest.raises((InternalError, KeyError)):
        LLVMRenderer(VECTORS).render("kernel", broken)


@pytest.mark.parametrize("name", small_kernels())
def test_llvm_accepts_every_kernel(name: str) -> None:
    text = LLVMRenderer(VECTORS).render("kernel", lowered(small_kernels()[name], VECTORS))
    assert "define void @kernel(ptr noundef %args" in text
    if host.this_host().has("avx512f"):
        assert llvm_codegen.compile_ir(text, host.this_host())[:4] == b"\x7fELF"


def test_large_memory_of_a_kernel_comes_from_the_heap() -> None:
    """A panel of 128 KB would not fit the stack of every thread."""
    text = render(matmul(data(0, 8, 512), data(1, 512, 64)), "vectorize i1 16; unroll i1 4; stage 2 k0 i1.u i1.v")
    has(text, "call ptr @malloc(i64 131136)", "call void @free(ptr", "call void @km_no_memory(i64 131136)")
    lacks(text, "alloca")
    has(render(matmul(data(0, 8, 64), data(1, 64, 64)), "vectorize i1 16; stage 2 k0 i1 i1.v"), "alloca")
