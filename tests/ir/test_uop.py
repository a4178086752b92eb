"""Nodes: equal ones are one object, in every thread, for as long as somebody holds them; keys are equal in every
process."""

from __future__ import annotations

import math
import os
import pickle
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import pytest

from kernmill.ir import (
    AxisKind,
    InternalError,
    Ops,
    UOp,
    closed_ranges,
    const,
    current_origin,
    dtypes,
    index_const,
    make_range,
    substitute,
)

ROOT = Path(__file__).resolve().parents[2]


def variable(name: str = "v", low: int = 0, high: int = 9) -> UOp:
    return UOp(Ops.VARIABLE, dtypes.index, (), (name, low, high))


def test_equal_nodes_are_one_object() -> None:
    assert variable() is variable()
    assert variable() + 1 is variable() + 1
    assert variable() + 1 is not variable() + 2
    assert variable() + 1 is not variable() - 1


def test_constants_are_told_apart_by_bits() -> None:
    zero = const(dtypes.float32, 0.0)
    assert zero is not const(dtypes.float32, -0.0)
    assert zero is const(dtypes.float32, 0)
    assert zero is not const(dtypes.float64, 0.0)
    nan = const(dtypes.float32, math.nan)
    assert nan is const(dtypes.float32, float("nan"))
    assert const(dtypes.bool, True) is const(dtypes.bool, 1)
    assert const(dtypes.bool, 1).arg is True
    assert const(dtypes.int32, True) is const(dtypes.int32, 1)
    assert const(dtypes.int32, 1) is not const(dtypes.bool, 1)
    assert const(dtypes.float32.vec(2), (0.0, -0.0)) is not const(dtypes.float32.vec(2), (0.0, 0.0))
    assert const(dtypes.float32.vec(2), (math.nan, 1)) is const(dtypes.float32.vec(2), (math.nan, 1.0))


def test_constants_are_values_of_their_dtype() -> None:
    assert const(dtypes.float32, 0.1).arg != 0.1
    assert const(dtypes.float32, 0.1).arg == pytest.approx(0.1, rel=1e-7)
    assert const(dtypes.float16, 1e6).arg == math.inf
    assert const(dtypes.uint8, -1).arg == 255
    assert const(dtypes.int8, 200).arg == -56
    assert const(dtypes.index, 1 << 70).arg == 1 << 70
    assert type(index_const(True).arg) is int


def test_many_threads_make_one_node() -> None:
    start = threading.Barrier(8)
    found: list[list[UOp]] = [[] for _ in range(8)]

    def work(mine: list[UOp]) -> None:
        start.wait()
        for n in range(300):
            mine.append((variable(f"t{n}") + n) * 3)

    threads = [threading.Thread(target=work, args=(mine,)) for mine in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(len({id(mine[n]) for mine in found}) == 1 for n in range(300))


def test_nodes_that_nobody_holds_are_freed() -> None:
    held = [variable(f"w{n}") + (n + 10_000) for n in range(500)]
    alive = [weakref.ref(node) for node in held]
    kept = held[0]
    del held
    assert [node() for node in alive if node() is not None] == [kept]
    assert kept is variable("w0") + 10_000


def test_keys_are_equal_in_every_process() -> None:
    code = (
        "from kernmill.ir import *\n"
        "i = make_range('i', 8, AxisKind.LOOP)\n"
        "p = UOp(Ops.PARAM, dtypes.float32, (), (0, 8))\n"
        "u = UOp(Ops.LOAD, dtypes.float32, (UOp(Ops.INDEX, dtypes.float32, (p, i * 3 + 1)),))\n"
        "print((u + 0.5).key.hex(), UOp(Ops.REDUCE, dtypes.float32, (u, i), (Ops.ADD, 1)).key.hex())\n"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "77")
    }
    assert len(outputs) == 1


def test_keys_differ_where_nodes_differ() -> None:
    nodes = [
        variable(),
        variable(high=8),
        variable() + 1,
        variable() - 1,
        const(dtypes.float32, 0.0),
        const(dtypes.float32, -0.0),
        UOp(Ops.REG, dtypes.float32, (), "a,b"),
        UOp(Ops.REG, dtypes.float32, (), ("a", "b")),
        UOp(Ops.REG, dtypes.float32, (), ("a,b",)),
        UOp(Ops.REG, dtypes.float32, (), ("a", variable())),
        UOp(Ops.REG, dtypes.float32, (), None),
        UOp(Ops.REG, dtypes.float32, (), "None"),
    ]
    assert len({node.key for node in nodes}) == len(nodes)


def test_a_node_is_never_pickled() -> None:
    with pytest.raises(InternalError, match=r"use ir\.text"):
        pickle.dumps(variable())


def test_an_origin_belongs_to_its_thread() -> None:
    seen: list[str | None] = []
    current_origin.line = "user.py:1"
    try:
        thread = threading.Thread(target=lambda: seen.append(variable("other thread").origin))
        thread.start()
        thread.join()
        assert variable("this thread").origin == "user.py:1"
    finally:
        current_origin.line = None
    assert seen == [None]
    assert variable("later").origin is None


def test_toposort_puts_sources_first_and_stops_where_told() -> None:
    a, b = variable("a"), variable("b")
    root = (a + b) * (a - b)
    order = root.toposort()
    assert len(order) == len(set(order)) == 5
    assert all(order.index(s) < order.index(node) for node in order for s in node.src)
    assert order[-1] is root
    assert root.toposort(stop=lambda u: u.op is Ops.ADD) == [a + b, a, b, a - b, root]


def test_deep_graphs_do_not_recurse() -> None:
    u = variable()
    for n in range(5000):
        u = UOp(Ops.MAX, dtypes.index, (u, index_const(n)))
    assert u.bounds == (4999, 4999)
    assert u.shape == ()
    assert u.ranges == frozenset()
    assert len(u.key) == 16


def test_ranges_end_at_what_closes_them() -> None:
    i, k = make_range("i", 4, AxisKind.LOOP), make_range("k", 8, AxisKind.REDUCE)
    value = (i + k).cast(dtypes.float32)
    assert value.ranges == {i, k}
    total = UOp(Ops.REDUCE, dtypes.float32, (value, k), (Ops.ADD, 1))
    assert total.ranges == {i}
    assert closed_ranges(total) == (k,)
    register = UOp(Ops.REG, dtypes.float32, (const(dtypes.float32, 0), i), "acc")
    after = UOp(Ops.AFTER, dtypes.float32, (register, UOp(Ops.SET, dtypes.void, (register, value)), k), 1)
    assert after.ranges == {i}
    assert closed_ranges(after) == (k,)
    assert closed_ranges(value) == ()
    assert make_range("j", i + 1, AxisKind.LOOP).ranges >= {i}


def test_operators_build_what_they_say() -> None:
    x = variable()
    assert [(x < 3).op, (x > 3).op, (x <= 3).op, (x >= 3).op] == [Ops.LT, Ops.LT, Ops.LE, Ops.LE]
    assert (x > 3).src == (index_const(3), x)
    assert (3 - x).src == (index_const(3), x)
    assert (1.5 / const(dtypes.float32, 2)).op is Ops.DIV
    assert (x < 3).dtype is dtypes.bool
    assert (x < 3).where(x, 0).dtype is dtypes.index
    assert (x < 3).where(0, x).dtype is dtypes.index
    assert x.cast(dtypes.index) is x
    wide = UOp(Ops.BROADCAST, dtypes.float32.vec(4), (const(dtypes.float32, 1),))
    assert (wide < 0).dtype is dtypes.bool.vec(4)
    assert wide.cast(dtypes.int32).dtype is dtypes.int32.vec(4)
    assert wide.bitcast(dtypes.int32).dtype is dtypes.int32.vec(4)


def test_replace_and_substitute() -> None:
    a, b = variable("a"), variable("b")
    u = (a + 1) * (a - b)
    assert u.replace() is u
    assert substitute(u, {a: b}) is (b + 1) * (b - b)
    assert substitute(u, {}) is u
    assert substitute(u, {a: a + b}) is (a + b + 1) * (a + b - b)  # a replacement is not searched again
