"""Jinja for templates from files that may be hostile: its sandbox for immutable data, and a limit on what they make.

The sandbox keeps a template from attributes that lead out of it, and from changing what it is given. What it does not
limit is limited here. A rendering has a number of steps: each pass of a loop takes one, each call, filter and test, and
each value that is made takes more by its size, so that neither calls that call twice nor texts that double go on for
long. Values whose length shows beforehand are refused before they are made.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime
from functools import wraps
from types import GeneratorType
from typing import Any

from kernmill.ir import FormatError

from .packages import package

__all__ = ["MAX_CHARACTERS", "MAX_PASSES", "TemplateRefusal", "environment", "steps"]

MAX_CHARACTERS = 20_000_000  # of a value, and of the result
MAX_PASSES = 1_000_000  # steps of one rendering
MAX_BITS = 1 << 14  # of a product of whole numbers
_STEP = 256  # characters that take a step
_CALL = 16  # steps of a call

_ENDLESS: list[float] = [math.inf]  # while a template is read: Jinja computes constants
_left: ContextVar[list[float]] = ContextVar("steps")  # one number: those that a rendering has left


class TemplateRefusal(Exception):
    """What a template itself says, by raise_exception."""


@contextmanager
def steps() -> Generator[None]:
    """One rendering."""
    token = _left.set([MAX_PASSES])
    try:
        yield
    finally:
        _left.reset(token)


def _spend(count: int, what: str = "what it calls and makes takes more than {} steps") -> None:
    left = _left.get(_ENDLESS)
    left[0] -= count
    if left[0] < 0:
        raise FormatError(f"chat template: {what.format(MAX_PASSES)}.")


def _counted(values: Iterable[Any], cost: int = 1) -> Iterator[Any]:
    """What every loop goes over."""
    for value in values:
        _spend(cost, "its loops take more than {} passes")
        yield value


def _made(value: Any) -> Any:
    """A value that is new: all that is in it counts, also what is in it twice."""
    if isinstance(value, GeneratorType):
        return _counted(value)
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, (str, bytes)):
            _spend(len(one) // _STEP)
        elif isinstance(one, (list, tuple, dict)):
            _spend(len(one))
            waiting += one.values() if isinstance(one, dict) else one
    return value


def _joined(*parts: Any) -> str:
    """Texts side by side: `a ~ b`."""
    texts = [str(part) for part in parts]
    _check_length(sum(map(len, texts)), "~")
    return "".join(texts)


def _check_length(length: float, what: str) -> None:
    if length > MAX_CHARACTERS:
        raise FormatError(f"chat template: {what} makes a value of more than {MAX_CHARACTERS} characters.")


_OWN = (_counted, _made, _joined)


# --- how long a value will be ----------------------------------------------------------------------------------------
def _length_of(operator: str, left: Any, right: Any) -> float:
    """An upper bound on the length of a result, where it can be long."""
    if operator == "+":
        return _length(left) + _length(right)
    if operator == "*":
        if isinstance(left, int) and isinstance(right, int):
            return 0 if left.bit_length() + right.bit_length() <= MAX_BITS else math.inf
        counts = [side for side in (left, right) if isinstance(side, int)]
        return max(_length(left), _length(right)) * max(counts, default=0)
    if operator == "**":
        small = isinstance(left, (int, float)) and isinstance(right, (int, float)) and abs(right) < 1000
        return 0 if small and abs(left) < 1e9 else math.inf
    return _formatted(left, right, "%")


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (str, bytes, list, tuple)) else 0


def _formatted(text: Any, values: Any, mark: str) -> float:
    """The widths that a format asks for, at most, and the longest value at each mark; endless with a width that is one
    of the values."""
    if not isinstance(text, str):
        return 0
    if _WIDTH_OF_VALUES[mark].search(text):
        return math.inf
    digits = "".join(c if c.isdigit() else " " for c in text).split()
    return sum(float(word) for word in digits) + len(text) + text.count(mark) * _longest(values)


_WIDTH_OF_VALUES = {"%": re.compile(r"%[^a-zA-Z%]*\*"), "{": re.compile(r"\{[^{}]*:[^{}]*\{")}


def _longest(values: Any) -> int:
    """The characters of the longest text in some values."""
    inner = values.values() if isinstance(values, dict) else values if isinstance(values, (list, tuple)) else ()
    return len(values) if isinstance(values, str) else max(map(_longest, inner), default=0)


def _between(parts: Any, mark: str) -> float:
    """Texts with a mark between them; how many a generator has is not known."""
    if not hasattr(parts, "__len__"):
        return 0 if len(mark) < _STEP else math.inf
    return len(parts) * len(mark) + (sum(map(_length, parts)) if isinstance(parts, (list, tuple)) else 0)


def _width(width: Any) -> int:
    return width if isinstance(width, int) else _length(width)


_BOUNDS: dict[str, Callable[..., float]] = {  # of filters, and with a point of methods of a text, which comes first
    "center": lambda value, width=80: width,
    "batch": lambda value, linecount, fill_with=None: linecount,
    "slice": lambda value, slices, fill_with=None: slices,
    "replace": lambda s, old, new, count=None: len(s) + s.count(old) * len(new),
    "join": lambda value, d="", attribute=None: _between(value, d),
    "indent": lambda s, width=4, first=False, blank=False: len(s) + (s.count("\n") + 1) * _width(width),
    "wordwrap": lambda s, width=79, break_long_words=True, wrapstring="", **_: len(s) * (1 + len(wrapstring or "")),
    "format": lambda value, *values, **named: _formatted(value, (values, named), "%"),
    "tojson": lambda value, ensure_ascii=False, indent=0, **_: 1000 * _width(indent or 0),
    "round": lambda value, precision=0, method="": 0 if abs(precision) < 1000 else math.inf,
    "sum": lambda iterable, attribute=None, start=0: 0 if isinstance(start, (int, float)) else math.inf,
    **dict.fromkeys((".center", ".ljust", ".rjust", ".zfill"), lambda text, width, fill="": width),
    ".expandtabs": lambda text, tabsize=8: len(text) * tabsize,
    ".replace": lambda text, old, new, count=-1: len(text) + text.count(old) * len(new),
    ".join": lambda text, parts: _between(parts, text),
    ".translate": lambda text, table: len(text) * _longest(table),
    ".format": lambda text, *values, **named: _formatted(text, (values, named), "{"),
    ".format_map": lambda text, table: _formatted(text, table, "{"),
}
_LEFT_OUT = ("lipsum", "striptags", "urlize")  # what is for web pages, and can take very long


def _check_call(name: str, given: tuple[Any, ...], named: dict[str, Any]) -> None:
    """What is asked for has a length that can be."""
    _spend(_CALL + sum(map(_length, (*given, *named.values()))) // _STEP)
    if name in _BOUNDS:
        try:
            length = _BOUNDS[name](*given, **named)
        except (TypeError, AttributeError):  # the call itself will say so
            return
        _check_length(length, name.strip("."))


def _checked(name: str, function: Any, context: Any) -> Any:
    """A filter or a test, whose values are looked at; with the first argument that Jinja would give it."""
    kind = getattr(getattr(function, "jinja_pass_arg", None), "name", "")

    def call(around: Any, *given: Any, **named: Any) -> Any:
        _check_call(name, given, named)
        first = {"context": around, "eval_context": around.eval_ctx, "environment": around.environment}
        return _made(function(*([first[kind]] if kind else []), *given, **named))

    return context(wraps(function, updated=())(call))


def _limited(tree: Any, nodes: Any, visitor: Any, own: str) -> Any:
    """A template whose loops count, and whose lists and joined texts are looked at when they are made. The names that
    it calls for that are none that a template can set."""

    def calling(name: str, node: Any, *given: Any) -> Any:
        return nodes.Call(nodes.ExtensionAttribute(own, name), list(given), [], None, None, lineno=node.lineno)

    class Limits(visitor.NodeTransformer):  # type: ignore[misc]
        def visit_For(self, node: Any) -> Any:
            cost = 1 + sum(len(part.data) for part in node.find_all(nodes.TemplateData)) // _STEP
            self.generic_visit(node)
            node.iter = calling("counted", node, node.iter, nodes.Const(cost))
            return node

        def visit_Concat(self, node: Any) -> Any:
            return calling("joined", node, *self.generic_visit(node).nodes)

        def visit_List(self, node: Any) -> Any:
            return calling("made", node, self.generic_visit(node))

        visit_Dict = visit_List

        def visit_Tuple(self, node: Any) -> Any:
            return self.visit_List(node) if node.ctx == "load" else self.generic_visit(node)

        def visit_AssignBlock(self, node: Any) -> Any:
            node.filter = node.filter or nodes.Filter(None, "string", [], [], None, None, lineno=node.lineno)
            return self.generic_visit(node)

    return Limits().visit(tree)


# --- the environment -------------------------------------------------------------------------------------------------
def environment() -> Any:
    """Jinja as the authors of templates know it (trimmed blocks, loop controls), with the limits of this file."""
    sandbox, nodes, extensions, visitor, utils = (
        package(f"jinja2.{name}", "a chat template") for name in ("sandbox", "nodes", "ext", "visitor", "utils")
    )

    class Environment(sandbox.ImmutableSandboxedEnvironment):  # type: ignore[name-defined,misc]
        intercepted_binops = frozenset(("+", "*", "**", "%"))

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            _check_length(_length_of(operator, left, right), operator)
            return _made(super().call_binop(context, operator, left, right))

        def call(__self, __context: Any, __obj: Any, *given: Any, **named: Any) -> Any:
            if __obj in _OWN:
                return __obj(*given)
            owner = getattr(getattr(__obj, "__wrapped__", __obj), "__self__", None)  # the sandbox wraps `format`
            text, name = ((owner,), f".{__obj.__name__}") if isinstance(owner, str) else ((), "")
            _check_call(name, (*text, *given), named)
            if type(__obj).__name__ == "LoopContext":  # a recursive loop goes over what it is given
                given = tuple(map(_counted, given))
            return _made(super().call(__context, __obj, *given, **named))

        def _parse(self, source: str, name: str | None, filename: str | None) -> Any:
            tree = super()._parse(source, name, filename)
            return _limited(tree, nodes, visitor, Generation.identifier).set_environment(self)

    class Generation(extensions.Extension):  # type: ignore[name-defined,misc]
        """{% generation %}: marks what the assistant says, for training; here it is what stands inside."""

        tags = frozenset(("generation",))
        counted, made, joined = staticmethod(_counted), staticmethod(_made), staticmethod(_joined)

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    made = Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[extensions.loopcontrols, Generation], finalize=_made
    )
    made.filters["tojson"] = _to_json
    for table in (made.filters, made.tests):
        table.update({name: _checked(name, one, utils.pass_context) for name, one in table.items()})
    for name in _LEFT_OUT:
        made.filters.pop(name, None)
        made.globals.pop(name, None)
    made.globals.update(raise_exception=_refuse, strftime_now=_now)
    return made


def _refuse(message: str) -> None:
    raise TemplateRefusal(message)


def _now(pattern: str) -> str:
    return datetime.now().strftime(pattern)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """JSON as it is, where Jinja's own filter escapes it for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
