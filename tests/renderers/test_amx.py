"""The matrix unit in LLVM IR: its instructions, which tile holds what, and functions that do the same."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from kernmill.compiler import parse_schedule
from kernmill.ir import CompileError, InternalError, Ops, UOp, const, dtypes
from kernmill.renderers import AMX_CONFIG, LLVMRenderer, amx_functions, amx_instruction, tile_numbers
from kernmill.runtime import host, llvm_codegen
from tests.compiler.kernels import data, inputs, lowered, only, run_ast, run_on, total
from tests.compiler.tiles import BF16, F16, I8, TILES, U8, product

NAMES = {(I8, I8): "tdpbssd", (I8, U8): "tdpbsud", (U8, I8): "tdpbusd", (U8, U8): "tdpbuud", (BF16, BF16): "tdpbf16ps",
         (F16, F16): "tdpfp16ps"}  # fmt: skip


def amx_host() -> host.Host:
    """A CPU with the unit, whatever this one is."""
    features = ["avx512f", "avx512bw", "avx512dq", "avx512vl", "fma", "f16c", "avx2"]
    features += ["amx-tile", "amx-int8", "amx-bf16", "amx-fp16"]
    return host.Host("x86_64", "sapphirerapids", tuple(f"+{f}" for f in features), 48 << 10, 2 << 20, 32 << 20)


@pytest.mark.parametrize("pair", NAMES)
def test_a_real_unit_gets_its_instructions(pair: tuple[object, object]) -> None:
    uops = lowered(product((64, 128, 64), pair), TILES)  # type: ignore[arg-type]
    try:
        text = llvm_codegen.assembly(LLVMRenderer(TILES).render("k", uops), amx_host())
    except RuntimeError as error:  # pragma: no cover - LLVM was built for another CPU
        pytest.skip(str(error))
    lines = [line.split() for line in text.splitlines() if re.match(r"\s+(tile|tdp|ldtile|sttile)", line)]
    names = [words[0] for words in lines]
    assert names[:2] == ["sttilecfg", "ldtilecfg"]
    assert names[-1] == "ldtilecfg", "named regression: another library's configuration was released"
    assert lines[-1][1:] == lines[0][1:]
    assert names.count(NAMES[pair]) == names.count("tilezero") == names.count("tilestored") == 4  # type: ignore[index]
    assert names.count("tileloadd") == 4
    sums = {words[-1] for words in lines if words[0] == NAMES[pair]}  # type: ignore[index]
    assert sums == {words[-1] for words in lines if words[0] == "tilezero"}
    assert len({words[-1] for words in lines if words[0] == "tileloadd"} | sums) == 8


def test_functions_stand_for_it() -> None:
    uops = lowered(product((64, 128, 64)), TILES)
    text = LLVMRenderer(replace(TILES, emulates_units=True)).render("k", uops)
    assert "llvm.x86.t" not in text
    assert text.count("call void @tdpbf16ps(") == 4
    assert set(re.findall(r"define internal void @(\w+)", text)) == {
        "tdpbf16ps", "tileloadd64", "tilestored64", "tilezero",
    }  # fmt: skip


def test_a_kernel_without_tiles_has_none_of_it() -> None:
    text = LLVMRenderer(TILES).render("k", lowered(product((64, 128, 4)), TILES))
    assert "tile" not in text.replace("@k", "")


def test_long_vectors_are_no_tiles() -> None:
    """128 numbers of 64 bits have the size of one: their sum had no text, and LLVM refused the kernel."""
    ast = only(total(data(0, 5, 300, dtype=dtypes.int64), 1))
    arrays, actions = inputs(ast), parse_schedule("vectorize k0 128")
    assert not tile_numbers(lowered(ast, TILES, actions))
    assert np.array_equal(run_on("LLVM", ast, arrays, actions), run_ast(ast, arrays))


def test_the_configuration_is_what_the_manual_says() -> None:
    assert len(AMX_CONFIG) == 64
    assert AMX_CONFIG[:2] == b"\1\0"
    assert AMX_CONFIG[16:32] == (64).to_bytes(2, "little") * 8
    assert AMX_CONFIG[48:56] == b"\x10" * 8


def test_too_many_tiles_are_refused() -> None:
    schedule = "split i0 16; split i1 16; split k0 32; split k0.s 2; unroll i0 3; unroll i1 3; tensorize i0.s i1.s; " \
        "order i0.s i1.s; stage 2 k0 i1.u k0.s i1.s' k0.s.s; stage 1 k0 i0.u i0.s' k0.s k0.s.s"  # fmt: skip
    uops = lowered(product((48, 64, 48)), TILES, parse_schedule(schedule))
    with pytest.raises(CompileError, match="more than 8 tiles"):
        tile_numbers(uops)


def test_a_tile_is_free_again_after_its_last_use() -> None:
    uops = lowered(product((64, 128, 64)), TILES)
    numbers = tile_numbers(uops)
    for u in uops:
        if u.op is Ops.MMA:
            a, b, c = u.src
            assert numbers[u] == numbers[c]
            assert len({numbers[a], numbers[b], numbers[c]}) == 3


def test_other_products_are_refused() -> None:
    zero, other = const(dtypes.float32.vec(256), 0.0), const(dtypes.int16.vec(512), 0)
    with pytest.raises(InternalError, match="is not a product of tiles"):
        amx_instruction(UOp(Ops.MMA, zero.dtype, (other, other, zero), (16, 16, 32, 2)))


def test_every_function_is_legal() -> None:
    names = [*NAMES.values(), "tilezero", "tileloadd64", "tilestored64"]
    text = amx_functions(names) + "\nattributes #0 = { nounwind }\n"
    assert llvm_codegen.compile_ir(text.replace("define internal", "define"), host.this_host())
