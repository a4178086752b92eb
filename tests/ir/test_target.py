"""Targets are data: equal ones are equal, and lanes follow from the register."""

from __future__ import annotations

from kernmill.ir import Ops, Target, dtypes


def test_equal_targets_are_equal() -> None:
    assert Target("a", ops=frozenset({Ops.ADD})) == Target("a", ops=frozenset({Ops.ADD}))
    assert len({Target("a"), Target("a"), Target("b")}) == 2


def test_lanes_fill_a_register() -> None:
    target = Target("wide", vector_bytes=64)
    assert [target.lanes(d) for d in (dtypes.float32, dtypes.float64, dtypes.int8, dtypes.float32.vec(4))] == [
        16,
        8,
        64,
        16,
    ]
    assert Target("scalar").lanes(dtypes.float32) == 1
    assert Target("narrow", vector_bytes=4).lanes(dtypes.float64) == 1
