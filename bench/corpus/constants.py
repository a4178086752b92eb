"""The named numbers of the optimizer, and which of them decide a schedule of the corpus.

A number is a module's name in capitals that holds an int, a float or a tuple of them. It is doubled and halved, alone;
one that changes no schedule on any machine is a candidate for deletion. The candidates of a search (proposals.py,
search.py) change no schedule that is chosen without measuring, so they are counted apart.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

__all__ = ["Constant", "Readers", "constants"]

_SEARCH = ("proposals", "search")


class Constant(NamedTuple):
    """A named number. `module`: of compiler/optimize."""

    module: str
    name: str
    value: Any

    @property
    def is_of_the_search(self) -> bool:
        """True if no schedule that is chosen without measuring depends on it."""
        return self.module in _SEARCH


def constants() -> list[Constant]:
    """All of compiler/optimize; a number that is computed from others is none."""
    from kernmill.compiler import optimize

    found: list[Constant] = []
    for one in pkgutil.iter_modules(optimize.__path__):
        module = importlib.import_module(f"{optimize.__name__}.{one.name}")
        with open(str(module.__file__), encoding="utf-8") as file:
            body = ast.parse(file.read()).body
        found += [Constant(one.name, name, value) for name, value in chain.from_iterable(map(_assigned, body))]
    return found


def _assigned(statement: ast.stmt) -> Iterator[tuple[str, Any]]:
    """Yield the numbers that a statement names; those of `A, B = 1, 2` too."""
    target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
    pairs = [(target, getattr(statement, "value", None))]
    if isinstance(target, ast.Tuple) and isinstance(pairs[0][1], ast.Tuple):
        pairs = list(zip(target.elts, pairs[0][1].elts, strict=True))
    for name, value in pairs:
        if isinstance(name, ast.Name) and name.id.isupper() and value is not None:
            with suppress(Exception):  # not a number: names of others
                number = eval(compile(ast.Expression(value), "", "eval"), {"__builtins__": {}})
                yield from [(name.id, number)] if _is_number(number) else []


def _is_number(value: Any) -> bool:
    if isinstance(value, tuple):
        return bool(value) and all(map(_is_number, value))
    return isinstance(value, int | float) and not isinstance(value, bool)


def _times(value: Any, factor: float) -> Any:
    if isinstance(value, tuple):
        return tuple(_times(one, factor) for one in value)
    return max(1, round(value * factor)) if isinstance(value, int) else value * factor


class Readers:
    """The functions that choose the loops of each kernel: a number is tried where one of them reads it."""

    def __init__(self, asts: Mapping[str, Any], targets: Mapping[str, Any]) -> None:
        self.asts, self.targets = asts, targets
        self.known: dict[tuple[str, str], str] = {}
        self.called: dict[tuple[str, str], set[Any]] = {}
        for machine, kernel in ((m, k) for m in targets for k in asts):
            seen = self.called[machine, kernel] = set()
            sys.setprofile(lambda frame, event, _, seen=seen: seen.add(frame.f_code) if event == "call" else None)
            try:
                self.known[machine, kernel] = self.chosen(machine, kernel)
            finally:
                sys.setprofile(None)

    def chosen(self, machine: str, kernel: str) -> str:
        """The schedule as text."""
        from kernmill.compiler import choose

        return str(choose(self.asts[kernel], self.targets[machine]).actions)

    def first_effect(self, one: Constant) -> str:
        """The first kernel, with its machine, whose schedule changes when the number is doubled or halved; empty if
        none does."""
        cases = [case for case, codes in self.called.items() if any(one.name in code.co_names for code in codes)]
        places = list(_places(one))
        for factor in (2, 0.5):
            for put in places:
                put(_times(one.value, factor))
            try:
                for machine, kernel in cases:
                    if self.chosen(machine, kernel) != self.known[machine, kernel]:
                        return f"{kernel} on {machine}"
            except Exception as error:  # a tile of no rows, say
                return f"{type(error).__name__}: {error}"
            finally:
                for put in places:
                    put(one.value)
        return ""


def _places(one: Constant) -> Iterator[Callable[[Any], None]]:
    """Functions that set the number in its module, and in those that imported it."""
    from kernmill.compiler import optimize

    for found in pkgutil.iter_modules(optimize.__path__):
        module = importlib.import_module(f"{optimize.__name__}.{found.name}")
        if found.name == one.module or (getattr(module, one.name, None) == one.value and not one.name.startswith("_")):
            yield lambda value, module=module: setattr(module, one.name, value)  # type: ignore[misc]
