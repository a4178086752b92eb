"""The text form: one node a line, sources first; what is printed parses back to the same nodes.

%0 = PARAM float32 () (0, 16)
%1 = RANGE index (%2) ("i0", "loop")
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

from .dtype import as_dtype
from .errors import FormatError
from .ops import Op, Ops
from .uop import UOp

__all__ = ["parse_uops", "print_uops"]


def print_uops(root: UOp | Sequence[UOp]) -> str:
    """The graph under a node, or a linear list, as text. With origins, each line ends in `# file:line`."""
    nodes = root.toposort() if isinstance(root, UOp) else list(root)
    number: dict[UOp, int] = {}
    lines: list[str] = []

    def line(node: UOp) -> None:
        for size in _uops_in(node.arg):
            for inner in size.toposort():
                if inner not in number:
                    line(inner)
        number[node] = len(number)
        src = ", ".join(f"%{number[s]}" for s in node.src)
        arg = "" if node.arg is None else f" {_show(node.arg, number)}"
        origin = f"  # {node.origin}" if node.origin else ""
        lines.append(f"%{number[node]} = {node.op.name} {node.dtype.name} ({src}){arg}{origin}")

    for node in nodes:
        if node not in number:
            line(node)
    return "\n".join(lines) + "\n"


def _uops_in(arg: Any) -> list[UOp]:
    if isinstance(arg, UOp):
        return [arg]
    return [u for item in arg for u in _uops_in(item)] if isinstance(arg, tuple) else []


def _show(arg: Any, number: dict[UOp, int]) -> str:
    match arg:
        case UOp():
            return f"%{number[arg]}"
        case Op():
            return f"@{arg.name}"
        case tuple():
            return f"({', '.join(_show(item, number) for item in arg)}{',' if len(arg) == 1 else ''})"
        case str():
            return '"' + str(arg).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
        case float() if math.isnan(arg):
            return "nan"
    return repr(arg)


_LINE = re.compile(r"%(\d+) = (\w+) (\w+) \(([^)]*)\)")
_TOKEN = re.compile(r'%\d+|@\w+|"(?:[^"\\]|\\.)*"|-?inf|nan|True|False|None|-?\d[\d.]*(?:e[+-]?\d+)?|[(),]')


def parse_uops(text: str) -> UOp:
    """The last node of a printed graph.

    Raises:
        FormatError: a line that is not of the form above; the line is named.
    """
    nodes: dict[str, UOp] = {}
    last: UOp | None = None
    for count, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            name, last = _parse_line(line.strip(), nodes)
        except (ValueError, LookupError, TypeError, AssertionError) as error:
            raise FormatError(f"parse_uops: line {count}: {line.strip()!r} does not parse ({error}).") from None
        nodes[name] = last
    if last is None:
        raise FormatError("parse_uops: the text holds no node.")
    return last


def _parse_line(line: str, nodes: dict[str, UOp]) -> tuple[str, UOp]:
    match = _LINE.match(line)
    if match is None:
        raise ValueError("not a node")
    name, op, dtype, src = match.groups()
    sources = tuple(nodes[s.strip()[1:]] for s in src.split(",") if s.strip())
    reader = _Reader(line, match.end(), nodes)
    arg = reader.read() if reader.peek() not in ("", "#") else None
    node = UOp(Ops.named(op), as_dtype(dtype), sources, arg)
    rest = line[reader.at :].strip()
    if rest and not rest.startswith("# "):
        raise ValueError(f"{rest!r} follows the arg")
    if rest:
        node.origin = rest[2:]
    return name, node


class _Reader:
    """Reads one arg from a place in a line."""

    def __init__(self, line: str, at: int, nodes: dict[str, UOp]) -> None:
        self.line, self.at, self.nodes = line, at, nodes

    def peek(self) -> str:
        """The next character that is no space; "" at the end."""
        while self.line[self.at : self.at + 1] == " ":
            self.at += 1
        return self.line[self.at : self.at + 1]

    def token(self) -> str:
        """The next word, number, string or bracket."""
        self.peek()
        match = _TOKEN.match(self.line, self.at)
        if match is None:
            raise ValueError(f"{self.line[self.at :]!r} is no arg")
        self.at = match.end()
        return match.group()

    def read(self) -> Any:
        """The next value."""
        token = self.token()
        if token == "(":
            items = []
            while self.peek() != ")":
                items.append(self.read())
                if self.peek() == ",":
                    self.token()
                elif self.peek() != ")":
                    raise ValueError("a bracket is not closed")
            self.token()
            return tuple(items)
        if token[0] == "%":
            return self.nodes[token[1:]]
        if token[0] == "@":
            return Ops.named(token[1:])
        if token[0] == '"':
            return re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], token[1:-1])
        if token in ("True", "False", "None"):
            return {"True": True, "False": False, "None": None}[token]
        return int(token) if re.fullmatch(r"-?\d+", token) else float(token)
