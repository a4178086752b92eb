"""The text form: what is printed parses back to the same nodes."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernmill.ir import AxisKind, FormatError, Ops, UOp, const, dtypes, make_range, parse_uops, print_uops

VARIABLE = UOp(Ops.VARIABLE, dtypes.index, (), ("n", 1, 9))
ARGS = [
    None,
    0,
    -3,
    1 << 70,
    True,
    1.5,
    1e-45,
    1e300,
    math.inf,
    -math.inf,
    "plain",
    'say "a, (b)" # \\ c',
    "",
    "x  # y",
    "\n\t\r\0\x7f\u2028 é",
    (),
    (1,),
    (1, 2.5, "s"),
    ((1, (2, (3,))), None),
    (True, 7),
    Ops.ADD,
    (Ops.MAX, (0, 1)),
    VARIABLE,
    (VARIABLE + 1, 3),
    ("[", "%0", "@ADD"),
]


@pytest.mark.parametrize("arg", ARGS, ids=repr)
def test_every_kind_of_arg_comes_back(arg: object) -> None:
    node = UOp(Ops.REG, dtypes.float32, (const(dtypes.float32, 1),), arg)
    again = parse_uops(print_uops(node))
    assert again is node
    assert repr(again.arg) == repr(arg)


@pytest.mark.parametrize(
    "dtype", [*dtypes.data, dtypes.index, dtypes.index.vec(4), dtypes.float16.vec(8), dtypes.bool.vec(2)], ids=str
)
def test_every_dtype_comes_back(dtype: object) -> None:
    node = const(dtype, 1)  # type: ignore[arg-type]
    assert parse_uops(print_uops(node)) is node


def test_nan_comes_back_in_a_constant() -> None:
    node = const(dtypes.float32, math.nan)
    assert parse_uops(print_uops(node)) is node
    vector = const(dtypes.float32.vec(3), (math.nan, -0.0, math.inf))
    assert parse_uops(print_uops(vector)) is vector


def leaves() -> st.SearchStrategy[UOp]:
    floats = st.floats(width=32).map(lambda v: const(dtypes.float32, v))
    loads = st.integers(0, 5).map(
        lambda n: UOp(
            Ops.LOAD,
            dtypes.float32,
            (
                UOp(
                    Ops.INDEX,
                    dtypes.float32,
                    (UOp(Ops.PARAM, dtypes.float32, (), (n, 8)), make_range(f"i{n}", 8, AxisKind.LOOP)),
                ),
            ),
        )
    )
    return floats | loads


def grow(inner: st.SearchStrategy[UOp]) -> st.SearchStrategy[UOp]:
    pairs = st.tuples(inner, inner)
    ops = st.sampled_from([Ops.ADD, Ops.MUL, Ops.MAX, Ops.DIV])
    return st.tuples(ops, pairs).map(lambda p: p[1][0].alu(p[0], p[1][1])) | st.tuples(pairs, inner).map(
        lambda p: (p[0][0] < p[0][1]).where(p[1], p[0][0])
    )


@settings(max_examples=60, deadline=None)
@given(st.recursive(leaves(), grow, max_leaves=15))
def test_random_graphs_come_back(root: UOp) -> None:
    text = print_uops(root)
    assert parse_uops(text) is root
    assert print_uops(parse_uops(text)) == text


def test_a_node_is_printed_once_and_sources_come_first() -> None:
    a = VARIABLE
    assert print_uops((a + 1) * (a + 1)) == (
        '%0 = VARIABLE index () ("n", 1, 9)\n%1 = CONST index () 1\n%2 = ADD index (%0, %1)\n%3 = MUL index (%2, %2)\n'
    )


def test_origins_stand_at_the_end_of_the_line() -> None:
    node = UOp(Ops.REG, dtypes.int8, (), "with origin")
    node.origin = "model.py:12"
    text = print_uops(node)
    assert text == '%0 = REG int8 () "with origin"  # model.py:12\n'
    assert parse_uops(text).origin == "model.py:12"


BROKEN = {
    "nonsense": "line 1: 'nonsense' does not parse",
    "%0 = NOPE float32 ()": "line 1",
    "%0 = CONST float99 () 1": "line 1",
    "%0 = CONST int32 () 1\n%1 = NEG int32 (%7)": "line 2",
    "%0 = CONST int32 () 1 2": "line 1",
    "%0 = CONST int32 () (1, 2": "line 1",
    "%0 = CONST int32 () $": "line 1",
    "": "the text contains no node",
}


@pytest.mark.parametrize("text", BROKEN, ids=repr)
def test_a_line_that_does_not_parse_is_named(text: str) -> None:
    with pytest.raises(FormatError, match=BROKEN[text]):
        parse_uops(text)
