"""What is chosen on a device with work-items; and that every choice means the same, on PYTHON, which runs groups."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernmill.compiler import choose, merge_loops
from kernmill.ir import Context, Ops, Target, UOp, dtypes, permute
from kernmill.renderers import AMX_UNITS, MMA_UNITS
from kernmill.runtime import get_device
from tests.compiler.kernels import (
    SCALARS,
    VECTORS,
    causal_kernel,
    close,
    convolution,
    data,
    inputs,
    layer_norm,
    lowered,
    matmul,
    only,
    params,
    run_ast,
    run_on,
    run_uops,
    small_kernels,
    softmax,
    total,
)
from tests.compiler.tiles import product

GPU = replace(VECTORS, name="gpu", vector_bytes=16, has_threads=False, group_items=256)
SMALL = replace(GPU, name="small", group_items=64, local_bytes=4096)


def chosen(root: UOp, target: Target = GPU) -> str:
    return "; ".join(map(str, choose(merge_loops(only(root)), target).actions))


CHOSEN = {
    "map": (data(0, 512, 512) + 1.0, "vectorize i0 4; grid i0"),
    "transpose": (
        permute(data(0, 256, 256), (1, 0)) + 1.0,
        "local i1 32; unroll i0 4; local i0 8; stage 1 i0.l i0.u i1.l; grid i0 i1",
    ),
    "large product": (
        matmul(data(0, 4096, 4096), data(1, 4096, 4096)),
        "vectorize i1 4; local i1 16; unroll i1 2; unroll i0 8; local i0 16; split k0 16; "
        "stage 1 k0.s i0.l i0.u; stage 2 k0.s i1.u i1.l i1.v; grid i0 i1",
    ),
    "product": (
        matmul(data(0, 1024, 1024), data(1, 1024, 1024)),
        "vectorize i1 4; local i1 16; unroll i0 4; local i0 16; split k0 16; "
        "stage 1 k0.s i0.l i0.u; stage 2 k0.s i1.l i1.v; grid i0 i1",
    ),
    "convolution": (  # windows: each place of a row once, whole windows of 8 channels at a time
        convolution(data(0, 4, 64, 58, 58), data(1, 64, 64, 3, 3)),
        "vectorize i3 4; local i3 8; unroll i1 4; local i1 8; split k0 8; "
        "stage 2 k0.s k1 k2 i1.l i1.u; stage 1 k0.s k1 k2 i3.l i3.v; grid i0 i1 i2 i3",
    ),
    "few rows": (matmul(data(0, 8, 4096), data(1, 4096, 4096)), "unroll i0 8; local i1 32; share k0 8; grid i1"),
    "row sums": (total(data(0, 4096, 4096), 1), "vectorize k0 4; share k0 256; grid i0"),
    "column sums": (total(data(0, 4096, 4096), 0), "local i0 32; share k0 8; grid i0"),
    "short sums": (total(data(0, 4096, 8), 1), "grid i0"),
    "all": (total(data(0, 8192), 0), "vectorize k0 4; share k0 256"),
}


UNIT = replace(GPU, units=MMA_UNITS)


@pytest.mark.parametrize(
    ("size", "blocks", "in_turn"),
    [
        (2048, "unroll i0 2; local i0 4; unroll i1 8; local i1 2; tensorize i0.s i1.s; vectorize i1.s 2", True),
        (250, "local i0 2; local i1 2; tensorize i0.s i1.s; unroll i1.s 2", False),
    ],
)
def test_a_product_for_a_matrix_unit(size: int, blocks: str, in_turn: bool) -> None:
    """Steps side by side and in turn; the 32 items of one are the last digits of an item's number."""
    ast = merge_loops(product((size, size, size)))
    rows, columns = ("i0.l i0.u", "i1.l i1.u") if in_turn else ("i0.l", "i1.l")
    assert "; ".join(map(str, choose(ast, UNIT).actions)) == (
        f"split i0 16; split i1 8; split k0 16; split k0.s 2; {blocks}; local i0.s 8; local i1.s 4; unroll i0.s 2; "
        f"order i0 i0.l i1 i1.l i0.s.l i1.s.l; stage 2 {columns} k0.s i1.s' k0.s.s; "
        f"stage 1 {rows} i0.s' k0.s k0.s.s; grid i0 i1"
    )
    uops = lowered(ast, UNIT, is_checked=True)
    assert sum(u.op is Ops.MMA for u in uops) == (16 if in_turn else 1)
    assert {str(u.arg[0]) for u in uops if u.op is Ops.LOCAL and "shared" in u.arg} == {"stage1_0", "stage2_0"}


@pytest.mark.parametrize("target", [replace(UNIT, group_items=64), replace(UNIT, units=AMX_UNITS["amx-bf16"])])
def test_a_unit_that_does_not_fit_is_left_alone(target: Target) -> None:
    """Groups of 64 items are too small; a unit that one thread uses is none for work-items."""
    ast = merge_loops(product((64, 64, 64)))
    assert choose(ast, target).actions == choose(ast, replace(target, units=())).actions


@pytest.mark.parametrize("name", CHOSEN)
def test_what_is_chosen(name: str) -> None:
    root, schedule = CHOSEN[name]
    assert chosen(root) == schedule


def test_softmax_is_a_group_for_each_row() -> None:
    """The row of exponentials is kept and filled by all; its sum is taken from there."""
    assert chosen(softmax(data(0, 4096, 1024))) == (
        "vectorize k1 4; share k1 256; local t0_0 256; share t0_0.r 256; local i1 256; grid i0"
    )


def test_rows_too_long_to_be_shared_are_each_items_own() -> None:
    """Then only rows are spread: an item keeps one, in memory of its own."""
    assert chosen(softmax(data(0, 16, 130)), replace(GPU, local_bytes=512)) == "grid i0"


def test_a_device_with_little_memory_and_small_groups_gets_small_tiles() -> None:
    found = chosen(matmul(data(0, 1024, 1024), data(1, 1024, 1024)), SMALL)
    assert "local i0 8" in found
    assert "local i0 16" not in found
    lowered(only(matmul(data(0, 1024, 1024), data(1, 1024, 1024))), SMALL, is_checked=True)


@pytest.mark.parametrize("target", [GPU, SMALL], ids=lambda t: t.name)
@pytest.mark.parametrize("name", small_kernels())
def test_every_choice_can_be_lowered(name: str, target: Target) -> None:
    lowered(small_kernels()[name], target, is_checked=True)


def grouped_kernels() -> dict[str, UOp]:
    """Kernels large enough for groups; some sizes that nothing divides."""
    return {
        "product": only(matmul(data(0, 37, 29), data(1, 29, 41))),
        "even product": only(matmul(data(0, 32, 32), data(1, 32, 32))),
        "product of rows": only(matmul(data(0, 32, 36), permute(data(1, 32, 36), (1, 0)))),
        "halves": only(matmul(data(0, 20, 33, dtype=dtypes.float16), data(1, 33, 20, dtype=dtypes.float16))),
        "few rows": only(matmul(data(0, 4, 64), data(1, 64, 40))),
        "row sums": only(total(data(0, 3, 300), 1)),
        "column sums": only(total(data(0, 100, 37), 0)),
        "ints": only(total(data(0, 2, 70, dtype=dtypes.int32), 1)),
        "softmax": only(softmax(data(0, 16, 130))),
        "norm": only(layer_norm(data(0, 16, 70))),
        "transpose": only(permute(data(0, 33, 40), (1, 0)) + 1.0),
        "convolution": only(convolution(data(0, 1, 3, 12, 12), data(1, 16, 3, 3, 3))),
        "windows": only(convolution(data(0, 1, 8, 6, 18), data(1, 16, 8, 3, 3))),
        "odd windows": only(convolution(data(0, 2, 9, 5, 21), data(1, 19, 9, 3, 3))),
        "attention": small_kernels()["attention"],
    }


@pytest.mark.parametrize("name", grouped_kernels())
def test_groups_keep_the_meaning(name: str) -> None:
    ast = grouped_kernels()[name]
    arrays = inputs(ast, 1)
    with Context(TARGET="gpu"):
        uops = lowered(ast, get_device("PYTHON").target, is_checked=True)
        got = run_uops("PYTHON", uops, arrays, params(ast))
    assert any(u.op is Ops.BARRIER for u in uops) == (name not in ("convolution",))
    close(got, run_ast(ast, arrays), 2e-3 if name == "halves" else 2e-5)


@pytest.mark.parametrize("name", grouped_kernels())
def test_groups_under_a_checker(name: str, opencl: str) -> None:
    """With Oclgrind as the driver: it looks at each access. Drivers for CPUs have tests/runtime/test_ops_cl.py."""
    with Context(TARGET="gpu"):
        if get_device(opencl).cache_tag().find("Oclgrind") < 0:
            pytest.skip("this driver is no checker")
        ast = grouped_kernels()[name]
        arrays = inputs(ast, 1)
        close(run_on(opencl, ast, arrays), run_ast(ast, arrays), 2e-3 if name == "halves" else 2e-5)


def test_causal_rows_are_filled_whole() -> None:
    """The evaluator does no loop whose end is a value: against the same kernel without groups."""
    arrays = inputs(causal_kernel(), 1)
    with Context(TARGET="gpu"):
        got = run_uops("PYTHON", lowered(causal_kernel(), get_device("PYTHON").target), arrays, params(causal_kernel()))
    close(got, run_on("PYTHON", causal_kernel(), arrays))


def test_without_work_items_there_are_none() -> None:
    assert choose(merge_loops(grouped_kernels()["product"]), SCALARS).actions == []
