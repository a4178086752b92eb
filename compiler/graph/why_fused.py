"""Why a node of a graph has a separate buffer, or is computed where it is read: what `fuse` answers, with its reason.

`choose_stored` and `fuse` make these answers; `fusion_lines` writes them for people.
Tests: tests/compiler/graph/test_why_fused.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from kernmill.ir import Kernel, OpGroup, Ops, UOp, show_shape

from ..kernel.facts import MOST_CODE

if TYPE_CHECKING:
    from .fuse import Fusion
    from .pipeline import Draft

__all__ = ["Why", "fusion_lines"]


class Why(NamedTuple):
    """An answer: stored or not, the sentence, and the number in it."""

    is_stored: bool
    text: str
    number: int = 0

    def __str__(self) -> str:
        return self.text.format(self.number)


# --- stored in any case
RESULT = Why(True, "the program reads it: a result needs memory.")
CHECKED = Why(True, "it is a condition that is checked after the run.")
CONTIGUOUS = Why(True, "the program asks for a separate buffer (contiguous).")
ASSIGNED = Why(True, "it is assigned to memory.")
COPIED = Why(True, "it is copied to another device, and a copy is between two buffers.")
WAITED = Why(True, "what follows waits until all of it is there.")
ROUTINE = Why(True, "a routine reads its operands and writes its result as a whole.")
# --- stored by fusion
CODE = Why(
    True,
    "the kernel that reads it has reached the limit of {} units of code, 32 bytes each: they fill a CPU's cache for "
    "instructions. Fewer operations between two results avoid that; .contiguous() chooses where the kernel ends.",
    MOST_CODE,
)
SCATTERED = Why(True, "a window slides over it in another order: stored in that order, neighbours are adjacent.")
COPIES = "its readers read it at {} different indices: computed there, its code would be repeated as often."
SHARED = "{} kernels read it. To compute it again in each takes longer than to read it."
REPEATED = "one kernel needs each element {} times. To compute it so often takes longer than to read it so often."
REDUCED_OFTEN = "it has a reduction and is read at {} different indices: each would do the reduction again."
INNER_OFTEN = "inside of its reader's reduction it would be computed {} times for each element."
INNER = Why(True, "its reader's reduction is another one: a loop for it would be inside of that one's loop.")
INNER_TILE = Why(True, "as a part of its reader's sum it could not keep a tile of results in registers.")
GATED = Why(True, "its reader needs a part of it only, and would test for that in the loop of the reduction.")
OUTER_OFTEN = "its reader would compute each element {} times."
TILES = Why(True, "that kernel has another product. Each keeps a tile of results, and registers are too few for both.")
TILE = Why(True, "it keeps a tile of results in registers, because it reads its data several times. Its reader cannot.")
FEW_ROWS = "fused, only {} rows would be independent of each other, too few for vectors and threads."
# --- computed where it is read
ONCE = Why(False, "read once and at one index: it stays in a register.")
CHEAP = "cheap: computed again at each of the {} indices that read it, rather than stored."
VIEW = Why(False, "a view: its readers read at other indices, and nothing is moved.")
GATHER = Why(False, "its reader reads at the index that the tensor of indices gives.")
SMALLER = Why(False, "its inputs take less memory than it, so reading these is cheaper.")
NO_DATA = Why(False, "computed from indices and constants: there is nothing to read.")
UNPACKED = Why(False, "weights in blocks: unpacked, they would take more memory than the blocks.")
ANCHOR = Why(False, "a few cheap steps compute it from a stored value, which other kernels read as well.")
ROUNDED = Why(False, "it costs nothing itself: its readers read its inputs instead.")
IN_ROW = Why(False, "computed once for each row that the kernel keeps.")
SHORT = Why(False, "a short sum of ints inside of the sum that needs it.")
ONE_SUM = Why(False, "its reader goes on with the same sum: both are one, over more loops.")
SMALL = Why(False, "the kernel is so small that a second launch would take longer.")
OUTER = Why(False, "each row of its reader needs it once: the reduction is done there, and nothing is stored.")
ROWS = "the rows of its reader need it once each, and {} of them are independent of each other."
# --- kept by a kernel
ROW = Why(False, "needed several times for each row: the kernel keeps one row of it, not the whole.")

# --- after fusion, by merge_kernels
_MERGED = "they have the same loops and share data, which is read once for all."
_PASSED = "it is merged into its only reader, which has the same loops: the result is passed in a register."


def fusion_lines(draft: Draft) -> list[tuple[str, list[str]]]:
    """Each kernel of a planned graph: its name; then why it ends where it does, and why each op is in it."""
    fusion, built = draft.fusion, draft.built
    writers = {number: item for item in draft.plan.items if isinstance(item, Kernel) for number in item.outputs}
    parts: dict[int, list[list[str]]] = {}  # of an item, by identity
    gone: list[tuple[str, list[str]]] = []
    for number, root in enumerate(fusion.roots):
        lines, item = [*_kernel_lines(fusion, number)], writers.get(built.buffer_of[root.node])
        if item is not None:
            parts.setdefault(id(item), []).append(lines)
        elif root.node in built.kernels:
            gone.append((built.kernels[root.node].name, [*lines, _PASSED]))
    found: list[tuple[str, list[str]]] = []
    for kernel in (item for item in draft.plan.items if isinstance(item, Kernel)):
        own = parts.get(id(kernel), [])
        merged = [f"these are {len(own)} results in one kernel: {_MERGED}"] if len(own) > 1 else []
        found.append((kernel.name, [line for lines in own for line in lines] + merged))
    return found + gone


def _kernel_lines(fusion: Fusion, number: int) -> Iterator[str]:
    """The border of a kernel, then what it reads of others, then what is in it, by reason."""
    root = fusion.roots[number].node
    yield f"ends at {_op_text(root)}: {fusion.why[root]}"
    reads: dict[str, None] = {}
    inside: dict[str, Counter[str]] = {}
    for node in fusion.order:
        if node is root or node not in fusion.why or all(use.kernel != number for use in fusion.uses[node]):
            continue
        if node in fusion.kernel_of:
            reads[_op_text(node)] = None
        elif node.op.group is not OpGroup.MOVEMENT and node.op is not Ops.DETACH:
            inside.setdefault(str(fusion.why[node]), Counter())[_op_text(node)] += 1
    if reads:
        yield f"reads of other kernels: {', '.join(reads)}"
    for reason, names in inside.items():
        shown = ", ".join(name + (f" {count} times" if count > 1 else "") for name, count in names.items())
        yield f"holds {shown}: {reason}"


def _op_text(node: UOp) -> str:
    arg = f" of {node.arg[0].name}" if node.op is Ops.REDUCE else ""
    return f"{node.op.name}{arg} {show_shape(node.shape)}"
