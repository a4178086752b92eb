"""The pattern language: what matches, what a rule hands over, and what is refused when a set is built."""

from __future__ import annotations

import pytest

from kernmill.ir import InternalError, Op, Ops, Pat, Rule, RuleSet, UOp, const, const_var, dtypes, iota, node, var

A, B = (UOp(Ops.VARIABLE, dtypes.int32, (), (name, 0, 99)) for name in "ab")
F = UOp(Ops.PARAM, dtypes.float32, (), (0, 1))
x, y, c = var("x"), var("y"), const_var("c")


def one(rule: Rule, u: UOp) -> UOp | None:
    return RuleSet("test", [rule]).apply(u)


def test_a_variable_matches_anything_and_twice_the_same() -> None:
    rule = Rule("r", x + x, x * 2)
    assert one(rule, A + A) is A * 2
    assert one(rule, A + B) is None


def test_commutative_ops_match_in_either_order_others_do_not() -> None:
    assert one(Rule("r", x + 0, x), A + 0) is A
    assert one(Rule("r", x + 0, x), A.like(0) + A) is A
    assert one(Rule("r", x - 0, x), A.like(0) - A) is None
    deep = Rule("r", (x * 2 + y) + c, lambda x, y, c: x)
    for u in ((A * 2 + B) + 5, A.like(5) + (B + A * 2), A.like(5) + (B + A.like(2) * A)):
        assert one(deep, u) is A


def test_numbers_match_constants_of_their_value() -> None:
    rule = Rule("r", x * 1, x)
    assert one(rule, F * 1.0) is F
    assert one(rule, A * 2) is None
    vector = const(dtypes.int32.vec(2), (1, 1))
    assert one(rule, UOp(Ops.BROADCAST, dtypes.int32.vec(2), (A,)) * vector) is None


def test_const_var_takes_one_number_only() -> None:
    rule = Rule("r", x + c, lambda x, c: x if c.arg == 7 else None)
    assert one(rule, A + 7) is A
    assert one(rule, A + 8) is None
    wide = UOp(Ops.BROADCAST, dtypes.int32.vec(2), (A,))
    assert one(rule, wide + const(dtypes.int32.vec(2), (7, 7))) is None
    assert one(rule, wide + const(dtypes.int32.vec(2), 7)) is wide


def test_kinds_restrict_the_root_and_variables() -> None:
    rule = Rule("r", x + y, x, kind="float")
    assert one(rule, A + B) is None
    assert one(rule, F + F * 2) is F
    rule = Rule("r", node(Ops.CAST, var("x", "float")), lambda x: x.cast(dtypes.float64))
    assert one(rule, A.cast(dtypes.int8)) is None
    assert one(rule, F.cast(dtypes.int8)) is F.cast(dtypes.float64)


@pytest.mark.parametrize(
    ("kind", "matched"),
    [
        ("int", "iu#"),
        ("index", "#"),
        ("float", "f"),
        ("bool", "b"),
        ("whole", "iu#b"),
        ("exact", "iu#b"),
    ],
)
def test_words_for_kinds(kind: str, matched: str) -> None:
    dtype_of = {"i": dtypes.int32, "u": dtypes.uint8, "#": dtypes.index, "f": dtypes.float32, "b": dtypes.bool}
    for letter, dtype in dtype_of.items():
        p, q = (UOp(Ops.PARAM, dtype, (), (n, 1)) for n in range(2))
        assert (one(Rule("r", x + y, y, kind=kind), p + q) is q) == (letter in matched)


def test_conditions_and_functions_name_what_they_want() -> None:
    seen: list[UOp] = []

    def target(u: UOp, y: UOp) -> UOp:
        seen.extend([u, y])
        return y

    rule = Rule("r", node(Ops.SUB, x, y, name="u"), target, when=lambda y: y.is_const)
    assert one(rule, A - B) is None
    assert one(rule, A - 3) is A.like(3)
    assert seen == [A - 3, A.like(3)]
    assert rule.fired == 1


def test_a_right_side_may_be_a_pattern_a_number_or_decline() -> None:
    assert one(Rule("r", x * 2, x + x), A * 2) is A + A
    assert one(Rule("r", x - x, 0), A - A) is A.like(0)
    assert one(Rule("r", x - x, lambda x: 0.0), F - F) is const(dtypes.float32, 0)
    declined = Rule("r", x + y, lambda x: None)
    assert one(declined, A + B) is None
    same = Rule("r", node(Ops.ADD, x, y, name="u"), lambda u: u)
    assert one(same, A + B) is None
    assert declined.fired == same.fired == 0


def test_numbers_on_the_right_take_the_dtype_beside_them() -> None:
    b = UOp(Ops.VARIABLE, dtypes.bool, (), ("b", 0, 1))
    chosen = one(Rule("r", var("b", "bool").where(x, 7), var("b").where(3, x)), b.where(F, 7.0))
    assert chosen is b.where(const(dtypes.float32, 3), F)
    assert one(Rule("r", x < y, (x + 1) < 5), A < B) is ((A + 1) < 5)
    assert one(Rule("r", -x, x * -1.0), -F) is F * -1.0


def test_a_pattern_without_sources_matches_any_and_a_wrong_count_none() -> None:
    sink = UOp(Ops.SINK, dtypes.void, (A, B))
    assert one(Rule("r", node(Ops.SINK, name="u"), lambda u: u.src[0]), sink) is A
    assert one(Rule("r", node(Ops.SINK, x, y), x), sink) is A
    assert one(Rule("r", node(Ops.SINK, x), x), sink) is None
    assert one(Rule("r", node(Ops.SINK, x + 1, y), x), UOp(Ops.SINK, dtypes.void, (A + 1, B))) is A


def test_a_lone_variable_is_tried_on_the_ops_that_are_named() -> None:
    rule = Rule("r", var("u"), lambda u: A, ops=[Ops.NEG])
    assert one(rule, -B) is A
    assert one(rule, B + 1) is None
    anywhere = Rule("r", var("u"), lambda u: A)
    assert one(anywhere, B + 1) is A
    assert one(anywhere, UOp(Ops.RANGE, dtypes.index, (const(dtypes.index, 3),), ("i", "loop"))) is None


def test_rules_are_tried_in_order() -> None:
    first, second = Rule("first", x + 0, x), Rule("second", x + y, y)
    assert RuleSet("s", [first, second]).apply(A + 0) is A
    assert RuleSet("s", [second, first]).apply(A + 0) is A.like(0)
    assert (RuleSet("one", [first]) + RuleSet("two", [second])).name == "one+two"
    assert [rule.name for rule in RuleSet("s", [first, second])] == ["first", "second"]


def test_laws_keep_the_shape() -> None:
    tensor = iota(4)
    rule = Rule("mul_zero", x * 0, 0)
    assert one(rule, tensor * 0) is const(dtypes.int64, 0)
    assert RuleSet("laws", [rule], laws=True).apply(tensor * 0) is None


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: RuleSet("s", [Rule("a", x + y, x), Rule("a", x * y, x)]), "rule set s: names used twice: a"),
        (lambda: one(Rule("a", x + y, lambda z: z), A + B), "rule a: z used, but the pattern binds x, y"),
        (
            lambda: one(Rule("a", x + y, x, when=lambda q: True), A + B),
            "rule a: q used, but the pattern binds x, y",
        ),
    ],
)
def test_mistakes_of_an_author_are_named(build: object, message: str) -> None:
    with pytest.raises(InternalError, match=message):
        build()  # type: ignore[operator]


OPERATORS: list[tuple[Pat, Op]] = [
    (x + y, Ops.ADD),
    (x - y, Ops.SUB),
    (x * y, Ops.MUL),
    (x / y, Ops.DIV),
    (x // y, Ops.FLOORDIV),
    (x % y, Ops.MOD),
    (x & y, Ops.AND),
    (x | y, Ops.OR),
    (x ^ y, Ops.XOR),
    (x < y, Ops.LT),
    (x <= y, Ops.LE),
    (-x, Ops.NEG),
    (x.eq(y), Ops.EQ),
    (x.ne(y), Ops.NE),
    (x.where(y, 0), Ops.WHERE),
]


@pytest.mark.parametrize(("pattern", "op"), OPERATORS, ids=lambda v: str(v)[:12])
def test_operators_make_patterns_of_their_op(pattern: Pat, op: Op) -> None:
    assert pattern.op is op
    assert repr(Rule("name", pattern, 0)) == "Rule(name)"
