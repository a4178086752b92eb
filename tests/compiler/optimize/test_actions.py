"""The optimizer's actions: none changes what a kernel means, all print and parse, what does not fit is said."""

from __future__ import annotations

import random

import pytest

from kernmill.compiler import (
    Action,
    KernelInfo,
    apply_actions,
    fits,
    loops_of,
    merge_loops,
    parse_schedule,
    show_schedule,
)
from kernmill.ir import (
    AxisKind,
    CompileError,
    Ops,
    Stage,
    UOp,
    broadcast_to,
    closed_ranges,
    dtypes,
    elementwise,
    permute,
    reshape,
    simplify,
    substitute,
    verify,
)
from tests.compiler.kernels import (
    attention,
    causal_kernel,
    close,
    convolution,
    data,
    inputs,
    matmul,
    only,
    places_kernel,
    run_ast,
    run_on,
    small_kernels,
    total,
)

KERNELS = {**small_kernels(), "causal": causal_kernel(), "places": places_kernel()}
SEEDS = 8
ACTION_KINDS = [
    *("split", "unroll", "vectorize") * 2, "rfactor", "thread", "order", "stage", "stream", "accumulate",
    "buffer_in_output", "interleave", "scatter",
]  # fmt: skip


def random_action(ast: UOp, rng: random.Random) -> Action:
    found = loops_of(ast)
    info: KernelInfo = ast.arg
    verb = rng.choice(ACTION_KINDS)
    name = rng.choice(sorted(found))
    if verb == "thread":
        return Action(verb, (rng.choice(info.order),) if info.order else (name,))
    if verb == "order":
        return Action(verb, tuple(rng.sample(info.order, len(info.order))))
    if verb == "stage":
        return Action(verb, (str(rng.randint(1, 2)), *rng.sample(sorted(found), min(len(found), rng.randint(1, 2)))))
    if verb == "stream":
        return Action(verb)
    if verb == "buffer_in_output":
        return Action(verb, (name,))
    if verb == "scatter":
        return Action(verb, (name, rng.choice(sorted(found))))
    if verb == "accumulate" and rng.random() < 0.5:
        return Action(verb, (name, str(rng.choice([1, 2, 3])), rng.choice(sorted(found)), str(rng.choice([1, 2, 5]))))
    return Action(verb, (name, str(rng.choice([2, 3, 4, 5, 7, 8, 16, 32] if verb != "vectorize" else [2, 4, 8, 16]))))


def random_schedule(ast: UOp, seed: int) -> list[Action]:
    """Actions that fit, one after another."""
    rng = random.Random(seed)
    chosen: list[Action] = []
    for _ in range(rng.randint(1, 4)):
        for _ in range(10):
            action = random_action(apply_actions(ast, chosen), rng)
            if copies(apply_or_none(ast, [*chosen, action])) <= 256:
                chosen.append(action)
                break
    return chosen


def apply_or_none(ast: UOp, actions: list[Action]) -> UOp | None:
    try:
        return apply_actions(ast, actions)
    except CompileError:
        return None


def copies(ast: UOp | None) -> int:
    """How often a body may be copied out: kept small, so that the test is quick."""
    if ast is None:
        return 1 << 30
    count = 1
    for loop in loops_of(ast).values():
        if loop.arg[1] in (AxisKind.UNROLL, AxisKind.RFACTOR):
            count *= int(loop.src[0].arg)
    return count


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("name", KERNELS)
def test_random_schedules_keep_the_meaning(name: str, seed: int) -> None:
    ast = KERNELS[name]
    arrays = inputs(ast, seed)
    actions = random_schedule(merge_loops(ast), seed * 1000 + len(name))
    refused = ""
    try:
        close(run_on("LLVM", ast, arrays, actions), run_ast(ast, arrays))
    except CompileError as error:  # an order of loops that a staged load cannot have: refused, though late
        refused = str(error)
    assert not refused or ("do not nest" in refused and "stage" in show_schedule(actions))


@pytest.mark.parametrize("name", KERNELS)
def test_the_optimized_kernel_evaluates_to_the_same(name: str) -> None:
    """Before anything is lowered: the actions alone, in the evaluator, which has no order of blocks to go on in."""
    ast = merge_loops(KERNELS[name])
    arrays = inputs(ast, 3)
    for seed in range(4):
        actions, optimized = list[Action](), ast
        for action in random_schedule(ast, seed):
            if action.verb not in ("stage", "accumulate") and fits(optimized, action):
                actions.append(action)
                optimized = apply_actions(optimized, [action])
        verify(optimized, Stage.OPTIMIZED, show_schedule(actions))
        close(run_ast(optimized, arrays), run_ast(ast, arrays))


@pytest.mark.parametrize("name", KERNELS)
def test_the_heuristic_keeps_the_meaning(name: str, device: str) -> None:
    ast = KERNELS[name]
    arrays = inputs(ast, 1)
    close(run_on(device, ast, arrays), run_ast(ast, arrays))


@pytest.mark.parametrize(
    "text",
    [
        "vectorize i0 16\nunroll i0 4\nthread i0",
        "split k0 8; rfactor k0.s 4; order i1 i0",
        "stage 1 k0 i1.u i1.v",
        "buffer_in_output t0_0\nstream",
        "prefetch 4096\nprefetch 16384 k0 L2",
        "inorder",
        "grid i0 i1",
    ],
)
def test_print_and_parse(text: str) -> None:
    actions = parse_schedule(text)
    assert show_schedule(actions) == text.replace("; ", "\n")
    assert parse_schedule(show_schedule(actions)) == actions


def test_comments_and_blank_lines_are_no_actions() -> None:
    assert parse_schedule("# a comment\n\n  unroll i0 2  # two\n;") == [Action("unroll", ("i0", "2"))]


def test_the_actions_applied_are_kept() -> None:
    ast = apply_actions(KERNELS["row_sum"], parse_schedule("vectorize k0 4; rfactor k0 2; thread i0"))
    assert ast.arg.actions == ("vectorize k0 4", "rfactor k0 2", "thread i0")


@pytest.mark.parametrize("rows", [8, 7])
def test_parts_that_go_side_by_side_are_far_from_each_other(rows: int) -> None:
    ast = apply_actions(merge_loops(only(total(data(0, rows, 16), 1))), parse_schedule("interleave i0 4; thread i0"))
    assert {name: int(loop.src[0].arg) for name, loop in loops_of(ast).items()} == {"i0": 2, "i0.i": 4, "k0": 16}
    (load,) = (node for node in ast.toposort() if node.op is Ops.LOAD)
    table = {loop: loop.like(value) for name, loop in loops_of(ast).items() for value in (0,) if name != "i0.i"}
    place = simplify(substitute(load.src[0].src[1], table))
    at = [simplify(substitute(place, {loops_of(ast)["i0.i"]: loops_of(ast)["i0.i"].like(n)})).arg for n in range(4)]
    assert at == [0, 32, 64, 96]
    arrays = inputs(ast, 1)
    close(run_ast(ast, arrays), run_ast(only(total(data(0, rows, 16), 1)), arrays))


WRONG = {
    "fold i0 2": "schedule: 'fold' is not an action. Actions: split, unroll,",
    "split i9 2": "split i9 2 does not fit: 'i9' is not a loop. Its loops are ",
    "split i0": "split i0: a loop or an amount is missing",
    "split i0 two": "split i0 two does not fit",
    "unroll i0 1": "the amount must be 2 or more",
    "rfactor i0 2": "i0 is a loop of kind loop",
    "interleave k0 2": "k0 is a loop of kind reduce",
    "unroll i0 2; unroll i0.u 2": "i0.u is a loop of kind unroll",
    "thread k0": "k0 is not an output loop",
    "order i1 i0": "the output loops are i0",
    "grid k0": "k0 is not an output loop of a size known before launch",
    "accumulate k0 4; stage 0 k0": "the kernel writes buffer 0",  # once wrong values
    "stage 1 k0 k0": "a loop is named twice",  # once an internal error
    "grid i0 i0": "a loop is named twice",
    "accumulate k0 4 k0 2": "a loop is named twice",
    "stage 7 k0": "nothing is loaded from buffer 7 over k0",
    "thread i0; order i0; thread i0; split i0 2; thread i0.s": "another loop is already parallelized over threads",
    "vectorize i0 3": "3 lanes: must be a power of two",
    "vectorize i0 2; vectorize k0 4": "a value would have the lanes of two loops",
}


def test_the_innermost_loop_of_a_sum_is_chosen() -> None:
    ast = merge_loops(only(convolution(data(0, 2, 4, 7, 7), data(1, 5, 4, 3, 3))))
    moved = apply_actions(ast, parse_schedule("move_inner k0"))
    (total_,) = (node for node in moved.toposort() if node.op is Ops.REDUCE)
    assert [r.arg[0] for r in closed_ranges(total_)] == ["k1", "k2", "k0"]
    arrays = inputs(ast)
    close(run_on("LLVM", ast, arrays, parse_schedule("move_inner k1; vectorize i3 8")), run_ast(ast, arrays))
    for text in ("move_inner k2", "move_inner i0"):
        with pytest.raises(CompileError, match="not the outer loop of a single reduction"):
            apply_actions(ast, parse_schedule(text))


def test_a_prefetch_may_be_of_one_pass() -> None:
    x = data(0, 1024, 512)
    ast = merge_loops(only(elementwise(Ops.MUL, x, broadcast_to(reshape(total(x, 1), (1024, 1)), x.shape))))
    loads = [u for u in apply_actions(ast, parse_schedule("prefetch 2048 i1")).toposort() if u.op is Ops.LOAD]
    found = {(load.arg, "k0" in {r.arg[0] for r in load.ranges}) for load in loads}
    assert found == {((2048, 1), False), (None, True)}


def test_a_prefetch_may_be_into_the_second_cache() -> None:
    ast = merge_loops(only(data(0, 1024, 512) + 1.0))
    for text, arg in (("prefetch 64 L2", (64, 2)), ("prefetch 64 i0 L2", (64, 2)), ("prefetch 64 i0", (64, 1))):
        loads = [u for u in apply_actions(ast, parse_schedule(text)).toposort() if u.op is Ops.LOAD]
        assert [load.arg for load in loads] == [arg]
    with pytest.raises(CompileError, match="'L2' is not a loop"):
        apply_actions(ast, parse_schedule("prefetch 64 L2 i0"))


def test_a_loop_that_fills_a_kept_row_has_no_groups() -> None:
    with pytest.raises(CompileError, match="fills a kernel-local buffer"):
        apply_actions(merge_loops(KERNELS["attention"]), parse_schedule("rfactor t0_0 4"))


@pytest.mark.parametrize("text", WRONG)
def test_what_does_not_fit_is_said(text: str) -> None:
    with pytest.raises(CompileError) as error:
        apply_actions(KERNELS["row_sum"], parse_schedule(text))
    assert WRONG[text] in str(error.value)


def test_a_grid_holds_the_outermost_loops() -> None:
    ast = apply_actions(KERNELS["row_sum"], parse_schedule("grid i0"))
    (loop,) = [u for u in ast.toposort() if u.op is Ops.RANGE and u.arg[1] == AxisKind.GLOBAL]
    assert loop.arg[0] == ast.arg.order[0] == "i0"


def test_an_amount_that_does_not_divide_is_masked() -> None:
    ast = KERNELS["row_sum"]
    arrays = inputs(ast)
    for text in (
        "split i0 4",
        "unroll i0 4",
        "vectorize i0 4",
        "split k0 5",
        "rfactor k0 8",
        "vectorize k0 16",
        "unroll k0 32",
    ):
        close(run_on("LLVM", ast, arrays, parse_schedule(text)), run_ast(ast, arrays))


def test_staged_rows_do_not_lie_a_page_apart() -> None:
    """Rows at multiples of 1 KB share few places of a cache: a line is left free behind each."""
    ast = apply_actions(merge_loops(only(matmul(data(0, 8, 512), data(1, 512, 64)))), parse_schedule("stage 1 i0 k0"))
    (memory,) = (node for node in ast.toposort() if node.op is Ops.LOCAL)
    assert memory.arg[1] == 8 * (512 + 16)


def test_copies_that_fill_memory_become_lanes() -> None:
    ast = merge_loops(only(matmul(permute(data(0, 12, 20), (1, 0)), data(1, 12, 32))))
    arrays = inputs(ast)
    text = "vectorize i1 16; unroll i0 6; stage 1 i0 k0 i0.u; vectorize i0.u' 8"
    close(run_on("LLVM", ast, arrays, parse_schedule(text)), run_ast(ast, arrays))
    with pytest.raises(CompileError, match="is a loop of kind"):
        apply_actions(ast, parse_schedule("unroll i0 6; vectorize i0.u 8"))


def test_stage_copies_a_panel_first() -> None:
    ast = KERNELS["matmul"]
    arrays = inputs(ast)
    actions = parse_schedule("vectorize i1 4; unroll i1 5; unroll i0 3; order i1 i0; stage 2 k0 i1.u i1.v")
    staged = apply_actions(merge_loops(ast), [a for a in actions if a.verb != "order"])
    assert any(node.op is Ops.LOCAL for node in staged.toposort())
    close(
        run_on("LLVM", ast, arrays, parse_schedule("vectorize i1 4; unroll i1 5; unroll i0 3; stage 2 k0 i1.u i1.v")),
        run_ast(ast, arrays),
    )


# --- rows with neighbours in each lane
def test_a_woven_row_gives_the_same() -> None:
    """Named regression: what lies at the same number in another row stays where it is."""
    q, k, v = (data(slot, 32, 8, dtype=dtypes.bfloat16) for slot in range(3))
    ast = merge_loops(only(attention(q, k, v)))
    arrays = inputs(ast)
    for schedule in (
        "vectorize i0 16; pack_words t0_0",
        "vectorize i0 16; unroll i0 2; pack_words t0_0; unroll t0_0 4",
    ):
        found = apply_actions(ast, parse_schedule(schedule))
        close(run_ast(found, arrays), run_ast(ast, arrays))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pack_words i0", "does not write a row"),
        ("pack_words t1_0", "narrow values"),
        ("pack_words t0_0", "no lanes yet"),
    ],
)
def test_rows_that_are_not_woven(text: str, message: str) -> None:
    q, k, v = (data(slot, 32, 8, dtype=dtypes.bfloat16) for slot in range(3))
    with pytest.raises(CompileError, match=message):
        apply_actions(merge_loops(only(attention(q, k, v))), parse_schedule(text))


def test_old_names_of_actions_are_accepted() -> None:
    """Schedules are stored on disk and written in OVERRIDE files."""
    found = parse_schedule("inner k0; inplace t0_0; vnni t0_0")
    assert [action.verb for action in found] == ["move_inner", "buffer_in_output", "pack_words"]
