"""The engine: apply rules bottom-up until none fires.

Sources are rewritten before a node is tried, and what a rule returns is rewritten again, so the result holds no match.
Each result is remembered: a shared node is rewritten once. A rule set that does not terminate is reported with the
names of the rules that kept firing.
"""

from __future__ import annotations

from .pattern import RuleSet
from .process.errors import InternalError
from .uop import MISSING, UOp, current_origin, with_sources

__all__ = ["rewrite"]

_DEEPEST = 5000  # replacements of replacements of ...; rule sets that terminate need a few
_LAST_STEPS = 100  # those before the limit whose rules are named in the report


def rewrite(root: UOp, rules: RuleSet, *, on_nodes: bool = False) -> UOp:
    """Apply the rules everywhere in `root`, to a fixed point.

    One rule set, the laws, caches its results on the nodes (`on_nodes`) for other graphs; they are freed with the
    nodes.

    Raises:
        InternalError: the rules do not terminate on this graph.
    """
    memo: dict[UOp, UOp] = {}
    waiting = 0  # nodes whose replacement is being rewritten; unbounded if rules do not terminate
    became: dict[UOp, UOp] = {}  # replacements by a rule that are still being rewritten
    busy: list[int] = []
    stack = [root]
    while stack:
        node = stack[-1]
        if node in memo:
            stack.pop()
            continue
        result = became.get(node)
        if result is not None and result in memo:
            memo[stack.pop()] = memo[result]
            waiting -= 1
            continue
        missing = [s for s in node.src if s not in memo]
        if missing and on_nodes:
            missing = [s for s in missing if not _recall(s, memo)]
        if missing:
            stack += missing
            continue
        renewed = with_sources(node, tuple([memo[s] for s in node.src]))
        if renewed is not node and (renewed in memo or (on_nodes and _recall(renewed, memo))):
            memo[stack.pop()] = memo[renewed]
            continue
        result = _step(renewed, rules)
        if result is None:
            memo[stack.pop()] = memo[renewed] = renewed
            continue
        waiting += 1
        if waiting > _DEEPEST:
            busy = _watch(busy, waiting - _DEEPEST, rules, root)
        became[node] = result
        stack.append(result)
    if on_nodes:
        for node, result in memo.items():
            node._simple = None if result is node else result
    return memo[root]


def _recall(node: UOp, memo: dict[UOp, UOp]) -> bool:
    simple = node._simple
    if simple is MISSING:
        return False
    memo[node] = node if simple is None else simple
    return True


def _step(node: UOp, rules: RuleSet) -> UOp | None:
    """Apply the rules once to a node; new nodes get its source location."""
    before = current_origin.line
    if before is node.origin:
        return rules.apply(node)
    current_origin.line = node.origin
    try:
        return rules.apply(node)
    finally:
        current_origin.line = before


def _watch(fired: list[int], steps: int, rules: RuleSet, root: UOp) -> list[int]:
    """Past the limit: record the rules that fire, and report them a little later."""
    if not fired:
        return [rule.fired for rule in rules]
    if steps > _LAST_STEPS:
        counts = {rule.name: rule.fired - before for rule, before in zip(rules, fired, strict=True)}
        busiest = sorted((name for name, count in counts.items() if count), key=lambda name: -counts[name])
        shown = ", ".join(f"{name} ({counts[name]})" for name in busiest[:5])
        raise InternalError(
            f"rewrite with {rules.name} does not terminate at {root!r}. Most frequent of its last steps: {shown}."
        )
    return fired
