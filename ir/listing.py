"""UOps as short texts for reports: what `print_uops` prints, without what it repeats.

A listing has two lines. The first has the number of each node's head (op, dtype, arg) in a table that all listings of a
kernel share. A number behind `@` is the origin of this node and of those after it. The second has each node's sources,
as distances backwards: what a pass leaves unchanged is the same text before and after it, although its numbers changed.
A source that is far away and has many users, such as a buffer, is `=` and its number: then its users are alike.
Packed, a listing takes a sixth of the bytes of the printed text.
Tests: tests/ir/test_listing.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from .dtype import dtypes
from .ops import Ops
from .text import show_arg, uops_in
from .uop import UOp

__all__ = ["Listings", "has_origin"]

_NEAR, _FEW = 4, 4  # nodes back, and users: of the sizes that were tried these gave the smallest reports
_NODE = re.compile(r'("(?:[^"\\]|\\.)*")|%(\d+)')  # a string in an arg, or a node


def has_origin(node: UOp) -> bool:
    """True if the node's origin is that of one kernel: many kernels share constants, loops and indices."""
    return bool(node.src) and node.dtype is not dtypes.index


class Listings:
    """Graphs and linear lists of one kernel. A head is the op and the dtype, and behind a tab the arg, in which nodes
    are distances too."""

    def __init__(self, heads: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        self.heads, self.origins = [*heads], [*origins]
        self._head_of: dict[Any, int] = {}
        self._origin_of: dict[str | None, int] = {}

    def add(self, root: UOp | Sequence[UOp]) -> str:
        """Return the listing of a graph, or of a linear list."""
        number: dict[UOp, int] = {}
        heads: list[str] = []
        sources: list[list[int]] = []
        users: list[int] = []
        origin: str | None = ""
        known = self._head_of
        todo = [*(root.toposort() if isinstance(root, UOp) else root)][::-1]
        while todo:
            node = todo.pop()
            if node in number:
                continue
            arg = node.arg
            inner = uops_in(arg) if isinstance(arg, tuple | UOp) else ()
            if inner and (more := [o for size in inner for o in size.toposort() if o not in number]):  # before it
                todo += [node, *reversed(more)]
                continue
            position = len(number)
            if inner or node.op is Ops.CONST:  # 0.0 and -0.0 are equal
                shown = show_arg(arg, {size: position - number[size] for size in inner})
                head = self._head_number(f"{node.op.name} {node.dtype.name}\t{shown}")
            elif (found := known.get(key := (node.op, node.dtype, arg))) is not None:
                head = found
            else:
                shown = "" if arg is None else show_arg(arg, {})
                head = known[key] = self._head_number(f"{node.op.name} {node.dtype.name}\t{shown}")
            number[node] = position
            here = node.origin if has_origin(node) else None
            if here == origin:
                heads.append(str(head))
            else:
                origin = here
                heads.append(f"{head}@{self._origin(origin)}")
            users.append(0)
            sources.append(at := [number.get(source, -1) for source in node.src])
            for source in at:
                users[source] += source >= 0
        absolute = [f"={index}" if count > _FEW else "" for index, count in enumerate(users)]
        below = [",".join([_shown_source(index, s, absolute) for s in at]) for index, at in enumerate(sources)]
        return f"{' '.join(heads)}\n{' '.join(below)}"

    def text(self, listing: str) -> str:
        """Return what `print_uops` prints, but origins of nodes that many kernels share."""
        lines: list[str] = []
        comment = ""
        heads, _, sources = listing.partition("\n")
        for position, (head, src) in enumerate(zip(heads.split(" "), sources.split(" "), strict=True)):
            which, is_new, where = head.partition("@")
            if is_new:
                comment = f"  # {self.origins[int(where)]}" if self.origins[int(where)] else ""
            start, _, arg = self.heads[int(which)].partition("\t")
            shown = ", ".join([f"%{_source_number(position, s)}" for s in src.split(",") if s])
            if "%" in arg:
                arg = _NODE.sub(partial(_shown_node, position), arg)
            lines.append(f"%{position} = {start} ({shown}){' ' if arg else ''}{arg}{comment}")
        return "\n".join(lines) + "\n"

    def _head_number(self, head: str) -> int:
        found = self._head_of.get(head)
        if found is None:
            found = self._head_of[head] = len(self.heads)
            self.heads.append(head)
        return found

    def _origin(self, origin: str | None) -> int:
        found = self._origin_of.get(origin)
        if found is None:
            found = self._origin_of[origin] = len(self.origins)
            self.origins.append(origin or "")
        return found


def _shown_source(position: int, source: int, absolute: Sequence[str]) -> str:
    if source < 0:
        return "?"
    return (position - source > _NEAR and absolute[source]) or str(position - source)


def _shown_node(position: int, found: re.Match[str]) -> str:
    return found[1] or f"%{position - int(found[2])}"


def _source_number(position: int, source: str) -> str:
    return source.removeprefix("=") if source[0] in "=?" else str(position - int(source))
