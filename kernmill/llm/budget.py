"""The steps of a rendering: the cost of a template's operations, by the size of their inputs and results.

Each operation that the sandbox sees takes a step: a loop iteration, an attribute, a comparison, a call. In addition

    traversal    a step for each entry, at any depth, and for each 256 characters: to print, compare, hash
    search       a step for 4,096 characters compared, as if each position of the text were compared with the whole
                 pattern: some of Python's searches do that
    sorting      the cost of traversal, times the number of digits of the length
    results      a step for each 8 entries, and for each 256 characters

Steps are taken before the operation, if its size is known. Values that would be too long are rejected before they are
created. Values that are passed on unchanged (the first entry, a default, a length) are free, so that long conversations
fit.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager
from contextvars import ContextVar
from types import GeneratorType
from typing import Any

from kernmill.ir import FormatError

__all__ = [
    "MAX_STEPS", "MAX_VALUE_CHARACTERS", "Side", "check_length", "check_number", "compare", "contains", "counted",
    "length_of", "made", "pay", "read", "spend", "steps",
]  # fmt: skip

MAX_VALUE_CHARACTERS = 20_000_000  # of a value, and of the result
MAX_STEPS = 1_000_000  # of one rendering
MAX_BITS = 64  # of an int: longer ones take time by their length, and many of them share one hash
MAX_DEPTH = 256  # of lists in lists: Python hashes tuples in tuples until its stack is full
_STEP = 256  # characters that take a step
_SEARCH = 4096  # comparisons of characters that take a step
_ENTRIES = 8  # of a new list that take a step
_CALL = 4  # steps of a call
_TUPLE = 16  # steps of a tuple: tuples with equal hashes can be computed, and a dict compares them one by one

_ENDLESS: list[float] = [math.inf]  # while a template is read: Jinja computes constants
_left: ContextVar[list[float]] = ContextVar("steps")  # one number: the remaining steps of a rendering


@contextmanager
def steps() -> Generator[None]:
    """One rendering."""
    token = _left.set([MAX_STEPS])
    try:
        yield
    finally:
        _left.reset(token)


def spend(count: int) -> None:
    """Take steps.

    Raises:
        FormatError: there are not as many left.
    """
    left = _left.get(_ENDLESS)
    left[0] -= count
    if left[0] < 0:
        raise FormatError(f"chat template: it runs for more than {MAX_STEPS} steps.")


def counted(values: Iterable[Any], cost: int = 1) -> Iterator[Any]:
    """Yield the values of a loop, counting steps."""
    spend(1)
    for value in values:
        spend(cost)
        yield value


def read(*values: Any) -> int:
    """Take the steps of traversing some values, including repeated parts; return the number of characters."""
    characters, depth, level = 0, 0, list(values)
    while level:
        inner: list[Any] = []
        for one in level:
            if isinstance(one, (str, bytes)):
                characters += len(one)
                spend(len(one) // _STEP)
            elif isinstance(one, Collection):
                spend(len(one) + (_TUPLE if isinstance(one, tuple) else 0))
                inner += one
                inner += one.values() if isinstance(one, Mapping) else ()
        depth, level = depth + 1, inner
        if depth > MAX_DEPTH:
            raise FormatError(f"chat template: it builds lists nested more than {MAX_DEPTH} levels deep.")
    return characters


def made(value: Any, name: str = "") -> Any:
    """Take the steps of the result of a call of this name: a new value, whose entries may be old."""
    if isinstance(value, GeneratorType):
        return map(made, counted(value))
    if name in _GLANCES or name == ".get":  # it was there before
        return value
    if isinstance(value, (str, bytes)):
        check_length(len(value), "a call")
        spend(len(value) // _STEP)
    elif isinstance(value, int):
        check_number(value.bit_length(), "a call")
    elif isinstance(value, (list, tuple, dict, set, frozenset)):
        spend(len(value) // _ENTRIES)
    return value


def check_length(length: float, what: str) -> None:
    """Raise an error for a value of this many characters or entries."""
    if length > MAX_VALUE_CHARACTERS:
        raise FormatError(f"chat template: {what} builds a value of more than {MAX_VALUE_CHARACTERS} characters.")


def check_number(bits: float, what: str) -> None:
    """Raise an error for an int of this many bits."""
    if bits > MAX_BITS:
        raise FormatError(f"chat template: {what} builds an integer of more than {MAX_BITS} bits.")


# --- comparisons -----------------------------------------------------------------------------------------------------
def compare(operate: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """Compare, after taking the steps for the entries that both sides have."""
    spend(1)
    pairs = [(left, right)]
    while pairs:
        a, b = pairs.pop()
        if a is b or not (isinstance(a, Collection) and isinstance(b, Collection)):
            continue
        if isinstance(a, (str, bytes)) or isinstance(b, (str, bytes)):
            spend(min(len(a), len(b)) // _STEP)
        elif isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
            spend(min(len(a), len(b)))
            pairs += zip(a, b, strict=False)
        elif isinstance(a, dict) and isinstance(b, dict):
            read(*a)
            spend(len(a))
            pairs += ((value, b[key]) for key, value in a.items() if key in b)
        else:
            read(a, b)
    return operate(left, right)


def contains(whole: Any, part: Any) -> bool:
    """Return `part in whole`, compared entry by entry if Python would do that."""
    spend(1)
    if isinstance(whole, (str, bytes)):
        spend(len(whole) // _STEP + len(whole) * read(part) // _SEARCH)
    elif isinstance(whole, (Mapping, Set)):
        read(part)
    elif isinstance(whole, Iterable):
        return any(one is part or compare(operator.eq, one, part) for one in whole)
    return part in whole


def _compared(operate: Callable[[Any, Any], Any]) -> Any:
    return lambda left, right: compare(operate, left.value, right.value)


class Side:
    """A side of a comparison; Python does the rest of `a < b <= c`."""

    __slots__ = ("value",)
    __hash__ = None  # type: ignore[assignment]
    __eq__, __ne__ = _compared(operator.eq), _compared(operator.ne)
    __lt__, __le__ = _compared(operator.lt), _compared(operator.le)
    __gt__, __ge__ = _compared(operator.gt), _compared(operator.ge)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __contains__(self, part: Any) -> bool:
        return contains(self.value, part.value)


# --- how long a value will be ----------------------------------------------------------------------------------------
def length_of(sign: str, left: Any, right: Any) -> float:
    """Return an upper bound on the length of a result, if it can be long.

    Raises:
        FormatError: an int is too long, or will be.
    """
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length(), right.bit_length()
        power = abs(right) * math.log2(max(1, abs(left))) if sign == "**" else 0
        check_number(max(*bits, sum(bits) - 1 if sign == "*" else 0, power), sign)
        return 0
    if sign == "+":
        return _length(left) + _length(right)
    if sign == "*":
        counts = [side for side in (left, right) if isinstance(side, int)]
        return max(_length(left), _length(right)) * max(counts, default=0)
    return _formatted(left, right, "%") if sign == "%" else 0


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (str, bytes, list, tuple)) else 0


def _formatted(text: Any, values: Any, mark: str) -> float:
    """Return the greatest widths that a format requests, plus the longest value at each mark; infinite if a width is
    itself a value."""
    if not isinstance(text, str):
        return 0
    if _WIDTH_OF_VALUES[mark].search(text):
        return math.inf
    return sum(map(float, _DIGITS.findall(text))) + len(text) + text.count(mark) * _longest(values)


_DIGITS = re.compile(r"\d+")
_WIDTH_OF_VALUES = {"%": re.compile(r"%[^a-zA-Z%]*\*"), "{": re.compile(r"\{[^{}:]*:[^{}]*\{")}


def _longest(values: Any) -> int:
    """The characters of the longest text in some values."""
    inner = values.values() if isinstance(values, dict) else values if isinstance(values, (list, tuple)) else ()
    return len(values) if isinstance(values, (str, bytes)) else max(map(_longest, inner), default=0)


def _between(parts: Any, mark: str) -> float:
    """Texts with a mark between them."""
    if not isinstance(parts, Collection):
        return 0
    return len(parts) * len(mark) + (sum(map(_length, parts)) if isinstance(parts, (list, tuple)) else 0)


def _width(width: Any) -> int:
    return width if isinstance(width, int) else _length(width)


def _rounded(value: Any, precision: int = 0, method: str = "") -> float:
    return length_of("*", value, 10 ** abs(precision)) if abs(precision) < 300 else math.inf


_BOUNDS: dict[str, Callable[..., float]] = {  # of filters, and with a leading dot of string methods
    "center": lambda value, width=80: width,
    "batch": lambda value, linecount, fill_with=None: linecount,
    "slice": lambda value, slices, fill_with=None: slices,
    "replace": lambda s, old, new, count=None: len(s) + s.count(old) * len(new),
    "join": lambda value, d="", attribute=None: _between(value, d),
    "indent": lambda s, width=4, first=False, blank=False: len(s) + (s.count("\n") + 1) * _width(width),
    "wordwrap": lambda s, width=79, break_long_words=True, wrapstring="", **_: len(s) * (1 + len(wrapstring or "")),
    "format": lambda value, *values, **named: _formatted(value, (values, named), "%"),
    "tojson": lambda value, ensure_ascii=False, indent=0, **_: 1000 * _width(indent or 0),
    "round": _rounded,
    "sum": lambda iterable, attribute=None, start=0: 0 if isinstance(start, (int, float)) else math.inf,
    "is divisibleby": lambda value, num: length_of("%", value, num),
    **dict.fromkeys(("is even", "is odd"), lambda value: length_of("%", value, 2)),
    **dict.fromkeys((".center", ".ljust", ".rjust", ".zfill"), lambda text, width, fill="": width),
    ".expandtabs": lambda text, tabsize=8: len(text) * tabsize,
    ".replace": lambda text, old, new, count=-1: len(text) + text.count(old) * len(new),
    ".join": lambda text, parts: _between(parts, text),
    ".translate": lambda text, table: len(text) * _longest(table),
    ".format": lambda text, *values, **named: _formatted(text, (values, named), "{"),
    ".format_map": lambda text, table: _formatted(text, table, "{"),
}


# --- calls -----------------------------------------------------------------------------------------------------------
# Filters that look at their value from outside, or let others look at its entries one by one.
_GLANCES = frozenset((
    "abs", "attr", "count", "d", "default", "first", "items", "last", "length", "map", "random", "reject",
    "rejectattr", "select", "selectattr",
))  # fmt: skip
_READING_TESTS = frozenset(("is lower", "is upper"))
_OUTSIDE = frozenset(("batch", "list", "slice"))  # they use the entries unchanged
_EACH = frozenset(("batch", "join", "list", "max", "min", "slice", "sort", "sum", "unique"))  # of strings: letters
_SORTS = frozenset(("dictsort", "groupby", "sort"))
_SLOW = {  # characters a step: not done by one loop in C
    **dict.fromkeys(("title", "wordwrap", ".format", ".format_map"), 4),
    **dict.fromkeys(("%", "format", "indent", "wordcount", ".translate"), 16),
}


def pay(name: str, given: tuple[Any, ...], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """Take the steps of a call, and reject it if its result would be too long; return its arguments, with a list for
    an iterator. `name` is that of a filter, "is " and that of a test, a dot and that of a method, whose owner is
    the first argument, "%", or nothing."""
    spend(_CALL + len(given) + len(named))
    work = 0
    if name not in _GLANCES and (name in _READING_TESTS or not name.startswith("is ")):
        given = tuple(list(counted(one)) if isinstance(one, Iterator) else one for one in given)
        if name in _EACH and given and isinstance(given[0], str):
            given = (list(counted(given[0])), *given[1:])
        work = _looked_through(name, given[:1], (*given[1:], *named.values()))
    if name in _BOUNDS:
        try:
            length = _BOUNDS[name](*given, **named)
        except (TypeError, AttributeError):  # the call itself will say so
            return given
        check_length(length, name.strip("."))
        spend(max(0, int(length)) // _STEP)
    spend(work)
    return given


def _looked_through(name: str, first: tuple[Any, ...], others: tuple[Any, ...]) -> int:
    """Take the steps of reading the arguments of a call; return the characters of the first one."""
    searched = read(*others)
    if name in _OUTSIDE:
        return sum(map(_length, first)) // _ENTRIES
    times = sum(len(one).bit_length() for one in first if isinstance(one, Collection)) if name in _SORTS else 1
    characters = max((read(*first) for _ in range(times)), default=0)
    return characters // _SLOW.get(name, _STEP) + characters * searched // _SEARCH if name else 0
