"""OpenCL C: golden files of small kernels, and what must or must not be in the text."""

from __future__ import annotations

import importlib
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kernmill.ir import (
    DType,
    DTypeError,
    InternalError,
    Ops,
    Target,
    UOp,
    broadcast_to,
    const,
    dtypes,
    elementwise,
    permute,
    reduce_axes,
)
from kernmill.renderers import OPENCL_OPS, OpenCLRenderer
from tests.compiler.kernels import VECTORS, data, lowered, matmul, only, small_kernels, softmax, total
from tests.renderers.language import GOLDEN, X, has, lacks, render_with

if TYPE_CHECKING:
    from tests.conftest import Golden

CPU = replace(VECTORS, name="opencl", ops=OPENCL_OPS, storage_dtypes=frozenset(dtypes.data) - {dtypes.float16})
GPU = replace(CPU, vector_bytes=16, has_threads=False, group_items=256)
HALF = replace(CPU, storage_dtypes=frozenset(dtypes.data))


def render(root: UOp, schedule: str | None = None, target: Target = CPU) -> str:
    return render_with(OpenCLRenderer, root, schedule, target)


# --- golden files ----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", GOLDEN)
def test_of(name: str, golden: Golden) -> None:
    assert render(*GOLDEN[name]) == golden


GROUPS = {
    "grid": (matmul(data(0, 16, 32), data(1, 32, 64)), "vectorize i1 4; unroll i0 2; grid i0 i1"),
    "group_sum": (total(data(0, 8, 256), 1), "vectorize k0 4; share k0 32; grid i0"),
    "group_softmax": (softmax(data(0, 4, 70)), "share k0 32; share k1 32; local i1 32; grid i0"),
    "group_tile": (
        matmul(data(0, 64, 48), data(1, 48, 64)),
        "vectorize i1 4; local i1 8; unroll i0 4; local i0 8; split k0 16; "
        "stage 1 k0.s i0.l i0.u; stage 2 k0.s i1.l i1.v; grid i0 i1",
    ),
}


@pytest.mark.parametrize("name", GROUPS)
def test_work_items(name: str, golden: Golden) -> None:
    assert render(*GROUPS[name], GPU) == golden


def test_shared_arrays_stand_at_the_head_and_barriers_are_declared_for_lean_builds() -> None:
    head, _, body = render(*GROUPS["group_tile"], GPU).partition("reqd_work_group_size(64, 1, 1)")
    has(head, "__attribute__((convergent)) F barrier(uint);", "get_local_id(uint)")
    assert body.index("__local float") < body.index("for (")
    assert body.count("barrier(CLK_LOCAL_MEM_FENCE);") == 2
    assert "if (item" not in body.partition("for (")[0]


def test_a_function_that_gets_memory_of_a_group_is_inlined() -> None:
    """PoCL gives all groups one array where another function names it (docs/topics/matrix-units.md)."""
    kind = importlib.import_module("kernmill.renderers.opencl")._kind
    assert [kind(space) for space in ("__local", "__global", "__private")] == [
        "static __attribute__((always_inline))", "static", "static",
    ]  # fmt: skip


# --- what must be there, and what must not ---------------------------------------------------------------------------
def test_products_are_fused_into_sums_only_where_that_was_asked_for() -> None:
    text = render(matmul(data(0, 64, 64), data(1, 64, 64)))
    has(text, "= fma(", "#pragma OPENCL FP_CONTRACT OFF")
    assert not re.search(r"\* .*\+", text.partition("k0")[2].partition("fma")[0].replace("long", ""))
    product = elementwise(Ops.MUL, X, data(1, 6, 32))
    lacks(render(elementwise(Ops.ADD, product, data(2, 6, 32))), "fma(")


PLAIN = replace(CPU, plain=frozenset({"fma", "load", "hints"}))


def test_where_functions_are_calls_the_text_has_none() -> None:
    text = render(matmul(data(0, 64, 64), data(1, 64, 64)), target=PLAIN)
    has(text, "#pragma OPENCL FP_CONTRACT ON", "*(const __global float16_at *)(b", "aligned(sizeof(float))")
    lacks(text, "fma(", "vload", "vstore")
    # contraction joins what stands in one statement: nothing but the product of an FMA and its sum
    for line in text.partition("__kernel")[2].splitlines():
        assert line.count(" * ") < 2 or "float" not in line, line
    product = elementwise(Ops.MUL, X, data(1, 6, 32))
    has(render(elementwise(Ops.ADD, product, data(2, 6, 32)), target=PLAIN), "FP_CONTRACT OFF")


def test_a_masked_tail_calls_no_function_either() -> None:
    text = render(data(0, 37, dtype=dtypes.int64) * 2, "vectorize i0 8", PLAIN).partition("#endif")[2]
    called = set(re.findall(r"\b([a-z]\w*)\(", text))
    assert not {name for name in called if name.startswith(("vload", "vstore", "all"))}
    has(text, "load_global_long8(", "store_global_long8_")


def test_stores_past_the_caches_and_prefetches_are_hints() -> None:
    streamed = render(data(0, 4096) * 2.0, "vectorize i0 16; stream", PLAIN)
    has(streamed, "__builtin_nontemporal_store(", "(__global float16 *)(b0")
    lacks(render(data(0, 4096) * 2.0, "vectorize i0 16; stream"), "__builtin")
    lacks(render(data(0, 37) * 2.0, "vectorize i0 2; stream", PLAIN), "__builtin_nontemporal")  # 8 bytes
    long, ahead = data(0, 1 << 17) + 1.0, "vectorize i0 16; prefetch 2048"
    has(render(long, ahead, PLAIN), "__builtin_prefetch((const void *)((ulong)(b1 + v1) + 2048), 0, 3);")
    lacks(render(long, ahead), "__builtin")


BYTE_DOTS = replace(
    PLAIN, name="dots", vector_bytes=64, most_lanes=64, dots=frozenset({(dtypes.uint8, dtypes.int8)}), dot_most=127
)


@pytest.mark.parametrize(("most", "lacking"), [(100, "& (short32)(255)"), (255, "pmaddubsw")])
def test_products_of_bytes_are_builtins(most: int, lacking: str) -> None:
    """In 64 lanes; of bytes above 127 each second one is a number of 16 bits."""
    kinds = dtypes.uint8.vec(64), dtypes.int8.vec(64)
    memories = [UOp(Ops.PARAM, kind.scalar, (), (slot, 64)) for slot, kind in enumerate(kinds, 1)]
    a, b = (
        UOp(Ops.LOAD, kind, (UOp(Ops.INDEX, kind, (m, const(dtypes.index, 0))),))
        for kind, m in zip(kinds, memories, strict=True)
    )
    a = a.alu(Ops.AND, const(kinds[0], most))
    kind = dtypes.int32.vec(16)
    dot = UOp(Ops.DOT, kind, (a, b, const(kind, 0)))
    out = UOp(Ops.INDEX, kind, (UOp(Ops.PARAM, kind.scalar, (), (0, 16)), const(dtypes.index, 0)))
    text = OpenCLRenderer(BYTE_DOTS).render("k", UOp(Ops.STORE, dtypes.void, (out, dot)).toposort())
    has(text, "typedef uchar uchar64 __attribute__((ext_vector_type(64)));", "__builtin_ia32_pmaddwd512(")
    lacks(text, lacking, "as_uchar64", "as_short32")


def test_of_more_than_16_lanes_functions_are_called_in_parts() -> None:
    text = render(data(0, 64, dtype=dtypes.float32).alu(Ops.FLOOR), "vectorize i0 64", BYTE_DOTS)
    has(text, "float16 F floor(float16);", "(float64)((float32)(floor(((v1).lo).lo), ")


@pytest.mark.parametrize("dtype", [dtypes.uint8, dtypes.int32, dtypes.float32])
def test_every_type_of_more_than_16_lanes_is_declared(dtype: DType) -> None:
    """Named regression: a mask of 64 equal lanes was an `int64` that no driver knows."""
    x = data(0, 64, dtype=dtype)
    below = elementwise(Ops.LT, x, data(1, 64, dtype=dtype))
    flipped = elementwise(Ops.XOR, below, elementwise(Ops.LT, x, x))
    for root in (
        flipped,
        elementwise(Ops.XOR, below, broadcast_to(const(dtypes.bool, True), (64,))),
        flipped.cast(dtypes.int64),
    ):
        text = render(root, "vectorize i0 64", BYTE_DOTS)
        used = set(re.findall(r"\b(?:u?(?:char|short|int|long)|half|float|double)(?:32|64)\b", text))
        assert used
        assert used == set(re.findall(r"typedef \w+ (\w+) __attribute__\(\(ext_vector", text))


def test_lanes_of_wide_vectors_are_picked_by_clang() -> None:
    from kernmill.ir import strided

    has(render(strided(X, (1, 2)) + 1.0, "vectorize i0 32", BYTE_DOTS), "__builtin_shufflevector(")


def test_signed_ints_wrap_and_places_do_not_need_to() -> None:
    text = render(data(0, 64, dtype=dtypes.int32) + data(1, 64, dtype=dtypes.int32))
    has(text, "as_int16(as_uint16(")
    lacks(text, "(ulong)")
    has(render(data(0, 64, dtype=dtypes.int32) + data(1, 64, dtype=dtypes.int32), ""), "(int)((uint)")
    lacks(render(data(0, 64, dtype=dtypes.uint32) + data(1, 64, dtype=dtypes.uint32)), "as_")


def test_the_smallest_ints_are_no_literals_of_the_language() -> None:
    for dtype, text in ((dtypes.int32, "(-0x7fffffff - 1)"), (dtypes.int64, "(-0x7fffffffffffffffL - 1)")):
        has(render(data(0, 8, dtype=dtype).alu(Ops.XOR, int(dtype.min)), ""), text)


def test_every_float_constant_says_which_type_it_is() -> None:
    for ast in small_kernels().values():
        text = OpenCLRenderer(CPU).render("k", lowered(ast, CPU))
        assert not re.search(r"(?<![\w.)])\d+\.\d+(?![\w.])", text), text  # a float64 says so in front: (double)0.0


def test_bools_are_bytes_in_memory_and_masks_in_vectors() -> None:
    text = render(elementwise(Ops.LT, X, data(1, 6, 32)))
    has(text, "int16 v", " < ", "__global uchar *b", "CONVERT(char16, ")
    lacks(text, "bool16")


def test_masks_are_as_wide_as_what_they_select() -> None:
    wide = data(1, 64, dtype=dtypes.float64)
    chosen = elementwise(Ops.WHERE, elementwise(Ops.LT, data(0, 64), data(2, 64)), wide, wide * 2.0)
    has(render(chosen, "vectorize i0 8"), "CONVERT(long8, ")


def test_without_halves_they_are_moved_as_bits() -> None:
    text = render(data(0, 64, dtype=dtypes.float16) * 2.0)
    has(text, "__global ushort *b")
    lacks(text, "half", "cl_khr_fp16")
    text = render(data(0, 64, dtype=dtypes.float16) * 2.0, None, HALF)
    has(text, "__global half *b", "cl_khr_fp16 : enable", "CONVERT(float16, ")


def test_without_float64_the_kernel_is_refused_by_name() -> None:
    target = replace(CPU, storage_dtypes=frozenset(dtypes.data) - {dtypes.float64})
    with pytest.raises(DTypeError, match=r"kernel k: the device has no float64\. Bring float32 to it"):
        render(data(0, 64, dtype=dtypes.float64) * 2.0, None, target)


def test_tails_are_masked_and_bodies_are_not() -> None:
    has(render(data(0, 37) * 2.0, "vectorize i0 16"), "load_global_float16(", "store_global_float16_int16(")
    lacks(render(data(0, 64) * 2.0, "vectorize i0 16"), "load_global")


def test_far_apart_is_gathered() -> None:
    has(render(permute(X, (1, 0)) + 1.0, "vectorize i1 2"), "(float2)(b1[v", ".s0], b1[v")


def test_every_second_is_a_vector_of_lanes() -> None:
    from kernmill.ir import strided

    has(render(strided(X, (1, 2)) + 1.0, "vectorize i0 16"), ".s02468ace")


def test_unsigned_ints() -> None:
    u = data(0, 64, dtype=dtypes.uint32)
    has(render(reduce_axes(u, Ops.MAX, (0,)), "vectorize k0 16"), "uint8 v", ".s01234567", " < v")
    lacks(render(u.alu(Ops.ABS)), "abs")


@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float64, dtypes.float16, dtypes.bfloat16], ids=str)
@pytest.mark.parametrize("op", [Ops.EXP, Ops.LOG, Ops.SIN, Ops.COS, Ops.TANH, Ops.ERF], ids=str)
def test_no_function_of_the_language_decides_a_result(op: object, dtype: DType) -> None:
    text = render(data(0, 64, dtype=dtype).alu(op))  # type: ignore[arg-type]
    called = set(re.findall(r"\b([a-z]\w*)\(", text.partition("__kernel")[2]))
    ours = {"fma", "sqrt", "floor", "ceil", "trunc", "rint", "fabs", "abs", "k", "reqd_work_group_size"}
    assert {c for c in called if not re.match(r"as_|vload|vstore|get_global_id|for", c)} <= ours


def test_what_is_called_is_declared_for_lean_builds() -> None:
    for ast in small_kernels().values():
        head, _, body = OpenCLRenderer(CPU).render("k", lowered(ast, CPU)).partition("#endif")
        for name in set(re.findall(r"\b(vload\d+|vstore\d+|fma|floor|rint|all|fabs|abs)\(", body)):
            assert f" F {name}(" in head, name


def test_an_op_without_an_expression_is_a_bug_of_ours() -> None:
    uops = lowered(only(X + 1.0), replace(CPU, ops=CPU.ops | {Ops.EXP}))
    broken = [u.replace(op=Ops.EXP, src=u.src[:1]) if u.op is Ops.ADD and u.dtype.is_float else u for u in uops]
    with pytest.raises((InternalError, KeyError)):
        OpenCLRenderer(CPU).render("k", broken)


@pytest.mark.parametrize("name", small_kernels())
def test_a_driver_accepts_every_kernel(name: str, opencl: str) -> None:
    from kernmill.runtime import get_device

    device = get_device(opencl)
    text = device.renderer.render("k", lowered(small_kernels()[name], device.target))
    assert device.compile("k", text)
