"""Loops in two parts: before the mask nothing is asked, and the results are the same."""

from __future__ import annotations

import pytest

from kernmill.compiler import apply_actions, choose, merge_loops, parse_schedule, peel_loops, trim_loops
from kernmill.ir import Ops, UOp, const, elementwise, index_const, iota, pad, reshape, substitute
from tests.compiler.kernels import (
    F32,
    VECTORS,
    attention,
    close,
    data,
    inputs,
    only,
    run_ast,
    run_on,
    total,
    triangle,
)


def peeled(ast: UOp, schedule: str) -> UOp:
    return peel_loops(trim_loops(apply_actions(ast, parse_schedule(schedule))))


def loops(ast: UOp) -> set[str]:
    return {str(n.arg[0]) for n in ast.toposort() if n.op is Ops.RANGE}


def test_blocks_before_the_mask_ask_nothing() -> None:
    ast = peeled(merge_loops(only(triangle(64, 64))), "unroll k0 4; unroll i0 4")
    assert any(name.startswith("k0.p") for name in loops(ast))
    first, rest = (n for n in ast.toposort() if n.op is Ops.REDUCE)
    if any(".p" in str(r.arg[0]) for r in first.src[1:]):
        first, rest = rest, first
    assert not any(n.op is Ops.LE for n in first.toposort())
    assert any(n.op is Ops.LE for n in rest.toposort())


def test_a_mask_that_a_loop_ends_with_is_gone() -> None:
    ast = peeled(merge_loops(only(triangle(64, 64))), "")
    assert loops(ast) == {"i0", "k0"}
    assert not any(n.op in (Ops.WHERE, Ops.LE) for n in ast.toposort())


def test_a_loop_of_one_size_stays() -> None:
    ast = apply_actions(merge_loops(only(triangle(64, 64))), parse_schedule("vectorize k0 16"))
    assert peel_loops(ast) is ast


def running_sums(size: int, block: int = 16) -> UOp:
    """Sums from the start of each block of a line up to each place: a mask in the block, and the end of the line."""
    blocks = -(-size // block)
    seen = elementwise(Ops.LE, reshape(iota(block), (1, 1, block)), reshape(iota(block), (1, block, 1)))
    line = pad(pad(data(0, size - 1), ((1, 0),)), ((0, blocks * block - size),))
    return total(elementwise(Ops.WHERE, seen, reshape(line, (blocks, 1, block)), const(F32, 0.0)), 2)


@pytest.mark.parametrize("schedule", [
    "", "unroll k0 2", "unroll i1 16", "unroll i1 16; unroll k0 2", "unroll i1 16; unroll k0 4",
    "unroll i1 4; unroll k0 4", "vectorize i1 4; unroll i1 4; unroll k0 2", "vectorize i1 2; unroll i1 8; unroll k0 2",
])  # fmt: skip
def test_a_mask_that_is_never_known_has_no_part_without_it(schedule: str) -> None:
    """With all rows of a block copied out and two columns a step, the mask held in no step of the first part, which
    ran once nevertheless and read without gates: float64 cumsum on SSE was wrong by a block's first terms."""
    ast = merge_loops(only(running_sums(19)))
    arrays, actions = inputs(ast), parse_schedule(schedule)
    parts = peeled(ast, schedule)
    assert all(end.bounds[1] > 0 for end in (n.src[0] for n in parts.toposort() if n.op is Ops.RANGE))
    close(run_on("LLVM", ast, arrays, actions), run_ast(ast, arrays))


def test_a_loop_of_no_iterations_does_nothing() -> None:
    ast = merge_loops(only(total(data(0, 4), 0)))
    (loop,) = (n for n in ast.toposort() if n.op is Ops.RANGE)
    empty = substitute(ast, {loop: loop.replace(src=(index_const(0),))})
    assert run_on("LLVM", empty, inputs(ast), ()).tolist() == [0.0]


@pytest.mark.parametrize("schedule", [
    "", "unroll i0 4; unroll t1_0 8; unroll k1 4; unroll t0_0 2",
    "vectorize i0 8; unroll i0 2; unroll t1_0 4; unroll i1 3",
    "vectorize i0 8; unroll k1 4; stage 2 t1_0 k2",
])  # fmt: skip
@pytest.mark.parametrize("tokens", [33, 40, 50])
def test_rows_are_filled_by_both_parts(tokens: int, schedule: str) -> None:
    ast = merge_loops(only(attention(data(0, tokens, 4), data(1, tokens, 4), data(2, tokens, 5), is_causal=True)))
    arrays = inputs(ast)
    names = loops(ast)
    actions = [a for a in parse_schedule(schedule) if a.verb != "stage" or names.issuperset(a.args[1:])]
    close(run_on("LLVM", ast, arrays, actions), run_ast(ast, arrays))


@pytest.mark.parametrize("tokens", [64, 90, 101])
def test_causal_attention_as_scheduled_ends_all_its_loops(tokens: int) -> None:
    """With an odd number of rows the ends of two passes over a row were written differently, and neither ended."""
    graph = attention(data(0, tokens, 16), data(1, tokens, 16), data(2, tokens, 16), is_causal=True)
    ast = merge_loops(only(graph))
    found = peel_loops(trim_loops(apply_actions(ast, choose(ast, VECTORS).actions)))
    ends = {str(n.arg[0]): n.src[0] for n in found.toposort() if n.op is Ops.RANGE}
    assert all(not ends[name].is_const for name in ("t0_0", "t1_0", "k1"))
    arrays = inputs(ast)
    close(run_on("LLVM", ast, arrays), run_ast(ast, arrays))
