import ctypes

import numpy as np
import pytest

from kernmill.compiler import locality, lower, optimize_loops, parse_schedule
from kernmill.ir import Ops, UOp, const, dtypes, elementwise, permute, reshape
from kernmill.renderers import signature
from kernmill.runtime import get_device
from tests.compiler.kernels import F32, VECTORS, data, inputs, matmul, only, params, small_kernels, softmax, total

X = data(0, 8, 32)


def letters(*roots: UOp, schedule: str | None = None) -> str:
    return locality(optimize_loops(only(*roots), VECTORS, None if schedule is None else parse_schedule(schedule)))


def test_rows() -> None:
    assert letters(X * 2.0) == "wr"
    assert letters(softmax(data(0, 64, 32))) == "wr"
    assert letters(elementwise(Ops.ADD, X, reshape(data(1, 32), (1, 32)))) == "wrs"
    assert letters(total(data(0, 64, 32), 1)) == "wr"


def test_what_crosses_rows() -> None:
    assert letters(permute(X, (1, 0)) + 1.0, schedule="thread i0") == "ws"
    assert letters(total(X, 0), schedule="thread i0") == "ws"
    assert letters(permute(X, (1, 0)) + 1.0, schedule="order i1 i0; thread i1") == ""  # writes columns


def test_no_threads() -> None:
    assert letters(X * 2.0, schedule="vectorize i0 16") == ""


def test_work_outside_of_the_loop() -> None:
    """A panel that is packed once for all iterations would be packed for each part."""
    product = matmul(data(0, 64, 32), data(1, 32, 16))
    packed = "vectorize i1 16; unroll i0 4; stage 2 k0 i1.v; thread i0"
    assert letters(product, schedule=packed) == ""
    assert letters(product, schedule="vectorize i1 16; unroll i0 4; thread i0") == "wrs"


def test_stores_around_the_caches() -> None:
    assert letters(softmax(X), schedule="thread i0") == "wr"
    assert letters(softmax(X), schedule="stream; thread i0") == ""


def test_a_last_block_that_is_not_whole() -> None:
    """Seven rows in blocks of four: two iterations, of which none owns half."""
    assert letters(softmax(data(0, 7, 16)), schedule="unroll i0 4; thread i0") == ""


def test_a_gather_inside_rows() -> None:
    """Rows and places may be added up as int64, as users do."""
    rows = reshape(UOp(Ops.IOTA, dtypes.int64, (), 6), (6, 1))
    inside = elementwise(Ops.MIN, elementwise(Ops.MAX, data(1, 6, 19, dtype=dtypes.int64), const(dtypes.int64, 0)),
                         const(dtypes.int64, 18))  # fmt: skip
    place = elementwise(Ops.ADD, inside, elementwise(Ops.MUL, rows, const(dtypes.int64, 19)))
    assert locality(optimize_loops(only(_taken(data(0, 114), place)), VECTORS, parse_schedule("thread i0"))) == "wrr"


def _taken(x: UOp, place: UOp) -> UOp:
    return UOp(Ops.TAKE, F32, (x, place), 0)


@pytest.mark.parametrize("name", small_kernels())
def test_an_iteration_touches_what_it_owns(name: str) -> None:
    """One iteration, once on all data and once with other numbers in all parts that it should not look at."""
    device, whole = get_device("LLVM"), small_kernels()[name]
    ast = optimize_loops(whole, device.target)
    found, slots = locality(ast), params(whole)
    if not found:
        return
    uops = lower(ast, device.target, whole)
    threads = signature(uops).threads
    program = device.load("k", device.compile("k", device.renderer.render("k", uops)))
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(program.handle.symbols["k"])
    given, others = inputs(whole, 1), inputs(whole, 2)
    for t in {0, threads // 2, threads - 1}:
        plain, mixed = [a.copy() for a in given], [a.copy() for a in others]
        for letter, mine, from_ in zip(found, mixed, given, strict=True):
            part = slice(None) if letter == "s" else slice(t * mine.size // threads, (t + 1) * mine.size // threads)
            mine[part] = from_[part]
        before = [a.copy() for a in mixed]
        for arrays in (plain, mixed):
            run((ctypes.c_int64 * len(slots))(*(a.ctypes.data for a in arrays)), t, t + 1)
        for letter, one, other, old in zip(found, plain, mixed, before, strict=True):
            size = one.size // threads
            own = slice(t * size, (t + 1) * size) if letter == "w" else slice(0, 0)
            np.testing.assert_array_equal(one[own], other[own])
            other[own] = old[own]
            np.testing.assert_array_equal(other, old)
