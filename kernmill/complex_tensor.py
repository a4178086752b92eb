"""class ComplexTensor: a complex tensor as two real ones, its planes `real` and `imag`.

The compiler knows real numbers only. A complex operation is a few real ones on the planes, so gradients, views, writes,
devices and `jit` are those of Tensor. complex64 has planes of float32, complex128 of float64.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from kernmill.ir import DType, DTypeError, DTypeLike, GradientError, ShapeError, dtypes, promote, show_shape

from .arguments import with_sentences_at_init
from .lazy import REFLECTED
from .methods.elementwise import where
from .methods.movement import cat, stack
from .tensor import Tensor

if TYPE_CHECKING:
    import numpy as np

    from .methods.movement import Axes

__all__ = ["ComplexTensor", "as_complex", "joined"]

Complex: TypeAlias = "ComplexPlanes | Tensor | complex | np.ndarray[Any, Any]"  # what operators take

# Methods that move elements, or add them: they do the same to both planes.
_BOTH = frozenset((
    "reshape", "view", "flatten", "unflatten", "permute", "transpose", "movedim", "squeeze", "unsqueeze", "expand",
    "broadcast_to", "pad", "shrink", "flip", "roll", "rot90", "repeat", "tile", "repeat_interleave", "unfold",
    "diagonal", "diag", "tril", "triu", "gather", "index_select", "take_along_dim", "masked_select", "sum", "mean",
    "cumsum", "diff", "contiguous", "clone", "detach", "nansum", "trace",
))  # fmt: skip
_LISTS = frozenset(("split", "chunk", "unbind"))


def complex_of(plane: DType) -> DType:
    """The complex dtype whose planes have a dtype."""
    return dtypes.complex128 if plane is dtypes.float64 else dtypes.complex64


def _plane_dtype(dtype: DTypeLike | None) -> DType | None:
    """The dtype of the planes of a complex dtype."""
    if dtype is None:
        return None
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or getattr(dtype, "__name__", "")
    if name in ("complex64", "complex"):
        return dtypes.float32
    if name == "complex128":
        return dtypes.float64
    raise DTypeError(f"ComplexTensor: dtype {name}: must be complex64 or complex128.")


@dataclass(init=False, eq=False, repr=False)
class ComplexPlanes:
    """Two planes; and the ways in and out."""

    real: Tensor
    imag: Tensor

    is_pytree = True  # jit takes and gives its planes
    __array_ufunc__ = None  # NumPy's arrays leave operators to this class
    __hash__ = object.__hash__

    def __init__(
        self,
        data: Any,
        imag: Any = None,
        *,
        dtype: DTypeLike | None = None,
        device: str | None = None,
        requires_grad: bool = False,
    ) -> None:
        asked = _plane_dtype(dtype)
        real, imag = _planes(data, imag, device, asked)
        real, imag = real._floating(), imag._floating()
        wide = asked or promote(promote(real.dtype, imag.dtype), dtypes.float32)
        real, imag = real.cast(wide), imag.cast(wide)
        if real.shape != imag.shape:
            real, imag = real.broadcast_tensors(imag)
        self.real, self.imag = real, imag
        if requires_grad:
            self.requires_grad_()

    @classmethod
    def _of(cls, real: Tensor, imag: Tensor) -> Self:
        new = object.__new__(cls)
        new.real, new.imag = real, imag
        return new

    # --- properties
    @property
    def shape(self) -> tuple[int, ...]:
        """Size of each axis."""
        return self.real.shape

    @property
    def dtype(self) -> DType:
        """complex64 or complex128."""
        return complex_of(self.real.dtype)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.real.ndim

    @property
    def device(self) -> str:
        """The device of the planes."""
        return self.real.device

    @property
    def requires_grad(self) -> bool:
        """True if a plane requires a gradient."""
        return self.real.requires_grad or self.imag.requires_grad

    @property
    def grad(self) -> Self | None:
        """The gradients by both planes, as real and imaginary part: of a real loss the direction of steepest ascent,
        as in PyTorch. None before backward()."""
        parts = [p.grad for p in (self.real, self.imag)]
        if all(p is None for p in parts):
            return None
        real, imag = (self.real.zeros_like() if p is None else p for p in parts)
        return self._of(real, imag)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Make both planes leaves that backward() gives a gradient to, or stop that."""
        for plane in (self.real, self.imag):
            plane.requires_grad_(requires_grad)
        return self

    def numel(self) -> int:
        """Number of elements."""
        return self.real.numel()

    @property
    def T(self) -> Self:
        """The axes of a matrix exchanged."""
        return self._of(self.real.T, self.imag.T)

    @property
    def mT(self) -> Self:
        """The last two axes exchanged."""
        return self._of(self.real.mT, self.imag.mT)

    @property
    def mH(self) -> Self:
        """The conjugate of `mT`."""
        return self._of(self.real.mT, self.imag.mT.neg())

    # --- to the host
    def realize(self) -> Self:
        """Compute both planes now, together."""
        self.real.realize(self.imag)
        return self

    def numpy(self) -> np.ndarray[Any, Any]:
        """The values as a NumPy array of complex64 or complex128, a copy."""
        import numpy as np

        self.realize()
        array = np.empty(self.real.shape, self.dtype.name)
        array.real, array.imag = self.real.numpy(), self.imag.numpy()
        return array

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        if copy is False:
            raise ValueError("__array__: planes as one array need a copy.")
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def tolist(self) -> Any:
        """The values as nested lists of complex numbers."""
        return self.numpy().tolist()

    def item(self) -> complex:
        """The value of a tensor with one element."""
        return complex(self.real.item(), self.imag.item())

    def __complex__(self) -> complex:
        return self.item()

    def __bool__(self) -> bool:
        return bool(self.real) or bool(self.imag)

    def __len__(self) -> int:
        return len(self.real)

    def __repr__(self) -> str:
        return f"<ComplexTensor {show_shape(self.shape)} {self.dtype.name} {self.device}>"

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        return self.real.__array_namespace__(api_version=api_version)  # type: ignore[attr-defined]

    def to_device(self, device: str, /, *, stream: None = None) -> Self:
        """Return the tensor on another device, by the array API's name."""
        return self.to(device)

    # --- both planes alike
    def _on_planes(self, name: str, *args: Any, **kwargs: Any) -> Any:
        real, imag = (getattr(plane, name)(*args, **kwargs) for plane in (self.real, self.imag))
        if name in _LISTS:
            return [self._of(a, b) for a, b in zip(real, imag, strict=True)]
        return self._of(real, imag)

    def __getattr__(self, name: str) -> Any:
        if name in _BOTH or name in _LISTS:
            return functools.partial(self._on_planes, name)
        raise AttributeError(
            f"ComplexTensor has no attribute {name!r}. Use its planes .real and .imag, or .abs().", name=name, obj=self
        )

    def cast(self, dtype: DTypeLike) -> Self:
        """The other complex dtype."""
        wide = _plane_dtype(dtype)
        return self._of(self.real.cast(wide), self.imag.cast(wide))  # type: ignore[arg-type]

    def to(self, target: Any) -> Self:
        """Return the tensor on another device, or in the other complex dtype."""
        if isinstance(target, DType) or str(target).startswith("complex"):
            return self.cast(target)
        return self._of(self.real.to(target), self.imag.to(target))

    def __getitem__(self, index: Any) -> Self:
        return self._of(self.real[index], self.imag[index])

    def __setitem__(self, index: Any, value: Complex) -> None:
        other = self._operand(value)
        self.real[index], self.imag[index] = other.real, other.imag

    def assign(self, value: Complex) -> Self:
        """Assign new values of the same shape; views show them."""
        other = self._operand(value)
        self.real.assign(other.real.cast(self.real.dtype))
        self.imag.assign(other.imag.cast(self.imag.dtype))
        return self

    def _operand(self, value: Complex) -> Self:
        """The other side of an operator. Python numbers are weak."""
        if isinstance(value, ComplexPlanes):
            return self._of(value.real, value.imag)
        if isinstance(value, (bool, int, float, complex)):
            number, kind = complex(value), self.real.dtype
            return self._of(Tensor(number.real, kind), Tensor(number.imag, kind))
        if not (isinstance(value, Tensor) or hasattr(value, "__array__")):
            raise DTypeError(
                f"ComplexTensor with {type(value).__name__}: operands are tensors, Python numbers and NumPy arrays."
            )
        return type(self)(value)

    def _joined_with(self, others: Sequence[ComplexPlanes], axis: int, join: Any) -> Self:
        """This tensor and others, their planes joined by `cat` or `stack`."""
        return self._of(
            join([self.real, *(t.real for t in others)], axis), join([self.imag, *(t.imag for t in others)], axis)
        )

    def _scalar(self, value: complex) -> Self:
        """A number in the dtype and shape of this tensor."""
        return self._of(self.real._filled(value.real), self.imag._filled(value.imag))


def _planes(data: Any, imag: Any, device: str | None, asked: DType | None) -> tuple[Tensor, Tensor]:
    if imag is not None:
        planes = [p if isinstance(p, Tensor) and device is None else Tensor(p, device=device) for p in (data, imag)]
        return planes[0], planes[1]
    if isinstance(data, ComplexPlanes):
        return (data.real, data.imag) if device is None else (data.real.to(device), data.imag.to(device))
    if isinstance(data, Tensor):
        data = data if device is None else data.to(device)
        return data, data._floating()._filled(0.0)
    import numpy as np

    if getattr(data, "requires_grad", False) is True and hasattr(data, "detach"):
        data = data.detach()
    try:
        is_weak = not hasattr(data, "dtype")  # Python's numbers: complex64, as its floats are float32
        array = np.asarray(data)
    except ValueError:
        raise ShapeError("ComplexTensor of a list: the inner lists have different lengths.") from None
    if array.dtype.kind not in "biufc":
        raise DTypeError(f"ComplexTensor of {array.dtype}: elements must be numbers.")
    is_narrow = is_weak or array.dtype.itemsize < 5 or array.dtype == np.complex64
    plane = asked or (dtypes.float32 if is_narrow else dtypes.float64)
    with np.errstate(over="ignore"):
        wide: Any = array.astype(complex_of(plane).name)
    parts = [Tensor(np.array(part, order="C"), device=device) for part in (wide.real, wide.imag)]
    return parts[0], parts[1]


with_sentences_at_init(ComplexPlanes)


class ComplexArithmetic(ComplexPlanes):
    """Operators, products and reductions."""

    def _two(self, value: Complex) -> tuple[Self, Self]:
        return self, self._operand(value)

    def __add__(self, other: Complex) -> Self:
        a, b = self._two(other)
        return self._of(a.real.add(b.real), a.imag.add(b.imag))

    def __sub__(self, other: Complex) -> Self:
        a, b = self._two(other)
        return self._of(a.real.sub(b.real), a.imag.sub(b.imag))

    def __mul__(self, other: Complex) -> Self:
        if isinstance(other, (Tensor, int, float)):
            return self._of(self.real.mul(other), self.imag.mul(other))
        a, b = self._two(other)
        return self._of(a.real.mul(b.real).sub(a.imag.mul(b.imag)), a.real.mul(b.imag).add(a.imag.mul(b.real)))

    def __truediv__(self, other: Complex) -> Self:
        if isinstance(other, (Tensor, int, float)):
            return self._of(self.real.div(other), self.imag.div(other))
        a, b = self._two(other)
        # Smith's: by the larger part of the divisor first, so that nothing overflows on the way
        is_steep = b.imag.abs().gt(b.real.abs())
        large, small = where(is_steep, b.imag, b.real), where(is_steep, b.real, b.imag)
        is_zero = large.eq(0.0)
        ratio = where(is_zero, large, small.div(where(is_zero, large._filled(1.0), large)))
        below = large.add(small.mul(ratio))
        top = where(is_steep, a.real.mul(ratio).add(a.imag), a.real.add(a.imag.mul(ratio)))
        side = where(is_steep, a.imag.mul(ratio).sub(a.real), a.imag.sub(a.real.mul(ratio)))
        return self._of(top.div(below), side.div(below))

    def __radd__(self, other: Complex) -> Self:
        return self._operand(other) + self

    def __rsub__(self, other: Complex) -> Self:
        return self._operand(other) - self

    def __rmul__(self, other: Complex) -> Self:
        return self * other

    def __rtruediv__(self, other: Complex) -> Self:
        return self._operand(other) / self

    def __neg__(self) -> Self:
        return self._of(self.real.neg(), self.imag.neg())

    def __pos__(self) -> Self:
        return self

    def __abs__(self) -> Tensor:
        return self.abs()

    def __eq__(self, other: Any) -> Tensor:  # type: ignore[override]
        if other is None:
            return NotImplemented
        a, b = self._two(other)
        return a.real.eq(b.real).logical_and(a.imag.eq(b.imag))

    def __ne__(self, other: Any) -> Tensor:  # type: ignore[override]
        return NotImplemented if other is None else self.__eq__(other).logical_not()

    __hash__ = object.__hash__

    def __matmul__(self, other: Complex) -> Self:
        return self.matmul(other)

    def __rmatmul__(self, other: Complex) -> Self:
        return self._operand(other).matmul(self)

    def matmul(self, other: Complex) -> Self:
        """The matrix product; four products of planes, or two with a real tensor."""
        if isinstance(other, Tensor):
            return self._of(self.real.matmul(other), self.imag.matmul(other))
        a, b = self._two(other)
        return self._of(
            a.real.matmul(b.real).sub(a.imag.matmul(b.imag)), a.real.matmul(b.imag).add(a.imag.matmul(b.real))
        )

    def conj(self) -> Self:
        """The conjugate."""
        return self._of(self.real, self.imag.neg())

    def abs(self) -> Tensor:
        """The modulus, without overflow on the way. Its gradient at 0 is 0."""
        return self.real.hypot(self.imag)

    def angle(self) -> Tensor:
        """The argument, from -pi to pi."""
        return self.imag.atan2(self.real)

    def square(self) -> Self:
        """self * self."""
        return self * self

    def reciprocal(self) -> Self:
        """1 / self."""
        return self._scalar(1.0) / self

    def sign(self) -> Self:
        """self / |self|; 0 of 0."""
        size = self.abs()
        return self / where(size.eq(0.0), 1.0, size)

    def prod(self, axis: int | None = None, keepdim: bool = False) -> Self:
        """The product of an axis, or of all elements, by halves."""
        z = self.reshape((-1,)) if axis is None else self.movedim(axis, 0)
        lead = z.shape[1:]
        while (size := z.shape[0]) > 1:
            half = size // 2
            pairs = z[:half] * z[half : 2 * half]
            z = pairs._joined_with([z[2 * half :]], 0, cat) if size % 2 else pairs
        z = type(self)(Tensor.ones(*lead, dtype=self.real.dtype)) if not z.shape[0] else z[0]
        if not keepdim:
            return z
        return z.reshape((1,) * self.ndim) if axis is None else z.unsqueeze(axis)  # type: ignore[no-any-return]

    def var(self, axis: Axes = None, keepdim: bool = False, *, correction: float = 1) -> Tensor:
        """The variance |z - mean|^2, a real tensor: the sum of those of the planes."""
        return self.real.var(axis, keepdim, correction=correction).add(
            self.imag.var(axis, keepdim, correction=correction)
        )

    def std(self, axis: Axes = None, keepdim: bool = False, *, correction: float = 1) -> Tensor:
        """The root of `var`."""
        return self.var(axis, keepdim, correction=correction).sqrt()

    def isnan(self) -> Tensor:
        """True where a part is nan."""
        return self.real.isnan().logical_or(self.imag.isnan())

    def isinf(self) -> Tensor:
        """True where a part is infinite."""
        return self.real.isinf().logical_or(self.imag.isinf())

    def isfinite(self) -> Tensor:
        """True where both parts are finite."""
        return self.real.isfinite().logical_and(self.imag.isfinite())

    def allclose(self, other: Complex, rtol: float = 1e-5, atol: float = 1e-8) -> bool:
        """True if |self - other| <= atol + rtol * |other| everywhere. This computes the tensor."""
        a, b = self._two(other)
        return bool((a - b).abs().le(b.abs().mul(rtol).add(atol)).all().item())

    def backward(self, gradient: Any = None) -> None:
        """A complex tensor has no order, so that it is not minimized.

        Raises:
            GradientError: always.
        """
        raise GradientError(
            "backward: a complex tensor is not a loss. Call it on a real one, for example z.abs().sum()."
        )


class ComplexTensor(ComplexArithmetic):
    """A complex tensor: `real` and `imag` are Tensors of its shape, which share their memory with it.

    `ComplexTensor(data)` takes complex numbers, nested lists of them, NumPy arrays and tensors;
    `ComplexTensor(real, imag)` takes planes. It has Tensor's operators, and the methods that move or add elements;
    `kernmill.array_api` has `concat`, `stack` and `where` of it, and `kernmill.fft` its transforms.
    """

    def exp(self) -> Self:
        """e ** z; an imaginary part of 0 stays 0, also where the real part is infinite."""
        x, y = self.real, self.imag
        size = x.exp()
        is_gone = x.eq(-math.inf).logical_and(y.isfinite().logical_not())
        angle = where(is_gone, 0.0, y)
        return self._of(size.mul(angle.cos()), where(angle.eq(0.0), angle, size.mul(angle.sin())))

    def expm1(self) -> Self:
        """e ** z - 1, exact for small z."""
        x, y = self.real, self.imag
        half = y.mul(0.5).sin()
        return self._of(x.expm1().mul(y.cos()).sub(half.mul(half).mul(2.0)), x.exp().mul(y.sin()))

    def log(self) -> Self:
        """Natural logarithm, of the branch with imaginary parts from -pi to pi."""
        size = self.abs()
        is_near = size.gt(0.5).logical_and(size.lt(2.0))
        wide, thin = where(is_near, self.real.abs().maximum(self.imag.abs()), 1.0), self.real.abs().minimum(
            self.imag.abs()
        )  # fmt: skip
        thin = where(is_near, thin, 0.0)
        near = wide.sub(1.0).mul(wide.add(1.0)).add(thin.mul(thin)).log1p().mul(0.5)
        return self._of(where(is_near, near, size.log()), self.angle())

    def log1p(self) -> Self:
        """log(1 + z), exact for small z."""
        x, y = self.real, self.imag
        is_small = x.abs().maximum(y.abs()).lt(0.5)
        inner = where(is_small, x.mul(x.add(2.0)).add(y.mul(y)), 0.0)
        return self._of(where(is_small, inner.log1p().mul(0.5), (self + 1.0).log().real), y.atan2(x.add(1.0)))

    def log2(self) -> Self:
        """Logarithm to base 2."""
        return self.log() * (1 / math.log(2.0))

    def log10(self) -> Self:
        """Logarithm to base 10."""
        return self.log() * (1 / math.log(10.0))

    def sqrt(self) -> Self:
        """The root with a real part of 0 or more."""
        x, y = self.real, self.imag
        is_zero = x.eq(0.0).logical_and(y.eq(0.0))
        size = where(is_zero, 1.0, x).mul(0.125).hypot(y.mul(0.125))
        root = where(is_zero, 1.0, x).abs().mul(0.125).add(size).sqrt().mul(2.0)
        rest = y.abs().div(root.mul(2.0))
        is_left, is_far = x.lt(0.0), y.isinf()
        real = where(is_zero, 0.0, where(is_far, math.inf, where(is_left, rest, root)))
        imag = where(is_far, math.inf, where(is_left, root, rest))
        return self._of(real, where(is_zero, y, imag.copysign(y)))

    def pow(self, exponent: Complex) -> Self:
        """z ** exponent: integers up to 16 by products, others exp(exponent * log(z))."""
        if isinstance(exponent, int) and abs(exponent) <= 16:
            power, base, count = self._scalar(1.0), self, abs(exponent)
            while count:
                power, base, count = (power * base if count & 1 else power), base * base, count >> 1
            return power if exponent >= 0 else power.reciprocal()
        a, b = self._two(exponent)
        is_zero = a.abs().eq(0.0)
        at_zero = where(b.real.eq(0.0).logical_and(b.imag.eq(0.0)), 1.0, 0.0)
        safe = self._of(where(is_zero, 1.0, a.real), where(is_zero, 0.0, a.imag))
        result = (b * safe.log()).exp()
        return self._of(where(is_zero, at_zero, result.real), where(is_zero, 0.0, result.imag))

    def __pow__(self, exponent: Complex) -> Self:
        return self.pow(exponent)

    def __rpow__(self, base: Complex) -> Self:
        return self._operand(base).pow(self)

    # --- circular and hyperbolic
    def _turned(self) -> Self:
        """i * z."""
        return self._of(self.imag.neg(), self.real)

    def _turned_back(self) -> Self:
        """-i * z."""
        return self._of(self.imag, self.real.neg())

    def sinh(self) -> Self:
        """Hyperbolic sine."""
        x, y = self.real, self.imag
        return self._of(where(x.eq(0.0), x, x.sinh().mul(y.cos())), where(y.eq(0.0), y, x.cosh().mul(y.sin())))

    def cosh(self) -> Self:
        """Hyperbolic cosine."""
        x, y = self.real, self.imag
        side = where(x.eq(0.0).logical_or(y.eq(0.0)), x.mul(y.sign()).sign().mul(0.0), x.sinh().mul(y.sin()))
        return self._of(x.cosh().mul(y.cos()), side)

    def tanh(self) -> Self:
        """Hyperbolic tangent, in Kahan's form."""
        x, y = self.real, self.imag
        is_far = x.abs().gt(18.0)
        near = where(is_far, 0.0, x)
        t, s = y.tan(), near.sinh()
        beta = t.mul(t).add(1.0)
        below = beta.mul(s).mul(s).add(1.0)
        fade = where(is_far, x.abs().mul(-2.0).exp(), 0.0)
        real = where(is_far, x._filled(1.0).copysign(x), beta.mul(s.mul(s).add(1.0).sqrt()).mul(s).div(below))
        far = fade.mul(y.sin()).mul(y.cos()).mul(4.0)
        return self._of(real, where(is_far, where(x.isinf(), y._filled(0.0).copysign(y), far), t.div(below)))

    def sin(self) -> Self:
        """Sine."""
        return self._turned().sinh()._turned_back()

    def cos(self) -> Self:
        """Cosine."""
        return self._turned().cosh()

    def tan(self) -> Self:
        """Tangent."""
        return self._turned().tanh()._turned_back()

    def _roots(self) -> tuple[Self, Self]:
        """The roots of 1 - z and 1 + z."""
        return (self._scalar(1.0) - self).sqrt(), (self + 1.0).sqrt()

    def acos(self) -> Self:
        """Inverse cosine, in Kahan's form."""
        low, high = self._roots()
        real = low.real.atan2(high.real).mul(2.0)
        return self._of(real, high.real.mul(low.imag).sub(high.imag.mul(low.real)).asinh())

    def asin(self) -> Self:
        """Inverse sine, in Kahan's form."""
        low, high = self._roots()
        product = low.real.mul(high.real).sub(low.imag.mul(high.imag))
        return self._of(self.real.atan2(product), low.real.mul(high.imag).sub(low.imag.mul(high.real)).asinh())

    def atan(self) -> Self:
        """Inverse tangent."""
        return self._turned().atanh()._turned_back()

    def asinh(self) -> Self:
        """Inverse hyperbolic sine."""
        return self._turned().asin()._turned_back()

    def acosh(self) -> Self:
        """Inverse hyperbolic cosine, in Kahan's form."""
        low, high = (self - 1.0).sqrt(), (self + 1.0).sqrt()
        real = low.real.mul(high.real).add(low.imag.mul(high.imag)).asinh()
        return self._of(real, low.imag.atan2(high.real).mul(2.0))

    def atanh(self) -> Self:
        """Inverse hyperbolic tangent."""
        x, y = self.real, self.imag
        apart = x.sub(1.0, reverse=True)
        real = x.mul(4.0).div(apart.mul(apart).add(y.mul(y))).log1p().mul(0.25)
        imag = y.mul(2.0).atan2(apart.mul(x.add(1.0)).sub(y.mul(y))).mul(0.5)
        return self._of(real, imag)


def as_complex(x: Any) -> ComplexTensor:
    """A tensor, array or number as a ComplexTensor; a ComplexTensor itself."""
    return x if isinstance(x, ComplexTensor) else ComplexTensor(x)


def joined(tensors: Sequence[Any], axis: int = 0, *, is_new: bool = False) -> ComplexTensor:
    """`cat` of complex tensors, or `stack`."""
    first, *others = map(as_complex, tensors)
    return first._joined_with(others, axis, stack if is_new else cat)


REFLECTED[ComplexTensor] = as_complex
