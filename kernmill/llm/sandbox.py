"""Jinja for templates from files that may be hostile: its sandbox for immutable data, with limits on time and memory.

Jinja's sandbox prevents a template from accessing internal attributes, and from changing its inputs. This module adds
limits: a rendering has a budget of steps, and each operation whose time depends on a size first pays for it
(`budget.py`). Jinja calls methods of its environment for attributes, entries, calls and arithmetic. It compiles loops,
comparisons, slices, keys and concatenations to Python, so the syntax tree is rewritten to call functions for these.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from functools import partial, wraps
from typing import Any

from .budget import (
    Side,
    check_length,
    check_number,
    compare,
    contains,
    counted,
    length_of,
    made,
    pay,
    read,
    spend,
)
from .packages import package

__all__ = ["TemplateRefusal", "environment"]

_NODES = 16  # nodes of the syntax tree that cost one step
_LEFT_OUT = ("lipsum", "pprint", "striptags", "urlencode", "urlize", "xmlattr")  # for web pages; some are very slow
_OF_JINJA = ("_block_vars", "_loop_vars")  # Jinja's additional arguments of each call
_METHODS_LEFT_OUT = ("decode", "encode", "from_bytes", "striptags", "to_bytes", "unescape")  # also of bytes and numbers


class TemplateRefusal(Exception):
    """An error that a template raises itself, by raise_exception."""


# --- functions that the rewritten tree calls
def _joined(*parts: Any) -> str:
    """Concatenate values as strings: `a ~ b`."""
    spend(1)
    read(*parts)
    texts = [str(part) for part in parts]
    check_length(sum(map(len, texts)), "~")
    return "".join(texts)


def _sliced(value: Any, *bounds: Any) -> Any:
    spend(1)
    return made(value[slice(*bounds)])


def _read(value: Any) -> Any:
    """Pay for a value that is printed, or that is the key of a dict; return it."""
    spend(1)
    read(value)
    return value


_OWN: dict[str, Callable[..., Any]] = {
    "counted": counted, "joined": _joined, "read": _read, "side": Side, "sliced": _sliced, "spend": spend,
}  # fmt: skip


def _size(node: Any) -> int:
    """Return the size of a node without its children, in nodes: a long string counts as several."""
    text = getattr(node, "data", getattr(node, "value", ""))
    return 1 + (len(text) // _NODES if isinstance(text, str) else 0)


def _limited(tree: Any, nodes: Any, visitor: Any, own: str) -> Any:
    """Rewrite a syntax tree to call functions that pay steps. A template cannot assign to the names of these."""

    def calling(name: str, node: Any, *given: Any) -> Any:
        return nodes.Call(nodes.ExtensionAttribute(own, name), list(given), [], None, None, lineno=node.lineno)

    class Limits(visitor.NodeTransformer):  # type: ignore[misc]
        size = 0  # nodes so far

        def visit(self, node: Any) -> Any:
            self.size += _size(node)
            return super().visit(node)

        def visit_For(self, node: Any) -> Any:
            before = self.size
            self.visit_Macro(node)
            cost = 1 + (self.size - before) // _NODES if node.test else 1  # also of iterations that fail the test
            node.iter = calling("counted", node, node.iter, nodes.Const(cost))
            return node

        def visit_Macro(self, node: Any) -> Any:
            """Make a body that can run many times pay for its size in each run."""
            before = self.size
            self.generic_visit(node)
            cost = nodes.Const(1 + (self.size - before) // _NODES)
            node.body.insert(0, nodes.ExprStmt(calling("spend", node, cost), lineno=node.lineno))
            return node

        visit_CallBlock = visit_Block = visit_Macro

        def visit_Compare(self, node: Any) -> Any:
            self.generic_visit(node)
            for side in (node, *node.ops):
                side.expr = calling("side", node, side.expr)
            return node

        def visit_Getitem(self, node: Any) -> Any:
            self.generic_visit(node)
            if not isinstance(node.arg, nodes.Slice):
                return node
            bounds = (node.arg.start, node.arg.stop, node.arg.step)
            return calling("sliced", node, node.node, *(bound or nodes.Const(None) for bound in bounds))

        def visit_Concat(self, node: Any) -> Any:
            return calling("joined", node, *self.generic_visit(node).nodes)

        def visit_Pair(self, node: Any) -> Any:
            node = self.generic_visit(node)
            node.key = node.key if isinstance(node.key, nodes.Const) else calling("read", node, node.key)
            return node

        def visit_Const(self, node: Any) -> Any:
            check_number(node.value.bit_length() if isinstance(node.value, int) else 0, f"line {node.lineno}")
            return node

        def visit_AssignBlock(self, node: Any) -> Any:
            node.filter = node.filter or nodes.Filter(None, "string", [], [], None, None, lineno=node.lineno)
            return self.generic_visit(node)

    return Limits().visit(tree)


# --- the environment -------------------------------------------------------------------------------------------------
def environment() -> Any:
    """Return an environment with the options that chat templates expect (trimmed blocks, loop controls), and limits."""
    sandbox, nodes, extensions, visitor, utils, runtime = (
        package(f"jinja2.{name}", "a chat template")
        for name in ("sandbox", "nodes", "ext", "visitor", "utils", "runtime")
    )
    of_templates = (runtime.BlockReference, runtime.LoopContext, runtime.Macro)

    class Environment(sandbox.ImmutableSandboxedEnvironment):  # type: ignore[name-defined,misc]
        intercepted_binops = frozenset(("+", "-", "*", "/", "//", "**", "%"))

        def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
            is_left_out = attr in _METHODS_LEFT_OUT and isinstance(obj, (str, bytes, int))
            return not is_left_out and super().is_safe_attribute(obj, attr, value)

        def getattr(self, obj: Any, attribute: str) -> Any:
            spend(1)
            return super().getattr(obj, attribute)

        def getitem(self, obj: Any, argument: Any) -> Any:
            spend(1)
            read(argument)
            return super().getitem(obj, argument)

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            spend(1)
            if operator in ("%", "-"):  # % formats a string, - subtracts sets
                left, right = pay(operator, (left, right), {})
            check_length(length_of(operator, left, right), operator)
            return made(super().call_binop(context, operator, left, right))

        def call(__self, __context: Any, __obj: Any, *given: Any, **named: Any) -> Any:
            if __obj in _OWN.values():
                return __obj(*given)
            name = ""
            if isinstance(__obj, of_templates):
                spend(1 + len(given) + len(named))
                if isinstance(__obj, runtime.LoopContext):  # a recursive loop iterates over its argument
                    given = tuple(map(counted, given))
            else:
                name, given = _paid(__obj, given, {key: named[key] for key in named if key not in _OF_JINJA})
            return made(super().call(__context, __obj, *given, **named), name)

        def _parse(self, source: str, name: str | None, filename: str | None) -> Any:
            tree = super()._parse(source, name, filename)
            return _limited(tree, nodes, visitor, own.identifier).set_environment(self)

    own = _own_extension(extensions.Extension)
    added = [extensions.loopcontrols, own]
    result = Environment(trim_blocks=True, lstrip_blocks=True, extensions=added, finalize=_read)
    result.filters["tojson"] = _to_json
    result.tests.update({name: partial(compare, one) for name, one in result.tests.items() if one in _COMPARISONS})
    result.tests["in"] = _is_in
    for prefix, table in (("", result.filters), ("is ", result.tests)):
        table.update({name: _checked(prefix + name, one, utils.pass_context) for name, one in table.items()})
    for name in _LEFT_OUT:
        result.filters.pop(name, None)
        result.globals.pop(name, None)
    result.globals.update(raise_exception=_refuse, strftime_now=_now)
    return result


def _own_extension(base: Any) -> Any:
    """Return the extension with the functions that rewritten templates call (`_OWN`), and the tag `generation`."""

    class GenerationTag(base):  # type: ignore[misc]
        """{% generation %}: marks the assistant's text, for training; here it is replaced by its content."""

        tags = frozenset(("generation",))

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    for name, function in _OWN.items():
        setattr(GenerationTag, name, staticmethod(function))
    return GenerationTag


_COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)


def _is_in(value: Any, seq: Any) -> bool:
    return contains(seq, value)


def _paid(function: Any, given: tuple[Any, ...], named: dict[str, Any]) -> tuple[str, tuple[Any, ...]]:
    """Pay for a call of a function that is not the template's. Return the name in the budget, and the arguments.
    Methods of a dict do not read its values."""
    owner = getattr(getattr(function, "__wrapped__", function), "__self__", None)  # the sandbox wraps `format`
    if not isinstance(owner, Collection):
        return "", pay("", given, named)
    name = f".{function.__name__}"
    own = () if isinstance(owner, Mapping) else (owner,)
    return name, pay(name, (*own, *given), named)[len(own) :]


def _checked(name: str, function: Any, context: Any) -> Any:
    """Return a filter or a test that pays for its arguments, with the first argument that Jinja passes."""
    kind = getattr(getattr(function, "jinja_pass_arg", None), "name", "")

    def call(around: Any, *given: Any, **named: Any) -> Any:
        given = pay(name, given, named)
        first = {"context": around, "eval_context": around.eval_ctx, "environment": around.environment}
        return made(function(*([first[kind]] if kind else []), *given, **named), name)

    return context(wraps(function, updated=())(call))


def _refuse(message: str) -> None:
    raise TemplateRefusal(message)


def _now(pattern: str) -> str:
    check_length(256 * len(pattern), "strftime_now")  # the most that CPython's strftime returns
    spend(len(pattern))
    return datetime.now().strftime(pattern)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Return unescaped JSON; Jinja's own filter escapes it for HTML."""
    pieces = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    ).iterencode(value)
    kept: list[str] = []
    length = 0
    for piece in pieces:
        kept.append(piece)
        length += len(piece)
        check_length(length, "tojson")
    return "".join(kept)
