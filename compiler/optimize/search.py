"""The neighbours of a schedule: schedules that differ by one action. Pure: runtime/programs/tune.py measures them.

An action is dropped, given a different amount, or added; later actions are refitted. The candidates of each action are
in its row in actions.py, so that a new action is searched without a change here. Tests:
tests/compiler/optimize/test_search.py.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from kernmill.ir import AxisKind, KernmillError, Ops, Target, UOp, closed_ranges

from .actions import ACTION_KINDS, Action, apply_actions

__all__ = ["body_size", "is_reasonable", "neighbours", "optimized"]

LARGEST_BODY: Final = 1000  # operations after unrolling; more of them compile for seconds


def optimized(ast: UOp, actions: Sequence[Action]) -> UOp | None:
    """Apply the actions to the kernel; None if one does not fit. Equivalent schedules give the same node."""
    try:
        return _bare(apply_actions(ast, actions))
    except KernmillError:
        return None


def body_size(ast: UOp, target: Target) -> tuple[int, int]:
    """Estimate the operations after unrolling, and the registers of the accumulators."""
    total = accumulators = 0
    for node in ast.toposort():
        value = node.src[1] if node.op is Ops.STORE else node
        is_work = node.op.is_elementwise or node.op in (Ops.LOAD, Ops.STORE, Ops.REDUCE)
        if not is_work or value.dtype.is_index:
            continue
        total += _copies(node.ranges, target.lanes(value.dtype))
        if node.op is Ops.REDUCE:
            parallel = [loop for loop in closed_ranges(node) if loop.arg[1] in (AxisKind.RFACTOR, AxisKind.VECTOR)]
            accumulators = max(accumulators, _copies(node.ranges.union(parallel), target.lanes(value.dtype)))
    return total, accumulators


def _copies(loops: Iterable[UOp], lanes: int) -> int:
    """Registers of `lanes` lanes for the values of these loops."""
    copies = 1
    for loop in loops:
        if loop.arg[1] in (AxisKind.UNROLL, AxisKind.RFACTOR):
            copies *= int(loop.src[0].arg)
        elif loop.arg[1] == AxisKind.VECTOR:
            copies *= -(-int(loop.src[0].arg) // lanes)
    return copies


def is_reasonable(ast: UOp, target: Target) -> bool:
    """True if it is worth a measurement: it compiles soon, and its accumulators almost fit the registers."""
    size, accumulators = body_size(ast, target)
    return size <= LARGEST_BODY and accumulators <= max(8, target.vector_registers)


def neighbours(
    ast: UOp, actions: Sequence[Action], target: Target, rng: random.Random, most: int | None = None
) -> Iterator[tuple[list[Action], UOp]]:
    """Yield legal schedules one step from `actions`, each with its kernel, in an order drawn from `rng`.

    Each is tried when it is requested, so the first few are cheap. `most`: that are tried, legal or not.
    """
    heres = _prefixes(ast, actions)
    steps = list(_steps(heres, actions, target))
    rng.shuffle(steps)
    seen = {heres[-1] if len(heres) > len(actions) else None}
    for at, step in steps[:most]:
        found = _fitted(heres[at], step, at)
        if found is not None and found[1] not in seen and is_reasonable(found[1], target):
            seen.add(found[1])
            yield found


def _steps(heres: Sequence[UOp], actions: Sequence[Action], target: Target) -> Iterator[tuple[int, list[Action]]]:
    """Yield schedules, each with the number of its first actions that are those of `actions`."""
    for at, action in enumerate(actions[: len(heres)]):
        yield at, [*actions[:at], *actions[at + 1 :]]
        for args in ACTION_KINDS[action.verb].proposals(heres[at], target):
            if _differs_once(args, action.args):
                yield at, [*actions[:at], Action(action.verb, args), *actions[at + 1 :]]
    if len(heres) <= len(actions):
        return
    ranks = [ACTION_KINDS[action.verb].rank for action in actions]
    for name, kind in ACTION_KINDS.items():
        end = next((at for at, rank in enumerate(ranks) if rank > kind.rank), len(actions))
        for at in {0, end} if kind.rank == 0 else {end}:
            for args in kind.proposals(heres[at], target):
                yield at, [*actions[:at], Action(name, args), *actions[at:]]


def _prefixes(ast: UOp, actions: Sequence[Action]) -> list[UOp]:
    """The kernel after none, one, two, .. of the actions, up to the first that does not fit."""
    found = [_bare(ast)]
    for action in actions:
        try:
            found.append(apply_actions(found[-1], [action]))
        except KernmillError:
            break
    return [_bare(one) for one in found]


def _differs_once(args: Sequence[str], others: Sequence[str]) -> bool:
    """True if they differ in exactly one word."""
    return len(args) == len(others) and sum(a != b for a, b in zip(args, others, strict=True)) == 1


def _fitted(ast: UOp, actions: Sequence[Action], done: int) -> tuple[list[Action], UOp] | None:
    """Refit the arguments of the actions after the first `done`, which `ast` has, to what earlier actions left; return
    the schedule and its kernel."""
    fitting = list(actions[:done])
    for action in actions[done:]:
        args = ACTION_KINDS[action.verb].fit(ast, action.args)
        if args is not None:
            fitting.append(Action(action.verb, args))
            try:
                ast = apply_actions(ast, fitting[-1:])
            except KernmillError:
                return None
    return fitting, _bare(ast)


def _bare(ast: UOp) -> UOp:
    """The kernel without its list of actions: two schedules that do the same give the same node."""
    return ast.replace(arg=replace(ast.arg, actions=()))
