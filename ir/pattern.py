"""The pattern language: a rule is a name, a pattern written as the expression it matches, and what it becomes.

    x, c = var("x"), const_var("c")
    Rule("mul_one", x * 1, x)
    Rule("mul_pow2_to_shl", x * c, lambda x, c: x << log2(c.arg), when=lambda c: is_pow2(c.arg), kind="int")

A variable matches any node; used twice, both places must be the same node. A number matches a CONST of that value. Patterns
of commutative ops match either order. A right side is a pattern, a number, or a function of the matched variables that may
return None to decline. Rules of one set are compiled to one Python function per root op the first time the set is used.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from .dtype import DType
from .errors import InternalError
from .ops import Group, Op, Ops
from .uop import UOp, const

__all__ = ["Pat", "Rule", "RuleSet", "const_var", "node", "var"]

Target: TypeAlias = "Pat | float | Callable[..., UOp | float | None]"

_KINDS: Final[dict[str, Callable[[DType], bool]]] = {
    "int": lambda d: d.is_int,
    "index": lambda d: d.kind.value == "index",
    "float": lambda d: d.is_float,
    "bool": lambda d: d.is_bool,
    "whole": lambda d: d.is_int or d.is_bool,
    "exact": lambda d: not d.is_float,
}


class Pat:
    """A pattern node: an op with sources, a named variable, or a constant."""

    __slots__ = ("kind", "name", "op", "src", "value")

    def __init__(self, op: Op | None = None, src: Sequence[Pat] | None = None, name: str | None = None,
                 value: float | None = None, kind: str | None = None) -> None:  # fmt: skip
        self.op, self.src, self.name, self.value, self.kind = op, src, name, value, kind

    def _binary(self, op: Op, other: Pat | float) -> Pat:
        return Pat(op, (self, _as_pat(other)))

    def __add__(self, other: Pat | float) -> Pat:
        return self._binary(Ops.ADD, other)

    def __sub__(self, other: Pat | float) -> Pat:
        return self._binary(Ops.SUB, other)

    def __mul__(self, other: Pat | float) -> Pat:
        return self._binary(Ops.MUL, other)

    def __truediv__(self, other: Pat | float) -> Pat:
        return self._binary(Ops.DIV, other)

    def __floordiv__(self, other: Pat | float) -> Pat:
        return self._binary(Ops.FLOORDIV, other)

    def __mod__(self, other: Pat | float) -> Pat:
        return self._binary(Ops.MOD, other)

    def __and__(self, other: Pat | float) -> Pat:
        return self._binary(Ops.AND, other)

    def __or__(self, other: Pat | float) -> Pat:
        return self._binary(Ops.OR, other)

    def __xor__(self, other: Pat | float) -> Pat:
        return self._binary(Ops.XOR, other)

    def __lt__(self, other: Pat | float) -> Pat:
        return self._binary(Ops.LT, other)

    def __le__(self, other: Pat | float) -> Pat:
        return self._binary(Ops.LE, other)

    def __neg__(self) -> Pat:
        return Pat(Ops.NEG, (self,))

    def eq(self, other: Pat | float) -> Pat:
        """Matches EQ."""
        return self._binary(Ops.EQ, other)

    def ne(self, other: Pat | float) -> Pat:
        """Matches NE."""
        return self._binary(Ops.NE, other)

    def where(self, yes: Pat | float, no: Pat | float) -> Pat:
        """Matches WHERE with this condition."""
        return Pat(Ops.WHERE, (self, _as_pat(yes), _as_pat(no)))

    def named(self, name: str) -> Pat:
        """The same pattern, and the matched node is handed to the right side under this name."""
        return Pat(self.op, self.src, name, self.value, self.kind)

    def build(self, env: dict[str, UOp], like: UOp) -> UOp:
        """The right side as a node; its root has the dtype of the node that was matched."""
        if self.op is None:
            return env[self.name] if self.name is not None else const(like.dtype, self.value)
        built = [p.build(env, like) for p in self.src or () if p.value is None]
        operand = built[0] if built else like
        it = iter(built)
        src = [next(it) if p.value is None else const(operand.dtype, p.value) for p in self.src or ()]
        return src[0].alu(self.op, *src[1:])


def _as_pat(value: Pat | float) -> Pat:
    return value if isinstance(value, Pat) else Pat(value=value)


def var(name: str, kind: str | None = None) -> Pat:
    """Matches any node, of a kind of dtype if one is given: int, index, float, bool, whole, exact."""
    return Pat(name=name, kind=kind)


def const_var(name: str, kind: str | None = None) -> Pat:
    """Matches any CONST that is one number."""
    return Pat(Ops.CONST, None, name, None, kind)


def node(op: Op, *src: Pat | float, name: str | None = None) -> Pat:
    """Matches an op; without sources given, whatever they are."""
    return Pat(op, tuple(_as_pat(s) for s in src) or None, name)


class Rule:
    """One named law. `kind` restricts the dtype of the root; `when` is asked with the matched variables it names."""

    __slots__ = ("fired", "kind", "name", "pattern", "target", "unproven", "when")

    def __init__(self, name: str, pattern: Pat, target: Target, *, when: Callable[..., bool] | None = None,
                 kind: str | None = None, unproven: str = "") -> None:  # fmt: skip
        self.name: Final = name
        self.pattern: Final = pattern
        self.target: Final = target
        self.when: Final = when
        self.kind: Final = kind
        self.unproven: Final = unproven  # why sampling stands in for a proof
        self.fired = 0

    def __repr__(self) -> str:
        return f"Rule({self.name})"

    def apply(self, root: UOp, env: dict[str, UOp]) -> UOp | None:
        """The right side for a match, or None where the condition or the right side declines."""
        if self.when is not None and not _call(self.when, env):
            return None
        if isinstance(self.target, Pat):
            result: UOp | float | None = self.target.build(env, root)
        elif callable(self.target):
            result = _call(self.target, env)
        else:
            result = self.target
        if result is None or result is root:
            return None
        self.fired += 1
        return result if isinstance(result, UOp) else const(root.dtype, result)


_parameters: dict[Callable[..., Any], tuple[str, ...]] = {}


def _call(fn: Callable[..., Any], env: dict[str, UOp]) -> Any:
    names = _parameters.get(fn)
    if names is None:
        names = _parameters[fn] = tuple(inspect.signature(fn).parameters)
    return fn(*[env[name] for name in names])


class RuleSet:
    """Named rules, tried in order. `a + b` is a set with both."""

    def __init__(self, name: str, rules: Sequence[Rule]) -> None:
        self.name: Final = name
        self.rules: Final = tuple(rules)
        self._by_op: dict[Op, Callable[[UOp], UOp | None]] | None = None
        doubled = {r.name for r in rules if sum(o.name == r.name for o in rules) > 1}
        if doubled:
            raise InternalError(f"rule set {name}: names used twice: {', '.join(sorted(doubled))}")

    def __add__(self, other: RuleSet) -> RuleSet:
        return RuleSet(f"{self.name}+{other.name}", (*self.rules, *other.rules))

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def apply(self, root: UOp) -> UOp | None:
        """What the first rule that fires makes of this node, or None."""
        if self._by_op is None:
            self._by_op = _compile(self.rules)
        matcher = self._by_op.get(root.op)
        return None if matcher is None else matcher(root)


# --- compiling patterns ----------------------------------------------------------------------------------------------
def _variants(pat: Pat) -> list[Pat]:
    """The pattern in every order that commutative ops allow."""
    if not pat.src:
        return [pat]
    combos: list[tuple[Pat, ...]] = [()]
    for child in pat.src:
        combos = [(*head, option) for head in combos for option in _variants(child)]
    if pat.op is not None and pat.op.commutative and len(pat.src) == 2:
        combos += [(b, a) for a, b in combos]
    return [Pat(pat.op, combo, pat.name, pat.value, pat.kind) for combo in combos]


class _Writer:
    """Writes the tests of one pattern as one Python `if`."""

    def __init__(self, scope: dict[str, Any]) -> None:
        self.scope = scope
        self.tests: list[str] = []
        self.bound: dict[str, str] = {}

    def name(self, prefix: str, value: Any) -> str:
        label = f"{prefix}_{id(value)}"
        self.scope[label] = value
        return label

    def visit(self, pat: Pat, at: str) -> None:
        if pat.value is not None:
            self.tests.append(f"{at}.op is CONST and type({at}.arg) is not tuple and {at}.arg == {pat.value!r}")
        elif pat.op is not None:
            self.tests.append(f"{at}.op is {self.name(pat.op.name, pat.op)}")
            if pat.op is Ops.CONST:
                self.tests.append(f"type({at}.arg) is not tuple")
        if pat.kind is not None:
            self.tests.append(f"{self.name(pat.kind, _KINDS[pat.kind])}({at}.dtype)")
        if pat.name is not None:
            if pat.name in self.bound:
                self.tests.append(f"{at} is {self.bound[pat.name]}")
            self.bound.setdefault(pat.name, at)
        if pat.src is not None:
            self.tests.append(f"len({at}.src) == {len(pat.src)}")
            for i, child in enumerate(pat.src):
                self.visit(child, f"{at}.src[{i}]")


def _compile(rules: Sequence[Rule]) -> dict[Op, Callable[[UOp], UOp | None]]:
    bodies: dict[Op, list[str]] = {}
    scope: dict[str, Any] = {"CONST": Ops.CONST}
    for rule in rules:
        for variant in _variants(rule.pattern):
            writer = _Writer(scope)
            if rule.kind is not None:
                writer.tests.append(f"{writer.name(rule.kind, _KINDS[rule.kind])}(u.dtype)")
            writer.visit(variant, "u")
            env = ", ".join(f"{name!r}: {at}" for name, at in writer.bound.items())
            line = f" if {' and '.join(writer.tests) or True} and (r := {writer.name('rule', rule)}.apply(u, {{{env}}})) is not None: return r"
            roots = [variant.op] if variant.op is not None else [op for op in Ops.rows() if op.group is not Group.CONTROL]
            for op in roots:
                lines = bodies.setdefault(op, [])
                if line not in lines:
                    lines.append(line)
    table: dict[Op, Callable[[UOp], UOp | None]] = {}
    for op, lines in bodies.items():
        exec("def match(u):\n" + "\n".join(lines) + "\n return None", scope)
        table[op] = scope["match"]
    return table
