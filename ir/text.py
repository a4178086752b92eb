"""The text form: one node a line, sources first; what is printed parses back to the same nodes.

%0 = PARAM float32 () (0, 16)
%1 = RANGE index (%2) ("i0", "loop")
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from .dtype import named_dtype
from .ops import Op, Ops
from .process.errors import FormatError
from .process.lazy_exports import LazyModule
from .uop import UOp

__all__ = ["parse_uops", "print_uop", "print_uops", "show_arg", "uops_in"]

_json: Any = LazyModule("json")


def print_uops(root: UOp | Sequence[UOp]) -> str:
    """The graph under a node, or a linear list, as text. With origins, each line ends in `# file:line`."""
    nodes = root.toposort() if isinstance(root, UOp) else list(root)
    number: dict[UOp, int] = {}
    lines: list[str] = []

    def line(node: UOp) -> None:
        for size in uops_in(node.arg):
            for inner in size.toposort():
                if inner not in number:
                    line(inner)
        number[node] = len(number)
        lines.append(print_uop(node, number) + (f"  # {node.origin}" if node.origin else ""))

    for node in nodes:
        if node not in number:
            line(node)
    return "\n".join(lines) + "\n"


def print_uop(node: UOp, number: Mapping[UOp, int]) -> str:
    """Format the line of one node; other nodes are numbers."""
    src = ", ".join(f"%{number.get(s, '?')}" for s in node.src)
    arg = "" if node.arg is None else f" {show_arg(node.arg, number)}"
    return f"%{number[node]} = {node.op.name} {node.dtype.name} ({src}){arg}"


def uops_in(arg: Any) -> list[UOp]:
    """The nodes in an arg, such as sizes that are known at launch."""
    if isinstance(arg, UOp):
        return [arg]
    return [u for item in arg for u in uops_in(item)] if isinstance(arg, tuple) else []


def show_arg(arg: Any, number: Mapping[UOp, int]) -> str:
    """Format an arg; nodes are numbers."""
    match arg:
        case UOp():
            return f"%{number.get(arg, '?')}"
        case Op():
            return f"@{arg.name}"
        case tuple():
            return f"({', '.join(show_arg(item, number) for item in arg)}{',' if len(arg) == 1 else ''})"
        case str():
            return str(_json.dumps(str(arg), ensure_ascii=False))
        case float() if math.isnan(arg):
            return "nan"
    return repr(arg)


_WORD = r'"(?:[^"\\]|\\.)*"|[%@]\w+'  # of an arg: a string, a node, an op
_LINE = rf'%(\d+) = (\w+) (\w+) \(([^)]*)\)((?:{_WORD}|[^"%@#])*)(?:# (.*))?'  # compiled at the first use


def parse_uops(text: str) -> UOp:
    """Return the last node of a printed graph.

    Raises:
        FormatError: a line with invalid syntax; the message names it.
    """
    nodes: dict[str, UOp] = {}
    last: UOp | None = None
    for count, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            name, last = _parse_line(line.strip(), nodes)
        except (SyntaxError, ValueError, LookupError, TypeError, AssertionError) as error:
            raise FormatError(f"parse_uops: line {count}: {line.strip()!r} does not parse ({error}).") from None
        nodes[name] = last
    if last is None:
        raise FormatError("parse_uops: the text contains no node.")
    return last


def _parse_line(line: str, nodes: dict[str, UOp]) -> tuple[str, UOp]:
    match = re.fullmatch(_LINE, line)
    if match is None:
        raise ValueError("not a node")
    name, op, dtype, src, arg, origin = match.groups()
    sources = tuple(nodes[s.strip()[1:]] for s in src.split(",") if s.strip())
    node = UOp(Ops.named(op), named_dtype(dtype), sources, _parse_arg(arg.strip(), nodes) if arg.strip() else None)
    node.origin = origin or node.origin
    return name, node


def _parse_arg(text: str, nodes: dict[str, UOp]) -> Any:
    """Parse an arg: Python syntax, except `%3` for a node and `@ADD` for an op."""
    named = re.sub(_WORD, lambda found: re.sub("^%", "node", found[0]).removeprefix("@"), text)
    return _parsed_value(ast.parse(named, mode="eval").body, nodes)


def _parsed_value(tree: ast.expr, nodes: dict[str, UOp]) -> Any:
    match tree:
        case ast.Constant():
            return tree.value
        case ast.Tuple():
            return tuple(_parsed_value(item, nodes) for item in tree.elts)
        case ast.UnaryOp(op=ast.USub()):
            return -_parsed_value(tree.operand, nodes)
        case ast.Name(id="inf" | "nan"):
            return float(tree.id)
        case ast.Name():
            return nodes[tree.id[4:]] if tree.id.startswith("node") else Ops.named(tree.id)
    raise ValueError("not an arg")
