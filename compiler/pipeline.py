"""THE LIST of the loop half: every pass from a kernel to linear UOps: its predecessors, its stage, and the reason for
its position. The list of the graph half is compiler/graph/pipeline.py.

The order of the list is the order of work; `after` and `why` are the knowledge behind it and are checked by
tests/compiler/test_pipeline.py. With CHECK=1, and in all tests, each stage is verified (ir/verify.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kernmill.ir import Ops, Stage, Target, UOp, dtypes, simplify, verify

from .kernel.distribute_work_items import distribute_work_items
from .kernel.expand_loops import expand_loops
from .kernel.facts import routine_of
from .kernel.linearize import linearize, loop_depths
from .kernel.merge_loops import merge_loops
from .kernel.partition_loops import partition_loops
from .kernel.peel_loops import peel_loops
from .kernel.place_barriers import place_barriers
from .kernel.shuffle_lanes import shuffle_lanes
from .kernel.trim_loops import trim_loops
from .kernel.vectorize import vectorize
from .lower.block_sums import block_sums
from .lower.combine_loads import combine_loads
from .lower.convert_packed import convert_packed
from .lower.decompose import decompose
from .lower.find_dots import find_dots
from .lower.find_mmas import find_mmas
from .lower.hoist_shifts import hoist_shifts
from .lower.insert_prefetches import insert_prefetches
from .lower.lookup_in_registers import lookup_in_registers
from .lower.lower_index import lower_index
from .lower.lower_reduces import lower_reduces
from .lower.scalarize_gathers import scalarize_gathers
from .optimize import Action, apply_actions, choose
from .routines import expand_routine

__all__ = ["PIPELINE", "Pass", "lower", "optimize_loops"]


@dataclass(frozen=True, slots=True)
class Pass:
    """One step: `run(kernel, target)` takes the kernel that the pass before it left to one of `stage`.

    A kernel is a SINK, from `linearize` on a list of UOps. A pass is called like its function and its file, except
    `optimize` (optimize/choose.py) and `simplify` (ir/algebra/).
    """

    name: str
    run: Callable[[Any, Target], Any]
    stage: Stage
    after: tuple[str, ...]
    why: str


PIPELINE: tuple[Pass, ...] = (
    Pass("merge_loops", lambda ast, target: merge_loops(ast), Stage.KERNEL, (),
         "the optimizer gets one long contiguous loop, which vectorizes and threads better than two short ones"),
    Pass("optimize", lambda ast, target: choose(ast, target).ast, Stage.OPTIMIZED, ("merge_loops",),
         "the schedule splits loops and gives each its kind; a given schedule replaces the heuristic's"),
    Pass("trim_loops", lambda ast, target: trim_loops(ast), Stage.OPTIMIZED, ("optimize",),
         "loops are tiled, so the last row of a tile and its end are known; rows are not unrolled yet"),
    Pass("peel_loops", lambda ast, target: peel_loops(ast), Stage.OPTIMIZED, ("trim_loops",),
         "loop bounds are known, and unrolled instances still share one condition"),
    Pass("find_mmas", find_mmas, Stage.OPTIMIZED, ("optimize",),
         "a blockwise reduction is still one node, its packed operand one load, and work-items are loops"),
    Pass("distribute_work_items", lambda ast, target: distribute_work_items(ast), Stage.OPTIMIZED,
         ("trim_loops", "find_mmas"),
         "loops still have names and strides, so those of work-items can become quotients and remainders of one id"),
    Pass("convert_packed", convert_packed, Stage.OPTIMIZED, ("find_mmas",),
         "a packed panel is still one store and one load; panels for matrix units and dots keep their dtype"),
    Pass("partition_loops", lambda ast, target: partition_loops(ast), Stage.OPTIMIZED,
         ("find_mmas", "distribute_work_items"),
         "local tiles have their readers; unrolled instances and lanes still share one condition"),
    Pass("expand_loops", lambda ast, target: expand_loops(ast), Stage.OPTIMIZED, ("convert_packed", "partition_loops"),
         "unrolling before vectorizing: each instance has its own indices, which show the stride of lanes"),
    Pass("vectorize", lambda ast, target: vectorize(ast), Stage.VECTORIZED, ("expand_loops",),
         "after unrolling, a value depends on at most one vector loop"),
    Pass("shuffle_lanes", shuffle_lanes, Stage.VECTORIZED, ("vectorize",),
         "gathers and scatters exist, and addresses are still affine in the loops"),
    Pass("combine_loads", combine_loads, Stage.VECTORIZED, ("shuffle_lanes",),
         "adjacent bytes are lanes of one vector"),
    Pass("find_dots", find_dots, Stage.VECTORIZED, ("shuffle_lanes",),
         "after vectorizing, narrow products feed one reduction, and a packed operand is one load"),
    Pass("hoist_shifts", hoist_shifts, Stage.VECTORIZED, ("find_dots",),
         "the 32-bit words of a reduction are in one node, so the reductions that share them can be counted"),
    Pass("lookup_in_registers", lookup_in_registers, Stage.VECTORIZED, ("find_dots",),
         "the operations that unpack quants are adjacent, once for four products"),
    Pass("scalarize_gathers", scalarize_gathers, Stage.VECTORIZED, ("combine_loads", "lookup_in_registers"),
         "a lane is a slice of one wide load; table lookups in registers are no longer gathers"),
    Pass("lower_reduces", lower_reduces, Stage.LOWERED, ("vectorize", "find_dots"),
         "an accumulator needs its final dtype, lanes included"),
    Pass("insert_prefetches", lambda ast, target: insert_prefetches(ast), Stage.LOWERED, ("lower_reduces",),
         "an accumulator's AFTER exists and can take prefetches into its loop; addresses are still affine"),
    Pass("decompose", decompose, Stage.LOWERED, ("lower_reduces",),
         "after accumulators exist, so that their combining ops are decomposed too"),
    Pass("simplify", lambda ast, target: simplify(ast), Stage.LOWERED, ("decompose",),
         "decompositions leave constants to fold; the last pass in which integer arithmetic is unbounded"),
    Pass("lower_index", lambda ast, target: lower_index(ast, loop_depths(ast)), Stage.LOWERED, ("simplify",),
         "gives loop variables a machine type and orders sums by loop depth; no algebraic rule may follow"),
    Pass("linearize", lambda ast, target: linearize(ast, target.vector_registers // 2), Stage.LINEAR, ("lower_index",),
         "nothing moves in the graph any more: each node goes into the block of its innermost loop"),
    Pass("block_sums", lambda uops, target: block_sums(uops), Stage.LINEAR, ("linearize", "lower_reduces"),
         "every value has its position, so a long sum becomes sums of blocks: small terms keep their digits"),
    Pass("place_barriers", lambda uops, target: place_barriers(uops), Stage.LINEAR,
         ("linearize", "distribute_work_items"),
         "the list shows between which stores and loads of shared memory work-items have to wait"),
)  # fmt: skip
_OPTIMIZED = 1 + [step.name for step in PIPELINE].index("optimize")


def optimize_loops(ast: UOp, target: Target, actions: Sequence[Action] | None = None) -> UOp:
    """The kernel optimized by `actions` (None: by the heuristic), through the first passes of PIPELINE."""
    if routine_of(ast) is not None:
        return ast  # its loops run in order
    for step in PIPELINE[:_OPTIMIZED]:
        is_given = step.name == "optimize" and actions is not None
        ast = apply_actions(ast, actions or ()) if is_given else step.run(ast, target)
    return ast


def lower(
    ast: UOp,
    target: Target,
    arguments_of: UOp,
    *,
    is_checked: bool = False,
    seen: Callable[[str, UOp | list[UOp]], None] = lambda name, uops: None,
) -> list[UOp]:
    """Linear UOps of a kernel that was optimized, through the passes of PIPELINE behind the optimizer.

    It takes the arguments of the kernel that it was before, used or not.

    With `is_checked` every stage is verified; an InternalError names the pass that left something illegal behind.
    `seen` is called with the name of each pass and what it left.
    """
    routine = routine_of(ast)
    if routine is not None:
        linear = expand_routine(ast, routine, target)
        if is_checked:
            verify(linear, Stage.LINEAR, routine.arg[0], target.most_lanes)
        return linear
    arguments = [node for node in arguments_of.toposort() if node.op in (Ops.PARAM, Ops.VARIABLE)]
    if is_checked:
        verify(arguments_of, Stage.KERNEL, "build_kernels")
        verify(ast, Stage.OPTIMIZED, "optimize")
    program: Any = ast
    for step in PIPELINE[_OPTIMIZED:]:
        program = step.run(program, target)
        seen(step.name, program)
        if is_checked:
            verify(program, step.stage, step.name, target.most_lanes)
    uops: list[UOp] = program
    named = {(u.op, u.arg) for u in uops if u.op in (Ops.PARAM, Ops.VARIABLE)}
    unused = [u for u in arguments if (u.op, u.arg) not in named]  # still passed
    return [*(u.replace(dtype=dtypes.int64 if u.op is Ops.VARIABLE else u.dtype) for u in unused), *uops]
