"""A loop whose digits are used apart becomes one loop for each digit."""

from __future__ import annotations

import pytest

from kernmill.compiler import split_loops
from kernmill.ir import Ops, UOp, elementwise, expand, permute, reshape
from tests.compiler.kernels import close, data, inputs, only, relu, run_ast, small_kernels, total

X = data(0, 2, 4, 20, 3)  # rows, channels, positions, terms
W = data(1, 4, 3)
KERNELS = small_kernels()


def sizes(ast: UOp) -> list[int]:
    return sorted(int(n.src[0].arg) for n in ast.toposort() if n.op is Ops.RANGE)


def products(x: UOp, w: UOp) -> UOp:
    """Sums over the last axis, one weight for each channel."""
    return total(elementwise(Ops.MUL, x, reshape(w, (1, 4, 1, 3))), 3)


def digits() -> dict[str, tuple[UOp, list[int]]]:
    turned = reshape(permute(data(0, 2, 4, 3, 20), (0, 1, 3, 2)), (2, 4, 20, 3))
    phases = reshape(permute(reshape(data(0, 5, 2, 3, 7), (5, 2, 3, 7)), (0, 2, 1, 3)), (5, 6, 7))
    return {
        "a reshape after a sum": (relu(reshape(products(turned, W), (2, 80))), [2, 3, 4, 20]),
        "terms in two orders": (total(elementwise(Ops.MUL, phases, data(1, 5, 6, 7)), 1), [2, 3, 5, 7]),
        "not a map": (relu(reshape(permute(data(0, 6, 5), (1, 0)), (30,))), [30]),
        "not neighbours into fewer than a vector": (
            total(elementwise(Ops.MUL, data(0, 5, 6), reshape(expand(data(1, 5, 3, 1), (5, 3, 2)), (5, 6))), 1),
            [5, 6],
        ),
        "not terms that are neighbours": (
            total(elementwise(Ops.MUL, data(0, 5, 60), reshape(expand(data(1, 5, 3, 1), (5, 3, 20)), (5, 60))), 1),
            [5, 60],
        ),
    }


@pytest.mark.parametrize("name", digits())
def test_what_is_split(name: str) -> None:
    root, left = digits()[name]
    ast = only(root)
    split = split_loops(ast)
    assert sizes(split) == left
    assert set(split.arg.order) == {str(n.arg[0]) for n in split.toposort() if n.op is Ops.RANGE and n.arg[1] == "loop"}
    arrays = inputs(ast)
    close(run_ast(split, arrays), run_ast(ast, arrays))


@pytest.mark.parametrize("name", KERNELS)
def test_the_meaning_stays(name: str) -> None:
    ast = KERNELS[name]
    arrays = inputs(ast)
    close(run_ast(split_loops(ast), arrays), run_ast(ast, arrays))


@pytest.mark.parametrize("name", KERNELS)
def test_splitting_twice_is_splitting_once(name: str) -> None:
    split = split_loops(KERNELS[name])
    assert split_loops(split) is split
