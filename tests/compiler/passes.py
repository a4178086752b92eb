"""A kernel after some of the passes."""

from __future__ import annotations

from kernmill.compiler import PIPELINE, apply_actions, choose, merge_loops, parse_schedule
from kernmill.ir import Target, UOp, verify
from tests.compiler.kernels import VECTORS


def after(name: str, ast: UOp, schedule: str | None = None, target: Target = VECTORS) -> UOp:
    """The kernel after the pass `name`, each stage verified; scheduled as written or by the heuristic."""
    ast = merge_loops(ast)
    ast = apply_actions(ast, choose(ast, target).actions if schedule is None else parse_schedule(schedule))
    for step in PIPELINE[2:]:
        ast = step.run(ast, target)
        verify(ast, step.stage, step.name)
        if step.name == name:
            return ast
    raise ValueError(name)
