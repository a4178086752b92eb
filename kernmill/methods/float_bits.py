"""Tensor methods: the sign bit of a float, its neighbours, the length of a pair, and float8 as bits."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Self

from kernmill.ir import DTypeError, Ops, SettingError, dtypes

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

    # --- float8
    def to_float8(self, kind: str = "e4m3fn") -> Self:
        """The bits of the nearest float8, uint8: a quarter of the memory of float32. `from_float8` reads them.

        `kind` is "e4m3fn", up to 448 and without infinities, or "e5m2", up to 57344. "e4m3fnuz", up to 240, and
        "e5m2fnuz", up to 57344, have no infinities and no -0. Larger values become nan, or inf.

        Raises:
            SettingError: another kind.
        """
        mantissa, least, most, beyond = _float8(kind)
        x = self._floating().detach()._as(dtypes.float32)
        sign = choose(x.signbit(), x._filled(128.0), x._filled(0.0))._as(dtypes.uint8)
        size = x.copysign(1.0)
        exponent = x._result(size.uop.bitcast(dtypes.int32)).bitwise_right_shift(23).sub(127).maximum(least)
        unit = exponent._result(exponent.add(127 - mantissa).bitwise_left_shift(23).uop.bitcast(dtypes.float32))
        value = size.div(unit)._apply(Ops.ROUND).mul(unit)
        usual = value.le(most)
        has_half = usual.logical_and(value.lt(32768.0)) if kind == "e5m2fnuz" else usual
        half = choose(has_half, value, value._filled(0.0)).mul(_SCALE[kind])._as(dtypes.float16)
        bits = half._result(half.uop.bitcast(dtypes.uint16)).bitwise_right_shift(_SHIFT[kind])._as(dtypes.uint8)
        if kind == "e5m2fnuz":
            last = choose(usual, value, value._filled(0.0)).sub(32768.0).div(8192.0).add(124.0)._as(dtypes.uint8)
            bits = choose(has_half, bits, last)
        if kind.endswith("fnuz"):
            bits = choose(bits.eq(0), bits, bits.bitwise_or(sign))
            return choose(usual, bits, bits._filled(beyond))
        bits = choose(usual, bits, choose(size.isnan(), bits._filled(127), bits._filled(beyond)))
        return bits.bitwise_or(sign)

    def from_float8(self, kind: str = "e4m3fn") -> Self:
        """The float32 values of bits that `to_float8` gives, or that a file holds.

        Raises:
            DTypeError: not uint8.
            SettingError: another kind.
        """
        _float8(kind)
        if self.dtype is not dtypes.uint8:
            raise DTypeError(f"from_float8: a {self.dtype.name} tensor: must be uint8, the bits of float8.")
        wide = self._as(dtypes.uint16)
        size = wide.bitwise_and(127)
        bits = size.bitwise_left_shift(_SHIFT[kind]).bitwise_or(wide.bitwise_and(128).bitwise_left_shift(8))
        value = bits._result(bits.uop.bitcast(dtypes.float16))._as(dtypes.float32).mul(1 / _SCALE[kind])
        if kind == "e5m2fnuz":
            last = size._as(dtypes.float32).sub(124.0).mul(8192.0).add(32768.0)
            last = choose(wide.ge(128), last.neg(), last)
            value = choose(size.ge(124), last, value)
        if kind.endswith("fnuz"):
            return choose(wide.eq(128), value._filled(math.nan), value)
        return choose(size.eq(127), value._filled(math.nan), value) if kind == "e4m3fn" else value


# float16 has the bits of e5m2 in its upper byte; those of e4m3 a bit lower. The scales come from the differences of
# the biases; the largest exponent of e5m2fnuz is that of float16's inf, and its four values are computed apart.
_SHIFT = {"e4m3fn": 7, "e5m2": 8, "e4m3fnuz": 7, "e5m2fnuz": 8}
_SCALE = {"e4m3fn": 2.0**-8, "e5m2": 1.0, "e4m3fnuz": 2.0**-7, "e5m2fnuz": 2.0}
_FLOAT8 = {
    "e4m3fn": (3, -6, 448.0, 127), "e5m2": (2, -14, 57344.0, 124),
    "e4m3fnuz": (3, -7, 240.0, 128), "e5m2fnuz": (2, -15, 57344.0, 128),
}  # fmt: skip


def _float8(kind: str) -> tuple[int, int, float, int]:
    """Bits of the mantissa, the least exponent, the largest value, and the bits of what is beyond."""
    if kind not in _FLOAT8:
        raise SettingError(f"float8: kind={kind!r}: must be 'e4m3fn', 'e5m2', 'e4m3fnuz' or 'e5m2fnuz'.")
    return _FLOAT8[kind]
