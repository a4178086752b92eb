"""class SymbolicSize: a size that differs per call of a captured function: it can be computed with, but not branched
on.

A captured function is traced once for all values of its variables. A decision by a value (`if n > 3`, `range(n)`) would
apply to all other values, too. So it is decided by the bounds if they are conclusive, and raises an error otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from numbers import Integral
from operator import add, floordiv, index, mod, mul, sub, truediv
from typing import Any

from kernmill.ir import ShapeError, Size, UOp, as_size, evaluate, show_size

__all__ = ["SymbolicSize", "as_node", "shown"]


def shown(size: Size) -> Any:
    """A size as the user of a tensor sees it: an int, or a SymbolicSize."""
    return size if isinstance(size, int) else SymbolicSize(size)


def as_node(value: Any) -> Any:
    """Convert a size for the IR: NumPy's ints to Python's; anything else is unchanged."""
    if isinstance(value, SymbolicSize):
        return value.uop
    return value if isinstance(value, int) or not isinstance(value, Integral) else int(value)


class SymbolicSize:
    """An integer between known bounds. Sums, products, `//` and `%` with integers are sizes again.

    Raises:
        ShapeError: Python needs its value, and the bounds are not conclusive.
    """

    __slots__ = ("uop",)
    __array_ufunc__ = None  # NumPy's numbers leave the work to us

    def __init__(self, uop: UOp) -> None:
        self.uop = uop

    @property
    def bounds(self) -> tuple[int, int]:
        """Its least and its greatest value, over all values of its variables."""
        least, greatest = self.uop.bounds
        return int(least), int(greatest)

    def number(self, values: Mapping[str, int]) -> int:
        """Return its value in a call where the variables have these values."""
        return int(evaluate(self.uop, None, values))

    # --- arithmetic
    def _with(self, rule: Callable[[Any, Any], Any], symbol: str, other: Any, *, turned: bool = False) -> Any:
        is_whole = isinstance(other, (SymbolicSize, Integral))
        if isinstance(other, (float, complex)) or (rule is truediv and is_whole):
            asked = f"{other!r} {symbol} {self!r}" if turned else f"{self!r} {symbol} {other!r}"
            raise self._refusal(asked, "Sizes are integers: use //, or calculate with Tensor({self!r})")
        if not is_whole:
            return NotImplemented
        node = self.uop.like(other.uop if isinstance(other, SymbolicSize) else index(other))
        left, right = (node, self.uop) if turned else (self.uop, node)
        if rule in (floordiv, mod) and right.bounds[0] <= 0 <= right.bounds[1]:
            raise ZeroDivisionError(f"{shown(left)!r} {symbol} {shown(right)!r}: the right side may be 0.")
        return shown(as_size(rule(left, right)))

    def __add__(self, other: Any) -> Any:
        return self._with(add, "+", other)

    def __radd__(self, other: Any) -> Any:
        return self._with(add, "+", other, turned=True)

    def __sub__(self, other: Any) -> Any:
        return self._with(sub, "-", other)

    def __rsub__(self, other: Any) -> Any:
        return self._with(sub, "-", other, turned=True)

    def __mul__(self, other: Any) -> Any:
        return self._with(mul, "*", other)

    def __rmul__(self, other: Any) -> Any:
        return self._with(mul, "*", other, turned=True)

    def __floordiv__(self, other: Any) -> Any:
        return self._with(floordiv, "//", other)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._with(floordiv, "//", other, turned=True)

    def __mod__(self, other: Any) -> Any:
        return self._with(mod, "%", other)

    def __rmod__(self, other: Any) -> Any:
        return self._with(mod, "%", other, turned=True)

    def __truediv__(self, other: Any) -> Any:
        return self._with(truediv, "/", other)

    def __rtruediv__(self, other: Any) -> Any:
        return self._with(truediv, "/", other, turned=True)

    def __neg__(self) -> Any:
        return 0 - self

    def __pos__(self) -> Any:
        return self

    # --- decisions
    def _less(self, other: Any, symbol: str, *, or_equal: bool, turned: bool = False) -> Any:
        """True if this is less than another; `turned`: if the other is less than this."""
        if not isinstance(other, (SymbolicSize, int, float, Integral)):
            return NotImplemented
        least, greatest = self._apart(other)
        if turned:
            least, greatest = -greatest, -least
        if greatest < 0 or (or_equal and greatest == 0):
            return True
        if least > 0 or (not or_equal and least == 0):
            return False
        raise self._refusal(f"{self!r} {symbol} {other!r}")

    def _apart(self, other: Any) -> tuple[Any, Any]:
        """Bounds of the difference."""
        if isinstance(other, float):
            return self.uop.bounds[0] - other, self.uop.bounds[1] - other
        apart = self - other
        return apart.uop.bounds if isinstance(apart, SymbolicSize) else (apart, apart)

    def __lt__(self, other: Any) -> Any:
        return self._less(other, "<", or_equal=False)

    def __le__(self, other: Any) -> Any:
        return self._less(other, "<=", or_equal=True)

    def __gt__(self, other: Any) -> Any:
        return self._less(other, ">", or_equal=False, turned=True)

    def __ge__(self, other: Any) -> Any:
        return self._less(other, ">=", or_equal=True, turned=True)

    def __eq__(self, other: object) -> Any:
        if not isinstance(other, (SymbolicSize, int, float, Integral)):
            return NotImplemented
        least, greatest = self._apart(other)
        if least == greatest == 0:
            return True
        if least > 0 or greatest < 0:
            return False
        raise self._refusal(f"{self!r} == {other!r}")

    def __ne__(self, other: object) -> Any:
        found = self.__eq__(other)
        return found if found is NotImplemented else not found

    def __bool__(self) -> bool:
        least, greatest = self.uop.bounds
        if least > 0 or greatest < 0:
            return True
        raise self._refusal(f"bool({self!r})")

    def __hash__(self) -> int:
        raise self._refusal(f"hash({self!r})")

    def __index__(self) -> int:
        raise self._refusal(f"{self!r} as an int")

    __int__ = __index__

    def __float__(self) -> float:
        raise self._refusal(f"float({self!r})")

    def __reduce__(self) -> Any:
        raise self._refusal(f"a copy of {self!r}")

    def _refusal(self, asked: str, instead: str = "") -> ShapeError:
        least, greatest = self.uop.bounds
        other = instead or "Decide outside of it, give it a plain int (a capture for each), or compare Tensor({self!r})"
        return ShapeError(
            f"{asked}: this symbolic size changes per call of the captured function, from {least} to {greatest}, "
            f"and the function is traced once for all of them. {other.format(self=self)}."
        )

    def __repr__(self) -> str:
        return show_size(self.uop)
