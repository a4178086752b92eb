"""Tensor methods: arithmetic, comparisons, bits, choices, and their operators."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Self, TypeVar

from kernmill.ir import DType, DTypeError, Op, Ops, SettingError, UOp, dtypes, promote

from ..lazy import KNOWN, Lazy, fits, trace_function, weak
from ..views import detached, link

if TYPE_CHECKING:
    from ..lazy import Operand

__all__ = ["Arithmetic", "Bitwise", "Comparison", "where"]

_MOST_MULTIPLIED = 32  # integer exponents up to here are multiplied out


class Comparison(Lazy):
    """Elementwise comparisons and choices; the result of a comparison is bool."""

    def _compare(self, op: Op, other: Operand, reverse: bool = False) -> Self:
        if isinstance(other, int) and not fits(self.dtype, other) and fits(dtypes.float64, other):
            # beyond all values there can be, where arithmetic would refuse: no wider dtype tells 2**63 - 1 from 2**63
            holds = op is Ops.NE or (op is not Ops.EQ and (other > 0) is not reverse)
            return self._binary(Ops.EQ if holds else Ops.NE, self)
        return self._binary(op, other, reverse)

    def eq(self, other: Operand) -> Self:
        """self == other; false with nan."""
        return self._compare(Ops.EQ, other)

    def ne(self, other: Operand) -> Self:
        """self != other; true with nan."""
        return self._compare(Ops.NE, other)

    def lt(self, other: Operand) -> Self:
        """self < other; false with nan."""
        return self._compare(Ops.LT, other)

    def le(self, other: Operand) -> Self:
        """self <= other; false with nan."""
        return self._compare(Ops.LE, other)

    def gt(self, other: Operand) -> Self:
        """self > other; false with nan."""
        return self._compare(Ops.LT, other, reverse=True)

    def ge(self, other: Operand) -> Self:
        """self >= other; false with nan."""
        return self._compare(Ops.LE, other, reverse=True)

    def __eq__(self, other: Any) -> Self:  # type: ignore[override]
        if other is None:  # as in PyTorch: x == None is False, x in [None] too
            return NotImplemented
        return self.eq(other)

    def __ne__(self, other: Any) -> Self:  # type: ignore[override]
        if other is None:
            return NotImplemented
        return self.ne(other)

    __lt__, __le__, __gt__, __ge__ = lt, le, gt, ge

    __hash__ = object.__hash__  # C: every tensor that is made is hashed

    def maximum(self, other: Operand) -> Self:
        """The larger of two; nan if either is nan."""
        return self._binary(Ops.MAX, other)

    def minimum(self, other: Operand) -> Self:
        """The smaller of two; nan if either is nan."""
        return self._binary(Ops.MIN, other)

    def detach(self) -> Self:
        """The same values as a constant to gradients. As in PyTorch a write to either tensor changes both."""
        new = self._make(detached(self.uop), self._device)
        link(new, self, ((detached, None),))
        return new

    def clamp(self, min: Operand | None = None, max: Operand | None = None) -> Self:
        """Values below `min` become `min`, then values above `max` become `max`; nan stays nan, as a bound too."""
        result = self._own_box()
        if self.requires_grad:  # nothing flows to nan
            result = choose(self.isnan(), self.detach(), self)
        if min is not None:
            x, low = result._join(min)
            result = choose(x.lt(low).logical_or(low.isnan()), low, x)
        if max is not None:
            x, high = result._join(max)
            result = choose(x.gt(high).logical_or(high.isnan()), high, x)
        return result

    clip = clamp

    def where(self, condition: Lazy, other: Operand) -> Self:
        """Return self where the condition is true, else `other`, as torch.Tensor.where; see also kernmill.where.

        Raises:
            DTypeError: the condition is not bool, as if self were meant to be the condition.
        """
        if self.dtype.is_bool and isinstance(condition, Lazy) and not condition.dtype.is_bool:
            raise DTypeError(
                f"where: the condition is {condition.dtype.name}, and self bool. Write x.where(condition, y), or "
                "kernmill.where(condition, x, y)."
            )
        a, b = self._join(other)
        return choose(condition, a, b)

    def masked_fill(self, mask: Lazy, value: Operand) -> Self:
        """Return `value` where the bool mask is true, else self; the dtype is unchanged."""
        return choose(mask, self._own(value), self)

    def isnan(self) -> Self:
        """Return True where the value is nan."""
        return self.ne(self)

    def isinf(self, *, detect_positive: bool = True, detect_negative: bool = True) -> Self:
        """Return True where the value is inf or -inf, or only one of them."""
        ends = [end for end, wanted in ((math.inf, detect_positive), (-math.inf, detect_negative)) if wanted]
        if not (self.dtype.is_float and ends):
            return self._filled(0).ne(0)
        first, *others = (self.eq(end) for end in ends)
        return first.logical_or(others[0]) if others else first

    def isfinite(self) -> Self:
        """Return True where the value is neither nan nor infinite."""
        return self.isnan().logical_or(self.isinf()).logical_not()

    def isclose(self, other: Operand, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False) -> Self:
        """|self - other| <= atol + rtol * |other|, equal infinities included."""
        a, b = self._join(other)
        equal = a.eq(b)
        if equal_nan:
            equal = equal.logical_or(a.isnan().logical_and(b.isnan()))
        if not a.dtype.is_float:
            a, b = a.cast(dtypes.float64), b.cast(dtypes.float64)
        bound = b._apply(Ops.ABS)._binary(Ops.MUL, rtol)._binary(Ops.ADD, atol)
        near = a._binary(Ops.SUB, b)._apply(Ops.ABS).le(bound)
        return equal.logical_or(near.logical_and(a.isfinite()).logical_and(b.isfinite()))

    # --- logic
    def _truth(self) -> Self:
        return self if self.dtype.is_bool else self.ne(0)

    def logical_not(self) -> Self:
        """True where the value is 0."""
        return self._truth()._apply(Ops.XOR, self._make(UOp(Ops.CONST, dtypes.bool, (), True)))

    def logical_and(self, other: Operand) -> Self:
        """Return True where both are not 0."""
        return self._truth()._apply(Ops.AND, self._tensor(other)._truth())

    def logical_or(self, other: Operand) -> Self:
        """Return True where one of them is not 0."""
        return self._truth()._apply(Ops.OR, self._tensor(other)._truth())

    def logical_xor(self, other: Operand) -> Self:
        """Return True where exactly one of them is not 0."""
        return self._truth()._apply(Ops.XOR, self._tensor(other)._truth())


class Bitwise(Comparison):
    """Bits of ints; on bools the logical meaning."""

    def _bits(self, op: Op, other: Operand, reverse: bool = False) -> Self:
        a, b = self._join(other)
        if a.dtype.is_float or (a.dtype.is_bool and op in (Ops.SHL, Ops.SHR)):
            raise DTypeError(f"{op.name.lower()}: bits of {a.dtype.name} values. Cast to an int dtype first.")
        return b._apply(op, a) if reverse else a._apply(op, b)

    def bitwise_and(self, other: Operand) -> Self:
        """Bits that are set in both."""
        return self._bits(Ops.AND, other)

    def bitwise_or(self, other: Operand) -> Self:
        """Bits that are set in either."""
        return self._bits(Ops.OR, other)

    def bitwise_xor(self, other: Operand) -> Self:
        """Bits that differ."""
        return self._bits(Ops.XOR, other)

    def bitwise_not(self) -> Self:
        """Every bit flipped; on bools logical not."""
        if self.dtype.is_bool:
            return self.logical_not()
        return self._bits(Ops.XOR, -1 if self.dtype.min else int(self.dtype.max))

    def bitwise_left_shift(self, other: Operand) -> Self:
        """Return self << other; 0 where the count is out of range."""
        return self._bits(Ops.SHL, other)

    def bitwise_right_shift(self, other: Operand) -> Self:
        """self >> other, arithmetic for signed dtypes."""
        return self._bits(Ops.SHR, other)

    __and__ = __rand__ = bitwise_and
    __or__ = __ror__ = bitwise_or
    __xor__ = __rxor__ = bitwise_xor
    __invert__ = bitwise_not
    __lshift__, __rshift__ = bitwise_left_shift, bitwise_right_shift

    def __rlshift__(self, other: Operand) -> Self:
        return self._bits(Ops.SHL, other, reverse=True)

    def __rrshift__(self, other: Operand) -> Self:
        return self._bits(Ops.SHR, other, reverse=True)


class Arithmetic(Bitwise):
    """Arithmetic; the promotion table is in kernmill/lazy.py."""

    def add(self, other: Operand) -> Self:
        """self + other; ints wrap, bools: or."""
        return self._binary(Ops.ADD, other)

    def sub(self, other: Operand, *, reverse: bool = False) -> Self:
        """self - other; ints wrap.

        Raises:
            DTypeError: both are bool.
        """
        if self.dtype.is_bool and (isinstance(other, bool) or (isinstance(other, Lazy) and other.dtype.is_bool)):
            raise DTypeError("sub: bool - bool has no meaning. Use ^ (logical_xor), or cast to int first.")
        return self._binary(Ops.SUB, other, reverse)

    def mul(self, other: Operand) -> Self:
        """self * other; ints wrap, bools: and."""
        return self._binary(Ops.MUL, other)

    def div(self, other: Operand, *, rounding_mode: str | None = None, reverse: bool = False) -> Self:
        """True division; ints give float32. x/0 is inf, 0/0 nan.

        `rounding_mode` "trunc" rounds the quotient towards 0, "floor" towards -inf; ints stay ints.
        """
        if rounding_mode is not None:
            return self._rounded_quotient(other, rounding_mode, reverse)
        if isinstance(other, (bool, int, float)):  # it need not fit the dtype of ints
            return self._floating()._binary(Ops.DIV, other, reverse)
        a, b = self._join(other)
        a, b = a._floating(), b._floating()
        return b._apply(Ops.DIV, a) if reverse else a._apply(Ops.DIV, b)

    def _rounded_quotient(self, other: Operand, mode: str, reverse: bool) -> Self:
        if mode not in ("trunc", "floor"):
            raise SettingError(f"div: rounding_mode={mode!r}: must be None, 'trunc' or 'floor'.")
        a, b = self._whole(other)
        a, b = (b, a) if reverse else (a, b)
        if mode == "floor":
            return a.floor_divide(b)
        return a.div(b)._apply(Ops.TRUNC) if a.dtype.is_float else a.sub(a.fmod(b)).floor_divide(b)

    def floor_divide(self, other: Operand, *, reverse: bool = False) -> Self:
        """floor(self / other); ints by 0 give 0, as in NumPy."""
        a, b = self._whole(other)
        return b._apply(Ops.FLOORDIV, a) if reverse else a._apply(Ops.FLOORDIV, b)

    def remainder(self, other: Operand, *, reverse: bool = False) -> Self:
        """self - other * floor(self / other): the sign of the divisor; ints by 0 give 0, as in NumPy.

        Floats are exact while the quotient is below 2**23 in float32 (2**52 in float64), and beyond it some value
        between 0 and other."""
        a, b = self._whole(other)
        return b._apply(Ops.MOD, a) if reverse else a._apply(Ops.MOD, b)

    def fmod(self, other: Operand) -> Self:
        """The remainder with the sign of self, also of -0.0; ints by 0 give 0, as in NumPy.

        Floats are exact while the quotient is below 2**23 in float32 (2**52 in float64), and beyond it some value
        between 0 and other, with the sign of self."""
        a, b = self._whole(other)
        if a.dtype.is_int:  # the smallest int has no abs
            floor = a._apply(Ops.MOD, b)
            return choose(floor.ne(0).logical_and(floor.lt(0).ne(a.lt(0))), floor.sub(b), floor)
        is_negative = a.lt(0)
        rest = choose(is_negative, a.neg(), a)._apply(Ops.MOD, b.abs())  # no abs: its gradient at 0 is 0
        return choose(a.abs().lt(b.abs()), a, choose(is_negative, rest.neg(), rest))  # -0.0 is unchanged too

    def _whole(self, other: Operand) -> tuple[Self, Self]:
        """Both in their common dtype, two bools as int64."""
        a, b = self._join(other)
        return (a.cast(dtypes.int64), b.cast(dtypes.int64)) if a.dtype.is_bool else (a, b)

    def neg(self) -> Self:
        """-self; the smallest int stays itself.

        Raises:
            DTypeError: a bool tensor.
        """
        if self.dtype.is_bool:
            raise DTypeError("neg: a bool has no sign. Use ~ (logical_not), or cast to int first.")
        return self._apply(Ops.NEG)

    def abs(self) -> Self:
        """|self|."""
        return self._own_box() if self.dtype.is_bool else self._apply(Ops.ABS)

    def square(self) -> Self:
        """self * self."""
        return self.mul(self)

    def reciprocal(self) -> Self:
        """1 / self."""
        return self.div(1, reverse=True)

    def sign(self) -> Self:
        """-1, 0 or 1; nan stays nan. Its gradient is 0."""
        one = self._join(1)[1].cast(self.dtype)
        if self.dtype.is_bool or not self.dtype.min:
            return choose(self.ne(0), one, self)
        rest = self._apply(Ops.TRUNC) if self.dtype.is_float else self  # 0 or nan, with a gradient of 0
        return choose(self.lt(0), one.neg(), choose(self.gt(0), one, rest))

    def lerp(self, end: Operand, weight: Operand) -> Self:
        """self + weight * (end - self)."""
        return self.add(self._tensor(end).sub(self).mul(weight))

    def addcmul(self, a: Self, b: Self, *, value: float = 1) -> Self:
        """self + value * a * b."""
        return self.add(a.mul(b).mul(value))

    # --- powers
    def pow(self, exponent: Operand, *, reverse: bool = False) -> Self:
        """self ** exponent; of bools int64. A whole Python exponent up to 32 is multiplied out, 0.5 is a square root.

        Raises:
            DTypeError: an int tensor to a negative whole power.
        """
        if reverse:
            a, b = self._whole(exponent)
            return b._apply(Ops.POW, a)
        if isinstance(exponent, (int, float)):
            if not self.dtype.is_float and exponent < 0 and isinstance(exponent, int):
                raise DTypeError(
                    f"pow: {self.dtype.name} ** {exponent} is not an integer. Cast to a float dtype first."
                )
            base = self.cast(weak(self.dtype, exponent))
            if exponent == int(exponent if math.isfinite(exponent) else 0) and abs(exponent) <= _MOST_MULTIPLIED:
                return base._multiplied(int(exponent))
            if exponent == 0.5:
                return base._apply(Ops.SQRT)
        a, b = self._whole(exponent)
        return a._apply(Ops.POW, b)

    def _multiplied(self, exponent: int) -> Self:
        if exponent < 0:
            power, base = self._multiplied(-exponent).reciprocal(), self.uop
            if exponent < -1:  # at 0 the rules of its products would say inf * 0
                make, down = self._make, exponent - 1
                KNOWN[power.uop] = base, lambda _, base, grad: grad * (make(base)._multiplied(down).uop * exponent)
            return power
        if exponent == 0:  # 1 for nan too; it still depends on self, with gradient 0
            return choose(self._filled(0).eq(0), self._filled(1), self)
        result, power = None, self._own_box()
        while exponent:
            if exponent & 1:
                result = power if result is None else result.mul(power)
            exponent >>= 1
            if exponent:
                power = power.mul(power)
        assert result is not None
        return result

    # --- operators
    def __add__(self, other: Operand) -> Self:
        return self.add(other)

    def __radd__(self, other: Operand) -> Self:
        return self.add(other)

    def __sub__(self, other: Operand) -> Self:
        return self.sub(other)

    def __mul__(self, other: Operand) -> Self:
        return self.mul(other)

    def __rmul__(self, other: Operand) -> Self:
        return self.mul(other)

    def __truediv__(self, other: Operand) -> Self:
        return self.div(other)

    def __floordiv__(self, other: Operand) -> Self:
        return self.floor_divide(other)

    def __mod__(self, other: Operand) -> Self:
        return self.remainder(other)

    def __neg__(self) -> Self:
        return self.neg()

    def __abs__(self) -> Self:
        return self.abs()

    def __pos__(self) -> Self:
        return self

    def __pow__(self, other: Operand) -> Self:
        return self.pow(other)

    def __rsub__(self, other: Operand) -> Self:
        return self.sub(other, reverse=True)

    def __rtruediv__(self, other: Operand) -> Self:
        return self.div(other, reverse=True)

    def __rfloordiv__(self, other: Operand) -> Self:
        return self.floor_divide(other, reverse=True)

    def __rmod__(self, other: Operand) -> Self:
        return self.remainder(other, reverse=True)

    def __rpow__(self, other: Operand) -> Self:
        return self.pow(other, reverse=True)


L = TypeVar("L", bound=Lazy)


def choose(condition: Lazy, yes: L, no: L) -> L:
    """WHERE on tensors of one dtype.

    Raises:
        DTypeError: the condition is not bool.
    """
    if not condition.dtype.is_bool:
        raise DTypeError(
            f"where: the condition is {condition.dtype.name}, not bool. Compare it, for example with `!= 0`."
        )
    chosen = condition._select(yes, no)
    return yes._make(chosen.uop, chosen._device, chosen.requires_grad)


@trace_function
def where(condition: L, yes: Operand, no: Operand) -> L:
    """Return `yes` where the bool condition is true, else `no`, broadcast and promoted."""
    if isinstance(yes, Lazy):
        a, b = yes._join(no)
    elif isinstance(no, Lazy):
        b, a = no._join(yes)
    else:
        a, b = condition._tensor(yes), condition._tensor(no)
        dtype: DType = promote(a.dtype, b.dtype)
        a, b = a.cast(dtype), b.cast(dtype)
    return choose(condition, a, b)  # type: ignore[return-value]
