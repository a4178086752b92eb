"""Sums over blocks of products of bytes: which loops become lanes, a tile, a body; and that values stay exact."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kernmill.compiler import (
    analyze,
    apply_actions,
    block_schedule,
    choose,
    is_nested,
    merge_loops,
    show_schedule,
)
from kernmill.ir import (
    Ops,
    Target,
    UOp,
    const,
    dtypes,
    elementwise,
    expand,
    permute,
    reduce_axes,
    reshape,
    substitute,
)
from tests.compiler.kernels import VECTORS, Array, close, data, inputs, lowered, matmul, only, run_ast, run_on

VNNI = replace(VECTORS, dots=frozenset({(dtypes.uint8, dtypes.int8)}))


def product(rows: int = 1, groups: int = 3, blocks: int = 4, planes: int = 1, start: int = 0) -> UOp:
    """[rows, groups, 16]: weights as words of 16 rows side by side, with a scale for each row and block."""
    shape = (rows, groups, 16, blocks, planes, 4, 4)
    weights = permute(data(start, groups, blocks, planes, 4, 16, 4, dtype=dtypes.uint8), (0, 4, 1, 2, 3, 5))
    x = data(1, rows, 1, 1, blocks, planes, 4, 4, dtype=dtypes.int8)
    scales = permute(data(start + 2, groups, blocks, planes, 16), (0, 3, 1, 2))
    terms = [expand(u, shape).cast(dtypes.int32) for u in (reshape(weights, (1, *shape[1:])), x)]
    total = reduce_axes(terms[0] * terms[1], Ops.ADD, (5, 6)).cast(dtypes.float32)
    scaled = total * expand(reshape(scales, (1, groups, 16, blocks, planes, 1, 1)), total.shape)
    return reshape(reduce_axes(scaled, Ops.ADD, (3, 4)), (rows, groups, 16))


def by_turns(groups: int, blocks: int, planes: int = 2) -> UOp:
    """[groups, 2, 16]: each block of 16 rows is followed by that of 16 more."""
    shape = (groups, 2, 16, blocks, planes, 4, 4)
    weights = permute(data(0, groups, blocks, 2, planes, 4, 16, 4, dtype=dtypes.uint8), (0, 2, 5, 1, 3, 4, 6))
    x = expand(data(1, 1, 1, 1, blocks, planes, 4, 4, dtype=dtypes.int8), shape)
    scales = permute(data(2, groups, blocks, 2, planes, 16), (0, 2, 4, 1, 3))
    total = reduce_axes(weights.cast(dtypes.int32) * x.cast(dtypes.int32), Ops.ADD, (5, 6)).cast(dtypes.float32)
    return reduce_axes(total * scales, Ops.ADD, (3, 4))


def gated(groups: int, *shape: int) -> UOp:
    """A gate times a product of the same row, with something added, in a shape that is cut otherwise than the rows."""
    (first, second), x = (product(1, groups), product(1, groups, start=4)), data(3, *shape)
    return elementwise(Ops.MUL, elementwise(Ops.ADD, reshape(first, shape), x), reshape(second, shape))


def schedule(root: UOp, target: Target = VNNI) -> list[str]:
    schedule = block_schedule(analyze(merge_loops(only(root)), target))
    return [] if schedule is None else show_schedule(schedule.actions).splitlines()


def test_one_kernel_of_two_sums() -> None:
    sums = [node for node in only(product()).toposort() if node.op is Ops.REDUCE]
    assert [is_nested(total) for total in sums] == [False, True]


def test_one_row() -> None:
    """Lanes are rows of the weights, of which four parts, or two, are read side by side where they are equally long."""
    found = schedule(product(groups=8))
    assert found[0].split()[::2] == ["vectorize", "16"]
    assert "interleave i0 4" in found
    assert "interleave i0 2" in schedule(product(groups=6))
    assert "interleave i0 2" in schedule(product(groups=4))  # two threads find something
    assert not any(line.startswith("interleave") for line in schedule(product(groups=3)))


def test_one_row_where_the_cpu_reads_ahead() -> None:
    """Nothing is asked for, and there is one stream: two in a page, or prefetches, took twice as long on Zen 4."""
    found = schedule(product(groups=8), replace(VNNI, has_hardware_prefetch=True))
    assert found[-1] == "inorder"
    assert not any(line.startswith(("interleave", "prefetch")) for line in found)


def test_short_bodies_have_sums_side_by_side() -> None:
    """One chain after the other took a tenth longer (TQ2_0)."""
    assert "rfactor k1 4" in schedule(by_turns(groups=4, blocks=8, planes=8))
    narrow = replace(VNNI, vector_registers=16)
    for other in (schedule(by_turns(groups=4, blocks=8)), schedule(by_turns(groups=4, blocks=8, planes=8), narrow)):
        assert not any(line.startswith("rfactor") for line in other)


def test_a_chosen_matrix_has_the_schedule_of_a_single_one() -> None:
    """The number of an expert, loaded once for all lanes, was taken for a table: a token took twice as long."""
    plain = merge_loops(only(product()))
    words = next(u for u in plain.toposort() if u.op is Ops.INDEX and u.src[0].arg[0] == 1)
    numbers = UOp(Ops.INDEX, dtypes.int32, (UOp(Ops.PARAM, dtypes.int32, (), (9, 1)), const(words.src[1].dtype, 0)))
    first = UOp(Ops.CAST, words.src[1].dtype, (UOp(Ops.LOAD, dtypes.int32, (numbers,)),))
    chosen = substitute(plain, {words: words.replace(src=(words.src[0], words.src[1] + first))})
    expected, found = (block_schedule(analyze(ast, VNNI)) for ast in (plain, chosen))
    assert expected is not None
    assert found is not None
    assert show_schedule(found.actions) == show_schedule(expected.actions)


def test_values_where_the_cpu_reads_ahead() -> None:
    target = replace(VNNI, has_hardware_prefetch=True)
    ast = merge_loops(only(product(groups=8, blocks=128, planes=2)))  # large enough to be read in order
    actions = choose(ast, target).actions
    assert any(load.arg == "inorder" for load in apply_actions(ast, actions).toposort() if load.op is Ops.LOAD)
    arrays = random_bytes(ast)
    close(run_on("LLVM", ast, arrays, actions), run_ast(ast, arrays))


def test_blocks_by_turns_are_walked_as_they_lie() -> None:
    """What is read between two looks at a block of x drove it out of the cache (docs/topics/quantized-layouts.md)."""
    found = schedule(by_turns(groups=4, blocks=8))
    assert found[found.index("accumulate k0 1") + 1] == "order i0 k0 i1"
    for other in (product(groups=8), by_turns(groups=1, blocks=8)):  # the second leaves threads no loop
        assert not any(line.startswith("accumulate") for line in schedule(other))


@pytest.mark.parametrize("planes", [2, 8])
def test_values_of_blocks_by_turns(planes: int) -> None:
    ast = merge_loops(only(by_turns(groups=3, blocks=5, planes=planes)))
    actions = choose(ast, VNNI).actions
    assert "accumulate k0 1" in show_schedule(actions)
    arrays = random_bytes(ast)
    close(run_on("LLVM", ast, arrays, actions), run_ast(ast, arrays))


def test_bytes_side_by_side_are_no_words() -> None:
    """Named regression: lanes a byte apart ended in min() of nothing, on every CPU with dot products of bytes."""
    weights = expand(data(0, 1, 5, 8, 32, dtype=dtypes.uint8), (1, 5, 8, 32)).cast(dtypes.int32)
    x = expand(data(1, 1, 5, 8, 1, dtype=dtypes.int8), (1, 5, 8, 32)).cast(dtypes.int32)
    total = reduce_axes(weights * x, Ops.ADD, (2,)).cast(dtypes.float32)
    ast = merge_loops(only(reduce_axes(total * reshape(data(2, 1, 5, 32), total.shape), Ops.ADD, (1,))))
    actions = choose(ast, VNNI).actions
    arrays = random_bytes(ast)
    close(run_on("LLVM", ast, arrays, actions), run_ast(ast, arrays))


def test_many_rows() -> None:
    """A tile of up to three groups; what many tiles would unpack again is staged: codes, scales with fewer loops."""
    assert schedule(product(rows=8, groups=4))[-1] == "order i1"
    found = schedule(product(rows=9, groups=4))
    assert {"unroll i1 2", "unroll i0 3"} <= set(found)
    assert found[-1] == "order i1 i0"
    stages = [line.split() for line in schedule(product(rows=64, groups=4)) if line.startswith("stage")]
    assert len(stages) == 1
    assert stages[0][-1].endswith(".u")
    assert {"unroll i1 3", "unroll i0 3"} <= set(schedule(product(rows=9, groups=3)))
    assert schedule(product(rows=64, groups=48))[-1] == "prefetch 3072 k0'"


def test_dots_of_a_tile_stand_side_by_side() -> None:
    """The chain of each sum is one step on before any is two, and starts without an addition."""
    uops = lowered(merge_loops(only(product(rows=9, groups=4))), VNNI)
    dots = [u for u in uops if u.op is Ops.DOT]
    firsts = [n for n, u in enumerate(dots) if u.src[2].op is not Ops.DOT]
    assert len(firsts) == 6
    assert firsts[-1] < 12


def test_rows_that_are_digits_of_a_loop() -> None:
    """What is added to the result, or its shape, may hide that 16 rows lie side by side."""
    assert schedule(gated(4, 64))[0] == "vectorize i0 16"
    assert schedule(gated(6, 2, 48))[0] == "vectorize i1 16"
    assert schedule(gated(3, 6, 8)) == []


@pytest.mark.parametrize("shape", [(64,), (2, 32), (8, 8)])
def test_values_of_two_products(shape: tuple[int, ...]) -> None:
    ast = only(gated(4, *shape))
    arrays = random_bytes(ast)
    close(run_on("LLVM", ast, arrays), run_ast(ast, arrays))


def random_bytes(ast: UOp) -> list[Array]:
    """Inputs with whole numbers of their full range."""
    arrays = inputs(ast)
    for number, array in enumerate(arrays[1:], 1):
        if array.dtype.kind in "iu":
            limits = np.iinfo(array.dtype)
            rng = np.random.default_rng(number)
            arrays[number] = rng.integers(limits.min, limits.max + 1, array.size).astype(array.dtype)
    return arrays


def test_other_kernels() -> None:
    assert block_schedule(analyze(merge_loops(only(matmul(data(0, 8, 8), data(1, 8, 16)))), VNNI)) is None
    assert block_schedule(analyze(merge_loops(only(product())), VECTORS)) is None


@pytest.mark.parametrize(
    "sizes", [(1, 1), (1, 4), (3, 3), (8, 2), (9, 1), (17, 2), (50, 1), (25, 2), (64, 4), (30, 5), (26, 7)]
)
@pytest.mark.parametrize("planes", [1, 2, 5])
def test_values(sizes: tuple[int, int], planes: int) -> None:
    ast = only(product(*sizes, planes=planes))
    arrays = random_bytes(ast)
    want = run_ast(ast, arrays)
    close(run_on("LLVM", ast, arrays), want)
    merged = merge_loops(ast)
    close(run_on("LLVM", ast, arrays, choose(merged, VNNI).actions), want)
    assert apply_actions(merged, choose(merged, VNNI).actions) is not None
