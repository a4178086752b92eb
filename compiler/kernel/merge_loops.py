"""Collapse adjacent loops that are contiguous in every index; `split_loops` first splits those that are used in parts.

When: before the optimizer. Why there: a long contiguous loop vectorizes and threads better than two short ones. Two
loops a, b merge if every index has stride size(b)*s along a where it has stride s along b, and nothing else uses them.
Guarantees: the same elements in the same order. Tests: tests/compiler/kernel/test_merge_loops.py.
"""

from __future__ import annotations

from itertools import pairwise

from kernmill.ir import Ops, UOp, closed_ranges, from_linear, linear, make_range, simplify, with_sources

from .facts import order_of, output_loops, reordered
from .split_loops import split_loops

__all__ = ["merge_loops"]


def merge_loops(ast: UOp) -> UOp:
    """Return the kernel with as few loops as its indices allow; loops whose quotients and remainders are used
    separately are split first."""
    ast = split_loops(ast)
    while pair := next((p for p in _neighbours(ast) if _mergeable(ast, *p)), None):
        ast = _merge(ast, *pair)
    return ast


def _neighbours(ast: UOp) -> list[tuple[UOp, UOp]]:
    chains = [tuple(output_loops(ast)), *(closed for node in ast.toposort() if (closed := closed_ranges(node)))]
    pairs = dict.fromkeys((a, b) for chain in chains for a, b in pairwise(chain))
    # every node that ends one of them ends both, in this order
    return [(a, b) for a, b in pairs if all((a, b) in pairwise(c) for c in chains[1:] if a in c or b in c)]


def _mergeable(ast: UOp, a: UOp, b: UOp) -> bool:
    if not (a.src[0].is_const and b.src[0].is_const):
        return False
    pair = {a, b}
    for node in ast.toposort():
        if node.op is Ops.LOCAL:
            if (a in node.src) != (b in node.src):
                return False
        elif node.op is Ops.INDEX:
            terms, _ = linear(node.src[1])
            if any(atom not in pair and pair & atom.ranges for atom in terms):
                return False
            if terms.get(a, 0) != terms.get(b, 0) * b.src[0].arg or (node.gate is not None and pair & node.gate.ranges):
                return False
        elif node.op is not Ops.RANGE and any(s.dtype.is_index and pair & s.ranges for s in node.src):
            is_rebuilt = node.dtype.is_index or node in ast.src or closed_ranges(node)
            if not is_rebuilt:
                return False
    return True


def _merge(ast: UOp, a: UOp, b: UOp) -> UOp:
    loop = make_range(str(a.arg[0]), a.src[0].arg * b.src[0].arg, a.arg[1])
    done: dict[UOp, UOp] = {}
    for node in ast.toposort():
        src = tuple(done.get(s, s) for s in node.src)
        if node.op is Ops.INDEX:
            terms, offset = linear(node.src[1])
            moved = {done.get(atom, atom): k for atom, k in terms.items() if atom not in (a, b)}
            index = from_linear(moved | ({loop: terms[b]} if terms.get(b) else {}), offset, node.src[1].dtype)
            src = (src[0], index, *src[2:])
        elif a in node.src and (closed_ranges(node) or node.op is Ops.LOCAL):
            src = tuple(loop if s is a else done.get(s, s) for s in node.src if s is not b)
        done[node] = with_sources(node, src)
    return simplify(reordered(done[ast], (n for n in order_of(ast) if n != b.arg[0])))
