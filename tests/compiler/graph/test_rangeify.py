"""Movement ops as index arithmetic: what is left of chains of them."""

from __future__ import annotations

import importlib
import random

import pytest

from kernmill.ir import (
    AxisKind,
    Ops,
    UOp,
    broadcast_to,
    elementwise,
    evaluate,
    linear,
    make_range,
    pad,
    permute,
    reshape,
    shrink,
    strided,
    unwindow,
    window,
)
from tests.compiler.kernels import F32, close, data, inputs, only, run_ast, run_graph, run_schedule, scheduled

rangeify = importlib.import_module("kernmill.compiler.graph.rangeify")  # inside the compiler: nobody else calls it


def place(x: UOp) -> UOp:
    """Where the kernel of a moved input reads it."""
    (load,) = [n for n in only(x + 1.0).toposort() if n.op is Ops.LOAD]
    return load.src[0]


def loop(name: str, size: int) -> UOp:
    return make_range(name, size, AxisKind.LOOP)


X = data(0, 6, 8)
I0, I1 = loop("i0", 6), loop("i1", 8)


def test_no_movement_is_row_major() -> None:
    assert place(X).src[1] is I0 * 8 + I1


def test_permute_swaps_the_strides() -> None:
    terms, offset = linear(place(permute(X, (1, 0))).src[1])
    assert (terms, offset) == ({loop("i0", 8): 1, loop("i1", 6): 8}, 0)


INVERSE = {
    "reshape": reshape(reshape(X, (4, 12)), (6, 8)),
    "reshape of axes": reshape(reshape(X, (2, 3, 4, 2)), (6, 8)),
    "permute": permute(permute(X, (1, 0)), (1, 0)),
    "flip": strided(strided(X, (-1, -1)), (-1, -1)),
    "permute and reshape": reshape(permute(reshape(permute(X, (1, 0)), (8, 3, 2)), (1, 2, 0)), (6, 8)),
    "expand and shrink": shrink(broadcast_to(reshape(X, (1, 6, 8)), (3, 6, 8)), ((1, 2), (0, 6), (0, 8))),
}  # fmt: skip


@pytest.mark.parametrize("name", INVERSE)
def test_what_undoes_itself_leaves_nothing(name: str) -> None:
    found = place(INVERSE[name])
    assert found.src[1] is place(reshape(X, INVERSE[name].shape)).src[1]
    assert len(found.src) == 2


def test_a_reshape_that_splits_and_merges_needs_no_division() -> None:
    x = reshape(permute(reshape(X, (2, 3, 8)), (1, 0, 2)), (3, 16))
    used = {n.op for n in place(x).src[1].toposort()}
    assert Ops.CDIV not in used
    assert used <= {Ops.ADD, Ops.MUL, Ops.FLOORDIV, Ops.MOD, Ops.RANGE, Ops.CONST}
    assert Ops.FLOORDIV not in {n.op for n in place(reshape(X, (2, 3, 4, 2))).src[1].toposort()}


def test_padding_is_a_gate() -> None:
    found = place(pad(X, ((0, 0), (2, 1))))
    assert len(found.src) == 3
    assert found.src[2].ranges == {loop("i1", 11)}


def test_padding_and_cutting_it_off_again_leaves_no_gate() -> None:
    assert len(place(shrink(pad(X, ((1, 1), (2, 2))), ((1, 7), (2, 10)))).src) == 2


def test_half_a_padding_keeps_half_a_gate() -> None:
    gate = place(shrink(pad(X, ((0, 0), (2, 2))), ((0, 6), (2, 12)))).src[2]
    assert gate is (loop("i1", 10) < 8)


def test_windows_overlap_without_a_gate() -> None:
    found = place(window(X, 1, 3))
    assert len(found.src) == 2
    assert linear(found.src[1])[0] == {I0: 8, loop("i1", 6): 1, loop("i2", 3): 1}


def test_flat_index_is_row_major() -> None:
    assert rangeify.flat_index((I0, I1), (6, 8)) is I0 * 8 + I1
    assert rangeify.flat_index((), ()).arg == 0


def random_chain(rng: random.Random) -> UOp:
    x = X
    for _ in range(rng.randint(2, 6)):
        sizes = [int(s) for s in x.shape]  # type: ignore[arg-type]
        total = 1
        for size in sizes:
            total *= size
        if total > 600:
            return x
        match rng.randrange(7):
            case 0:
                x = permute(x, rng.sample(range(len(sizes)), len(sizes)))
            case 1:
                x = pad(x, [(rng.randint(0, 2), rng.randint(0, 2)) for _ in sizes])
            case 2:
                x = shrink(x, [(rng.randint(0, (s - 1) // 2), s) for s in sizes])
            case 3:
                x = strided(x, [rng.choice([1, -1, 2, -2]) for _ in sizes])
            case 4:
                first = rng.choice([d for d in range(1, total + 1) if total % d == 0])
                x = reshape(x, (first, total // first))
            case 5:
                axis = rng.randrange(len(sizes))
                size = rng.randint(1, min(3, sizes[axis]))
                x = window(x, axis, size, rng.randint(1, 2))
                if rng.random() < 0.5 and x.op is Ops.WINDOW:
                    x = unwindow(x, axis, sizes[axis], x.arg[2], x.arg[3])
            case _:
                x = broadcast_to(reshape(x, (*sizes, 1)), (*sizes, 2))
    return x


@pytest.mark.parametrize("seed", range(60))
def test_random_chains_read_the_right_places(seed: int) -> None:
    """Before and after: the graph in the evaluator, and its kernel in the evaluator."""
    root = random_chain(random.Random(seed))
    root = elementwise(Ops.MUL, root, root)
    schedule = scheduled(root)
    if not schedule.items:
        return
    given = [inputs(only(X + 1.0))[1]]
    close(run_schedule(schedule, given)[schedule.results[0]], run_graph(root, given))


def test_indices_of_a_kernel_stay_inside() -> None:
    """The evaluator would raise; verify says so as well."""
    ast = only(strided(pad(X, ((1, 2), (3, 0))), (-2, 3)) + 1.0)
    arrays = inputs(ast)
    assert run_ast(ast, arrays).dtype == evaluate(X, {X.src[0]: arrays[1]}).dtype
    assert F32 is X.dtype
