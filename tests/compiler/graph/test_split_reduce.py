"""A reduction of much to little in two steps."""

from __future__ import annotations

import importlib

import numpy as np
import pytest

from kernmill.ir import DType, Op, Ops, UOp, const, dtypes, reduce_axes
from tests.compiler.kernels import F32, close, data, names, numpy_name, run_graph, total

split_reduce = importlib.import_module("kernmill.compiler.graph.split_reduce")  # not at the face
LONG = 64 * 2048


def split(root: UOp) -> UOp:
    (found,) = split_reduces(root)
    return found


def split_reduces(*roots: UOp) -> list[UOp]:
    found: list[UOp] = split_reduce.split_reduce(roots)
    return found


def test_a_long_sum_is_two_kernels() -> None:
    assert names(total(data(0, LONG), 0)) == ["sum_64_k2048", "sum_1_k64"]


@pytest.mark.parametrize("length", [1 << 26, 1 << 30])
def test_the_parts_do_not_become_more(length: int) -> None:
    """How many terms a part may have is not asked here: block_sums cuts its loop in blocks."""
    assert names(total(data(0, length), 0)) == [f"sum_64_k{length // 64}", "sum_1_k64"]


@pytest.mark.parametrize(("rows", "parts"), [(4096, 64), (1000, 100), (991, 64)])
def test_axes_that_lie_apart_stay_loops_of_their_own(rows: int, parts: int) -> None:
    """As one they were walked by quotient and remainder, and lanes went over the parts: four times as long."""
    root = total(data(0, rows, 3, 256), 0, 2)
    assert names(root)[0] == f"sum_3x{parts}_" + (f"k{rows // parts}x256" if rows % parts == 0 else "k3964")
    values = np.random.default_rng(1).uniform(-3, 3, rows * 3 * 256).astype(np.float32)
    close(run_graph(split(root), [values]), run_graph(root, [values]))


@pytest.mark.parametrize("shape", [(LONG - 64,), (17, LONG), (100, 100)], ids=str)
def test_short_ones_and_many_stay_as_they_are(shape: tuple[int, ...]) -> None:
    root = total(data(0, *shape), len(shape) - 1)
    assert split(root) is root


@pytest.mark.parametrize("op", [Ops.ADD, Ops.MAX, Ops.MIN, Ops.MUL], ids=str)
@pytest.mark.parametrize("length", [LONG, LONG + 1, LONG + 777], ids=str)
def test_the_result_is_the_same(op: Op, length: int) -> None:
    """Also with padding, which must not be seen: a largest of negative numbers is not 0."""
    values = np.random.default_rng(1).uniform(-3, -1, length).astype(np.float32)
    if op is Ops.MUL:
        values = np.where(np.arange(length) % 2, -1, -1.0).astype(np.float32)
    root = reduce_axes(data(0, length), op, (0,))
    close(run_graph(split(root), [values]), run_graph(root, [values]))


def test_the_cut_does_not_depend_on_threads() -> None:
    root = total(data(0, LONG * 2), 0)
    assert split(root) is split(root)


ROWS = [(op, d) for op in (Ops.ADD, Ops.MUL, Ops.MAX, Ops.MIN, Ops.AND, Ops.OR, Ops.XOR) for d in dtypes.data
        if not (d.is_float and op in (Ops.AND, Ops.OR, Ops.XOR))]  # fmt: skip


@pytest.mark.parametrize(("op", "dtype"), ROWS, ids=str)
def test_the_neutral_element_changes_nothing(op: Op, dtype: DType) -> None:
    neutral = split_reduce.neutral_element(op, const(dtype, 1))
    for value in (0, 1) if dtype.is_bool else (dtype.min, -1 if dtype.min else 3, 0, 5, dtype.max):
        x = const(dtype, value)
        assert run_graph(x.alu(op, neutral), []) == np.array(x.arg, numpy_name(dtype)), f"{op} {neutral.arg} {value}"
    assert neutral.dtype is dtype
    assert F32.is_float


def test_both_halves_have_the_line_of_the_whole() -> None:
    """Reports named no line, and no pin found them."""
    whole = total(data(0, 3 << 19), 0)  # nodes are shared: no other test has this one
    whole.origin = "train.py:7"
    halves = [node for node in split(whole).toposort() if node.op is Ops.REDUCE]
    assert len(halves) == 2
    assert {node.origin for node in halves} == {"train.py:7"}
