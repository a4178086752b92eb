"""Rows that a kernel keeps: along them or across them, the result is the same; and which of the two is chosen."""

from __future__ import annotations

import pytest

from kernmill.compiler import analyze, choose, merge_loops, rows_schedule
from kernmill.ir import Ops, UOp, elementwise, reduce_axes, reshape
from tests.compiler.kernels import (
    VECTORS,
    attention,
    close,
    data,
    inputs,
    matmul,
    only,
    run_ast,
    run_on,
    softmax,
)

CASES = {
    "softmax": softmax(data(0, 24, 50)),
    "softmax of few": softmax(data(0, 9, 7)),
    "attention": attention(data(0, 40, 4), data(1, 64, 4), data(2, 64, 4)),
    "attention, odd sizes": attention(data(0, 37, 3), data(1, 51, 3), data(2, 51, 5)),
    "causal attention": attention(data(0, 40, 4), data(1, 40, 4), data(2, 40, 4), is_causal=True),
    "causal attention, odd sizes": attention(data(0, 45, 3), data(1, 61, 3), data(2, 61, 5), is_causal=True),
}


@pytest.mark.parametrize("name", CASES)
def test_a_kernel_that_keeps_rows_is_right(name: str) -> None:
    ast = merge_loops(only(CASES[name]))
    arrays = inputs(ast)
    assert analyze(ast, VECTORS).row_loops
    close(run_on("LLVM", ast, arrays), run_ast(ast, arrays))
    close(run_on("PYTHON", ast, arrays), run_ast(ast, arrays))


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(
    ("tokens", "width"),
    [(t, w) for t in (8, 9, 10, 14, 16, 17, 24, 31, 33, 48) for w in (1, 2, 3, 8) if t >= 4 * w],  # one kernel
)
def test_attention_of_every_small_size(tokens: int, width: int, is_causal: bool) -> None:
    """Once wrong: copies of a kept row lay where its own lanes were; rows or their lanes were used up by the tile."""
    q, k, v = (data(slot, tokens, width) for slot in range(3))
    ast = merge_loops(only(attention(q, k, v, is_causal=is_causal)))
    arrays = inputs(ast)
    close(run_on("LLVM", ast, arrays), run_ast(ast, arrays))


def verbs(root: UOp) -> dict[str, str]:
    chosen = choose(merge_loops(only(root)), VECTORS).actions
    return {" ".join((a.verb, *a.args[:1])): " ".join(a.args[1:]) for a in chosen}


def test_passes_of_a_softmax_go_along_the_row() -> None:
    found = verbs(softmax(data(0, 64, 512)))
    assert {name for name in found if name.startswith("vectorize")} == {
        "vectorize t0_0", "vectorize k1", "vectorize i1"
    }  # fmt: skip


@pytest.mark.parametrize("length", [2, 3, 10, 16, 31, 32, 33])
def test_rows_that_fit_the_registers_are_lanes(length: int) -> None:
    """Once wrong: along ten classes most lanes were idle, and a softmax took five times as long."""
    root = softmax(data(0, 37, length))
    assert ("vectorize i0" in verbs(root)) == (length <= VECTORS.vector_registers)
    ast = merge_loops(only(root))
    arrays = inputs(ast)
    close(run_on("LLVM", ast, arrays), run_ast(ast, arrays))


def test_rows_of_attention_are_lanes() -> None:
    """Both products get tiles over what their rows share, and the queries are turned once."""
    found = verbs(attention(data(0, 128, 16), data(1, 256, 16), data(2, 256, 16)))
    assert found["vectorize i0"] == "16"
    assert found["unroll i0"] == "2"
    assert found["unroll i1"] == found["unroll t1_0"] == "8"
    assert found["unroll k1"] == "4"
    assert found["stage 1"] == "k3 k3.u i0.u i0.v"


def heads(tokens: int, count: int, length: int, width: int) -> UOp:
    """Attention of several heads; results lie token by token."""
    q, k, v = data(0, tokens, count, 1, width), data(1, 1, count, length, width), data(2, 1, count, length, width)
    scores = reduce_axes(elementwise(Ops.MUL, q, k), Ops.ADD, (3,))
    weights = elementwise(Ops.SUB, scores, reduce_axes(scores, Ops.MAX, (2,))).alu(Ops.EXP)
    terms = elementwise(Ops.MUL, weights, v)
    sums = [reduce_axes(part, Ops.ADD, (2,)) for part in (terms, weights)]
    return elementwise(Ops.DIV, *(reshape(u, (tokens, count, u.shape[-1])) for u in sums))


@pytest.mark.parametrize("count", [3, 16, 32])
def test_lanes_are_tokens_however_many_heads_there_are(count: int) -> None:
    """Once wrong: as many heads as lanes were taken for rows, which share no keys, and passes went along each row:
    5 to 8 times as long with 8 lanes and 14 heads."""
    root = heads(64, count, 128, 16)
    assert verbs(root)["vectorize i0"] == "16"
    ast = merge_loops(only(root))
    arrays = inputs(ast)
    close(run_on("LLVM", ast, arrays), run_ast(ast, arrays))


def test_few_rows_are_no_lanes() -> None:
    ast = merge_loops(only(attention(data(0, 9, 2), data(1, 64, 2), data(2, 64, 2))))
    assert analyze(ast, VECTORS).row_loops == ["i0"]
    assert rows_schedule(analyze(ast, VECTORS)) is None


def test_a_kernel_without_rows_has_none() -> None:
    assert analyze(merge_loops(only(matmul(data(0, 32, 32), data(1, 32, 32)))), VECTORS).row_loops == []
