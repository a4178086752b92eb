"""The neighbours of a schedule: legal, different, one step away, the same for the same seed, and true to the kernel."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from itertools import islice

import pytest

from kernmill.compiler import (
    ACTION_KINDS,
    Action,
    body_size,
    choose,
    is_reasonable,
    merge_loops,
    neighbours,
    optimized,
    parse_schedule,
    show_schedule,
)
from kernmill.ir import InternalError, UOp
from kernmill.runtime import get_device
from tests.compiler.kernels import (
    SCALARS,
    VECTORS,
    close,
    data,
    inputs,
    kernels,
    matmul,
    run_ast,
    run_on,
    scheduled,
    small_kernels,
)

SMALL = small_kernels()


@pytest.fixture(autouse=True)
def on_device() -> None:
    """Once is enough."""


def product() -> UOp:
    (kernel,) = kernels(scheduled(matmul(data(0, 64, 96), data(1, 96, 48))))
    return merge_loops(kernel.ast)


def test_neighbours_are_legal_new_and_reasonable() -> None:
    ast = product()
    here = choose(ast, VECTORS).actions
    found = list(neighbours(ast, here, VECTORS, random.Random(1)))
    assert len(found) > 50
    assert len({done for _, done in found}) == len(found)
    for schedule, done in found:
        assert optimized(ast, schedule) is done
        assert is_reasonable(done, VECTORS)
        assert done is not optimized(ast, here)
        assert parse_schedule(show_schedule(schedule)) == schedule


def test_every_verb_is_tried_and_every_action_dropped() -> None:
    ast, target = product(), replace(VECTORS, l2_bytes=1024)  # too small for the result, so that `stream` has a use
    here = parse_schedule("split i0 16; vectorize i1 16; unroll i0 2; order i0 i1 i0.s; thread i0")
    found = [schedule for schedule, _ in neighbours(ast, here, target, random.Random(1))]
    tried = {action.verb for schedule in found for action in schedule}
    left = {
        "bias",
        "prefetch",
        "inorder",
        "grid",
        "local",
        "share",
        "buffer_in_output",
        "tensorize",
        "move_inner",
        "pack_words",
    }  # nothing for them
    left |= {"scatter", "factor"}
    assert tried == set(ACTION_KINDS) - left
    for verb in ("split", "vectorize", "unroll", "thread"):
        assert any(verb not in {action.verb for action in schedule} for schedule in found), verb
    assert Action("unroll", ("i0", "4")) in [action for schedule in found for action in schedule]


def test_equal_seeds_give_equal_neighbours() -> None:
    ast = product()

    def one(seed: int) -> list[str]:
        return [
            show_schedule(s) for s, _ in neighbours(ast, choose(ast, VECTORS).actions, VECTORS, random.Random(seed))
        ]

    assert one(3) == one(3)
    assert one(3) != one(4)
    assert sorted(one(3)) == sorted(one(4)) or len(one(3)) == len(one(4))


def test_an_action_that_does_not_fit_gives_nothing() -> None:
    assert optimized(product(), parse_schedule("split z9 8")) is None


def test_the_size_of_a_body() -> None:
    ast = product()
    plain = body_size(ast, VECTORS)
    tiled = optimized(ast, parse_schedule("vectorize i1 16; unroll i0 8"))
    assert tiled is not None
    assert body_size(tiled, VECTORS)[0] > plain[0]
    assert body_size(tiled, VECTORS)[1] == 8
    large = optimized(ast, parse_schedule("unroll i0 16; unroll i1 16"))
    assert large is not None
    assert not is_reasonable(large, VECTORS)


@pytest.mark.parametrize("name", sorted(SMALL))
def test_no_neighbour_changes_what_a_kernel_means(name: str) -> None:
    ast = merge_loops(SMALL[name])
    arrays = inputs(SMALL[name], 5)
    wanted = run_ast(SMALL[name], arrays)
    rng = random.Random(name)
    target = get_device("LLVM").target
    for start in (choose(ast, target).actions, []):
        for schedule, _ in islice(neighbours(ast, start, target, rng), 4):
            with suppress(InternalError):  # refused late: no wrong result
                close(run_on("LLVM", SMALL[name], arrays, schedule), wanted)


def test_a_target_without_vectors_gets_none() -> None:
    found = [a.verb for s, _ in neighbours(product(), [], SCALARS, random.Random(1)) for a in s]
    assert "split" in found
    assert not {"vectorize", "thread"} & set(found)
