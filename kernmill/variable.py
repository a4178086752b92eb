"""class Variable: a size or position with another value in each call of a captured function; one capture serves all."""

from __future__ import annotations

import contextlib
import contextvars
import reprlib
from collections.abc import Generator, Iterable, Mapping
from operator import index
from typing import Any, Self

from kernmill.ir import Ops, ShapeError, UOp, dtypes, uops_in

from .arguments import is_whole

__all__ = ["Bound", "Variable", "given_values", "values_of", "variables_below", "with_values"]

_given: contextvars.ContextVar[Mapping[str, int]] = contextvars.ContextVar("given_values", default={})  # noqa: B039


class Variable:
    """An integer from `least` to `greatest` that is bound at each call.

        pos = Variable("pos", 0, 4095)

        @jit
        def step(x, cache, pos):
            cache[:, pos : pos + 1] = x
            return cache[:, : pos + 1].sum(1)

        for position in range(100):
            step(x, cache, pos.bind(position))  # captured once

    The function gets a SymbolicSize instead of the number, for slices, sums, and arithmetic and comparisons with
    tensors. The cost depends on its value, not on its bounds. Returned, it is the number of that call. Python can
    branch on it (`if`, `==`, `min`) only if the bounds are conclusive; otherwise an error is raised: decide outside, or
    with tensors. Outside of captured functions a bound variable is an int.

    Raises:
        ShapeError: no name, or empty bounds.
    """

    def __init__(self, name: str, least: int, greatest: int) -> None:
        whole = is_whole(least, 0) and is_whole(greatest, 0)
        if not isinstance(name, str) or not name.isidentifier() or not (whole and least <= greatest < 1 << 31):
            shown = [reprlib.repr(value) for value in (name, least, greatest)]
            raise ShapeError(
                f"Variable: {shown[0]} from {shown[1]} to {shown[2]}. Give a name of letters and digits, and bounds "
                "0 <= least <= greatest < 2**31."
            )
        least, greatest = int(least), int(greatest)  # NumPy's too
        self.name, self.least, self.greatest = name, least, greatest
        self.uop = UOp(Ops.VARIABLE, dtypes.index, (), (name, least, greatest))

    def bind(self, value: int) -> Bound:
        """The variable with a value, as an argument of a captured function.

        Raises:
            ShapeError: a value outside the bounds.
        """
        return Bound(self, value)

    def __repr__(self) -> str:
        return f"Variable({self.name!r}, {self.least}, {self.greatest})"


class Bound(int):
    """An int that says which variable it is the value of."""

    variable: Variable

    def __new__(cls, variable: Variable, value: int) -> Self:  # noqa: D102
        try:
            number = index(value)
        except TypeError:
            raise ShapeError(
                f"{variable.name}.bind: {value!r} is not an integer. Give an int from {variable.least} to "
                f"{variable.greatest}."
            ) from None
        if not variable.least <= number <= variable.greatest:
            raise ShapeError(
                f"{variable.name}.bind: {value} is outside {variable.least} to {variable.greatest}. Give a value "
                "in this range, or make the variable with wider bounds."
            )
        new = super().__new__(cls, number)
        new.variable = variable
        return new

    def __reduce__(self) -> tuple[Any, ...]:
        return int, (int(self),)


def given_values() -> Mapping[str, int]:
    """The value of each variable in the call of a captured function that is under way."""
    return _given.get()


@contextlib.contextmanager
def with_values(values: Mapping[str, int]) -> Generator[None]:
    """In this block variables have these values."""
    token = _given.set(values)
    try:
        yield
    finally:
        _given.reset(token)


def values_of(bounds: Iterable[Bound]) -> dict[str, int]:
    """The values of one call by name.

    Raises:
        ShapeError: one name with two values, or for two variables.
    """
    found: dict[str, Bound] = {}
    for bound in bounds:
        other = found.setdefault(bound.variable.name, bound)
        if other != bound or other.variable.uop is not bound.variable.uop:
            raise ShapeError(
                f"jit: {bound.variable!r} is {int(bound)} and {other.variable!r} is {int(other)} in one call. "
                "Give each variable a unique name and one value."
            )
    return {name: int(bound) for name, bound in found.items()}


def variables_below(node: UOp) -> list[str]:
    """Names of the variables that the shape of a node, or the way to its values, depends on."""
    sizes = [size for size in node.shape if isinstance(size, UOp)]
    for below in node.toposort(stop=lambda u: u.storage is not None):
        if below.storage is None:
            sizes += [below, *uops_in(below.arg)]
    order = UOp(Ops.SINK, dtypes.void, tuple(sizes)).toposort() if sizes else []
    return sorted({str(u.arg[0]) for u in order if u.op is Ops.VARIABLE})
