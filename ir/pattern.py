"""The pattern language: a rule is a name, a pattern written as the expression it matches, and its replacement.

    x, c = var("x"), const_var("c")
    Rule("mul_one", x * 1, x)
    Rule("le_to_lt", x <= c, lambda x, c: x < (c.arg + 1), when=lambda x: x.dtype.is_index)

A variable matches any node; used twice, both must be the same node. A number matches a CONST of that value.
Patterns of commutative ops match either order. A right side is a pattern, a number, or a function of the matched
variables that may return None to decline. Rules of one set are compiled to one Python function per root op the first
time the set is used.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias

from .ops import Op, OpGroup, Ops
from .process.errors import InternalError
from .uop import UOp, const

__all__ = ["Pat", "Rule", "RuleSet", "const_var", "node", "var"]

Matcher: TypeAlias = Callable[[UOp], "UOp | None"]
Target: TypeAlias = "Pat | float | Callable[..., UOp | float | None]"

_KINDS: Final[dict[str, frozenset[str]]] = {  # the kinds of dtypes that each word admits
    "int": frozenset({"int", "uint", "index"}),
    "index": frozenset({"index"}),
    "float": frozenset({"float"}),
    "bool": frozenset({"bool"}),
    "whole": frozenset({"int", "uint", "index", "bool"}),
    "exact": frozenset({"int", "uint", "index", "bool", "void"}),
}


def _binary(op: Op) -> Callable[[Pat, Pat | float], Pat]:
    return lambda self, other: Pat(op, (self, _as_pat(other)))


class Pat:
    """A pattern node: an op with sources, a named variable, or a constant."""

    __slots__ = ("kind", "name", "op", "src", "value")

    def __init__(self, op: Op | None = None, src: Sequence[Pat] | None = None, name: str | None = None,
                 value: float | None = None, kind: str | None = None) -> None:  # fmt: skip
        self.op, self.src, self.name, self.value, self.kind = op, src, name, value, kind

    __add__ = _binary(Ops.ADD)
    __sub__ = _binary(Ops.SUB)
    __mul__ = _binary(Ops.MUL)
    __truediv__ = _binary(Ops.DIV)
    __floordiv__ = _binary(Ops.FLOORDIV)
    __mod__ = _binary(Ops.MOD)
    __and__ = _binary(Ops.AND)
    __or__ = _binary(Ops.OR)
    __xor__ = _binary(Ops.XOR)
    __lt__ = _binary(Ops.LT)
    __le__ = _binary(Ops.LE)
    eq = _binary(Ops.EQ)
    ne = _binary(Ops.NE)

    def __neg__(self) -> Pat:
        return Pat(Ops.NEG, (self,))

    def where(self, yes: Pat | float, no: Pat | float) -> Pat:
        """Matches WHERE with this condition."""
        return Pat(Ops.WHERE, (self, _as_pat(yes), _as_pat(no)))

    def named(self, name: str) -> Pat:
        """Return the same pattern; the right side gets the matched node under this name."""
        return Pat(self.op, self.src, name, self.value, self.kind)

    def build(self, env: dict[str, UOp], like: UOp) -> UOp:
        """The right side as a node; its root has the dtype of the node that was matched."""
        if self.op is None:
            return env[self.name] if self.name is not None else const(like.dtype, self.value)
        built = [p.build(env, like) for p in self.src or () if p.value is None]
        operand = built[0] if built else like
        if self.op is Ops.WHERE:  # numbers next to the condition are values, not conditions
            operand = built[1] if len(built) > 1 else like
        it = iter(built)
        src = [next(it) if p.value is None else const(operand.dtype, p.value) for p in self.src or ()]
        return src[0].alu(self.op, *src[1:])


def _as_pat(value: Pat | float) -> Pat:
    return value if isinstance(value, Pat) else Pat(value=value)


def var(name: str, kind: str | None = None) -> Pat:
    """Matches any node, of a kind of dtype if one is given: int, index, float, bool, whole, exact."""
    return Pat(name=name, kind=kind)


def const_var(name: str) -> Pat:
    """Matches any CONST that is one number."""
    return Pat(Ops.CONST, None, name)


def node(op: Op, *src: Pat | float, name: str | None = None) -> Pat:
    """Match an op; without sources, any sources."""
    return Pat(op, tuple(_as_pat(s) for s in src) or None, name)


class Rule:
    """A named law. `kind` restricts the dtype of the root; `when` is called with the matched variables that it names.

    A pattern that is one variable is tried on every op, or on those in `ops`.
    """

    __slots__ = ("fired", "kind", "name", "ops", "pattern", "target", "when")

    def __init__(self, name: str, pattern: Pat, target: Target, *, when: Callable[..., bool] | None = None,
                 kind: str | None = None, ops: Iterable[Op] | None = None) -> None:  # fmt: skip
        self.name: Final = name
        self.pattern: Final = pattern
        self.target: Final = target
        self.when: Final = when
        self.kind: Final = kind
        self.ops: Final = None if ops is None else frozenset(ops)
        self.fired = 0

    def __repr__(self) -> str:
        return f"Rule({self.name})"


class RuleSet:
    """Named rules, tried in order. `a + b` is a set with both.

    Laws promise more than other rules: the result has the shape of what it replaces. A law whose right side would
    lose the shape of a tensor (x*0 is a scalar 0) declines.
    """

    def __init__(self, name: str, rules: Sequence[Rule], *, laws: bool = False) -> None:
        self.name: Final = name
        self.rules: Final = tuple(rules)
        self.laws: Final = laws
        self._matchers: dict[tuple[Op, str], Matcher | None] = {}
        doubled = sorted(name for name, count in Counter(rule.name for rule in self.rules).items() if count > 1)
        if doubled:
            raise InternalError(f"rule set {name}: names used twice: {', '.join(doubled)}")

    def __add__(self, other: RuleSet) -> RuleSet:
        return RuleSet(f"{self.name}+{other.name}", (*self.rules, *other.rules), laws=self.laws and other.laws)

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def apply(self, root: UOp) -> UOp | None:
        """Return the replacement of this node by the first rule that fires, or None."""
        key = (root.op, root.dtype.kind)
        matcher = self._matchers.get(key, _match_none)
        if matcher is _match_none:
            matcher = self._matchers[key] = _compile(self.rules, *key, laws=self.laws)
        return None if matcher is None else matcher(root)


def _match_none(root: UOp) -> UOp | None:
    return None


# --- compiling patterns: one Python function for each root op and kind of dtype -----------------------------------
def _variants(pat: Pat) -> list[Pat]:
    """Return the pattern in every order that commutative ops allow."""
    if not pat.src:
        return [pat]
    combos: list[tuple[Pat, ...]] = [()]
    for child in pat.src:
        combos = [(*head, option) for head in combos for option in _variants(child)]
    if pat.op is not None and pat.op.commutative and len(pat.src) == 2 and pat.src[0] is not pat.src[1]:
        combos += [(b, a) for a, b in combos]
    return [Pat(pat.op, combo, pat.name, pat.value, pat.kind) for combo in combos]


class _MatchWriter:
    """Writes the tests of one pattern as the condition of one Python `if`, cheap ones first."""

    def __init__(self, scope: dict[str, Any], arity: int) -> None:
        self.scope = scope
        self.arity = arity  # of the root: its sources are u_0, u_1, ..
        self.tests: list[str] = []
        self.late: list[str] = []
        self.bound: dict[str, str] = {}

    def put(self, label: str, value: Any) -> str:
        self.scope[label] = value
        return label

    def visit(self, pat: Pat, at: str, is_known: bool = False) -> None:
        """Add the tests for the node in expression `at`; `is_known` if its op is already tested."""
        if pat.name is not None:
            if pat.name in self.bound:
                self.tests.append(f"{at} is {self.bound[pat.name]}")
            self.bound.setdefault(pat.name, at)
        if pat.value is not None:
            self.tests.append(f"{at}.op is CONST and {at}.arg == {pat.value!r}")
        elif pat.op is not None and not is_known:
            self.tests.append(f"{at}.op is {self.put(pat.op.name, pat.op)}")
        if pat.op is Ops.CONST:
            self.late.append(f"type({at}.arg) is not tuple")
        if pat.kind is not None:
            self.late.append(f"{at}.dtype.kind in {self.put('kind_' + pat.kind, _KINDS[pat.kind])}")
        for i, child in enumerate(pat.src or ()):
            if i == 0 and (pat.op is None or pat.op.arity != len(pat.src or ())):
                self.tests.append(f"len({at}.src) == {len(pat.src or ())}")
            path = f"{at}_{i}" if at == "u" and self.arity else f"{at}.src[{i}]"
            if child.src is None or child.op is None or path[-1] != "]":
                self.visit(child, path)
            else:  # it has sources to test: give it a name
                self.tests.append(f"({at}_{i} := {path}).op is {self.put(child.op.name, child.op)}")
                self.visit(child, f"{at}_{i}", is_known=True)


def _compile(rules: Sequence[Rule], op: Op, kind: str, *, laws: bool) -> Matcher | None:
    """Compile a function that tries, in order, all rules for nodes of this op and kind; None if there are none."""
    scope: dict[str, Any] = {"CONST": Ops.CONST, "UOp": UOp, "const": const}
    blocks: list[str] = []
    is_guarded = laws and kind != "index"  # no tensor has dtype index (ir/verify.py)
    for number, rule in enumerate(rules):
        root = rule.pattern.op
        if rule.kind is not None and kind not in _KINDS[rule.kind]:
            continue
        if op is not root and (
            root is not None or op.group is OpGroup.CONTROL or (rule.ops is not None and op not in rule.ops)
        ):
            continue
        for variant in _variants(rule.pattern):
            block = _attempt(rule, number, variant, _MatchWriter(scope, op.arity or 0), is_guarded)
            if block not in blocks:
                blocks.append(block)
    if not blocks:
        return None
    names = "".join(f"u_{i}, " for i in range(op.arity or 0))
    head = f"def match(u):\n {names}= u.src\n" if names else "def match(u):\n"
    exec(head + "".join(blocks) + " return None", scope)
    matcher: Matcher = scope["match"]
    return matcher


def _attempt(rule: Rule, number: int, variant: Pat, writer: _MatchWriter, is_guarded: bool) -> str:
    """Return the lines that try one order of one rule."""
    writer.visit(variant, "u", is_known=True)
    tests = [*writer.tests, *writer.late]
    if rule.when is not None:
        tests.append(f"{writer.put(f'when_{number}', rule.when)}({_arguments(rule, rule.when, writer.bound)})")
    if isinstance(rule.target, Pat):
        name = rule.target.name if rule.target.op is None else None
        env = ", ".join(f"{name!r}: {at}" for name, at in writer.bound.items())
        value = writer.bound[name] if name else f"{writer.put(f'target_{number}', rule.target)}.build({{{env}}}, u)"
    elif callable(rule.target):
        value = f"{writer.put(f'target_{number}', rule.target)}({_arguments(rule, rule.target, writer.bound)})"
    else:
        value = repr(rule.target)
    same_shape = " and (not u.shape or u.shape == r.shape)" if is_guarded else ""
    return (
        f" if {' and '.join(tests) or 'True'}:\n"
        f"  r = {value}\n"
        f"  if r is not None and r is not u:\n"
        f"   if type(r) is not UOp: r = const(u.dtype, r)\n"
        f"   if r is not u{same_shape}:\n"
        f"    {writer.put(f'rule_{number}', rule)}.fired += 1\n"
        f"    return r\n"
    )


def _arguments(rule: Rule, fn: Callable[..., Any], bound: dict[str, str]) -> str:
    names = list(inspect.signature(fn).parameters)
    missing = [name for name in names if name not in bound]
    if missing:
        raise InternalError(f"rule {rule.name}: {', '.join(missing)} used, but the pattern binds {', '.join(bound)}")
    return ", ".join(bound[name] for name in names)
