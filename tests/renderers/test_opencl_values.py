"""Literals, expressions, vectors and masks of OpenCL C."""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable
from typing import Any

import pytest

from kernmill.compiler import parse_schedule
from kernmill.ir import InternalError, Op, Ops, Target, UOp, const, dtypes, elementwise, iota, reduce_axes
from kernmill.renderers import OPENCL_OPS, OpenCLRenderer, float_text, identifier, lane_runs, mask_op
from tests.compiler.kernels import data, lowered, only, total
from tests.renderers.test_opencl import CPU


def render(root: UOp, schedule: str) -> str:
    return OpenCLRenderer(CPU).render("k", lowered(only(root), CPU, parse_schedule(schedule)))


@pytest.mark.parametrize(
    ("op", "meaning"),
    [
        (Ops.ADD, lambda a, b: a or b), (Ops.OR, lambda a, b: a or b), (Ops.MAX, lambda a, b: a or b),
        (Ops.MUL, lambda a, b: a and b), (Ops.AND, lambda a, b: a and b), (Ops.MIN, lambda a, b: a and b),
        (Ops.XOR, lambda a, b: a != b), (Ops.NE, lambda a, b: a != b), (Ops.EQ, lambda a, b: a == b),
        (Ops.LT, lambda a, b: a < b), (Ops.LE, lambda a, b: a <= b),
    ],
    ids=lambda value: None if callable(value) else str(value),
)  # fmt: skip
def test_ops_on_masks(op: Op, meaning: Callable[[bool, bool], bool]) -> None:
    for a in (False, True):
        for b in (False, True):
            assert eval(mask_op(op, f"({-a})", f"({-b})")) == -int(meaning(a, b))


def test_an_op_that_masks_do_not_have() -> None:
    with pytest.raises(InternalError):
        mask_op(Ops.DIV, "a", "b")


@pytest.mark.parametrize(
    ("order", "pieces"),
    [
        ([0, 2, 4, 6], [(0, [0, 2]), (1, [0, 2])]),
        ([3, 2, 1, 0], [(0, [3, 2, 1, 0])]),
        ([0, 1, 2, 4], [(0, [0, 1]), (0, [2]), (1, [0])]),
        ([7, 0], [(1, [3]), (0, [0])]),
    ],
)
def test_shuffles_are_cut_into_runs(order: list[int], pieces: list[Any]) -> None:
    assert lane_runs(order, 4) == pieces


def test_every_lane_of_a_constant_is_written() -> None:
    text = render(total(data(0, 3, 37) * 2.0, 1), "vectorize k0 8")
    assert "(int8)(0, 1, 2, 3, 4, 5, 6, 7) <" in text
    assert "(float8)(2.0f)" in text


def test_negative_literals_stand_in_brackets() -> None:
    assert "(float8)((-2.5f))" in render(data(0, 64) * -2.5, "vectorize i0 8")


def test_bools_become_numbers_by_choice() -> None:
    less = elementwise(Ops.LT, data(0, 64), data(1, 64))
    assert "? (float8)(1.0f) : (float8)(0.0f)" in render(less.cast(dtypes.float32), "vectorize i0 8")
    text = render(less.cast(dtypes.int64), "vectorize i0 8")  # named regression: Mesa chose wrong lanes of 64 bits
    assert "& (long8)(1L)) | (~" in text
    assert " ? " not in text.partition("{")[2]


def test_numbers_become_bools_by_comparison() -> None:
    text = render(data(0, 64).cast(dtypes.bool), "vectorize i0 8")
    assert "!= (float8)(0.0f)" in text
    assert "CONVERT(char8, " in text


def test_folds_of_bools() -> None:
    text = render(reduce_axes(data(0, 64, dtype=dtypes.bool), Ops.MAX, (0,)), "vectorize k0 8")
    assert re.search(r"char4 v\d+ = v\d+ \| v\d+;|int4 v\d+ = v\d+ \| v\d+;", text)
    assert "bool v" in text


def test_a_fold_of_the_largest_keeps_nan() -> None:
    text = render(reduce_axes(data(0, 64), Ops.MAX, (0,)), "vectorize k0 8")
    low, high = re.findall(r"float4 (v\d+) = v\d+\.s(?:0123|4567);", text)
    assert f"{low} == {low};" in text
    assert f"{high} < {low};" in text


# --- scalars
PLAIN = Target("plain", ops=OPENCL_OPS)


def plain(root: UOp) -> str:
    return OpenCLRenderer(PLAIN).render("k", lowered(only(root), PLAIN))


def test_names() -> None:
    assert identifier("i0.u.v") == "i0_u_v"
    assert identifier("k0'") == "k0_copy"


@pytest.mark.parametrize(
    "value", [0.0, 1.5, -2.0, 0.1, 1e-45, 3.4e38, math.pi, struct.unpack("f", b"\xdb\x0f\x49\x40")[0]]
)
def test_float_literals_are_exact(value: float) -> None:
    text = float_text(value, "f")
    assert text.endswith("f")
    body = text[:-1]
    assert (float.fromhex(body) if "0x" in body else float(body)) == value
    assert "." in body


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        (dtypes.int8, "(char)((uint)"),
        (dtypes.uint16, "(ushort)((uint)"),  # 65535 * 65535 is no int
        (dtypes.int32, "(int)((uint)"),
        (dtypes.int64, "(long)((ulong)"),
    ],
    ids=str,
)
def test_ints_wrap(dtype: object, text: str) -> None:
    a, b = data(0, 8, dtype=dtype), data(1, 8, dtype=dtype)  # type: ignore[arg-type]
    assert text in plain(elementwise(Ops.MUL, a, b))


def test_wide_unsigned_ints_wrap_by_themselves() -> None:
    a, b = data(0, 8, dtype=dtypes.uint64), data(1, 8, dtype=dtypes.uint64)
    assert "(ulong)" not in plain(elementwise(Ops.MUL, a, b))


def test_places_are_plain_sums() -> None:
    text = plain(data(0, 8, 8) + 1.0)
    assert "(ulong)" not in text
    assert "for (long " in text


def test_what_a_user_makes_of_places_wraps() -> None:
    """A loop's number as an int64 times a large constant: a C compiler may take it for the exact product, and PoCL's
    divided it away again. What has room in 64 bits stays plain."""
    factor = 6364136223846793005
    text = plain(elementwise(Ops.FLOORDIV, iota(7) * factor, const(dtypes.int64, factor)))
    assert f"(long)((ulong)v1 * (ulong){factor}L)" in text
    assert "(ulong)" not in plain(iota(7) * 1000)


def test_what_a_loop_carries_is_copied_before_it_changes() -> None:
    """SET may stand before the last use of the old value."""
    lines = [line.strip() for line in plain(total(data(0, 4, 8), 1)).splitlines()]
    first = next(line for line in lines if line.startswith("float ") and line.endswith("= 0.0f;"))
    name = first.split()[1]
    assert any(line.startswith("float ") and line.endswith(f"= {name};") for line in lines)
    assert any(line.startswith(f"{name} = ") for line in lines)
