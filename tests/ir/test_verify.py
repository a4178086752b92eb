"""What is legal at each stage: legal programs pass, and each rule, broken, is named together with the pass and the
node."""

from __future__ import annotations

import pytest

from kernmill.ir import (
    AxisKind,
    DType,
    InternalError,
    Ops,
    Stage,
    UOp,
    assign,
    const,
    iota,
    make_range,
    pad,
    parse_uops,
    permute,
    reduce_axes,
    reshape,
    shrink,
    take,
    verify,
    window,
)
from kernmill.ir import dtypes as d

F32 = d.float32
BUFFER = UOp(Ops.BUFFER, F32, (), (0, "TEST", 24))
P = UOp(Ops.PARAM, F32, (), (0, 8))
Q = UOp(Ops.PARAM, F32, (), (1, 32))
LOOP, K = make_range("i", 8, AxisKind.LOOP), make_range("k", 4, AxisKind.REDUCE)
N = UOp(Ops.VARIABLE, d.index, (), ("n", 1, 9))
ONE = const(F32, 1)
WIDE = UOp(Ops.BROADCAST, F32.vec(4), (ONE,))


def place(buffer: UOp, *where: UOp, lanes: int = 1) -> UOp:
    return UOp(Ops.INDEX, buffer.dtype.vec(lanes), (buffer, *where))


def load(at: UOp) -> UOp:
    return UOp(Ops.LOAD, at.dtype, (at,))


def store(at: UOp, value: UOp) -> UOp:
    return UOp(Ops.STORE, d.void, (at, value))


def sink(*roots: UOp) -> UOp:
    return UOp(Ops.SINK, d.void, roots)


TOTAL = UOp(Ops.REDUCE, F32, (load(place(Q, LOOP * 4 + K)), K), (Ops.ADD, 1))
KERNEL = sink(store(place(P, LOOP), TOTAL))
REG = UOp(Ops.REG, F32, (const(F32, 0), LOOP), "acc")
SUM = load(place(Q, LOOP * 4 + K)) + REG
SET = UOp(Ops.SET, d.void, (REG, SUM))
AFTER = UOp(Ops.AFTER, F32, (REG, SET, K), 1)
STORE = store(place(P, LOOP), AFTER)
LOCAL = UOp(Ops.LOCAL, F32, (LOOP,), ("tile", 4))
TENSOR = reshape(BUFFER, (2, 3, 4))


def listed() -> list[UOp]:
    """The lowered kernel as a list."""
    inside = [K, *[u for u in SUM.toposort() if K in u.ranges and u is not K], SET, UOp(Ops.END, d.void, (K,))]
    before = [
        u for u in sink(STORE).toposort() if K not in u.ranges and u.op is not Ops.SINK and u not in (STORE, AFTER)
    ]
    first = [u for u in before if LOOP not in u.ranges]
    return [*first, *[u for u in before if u not in first], *inside, AFTER, STORE, UOp(Ops.END, d.void, (LOOP,))]


LEGAL: list[tuple[UOp | list[UOp], Stage]] = [
    (
        sink(
            reduce_axes(TENSOR, Ops.ADD, (0, 1)),
            take(TENSOR, iota(2), 1),
            permute(pad(TENSOR, ((1, 0),) * 3), (2, 0, 1)),
        ),
        Stage.TENSOR,
    ),
    (window(BUFFER, 0, 3, 2, 4), Stage.TENSOR),
    (UOp(Ops.BITCAST, d.uint8, (BUFFER,)), Stage.TENSOR),
    (shrink(BUFFER, ((0, N),)), Stage.TENSOR),
    (KERNEL, Stage.KERNEL),
    (KERNEL, Stage.OPTIMIZED),
    (sink(store(place(P, LOOP + 4, LOOP < 4), ONE)), Stage.KERNEL),
    (sink(store(place(P, load(place(UOp(Ops.PARAM, d.int64, (), (2, 8)), LOOP))), ONE)), Stage.KERNEL),
    (sink(store(place(P, make_range("u", 8, AxisKind.UNROLL)), ONE)), Stage.OPTIMIZED),
    (sink(store(place(P, const(d.index, 4), lanes=4), WIDE)), Stage.VECTORIZED),
    (sink(store(place(P, const(d.index.vec(4), (0, 3, 5, 7))), WIDE)), Stage.LOWERED),
    (
        sink(
            store(place(P, LOOP), UOp(Ops.LANE, F32, (WIDE,), 3)),
            store(place(P, LOOP), UOp(Ops.FOLD, F32, (WIDE,), Ops.ADD)),
        ),
        Stage.LOWERED,
    ),
    (UOp(Ops.LANES, F32.vec(2), (ONE, ONE)), Stage.LOWERED),
    (UOp(Ops.SHUFFLE, F32.vec(2), (WIDE, WIDE), (0, 7)), Stage.LOWERED),
    (UOp(Ops.TABLE, d.int8.vec(16), (const(d.uint8.vec(16), 1),), tuple(range(16))), Stage.LOWERED),
    (UOp(Ops.TABLE, d.int8.vec(4), (const(d.uint8.vec(4), 5), *[const(d.int8.vec(4), 1)] * 2)), Stage.LOWERED),
    (
        UOp(Ops.DOT, d.int32.vec(4), (const(d.uint8.vec(16), 1), const(d.int8.vec(16), 1), const(d.int32.vec(4), 0))),
        Stage.LOWERED,
    ),
    (UOp(Ops.DOT, F32.vec(4), (*[const(d.bfloat16.vec(8), 1)] * 2, const(F32.vec(4), 0))), Stage.LOWERED),
    (sink(STORE, store(place(LOCAL, const(d.index, 3)), ONE)), Stage.LOWERED),
    (listed(), Stage.LINEAR),
]


@pytest.mark.parametrize("number", range(len(LEGAL)))
def test_legal_programs_pass(number: int) -> None:
    program, stage = LEGAL[number]
    verify(program, stage, "test")


def raw(op: str, dtype: DType, src: tuple[UOp, ...] = (), arg: object = None) -> UOp:
    return UOp(Ops.named(op), dtype, src, arg)


T, L, V, K_ = Stage.TENSOR, Stage.LOWERED, Stage.VECTORIZED, Stage.KERNEL
X8 = UOp(Ops.VARIABLE, d.int8, (), ("x", 0, 9))
BOOL = UOp(Ops.VARIABLE, d.bool, (), ("b", 0, 1))
ILLEGAL: list[tuple[UOp, Stage, str]] = [
    # ops and kinds of loops of another stage
    (BUFFER, K_, "BUFFER is not legal at stage kernel"),
    (LOOP, T, "RANGE is not legal at stage tensor"),
    (KERNEL, L, "REDUCE is not legal at stage lowered"),
    (WIDE, K_, "BROADCAST is not legal at stage kernel"),
    (REG, K_, "REG is not legal at stage kernel"),
    (make_range("u", 4, AxisKind.UNROLL), K_, "a loop of kind unroll (u) is not legal at stage kernel"),
    (make_range("v", 4, AxisKind.VECTOR), L, "a loop of kind vector (v) is not legal at stage lowered"),
    (UOp(Ops.END, d.void, (LOOP,)), L, "END is not legal at stage lowered"),
    # number of sources
    (raw("ADD", F32, (ONE,)), T, "ADD takes 2 sources and has 1"),
    (raw("INDEX", F32, (P,)), L, "INDEX takes a buffer, an index and optionally a gate; it has 1 sources"),
    # dtypes
    (raw("ADD", F32, (ONE, X8)), T, "ADD gives float32 from float32, int8: all must be one dtype"),
    (raw("EXP", d.int8, (X8,)), T, "EXP is of floats, not of int8"),
    (raw("SHL", F32, (ONE, ONE)), T, "SHL is of ints, not of float32"),
    (raw("AND", F32, (ONE, ONE)), T, "AND is of ints and bools, not of float32"),
    (raw("NEG", d.bool, (BOOL,)), T, "NEG is of numbers, not of bool"),
    (raw("LT", F32, (ONE, ONE)), T, "LT of float32 gives float32, not bool"),
    (raw("LT", d.bool, (ONE, X8)), T, "LT compares float32, int8: both must be one dtype"),
    (raw("WHERE", F32, (X8, ONE, ONE)), T, "the condition of a float32 WHERE is int8, not bool"),
    (raw("WHERE", F32.vec(4), (BOOL, WIDE, WIDE)), L, "the condition of a float32x4 WHERE is bool, not boolx4"),
    (raw("WHERE", F32, (BOOL, ONE, X8)), T, "WHERE gives float32 from float32, int8: all must be one dtype"),
    (raw("FMA", F32, (ONE, ONE, X8)), L, "FMA gives float32 from float32, float32, int8: all must be one dtype"),
    (raw("CAST", d.int8, (WIDE,)), L, "CAST cannot convert float32x4 to int8"),
    (raw("BITCAST", d.int8, (ONE,)), L, "BITCAST from float32 to int8: the sizes differ"),
    (raw("CONST", d.int8, (), 1.5), T, "CONST 1.5 is not a Python int, as int8 requires"),
    (raw("CONST", d.uint8, (), 300), T, "CONST 300 does not fit into uint8"),
    (raw("CONST", F32.vec(4), (), (1.0, 2.0)), L, "CONST with 2 values for 4 lanes"),
    (raw("VARIABLE", d.index, (), ("m", 3, 2)), T, "VARIABLE m from 3 to 2 has no value"),
    # tensors
    (raw("RESHAPE", F32, (BUFFER,), (5, 5)), T, "RESHAPE of (24,) to (5, 5): counts differ"),
    (raw("PERMUTE", F32, (TENSOR,), (0, 0, 1)), T, "PERMUTE by (0, 0, 1) of 3 axes"),
    (raw("PAD", F32, (TENSOR,), ((0, 0),)), T, "PAD by ((0, 0),) of 3 axes"),
    (raw("EXPAND", d.int8, (TENSOR,), (2, 3, 4)), T, "EXPAND converts float32 to int8"),
    (raw("WINDOW", F32, (BUFFER,), (1, 2, 1, 1)), T, "WINDOW by (1, 2, 1, 1)"),
    (
        raw("REDUCE", F32, (TENSOR,), (Ops.SUB, (0,))),
        T,
        "REDUCE folds with SUB, which is not associative and commutative",
    ),
    (raw("REDUCE", F32, (TENSOR,), (Ops.ADD, (3,))), T, "REDUCE over axes (3,) of 3"),
    (raw("REDUCE", d.int8, (TENSOR,), (Ops.ADD, (0,))), T, "REDUCE gives int8 from float32"),
    (raw("TAKE", F32, (BUFFER, BUFFER), 0), T, "TAKE at places of dtype float32"),
    (raw("ASSIGN", F32, (BUFFER, iota(24)), None), T, "ASSIGN gives float32 from float32, int64"),
    (raw("CHECK", F32, (BUFFER, BUFFER < 0), "m"), T, "CHECK asks for one bool"),
    # loops and memory
    (
        raw("RANGE", d.index, (X8,), ("r", AxisKind.LOOP)),
        L,
        "RANGE r is index and its size int8: both must be one int dtype",
    ),
    (make_range("r", -3, AxisKind.LOOP), L, "RANGE r has the size -3"),
    (raw("REDUCE", F32, (ONE, ONE), (Ops.ADD, 1)), K_, "REDUCE of 1 values needs them first and then its loops"),
    (raw("REDUCE", F32, (X8, K), (Ops.ADD, 1)), K_, "REDUCE gives float32 from int8"),
    (place(ONE, LOOP), L, "INDEX into CONST: only PARAM and LOCAL are memory"),
    (raw("INDEX", d.int8, (P, LOOP)), L, "INDEX gives int8 of a buffer of float32"),
    (place(P, ONE), L, "INDEX with an index of dtype float32"),
    (place(P, LOOP, X8), L, "the gate of INDEX is int8, not bool"),
    (place(P, LOOP + 1), K_, "INDEX at 1..8 of a buffer of 8 elements, without a gate"),
    (place(P, LOOP - 1), K_, "INDEX at -1..6 of a buffer of 8 elements, without a gate"),
    (place(P, const(d.index, 5), lanes=4), L, "INDEX at 5..8 of a buffer of 8 elements, without a gate"),
    (place(LOCAL, LOOP), L, "INDEX at 0..7 of a buffer of 4 elements, without a gate"),
    (raw("LOAD", F32, (ONE,)), L, "LOAD of CONST: its source must be an INDEX"),
    (raw("LOAD", F32.vec(4), (place(P, LOOP),)), L, "LOAD gives float32x4 where its INDEX gives float32"),
    (store(ONE, ONE), L, "STORE (void) to CONST: it needs an INDEX and gives nothing"),
    (store(place(P, LOOP), X8), L, "STORE of int8 where its INDEX wants float32"),
    (
        raw("REG", F32, (ONE, ONE), "acc"),
        L,
        "REG acc needs a first value of float32, then the loops that reset it",
    ),
    (raw("SET", d.void, (REG, X8)), L, "SET of REG float32 to a value of int8"),
    (raw("CARRY", F32, (ONE, LOOP)), L, "CARRY is of a REG or of memory, in its dtype, and of loops"),
    (raw("AFTER", F32, (ONE, SET, K), 1), L, "AFTER is of a REG, a LOCAL or a PARAM, in its dtype"),
    (raw("AFTER", F32, (REG, SET, ONE), 1), L, "AFTER of 1 effects needs them after its memory, and then its loops"),
    (raw("LOCAL", F32, (LOOP,), ("t", 0)), L, "LOCAL ('t', 0) needs a size, and loops as sources"),
    # vectors
    (raw("BROADCAST", F32.vec(4), (WIDE,)), V, "BROADCAST None gives float32x4 from float32x4"),
    (raw("LANES", F32.vec(4), (ONE, ONE)), V, "LANES None gives float32x4 from float32, float32"),
    (raw("LANE", F32, (WIDE,), 4), V, "LANE 4 gives float32 from float32x4"),
    (raw("FOLD", F32, (WIDE,), Ops.SUB), V, "FOLD SUB gives float32 from float32x4"),
    (raw("TABLE", d.int8.vec(16), (const(d.uint8.vec(16), 1),), (1, 2)), V, "TABLE (1, 2) gives int8x16 from uint8x16"),
    (
        raw("TABLE", d.int8.vec(4), (const(d.uint8.vec(4), 1), *[const(d.uint8.vec(4), 1)] * 2)),
        V,
        "TABLE None gives int8x4 from uint8x4, uint8x4, uint8x4",
    ),
    (raw("SHUFFLE", F32.vec(2), (WIDE, WIDE), (0, 8)), V, "SHUFFLE (0, 8) gives float32x2 from float32x4, float32x4"),
    (
        raw("DOT", d.int32.vec(4), (const(d.int8.vec(4), 1), const(d.int8.vec(4), 1), const(d.int32.vec(4), 0))),
        V,
        "DOT gives int32x4 from int8x4, int8x4, int32x4",
    ),
    (
        raw("DOT", F32.vec(4), (*[const(d.bfloat16.vec(16), 1)] * 2, const(F32.vec(4), 0))),
        V,
        "DOT gives float32x4 from bfloat16x16, bfloat16x16, float32x4",
    ),
    (
        raw("DOT", F32.vec(4), (const(d.uint8.vec(16), 1), const(d.int8.vec(16), 1), const(F32.vec(4), 0))),
        V,
        "DOT gives float32x4 from uint8x16, int8x16, float32x4",
    ),
    (raw("LANE", d.int8, (WIDE,), 0), V, "LANE gives int8 from float32x4: the scalars differ"),
    (raw("MAX", d.void, (sink(), sink())), T, "an elementwise op has no value of dtype void"),
]


@pytest.mark.parametrize(("program", "stage", "message"), ILLEGAL, ids=[row[2][:60] for row in ILLEGAL])
def test_a_broken_rule_is_named(program: UOp, stage: Stage, message: str) -> None:
    with pytest.raises(InternalError) as error:
        verify(program, stage, "the pass")
    assert str(error.value).startswith(f"the pass: {message}. It is node %")


def test_the_message_shows_the_nodes_around_in_text_form() -> None:
    with pytest.raises(InternalError) as error:
        verify(sink(store(place(P, LOOP * 3), ONE)), Stage.KERNEL, "rangeify")
    text = str(error.value)
    assert text.splitlines()[0] == (
        "rangeify: INDEX at 0..21 of a buffer of 8 elements, without a gate. It is node %5 of 9 of a kernel program; "
        "around it:"
    )
    assert '  %2 = RANGE index (%1) ("i", "loop")' in text
    assert "-> %5 = INDEX float32 (%0, %4)" in text
    assert len(text.splitlines()) <= 12


def test_lists() -> None:
    nodes = listed()
    end = nodes[-1]
    cases = [
        ([nodes[-2], *nodes], "STORE comes before its source"),
        ([*nodes, nodes[0]], "is in the list twice"),
        (nodes[:-1], "the loop i is never closed"),
        ([*nodes[:-2], end, nodes[-2]], "whose loop is closed"),
        ([u for u in nodes if u.op is not Ops.END or u is end], "END of a loop that is not the innermost open one"),
    ]
    for broken, message in cases:
        with pytest.raises(InternalError, match=message):
            verify(broken, Stage.LINEAR, "linearize")


def test_stages_are_words() -> None:
    assert [Stage(str(stage)) for stage in Stage] == list(Stage)
    assert parse_uops('%0 = CONST index () 8\n%1 = RANGE index (%0) ("i", "loop")') is LOOP
    assert assign(BUFFER, BUFFER).op is Ops.ASSIGN


def test_a_vector_wider_than_the_target_has_is_named() -> None:
    wide = UOp(Ops.CONST, d.uint8.vec(32), (), 1)
    picked = UOp(Ops.SHUFFLE, d.uint8.vec(2), (wide, wide), (0, 31))
    stored = UOp(Ops.SINK, d.void, (picked,))
    with pytest.raises(InternalError, match="SHUFFLE of 32 lanes, and the target has at most 16") as caught:
        verify(stored, Stage.VECTORIZED, "the pass", 16)
    assert "the pass" in str(caught.value)
