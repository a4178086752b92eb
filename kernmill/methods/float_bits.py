"""Tensor methods: the sign bit of a float, its neighbours, and the length of a pair."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Self

from kernmill.ir import Ops, dtypes

from ..lazy import accumulator
from .elementwise import Arithmetic, choose

if TYPE_CHECKING:
    from ..lazy import Operand

__all__ = ["FloatBits"]

_SAME_SIZE = {16: dtypes.int16, 32: dtypes.int32, 64: dtypes.int64}  # the int dtype with the bits of a float dtype


class FloatBits(Arithmetic):
    """Functions of the bits of a float."""

    def signbit(self) -> Self:
        """True where the sign is set, that of -0.0 and of nan too."""
        if not self.dtype.is_float:
            return self.lt(0)
        return self._result(self.detach().uop.bitcast(_SAME_SIZE[self.dtype.bits])).lt(0)

    def copysign(self, other: Operand) -> Self:
        """The size of self with the sign of `other`, that of zeros too. Ints give float32."""
        x, y = self._floats(other)
        return choose(x.signbit().ne(y.signbit()), x.neg(), x)

    def nextafter(self, other: Operand) -> Self:
        """The next value of the dtype in the direction of `other`; nan if either is nan. It has no gradient."""
        x, y = (t.detach() for t in self._floats(other))
        whole = _SAME_SIZE[x.dtype.bits]
        bits = x._result(x.uop.bitcast(whole))
        is_outwards = x.lt(y).ne(x.signbit())
        moved = choose(is_outwards, bits.add(1), bits.sub(1))
        least = bits._filled(1)  # the smallest number above 0, below with the sign of `other`
        least = choose(y.signbit(), least.bitwise_or(int(whole.min)), least)
        moved = choose(x.eq(0), least, moved)
        found = x._result(moved.uop.bitcast(x.dtype))
        return choose(x.isnan().logical_or(y.isnan()), x.add(y), choose(x.eq(y), y, found))

    def hypot(self, other: Operand) -> Self:
        """sqrt(self**2 + other**2) without overflow; inf if either is infinite. Its gradient at (0, 0) is 0.

        Half types are computed in float32. Within 2 units in the last place."""
        x, y = self._floats(other)
        dtype = x.dtype
        x, y = x.cast(accumulator(dtype)), y.cast(accumulator(dtype))
        is_inf = x.isinf().logical_or(y.isinf())
        x, y = (t.copysign(1.0) for t in (x, y))  # no abs: its gradient at 0 is 0
        is_less = x.lt(y)  # no maximum: equal values would share its gradient
        large, small = choose(is_less, y, x), choose(is_less, x, y)
        is_usual = large.ne(0).logical_or(small.ne(0)).logical_and(is_inf.logical_not())
        ratio = choose(is_usual, small, small._filled(0)).div(choose(is_usual, large, large._filled(1)))
        length = choose(is_usual, large, large._filled(0)).mul(ratio.square().add(1.0)._apply(Ops.SQRT))
        return choose(is_inf, length._filled(math.inf), length).cast(dtype)

    def _floats(self, other: Operand) -> tuple[Self, Self]:
        """Both in their common float dtype and shape."""
        x, y = self._join(other)
        x, y = x._floating(), y._floating()
        dtype = x.dtype if x.dtype is y.dtype else y.dtype
        return x.cast(dtype), y.cast(dtype)
