"""Products with matrices whose rows lie side by side: which loops are lanes, which a tile; and values are right."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernmill.compiler import analyze, choose, merge_loops, panels_schedule
from kernmill.ir import DType, Op, Ops, Target, UOp, dtypes, elementwise, reduce_axes, reshape, strided
from tests.compiler.kernels import VECTORS, close, data, inputs, only, run_ast, run_on

F32, F16, BF16 = dtypes.float32, dtypes.float16, dtypes.bfloat16
SMALL = replace(VECTORS, name="small", vector_bytes=32, vector_registers=16)


def product(rows: int, groups: int, terms: int, word: int = 1, slot: int = 0, dtype: DType = F16) -> UOp:
    """[rows, groups, 16]: words of 16 rows side by side."""
    w = data(slot, 1, groups, terms, 16, word, dtype=dtype).cast(F32)
    x = data(slot + 1, rows, 1, terms, 1, word)
    return reshape(reduce_axes(elementwise(Ops.MUL, x, w), Ops.ADD, (2, 4)), (rows, groups, 16))


def chosen(root: UOp, target: Target = VECTORS) -> dict[str, str]:
    schedule = panels_schedule(analyze(merge_loops(only(root)), target))
    return {} if schedule is None else {" ".join((a.verb, *a.args[:1])): " ".join(a.args[1:]) for a in schedule.actions}


def gated(rows: int, groups: int, terms: int) -> UOp:
    """Two products and what is made of both, in the shape of the rows."""
    first, second = (reshape(product(rows, groups, terms, slot=slot), (rows, groups * 16)) for slot in (0, 2))
    return elementwise(Ops.MUL, elementwise(Ops.MAX, first, data(4, rows, groups * 16)), second)


CASES = {
    "one row": product(1, 8, 72),
    "one row, an odd number of panels": product(1, 7, 67),
    "few rows": product(3, 8, 72),
    "rows of a tile and some": product(13, 5, 64),
    "many rows": product(64, 6, 65),
    "pairs": product(5, 6, 36, word=2),
    "pairs, one row": product(1, 6, 36, word=2),
    "floats": product(9, 4, 64, dtype=F32),
    "two matrices": gated(1, 8, 72),
    "as rows": reshape(product(4, 6, 64), (4, 96)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("target", [VECTORS, SMALL], ids=lambda target: target.name)
def test_a_product_with_panels_is_right(name: str, target: Target) -> None:
    ast = merge_loops(only(CASES[name]))
    arrays = inputs(ast)
    schedule = panels_schedule(analyze(ast, target))
    assert schedule is not None
    assert [a.verb for a in choose(ast, target).actions][: len(schedule.actions)] == [a.verb for a in schedule.actions]
    close(run_on("LLVM", ast, arrays, schedule.actions), run_ast(ast, arrays))


@pytest.mark.parametrize("op", [Ops.ADD, Ops.MAX])
def test_what_is_read_backwards_is_no_panel(op: Op) -> None:
    """Once rows of a flipped matrix were split by -32: a warning, and a kernel without a schedule."""
    root = reduce_axes(strided(data(0, 1000, 32), [-1, 1]), op, (0,))
    assert not chosen(root)
    assert choose(merge_loops(only(root)), VECTORS).actions


def test_one_row_reads_panels_in_four_streams() -> None:
    found = chosen(product(1, 64, 128))
    assert found["vectorize i1"] == "16"
    assert (found["interleave i0"], found["rfactor k0"]) == ("4", "2")


def test_panels_are_digits_of_a_loop() -> None:
    """What is made of a product, in the shape of its rows, asks for them so."""
    found = chosen(gated(1, 64, 128))
    assert (found["split i0"], found["vectorize i0.s"]) == ("16", "16")
    assert found["interleave i0"] == "2"  # two matrices share the registers


def test_many_rows_are_a_register_tile() -> None:
    """Nothing is packed; with 16 registers there is none to spare for what is converted."""
    found = chosen(product(48, 64, 128))
    assert (found["interleave i1"], found["unroll i0"], found["order i1"]) == ("4", "6", "i0")
    assert not any(name.startswith("stage") for name in found)
    assert chosen(product(48, 64, 128), SMALL)["stage 2"] == "k0 i2.u i2.v"
    assert not any(name.startswith("stage") for name in chosen(product(48, 64, 128, dtype=F32), SMALL))


def test_sums_that_are_longer_than_the_cache_go_on_in_the_output() -> None:
    small = replace(VECTORS, l2_bytes=1 << 14)
    assert "accumulate k0" in chosen(product(48, 8, 256), small)
    assert "accumulate k0" not in chosen(product(3, 8, 256), small)  # nobody reads a panel again


def test_neighbours_of_a_word_are_copied_out() -> None:
    assert chosen(product(16, 8, 64, word=2, dtype=BF16))["unroll k1"] == "2"


def test_memory_is_asked_for_where_it_does_not_come_by_itself() -> None:
    assert chosen(product(1, 64, 128))["prefetch 2048"] == ""
    assert "prefetch 2048" not in chosen(product(1, 64, 128), replace(VECTORS, has_hardware_prefetch=True))


@pytest.mark.parametrize(
    "root",
    [
        reduce_axes(elementwise(Ops.MUL, data(0, 8, 64, 1), data(1, 1, 64, 48)), Ops.ADD, (1,)),  # no panels
        reduce_axes(elementwise(Ops.MUL, data(0, 1, 64, 1), data(1, 6, 64, 64)), Ops.ADD, (1,)),  # wide ones
        reduce_axes(elementwise(Ops.MUL, data(0, 6, 64, 1), data(1, 6, 64, 16)), Ops.ADD, (1,)),  # a row for each
        reduce_axes(data(1, 6, 64, 16), Ops.ADD, (1,)),  # no product
        product(256, 100, 16),  # short sums: 0.6 of the speed, since each row's results lie far apart
    ],
)
def test_what_else_there_is(root: UOp) -> None:
    assert chosen(root) == {}
