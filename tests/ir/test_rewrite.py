"""The engine: a fixed point, each node once, origins kept, and restless rule sets reported."""

from __future__ import annotations

import pytest

from kernmill.ir import (
    InternalError,
    Ops,
    Rule,
    RuleSet,
    UOp,
    const,
    current_origin,
    dtypes,
    node,
    rewrite,
    simplify,
    var,
)

A, B = (UOp(Ops.VARIABLE, dtypes.int32, (), (name, 0, 99)) for name in "ab")
x, y = var("x"), var("y")


def test_to_a_fixed_point() -> None:
    rules = RuleSet("strip", [Rule("add_zero", x + 0, x), Rule("neg_neg", node(Ops.NEG, -x), x)])
    u = A
    for _ in range(50):
        u = (-(u + 0)).alu(Ops.NEG)
    assert rewrite(u, rules) is A
    assert rewrite(A, rules) is A


def test_what_a_rule_returns_is_rewritten_again() -> None:
    rules = RuleSet("down", [Rule("sub_to_add", x - y, x + (-y)), Rule("neg_neg", node(Ops.NEG, -x), x)])
    assert rewrite(A - (-B), rules) is A + B


def test_a_shared_node_is_rewritten_once() -> None:
    seen: list[UOp] = []

    def note(u: UOp) -> None:
        seen.append(u)

    shared = A + B
    rewrite((shared * 2) - (shared * 3), RuleSet("note", [Rule("note", var("u"), note, ops=[Ops.ADD])]))
    assert seen == [shared]


def test_results_on_nodes_serve_several_graphs() -> None:
    rule = Rule("add_zero", x + 0, x)
    rules, own = RuleSet("strip", [rule]), UOp(Ops.VARIABLE, dtypes.int32, (), ("on nodes", 0, 9))
    shared = own + 0
    assert rewrite(shared * 2, rules, on_nodes=True) is own * 2
    assert rewrite(shared * 3, rules, on_nodes=True) is own * 3
    assert rule.fired == 1


def test_deep_graphs_do_not_recurse() -> None:
    u = A
    for n in range(4000):
        u = UOp(Ops.MAX, dtypes.int32, (u + 0, B + n))
    rewritten = rewrite(u, RuleSet("strip", [Rule("add_zero", x + 0, x)]))
    assert all(n.op is not Ops.ADD or n.src[1].arg != 0 for n in rewritten.toposort())


@pytest.mark.parametrize(
    "rules",
    [
        [Rule("there", x + y, x - y), Rule("back", x - y, x + y)],
        [Rule("grow", node(Ops.NEG, x), lambda x: -(x + 1)), Rule("quiet", x * 0, 0)],
    ],
    ids=["a circle", "growth"],
)
def test_rules_that_do_not_rest_are_reported_by_name(rules: list[Rule]) -> None:
    with pytest.raises(
        InternalError, match=r"rewrite with restless does not terminate at .* steps: (there|back|grow) \("
    ) as error:
        rewrite(-(A + B), RuleSet("restless", rules))
    assert "quiet" not in str(error.value)


def test_new_nodes_come_from_the_line_of_the_old() -> None:
    current_origin.line = "user.py:7"
    try:
        u = UOp(Ops.VARIABLE, dtypes.int32, (), ("origin", 0, 9)) - 77
    finally:
        current_origin.line = None
    result = rewrite(u, RuleSet("r", [Rule("r", x - y, lambda x, y: (x + (-y)) * 1)]))
    assert all(node.origin == "user.py:7" for node in result.toposort() if node.op is not Ops.CONST)
    assert current_origin.line is None


def test_the_origin_is_restored_when_a_rule_fails() -> None:
    def fail(x: UOp) -> UOp:
        raise ZeroDivisionError

    current_origin.line = "before"
    try:
        with pytest.raises(ZeroDivisionError):
            rewrite(-A, RuleSet("r", [Rule("r", -x, fail)]))
        assert current_origin.line == "before"
    finally:
        current_origin.line = None


def test_simplify_remembers_on_the_nodes() -> None:
    u = (A * 1) + const(dtypes.int32, 0)
    assert simplify(u) is A
    assert simplify(u) is A
    assert simplify(A) is A
