"""The engine: apply rules bottom-up until none fires.

Sources are rewritten before a node is tried, and what a rule returns is rewritten again, so the result holds no match.
Each result is remembered: a shared node is rewritten once. A rule set that does not come to rest is reported with the
names of the rules that kept firing.
"""

from __future__ import annotations

from collections import Counter

from .errors import InternalError
from .pattern import RuleSet
from .uop import UOp

__all__ = ["rewrite", "rewrite_with"]

_STEPS_PER_NODE = 1000


def rewrite(root: UOp, rules: RuleSet) -> UOp:
    """`root` with the rules applied everywhere, to a fixed point.

    Raises:
        InternalError: the rules do not come to rest on this graph.
    """
    return rewrite_with(root, rules, {})


def rewrite_with(root: UOp, rules: RuleSet, memo: dict[UOp, UOp]) -> UOp:
    """As `rewrite`, with a memory that may be kept over several graphs."""
    budget = _STEPS_PER_NODE
    stack: list[tuple[UOp, int, UOp | None]] = [(root, 0, None)]
    while stack:
        node, stage, became = stack.pop()
        if node in memo:
            continue
        if stage == 0:
            stack.append((node, 1, None))
            for s in node.src:
                if s not in memo:
                    stack.append((s, 0, None))
                    budget += 4
        elif stage == 1:
            src = tuple([memo[s] for s in node.src])
            rebuilt = node if src == node.src else node.replace(src=src)
            if rebuilt.origin is None:
                rebuilt.origin = node.origin
            if rebuilt is not node and rebuilt in memo:
                memo[node] = memo[rebuilt]
                continue
            before, UOp.current_origin = UOp.current_origin, rebuilt.origin
            result = rules.apply(rebuilt)
            UOp.current_origin = before
            if result is None:
                memo[node] = memo[rebuilt] = rebuilt
                continue
            budget -= 1
            if budget < 0:
                raise InternalError(_restless(rules, root))
            stack.append((node, 2, result))
            stack.append((result, 0, None))
        else:
            assert became is not None
            memo[node] = memo[became]
    return memo[root]


def _restless(rules: RuleSet, root: UOp) -> str:
    busiest = Counter({rule.name: rule.fired for rule in rules}).most_common(5)
    return f"rewrite with {rules.name} does not come to rest at {root!r}; most fired so far: {busiest}"
