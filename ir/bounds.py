"""Interval arithmetic: the least and greatest value of an int or bool expression."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from .ops import Op, OpGroup, Ops

if TYPE_CHECKING:
    from .uop import UOp

__all__ = ["Bounds", "bounds_of"]

Bounds: TypeAlias = "tuple[int | float, int | float]"
Interval: TypeAlias = "tuple[int, int]"  # Bounds of an int or bool


def bounds_of(node: UOp) -> Bounds:
    """Compute bounds from the bounds of the sources; the whole range of the dtype if the op gives no information."""
    dtype = node.dtype
    whole: Bounds = (dtype.min, dtype.max)
    if dtype.is_float or dtype.bits == 0:
        return whole
    if node.op is Ops.WHERE:
        return _where(node)
    rule = _rules.get(node.op)
    if rule is None:
        if node.op in _leaf:
            return _leaf[node.op](node)
        return _compare(node) if node.op.group is OpGroup.COMPARE else whole
    for s in node.src:
        if s.dtype.is_float:
            return whole
    low, high = rule(*[s._bounds for s in node.src])  # filled before: see UOp.bounds
    return (low, high) if whole[0] <= low and high <= whole[1] else whole  # it may wrap: nothing is known


def _const(node: UOp) -> Bounds:
    values = node.arg if isinstance(node.arg, tuple) else (node.arg,)
    return int(min(values)), int(max(values))


_leaf: dict[Op, Callable[[UOp], Bounds]] = {
    Ops.CONST: _const,
    Ops.VARIABLE: lambda node: (node.arg[1], node.arg[2]),
    Ops.RANGE: lambda node: _range(node.src[0], is_part=node.first_iteration is not None),
    Ops.IOTA: lambda node: (0, max(0, (node.arg if isinstance(node.arg, int) else node.arg.bounds[1]) - 1)),
}


def _range(count: UOp, is_part: bool) -> Bounds:
    """Treat an unknown count as at least 0 to 1: otherwise a loop that runs once or never would be replaced by its
    body."""
    return 0, max(0 if count.is_const and not is_part else 1, int(count.bounds[1]) - 1)


def _mul(a: Interval, b: Interval) -> Interval:
    if a[0] >= 0 and b[0] >= 0:
        return a[0] * b[0], a[1] * b[1]
    corners = [x * y for x in a for y in b]
    return min(corners), max(corners)


def _floordiv(a: Interval, b: Interval) -> Interval:
    if b[0] == b[1] > 0:
        return a[0] // b[0], a[1] // b[0]
    if b[0] <= 0 <= b[1]:
        return (0, a[1]) if a[0] >= 0 and b[0] >= 0 else (-max(map(abs, a)), max(map(abs, a)))
    corners = [x // y for x in a for y in b]
    return min(corners), max(corners)


def _mod(a: Interval, b: Interval) -> Interval:
    if b[0] > 0:
        if b[0] == b[1] and a[0] // b[0] == a[1] // b[0]:
            return a[0] % b[0], a[1] % b[0]
        return 0, min(b[1] - 1, a[1]) if a[0] >= 0 else b[1] - 1
    return min(b[0], 0), max(b[1], 0)


def _cdiv(a: Interval, b: Interval) -> Interval:
    if b[0] <= 0:
        return -max(map(abs, a)), max(map(abs, a))
    corners = [abs(x) // y * (1 if x >= 0 else -1) for x in a for y in b]
    return min(corners), max(corners)


def _cmod(a: Interval, b: Interval) -> Interval:
    most = max(abs(b[0]), abs(b[1]), 1) - 1
    return max(-most, min(a[0], 0)), min(most, max(a[1], 0))


def _and(a: Interval, b: Interval) -> Interval:
    ceilings = [x[1] for x in (a, b) if x[0] >= 0]
    if ceilings:
        return 0, min(ceilings)
    highest = min(a[1], b[1]) if a[1] < 0 and b[1] < 0 else max(a[1], b[1])
    return min(a[0], b[0]) * 2, highest  # the power of two at or below both


def _or(a: Interval, b: Interval) -> Interval:
    if a[0] < 0 or b[0] < 0:
        return -(1 << 64), 1 << 64
    return max(a[0], b[0]), (1 << max(a[1].bit_length(), b[1].bit_length())) - 1


def _shift(by: Callable[[int, int], int]) -> Callable[[Interval, Interval], Interval]:
    def rule(a: Interval, b: Interval) -> Interval:
        if b[0] != b[1] or not 0 <= b[0] < 64:
            return -(1 << 64), 1 << 64
        return by(a[0], b[0]), by(a[1], b[0])

    return rule


_rules: dict[Op, Callable[..., Interval]] = {
    Ops.ADD: lambda a, b: (a[0] + b[0], a[1] + b[1]),
    Ops.SUB: lambda a, b: (a[0] - b[1], a[1] - b[0]),
    Ops.NEG: lambda a: (-a[1], -a[0]),
    Ops.MUL: _mul,
    Ops.FLOORDIV: _floordiv,
    Ops.MOD: _mod,
    Ops.CDIV: _cdiv,
    Ops.CMOD: _cmod,
    Ops.MAX: lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    Ops.MIN: lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    Ops.CAST: lambda a: a,
    Ops.AND: _and,
    Ops.OR: _or,
    Ops.SHL: _shift(lambda x, n: x << n),
    Ops.SHR: _shift(lambda x, n: x >> n),
    Ops.BROADCAST: lambda a: a,
    Ops.SHUFFLE: lambda a, b: (min(a[0], b[0]), max(a[1], b[1])),
    Ops.LANE: lambda a: a,
    Ops.LANES: lambda *xs: (min(x[0] for x in xs), max(x[1] for x in xs)),
    **dict.fromkeys((Ops.DETACH, Ops.RESHAPE, Ops.EXPAND, Ops.PERMUTE, Ops.SHRINK, Ops.STRIDE), lambda a: a),
}


def _where(node: UOp) -> Bounds:
    """Combine the bounds of both branches, each narrowed by the comparison that selects it: where(x < c, x, c) is at
    most c."""
    condition, yes, no = node.src
    (yes_low, yes_high), (no_low, no_high) = yes.bounds, no.bounds
    if condition.op is Ops.LT and not condition.src[0].dtype.is_float:
        a, b = condition.src
        yes_high = min(yes_high, b.bounds[1] - 1) if yes is a else yes_high
        yes_low = max(yes_low, a.bounds[0] + 1) if yes is b else yes_low
        no_low = max(no_low, b.bounds[0]) if no is a else no_low
        no_high = min(no_high, a.bounds[1]) if no is b else no_high
    branches = [(low, high) for low, high in ((yes_low, yes_high), (no_low, no_high)) if low <= high]  # possible ones
    if not branches:
        return yes.bounds
    return min(low for low, _ in branches), max(high for _, high in branches)


def _compare(node: UOp) -> Bounds:
    a, b = (s.bounds for s in node.src)
    if node.src[0].dtype.is_float:
        return 0, 1
    match node.op:
        case Ops.LT:
            always, never = a[1] < b[0], a[0] >= b[1]
        case Ops.LE:
            always, never = a[1] <= b[0], a[0] > b[1]
        case Ops.EQ:
            always, never = a[0] == a[1] == b[0] == b[1], a[1] < b[0] or b[1] < a[0]
        case _:
            always, never = a[1] < b[0] or b[1] < a[0], a[0] == a[1] == b[0] == b[1]
    return int(always), int(not never)
