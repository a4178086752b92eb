"""Factors that stay the same in the loops of a sum: which are taken out of it, and that values stay."""

from __future__ import annotations

import pytest

from kernmill.compiler import apply_actions, merge_loops, parse_schedule
from kernmill.ir import CompileError, Ops, UOp, closed_ranges, dtypes, expand, reduce_axes, reshape
from tests.compiler.kernels import close, data, inputs, only, run_ast, run_on

SHAPE = (6, 5, 16)  # rows, blocks, terms


def over_blocks(kinds: int) -> UOp:
    """Rows of blocks with one or two kinds of terms, each with a factor for the row and block."""
    scales = [expand(reshape(data(n, *SHAPE[:2]), (*SHAPE[:2], 1)), SHAPE) for n in range(kinds)]
    terms = [scale * data(kinds + n, *SHAPE) * data(2 * kinds + n, *SHAPE) for n, scale in enumerate(scales)]
    total = terms[0] if kinds == 1 else terms[0] + terms[1]
    return merge_loops(only(reduce_axes(total, Ops.ADD, (1, 2))))


@pytest.mark.parametrize("kinds", [1, 2])
@pytest.mark.parametrize("more", ["", "; unroll k1 4", "; vectorize k1 8"])
def test_values(kinds: int, more: str) -> None:
    ast = over_blocks(kinds)
    actions = parse_schedule("accumulate k0 1; factor" + more)
    done = apply_actions(ast, actions[:2])
    sums = [n for n in done.toposort() if n.op is Ops.REDUCE]
    assert len(sums) == kinds
    for total in sums:
        places = [n.src[0] for n in total.toposort() if n.op is Ops.LOAD]
        assert len(places) == 2
        assert all(set(closed_ranges(total)) <= place.ranges for place in places)
    arrays = inputs(ast)
    for device in ("LLVM",) if "vectorize" in more else ("PYTHON", "LLVM"):
        close(run_on(device, ast, arrays, actions), run_ast(ast, arrays))


def test_what_has_none() -> None:
    """Terms that all change, a term that is nothing but such a factor, and sums of whole numbers."""
    x, y = data(0, 4, 8), data(1, 4, 8)
    row = expand(data(2, 4, 1), (4, 8))
    whole = reduce_axes(
        data(0, 4, 8, dtype=dtypes.int32) * expand(data(1, 4, 1, dtype=dtypes.int32), (4, 8)), Ops.ADD, (1,)
    )
    for u in (reduce_axes(x * y, Ops.ADD, (1,)), reduce_axes(row * x + row, Ops.ADD, (1,)), whole):
        with pytest.raises(CompileError, match="no reduction operand has a factor that is invariant in its loops"):
            apply_actions(merge_loops(only(u)), parse_schedule("factor"))
