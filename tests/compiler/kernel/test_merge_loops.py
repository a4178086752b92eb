"""Neighbouring loops that are walked as one become one."""

from __future__ import annotations

import pytest

from kernmill.compiler import merge_loops
from kernmill.ir import Ops, UOp, elementwise, iota, pad, permute, reshape, shrink
from tests.compiler.kernels import F32, close, data, inputs, only, run_ast, small_kernels, total

X = data(0, 4, 6, 8)
KERNELS = small_kernels()


def sizes(ast: UOp) -> list[int]:
    return [int(n.src[0].arg) for n in ast.toposort() if n.op is Ops.RANGE]


MERGED = {
    "all of a map": (X + 1.0, [192]),
    "outer ones of a transpose": (permute(X, (2, 0, 1)) + 1.0, [8, 24]),
    "nothing of a full transpose": (permute(X, (2, 1, 0)) + 1.0, [4, 6, 8]),
    "the loops of a sum": (total(X, 1, 2), [4, 48]),
    "rows of a row sum": (total(X, 2), [8, 24]),
    "not over a gate": (pad(X, ((0, 0), (0, 0), (1, 1))) + 1.0, [10, 24]),
    "not where a part is read": (shrink(X, ((0, 4), (0, 6), (0, 4))) + 1.0, [4, 24]),
    "not where the place is a value": (
        elementwise(Ops.MUL, reshape(iota(6), (1, 6, 1)).cast(F32), X), [4, 6, 8]),
}  # fmt: skip


@pytest.mark.parametrize("name", MERGED)
def test_what_is_merged(name: str) -> None:
    root, left = MERGED[name]
    merged = merge_loops(only(root))
    assert sorted(sizes(merged)) == left
    assert set(merged.arg.order) == {
        str(n.arg[0]) for n in merged.toposort() if n.op is Ops.RANGE and n.arg[1] == "loop"
    }


@pytest.mark.parametrize("name", KERNELS)
def test_the_meaning_stays(name: str) -> None:
    ast = KERNELS[name]
    arrays = inputs(ast)
    close(run_ast(merge_loops(ast), arrays), run_ast(ast, arrays))


def test_merging_twice_is_merging_once() -> None:
    for ast in KERNELS.values():
        assert merge_loops(merge_loops(ast)) is merge_loops(ast)
