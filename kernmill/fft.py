"""Fourier transforms under the names of numpy.fft and torch.fft: functions of real and complex tensors, with gradients.

Sizes whose prime factors are at most 13 are one generated kernel for all rows (compiler/routines/fourier.py); other
sizes are a convolution by two longer transforms (Bluestein). Real tensors give complex64, float64 complex128. `norm` is
"backward" (the inverse is divided by n), "ortho" (both by its root) or "forward" (the other is).
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from kernmill.ir import DType, DTypeError, DTypeLike, Ops, SettingError, ShapeError, UOp, dtypes, show_shape

from .complex_tensor import ComplexTensor, as_complex
from .methods.factors import linked
from .methods.movement import cat, stack
from .tensor import Tensor

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifft2", "ifftn", "ifftshift", "ihfft", "irfft",
    "irfft2", "irfftn", "rfft", "rfft2", "rfftfreq", "rfftn",
]  # fmt: skip

Input: TypeAlias = "Tensor | ComplexTensor"
Axes: TypeAlias = "int | Sequence[int] | None"

_RADICES = (13, 11, 8, 7, 5, 4, 3, 2)  # of passes: 8 complex values and their results fill 32 registers
_SMALL = 128  # rows below 16 butterflies of 8 do not fill vectors of 16 lanes: many of them are interleaved
_MANY = 8  # rows, as many as a vector has lanes at most of float64
_TABLES = 32  # of roots of unity that are kept


def radices(n: int) -> tuple[int, ...]:
    """The passes of a transform; empty if a prime factor is too large."""
    found = list[int]()
    for radix in _RADICES:
        while n % radix == 0:
            found.append(radix)
            n //= radix
    return tuple(found) if n == 1 else ()


@functools.lru_cache(_TABLES)
def _roots(n: int, dtype: DType, device: str) -> Tensor:
    """The roots of unity of each pass, as the routine reads them."""
    import numpy as np

    parts, length = [np.zeros(1)], n
    for radix in radices(n):
        apart = length // radix
        turns = np.outer(np.arange(1, radix), np.arange(apart)) % length
        angles = turns * (-2 * math.pi / length)
        parts += [np.stack([np.cos(angles), np.sin(angles)], 1).reshape(-1)]
        length = apart
    return Tensor(np.concatenate(parts[1:] if n > 1 else parts).astype(dtype.name), device=device)


@functools.lru_cache(_TABLES)
def _turns(count: int, n: int, step: int, dtype: DType, device: str) -> ComplexTensor:
    """exp(-2 pi i step k / n) for k below `count`."""
    import numpy as np

    angles = np.arange(count) * step % n * (-2 * math.pi / n)
    planes = [Tensor(part.astype(dtype.name), device=device) for part in (np.cos(angles), np.sin(angles))]
    return ComplexTensor(*planes)


@functools.lru_cache(_TABLES)
def _chirp(n: int, size: int, dtype: DType, device: str) -> tuple[ComplexTensor, ComplexTensor]:
    """exp(-i pi k^2 / n), and the transform of its conjugate as a filter of a size."""
    import numpy as np

    turns = np.arange(n, dtype=np.int64)
    wave = np.exp(turns * turns % (2 * n) * (-1j * math.pi / n))
    kernel = np.zeros(size, complex)
    kernel[:n] = wave.conj()
    kernel[size - n + 1 :] = wave[1:].conj()[::-1]
    both: tuple[Any, Any] = (wave, np.fft.fft(kernel))
    made = [ComplexTensor(*[Tensor(p.astype(dtype.name), device=device) for p in (w.real, w.imag)]) for w in both]
    return made[0], made[1]


# --- rows ------------------------------------------------------------------------------------------------------------
def _transforms(x: Tensor, is_inverse: bool) -> Tensor:
    """The transforms of rows without a factor: (batch, planes, n) -> (batch, 2, n). One plane is real."""
    batch, planes, n = x.node_shape
    if not batch:
        return x.expand((0, 2, n)) if planes == 1 else x
    if n == 1:
        return x if planes == 2 else x.pad([(0, 0), (0, 1), (0, 0)])
    passes = radices(n)
    if not passes:
        return _bluestein(x, is_inverse)
    x = x._anchored()
    count, is_interleaved = 2 * n * min(2, len(passes)), batch >= _MANY and n < _SMALL
    flat = x.permute((1, 2, 0)) if is_interleaved else x
    table = _roots(n, x.dtype, x.device)
    arg = ("fft", batch * count, batch, is_interleaved, n, int(is_inverse), int(planes == 1), *passes)
    node = UOp(Ops.ROUTINE, x.dtype, (flat.reshape((-1,)).uop, table.uop), arg)
    made = x._result(node, table)
    if is_interleaved:
        result = made.reshape((count, batch)).shrink([(0, 2 * n), None]).reshape((2, n, batch)).permute((2, 0, 1))
    else:
        result = made.reshape((batch, count)).shrink([None, (0, 2 * n)]).reshape((batch, 2, n))

    def rule(_: Any, grad: Tensor) -> list[Tensor]:
        back = _transforms(grad, not is_inverse)
        return [back[:, :1] if planes == 1 else back]

    return linked(result, [x], rule)


def _bluestein(x: Tensor, is_inverse: bool) -> Tensor:
    """A transform of any size as a circular convolution of a size that is a power of two."""
    n = x.node_shape[-1]
    size = 1 << (2 * n - 2).bit_length()
    wave, kernel = _chirp(n, size, x.dtype, x.device)
    real = x[:, 0]
    z = ComplexTensor(real, real._filled(0.0) if x.node_shape[1] == 1 else x[:, 1])
    z = (z.conj() if is_inverse else z) * wave
    z = _planes_apart(_transforms(_planes_of(z.pad([(0, 0), (0, size - n)])), False)) * kernel
    z = _planes_apart(_transforms(_planes_of(z), True))[:, :n] * wave * (1.0 / size)
    return _planes_of(z.conj() if is_inverse else z)


def _planes_of(z: ComplexTensor) -> Tensor:
    return stack([z.real, z.imag], 1)


def _planes_apart(x: Tensor) -> ComplexTensor:
    return ComplexTensor(x[:, 0], x[:, 1])


# --- one axis --------------------------------------------------------------------------------------------------------
def _scale(norm: str | None, n: int, is_inverse: bool, call: str) -> float:
    if norm not in (None, "backward", "ortho", "forward"):
        raise SettingError(f"{call}: norm={norm!r}: must be 'backward', 'ortho', 'forward' or None.")
    if norm == "ortho":
        return 1 / math.sqrt(n)
    return 1 / n if (norm == "forward") is not is_inverse else 1.0


def _checked_input(x: Any, call: str) -> Any:
    if not isinstance(x, (Tensor, ComplexTensor)):
        raise DTypeError(f"fft.{call}: {type(x).__name__} is not a tensor. Give Tensor(..) or ComplexTensor(..).")
    if isinstance(x, Tensor):
        x = x._floating()
        return x if x.dtype is dtypes.float64 else x.cast(dtypes.float32)
    return x


def _of_points(x: Any, n: int | None, axis: int, call: str) -> tuple[Any, int, int]:
    """The tensor with the axis last, cut or padded with zeros to n; the axis, and n."""
    if not x.ndim:
        raise ShapeError(f"{call}: a 0-d tensor has no axis. Reshape it.")
    if not -x.ndim <= axis < x.ndim:
        raise ShapeError(f"{call}: axis {axis} of shape {show_shape(x.shape)}: must be from {-x.ndim} to {x.ndim - 1}.")
    axis %= x.ndim
    x = x.movedim(axis, -1) if axis != x.ndim - 1 else x
    own = x.shape[-1]
    if not isinstance(own, int):
        raise ShapeError(f"{call}: axis {axis} has the symbolic size {own}: its size must be known. Pad it.")
    n = own if n is None else operator.index(n)
    if n < 1:
        raise ShapeError(f"{call}: a transform of {n} points: must be 1 or more.")
    if n < own:
        x = x[..., :n]
    elif n > own:
        x = x.pad([*[(0, 0)] * (x.ndim - 1), (0, n - own)])
    return x, axis, n


def _back(x: Any, axis: int) -> Any:
    return x if axis == x.ndim - 1 else x.movedim(-1, axis)


def _complex_rows(x: Any, is_inverse: bool) -> ComplexTensor:
    """The transforms along the last axis, without a factor."""
    lead, n = x.shape[:-1], x.shape[-1]
    batch = math.prod(lead)
    if isinstance(x, ComplexTensor):
        flat = stack([x.real.reshape((batch, n)), x.imag.reshape((batch, n))], 1)
    else:
        flat = x.reshape((batch, 1, n))
    made = _transforms(flat, is_inverse)
    return ComplexTensor(made[:, 0].reshape((*lead, n)), made[:, 1].reshape((*lead, n)))


def _scaled(z: Any, scale: float) -> Any:
    return z if scale == 1.0 else z * scale


def _along(x: Any, n: int | None, axis: int, norm: str | None, call: str, is_inverse: bool) -> ComplexTensor:
    x, axis, n = _of_points(_checked_input(x, call), n, axis, call)
    scale = _scale(norm, n, is_inverse, call)
    return _back(_scaled(_complex_rows(x, is_inverse), scale), axis)  # type: ignore[no-any-return]


def fft(x: Input, n: int | None = None, axis: int = -1, norm: str | None = None) -> ComplexTensor:
    """The discrete Fourier transform of an axis, cut or padded with zeros to n points.

    Shapes: (.., m) -> (.., n). Dtypes: float64 and complex128 give complex128, others complex64.

    Raises:
        ShapeError: no such axis, or n below 1.
        SettingError: another norm.
    """
    return _along(x, n, axis, norm, "fft", is_inverse=False)


def ifft(x: Input, n: int | None = None, axis: int = -1, norm: str | None = None) -> ComplexTensor:
    """The inverse of `fft`.

    Shapes: (.., m) -> (.., n).
    """
    return _along(x, n, axis, norm, "ifft", is_inverse=True)


def rfft(x: Tensor, n: int | None = None, axis: int = -1, norm: str | None = None) -> ComplexTensor:
    """The first n // 2 + 1 values of the transform of a real tensor: the others are their conjugates.

    Shapes: (.., m) -> (.., n // 2 + 1).

    Raises:
        DTypeError: a complex tensor.
    """
    if isinstance(x, ComplexTensor):
        raise DTypeError(f"rfft: a {x.dtype.name} tensor: must be real. Use fft.")
    y, axis, n = _of_points(_checked_input(x, "rfft"), n, axis, "rfft")
    scale, half = _scale(norm, n, False, "rfft"), n // 2
    if n % 2 or half < 2:
        return _back(_scaled(_complex_rows(y, False)[..., : half + 1], scale), axis)  # type: ignore[no-any-return]
    pairs = y.reshape((*y.shape[:-1], half, 2))  # even and odd entries as one complex row of half the length
    z = _complex_rows(ComplexTensor(pairs[..., 0], pairs[..., 1]), False)
    whole, turned = _mirrored(z)
    roots = _turns(half + 1, n, 1, y.dtype, y.device)
    even, odd = whole + turned, (whole - turned) * roots
    result = even + ComplexTensor(odd.imag, odd.real.neg())
    return _back(_scaled(result, 0.5 * scale), axis)  # type: ignore[no-any-return]


def _mirrored(z: ComplexTensor) -> tuple[ComplexTensor, ComplexTensor]:
    """Rows with their first value repeated at the end, and the conjugates of these, backwards."""
    planes = [cat([p, p[..., :1]], -1) for p in (z.real, z.imag)]
    return ComplexTensor(*planes), ComplexTensor(planes[0].flip(-1), planes[1].flip(-1).neg())


def irfft(x: Input, n: int | None = None, axis: int = -1, norm: str | None = None) -> Tensor:
    """The inverse of `rfft`, of n points: by default 2 * (m - 1). The imaginary part of the first value is ignored,
    that of the last as well if n is even.

    Shapes: (.., m) -> (.., n).
    """
    given = as_complex(_checked_input(x, "irfft"))
    if not given.ndim or not -given.ndim <= axis < given.ndim:
        return _of_points(given, None, axis, "irfft")  # type: ignore[return-value]
    n = 2 * (given.shape[axis] - 1) if n is None else operator.index(n)
    if n < 1:
        raise ShapeError(f"irfft: a transform of {n} points: must be 1 or more.")
    half = n // 2
    z, axis, _ = _of_points(given, half + 1, axis, "irfft")
    scale = _scale(norm, n, True, "irfft")
    number = Tensor.arange(half + 1)
    is_real = number.eq(0).logical_or(number.eq(half)) if n % 2 == 0 else number.eq(0)
    z = ComplexTensor(z.real, is_real.logical_not().cast(z.real.dtype).mul(z.imag))
    if n % 2 or half < 2:
        rest = z[..., 1 : n - half].conj().flip(-1)
        full = ComplexTensor(cat([z.real, rest.real], -1), cat([z.imag, rest.imag], -1))
        return _back(_scaled(_complex_rows(full, True).real, scale), axis)  # type: ignore[no-any-return]
    turned = z.conj().flip(-1)
    roots = _turns(half + 1, n, 1, z.real.dtype, z.device).conj()
    even, odd = z + turned, (z - turned) * roots
    rows = _complex_rows((even + ComplexTensor(odd.imag.neg(), odd.real))[..., :half], True)
    pairs = stack([rows.real, rows.imag], -1)
    return _back(_scaled(pairs.reshape((*pairs.shape[:-2], n)), scale), axis)  # type: ignore[no-any-return]


_SWAPPED = {None: "forward", "backward": "forward", "forward": "backward", "ortho": "ortho"}


def hfft(x: Input, n: int | None = None, axis: int = -1, norm: str | None = None) -> Tensor:
    """The transform of values of which the second half is the conjugate of the first: real, of n points.

    Shapes: (.., m) -> (.., n).
    """
    return irfft(as_complex(_checked_input(x, "hfft")).conj(), n, axis, _SWAPPED.get(norm, norm))


def ihfft(x: Tensor, n: int | None = None, axis: int = -1, norm: str | None = None) -> ComplexTensor:
    """The inverse of `hfft`.

    Shapes: (.., m) -> (.., n // 2 + 1).
    """
    return rfft(x, n, axis, _SWAPPED.get(norm, norm)).conj()


# --- several axes ----------------------------------------------------------------------------------------------------
def _axes_with_sizes(x: Any, s: Sequence[int] | None, axes: Axes, call: str) -> list[tuple[int, int | None]]:
    """Axes with their sizes, which may be None."""
    if not isinstance(x, (Tensor, ComplexTensor)):
        _checked_input(x, call)
    if axes is None:
        chosen = list(range(-x.ndim if s is None else -len(s), 0))
    else:
        chosen = [axes] if isinstance(axes, int) else list(axes)
    sizes: list[int | None] = [None] * len(chosen) if s is None else list(s)
    if len(sizes) != len(chosen):
        raise ShapeError(f"{call}: {len(sizes)} sizes for {len(chosen)} axes: must be as many.")
    return list(zip(chosen, sizes, strict=True))


def _each_axis(one: Callable[..., Any], x: Any, pairs: Sequence[tuple[int, int | None]], norm: str | None) -> Any:
    for axis, n in reversed(pairs):
        x = one(x, n, axis, norm)
    return x


def fftn(x: Input, s: Sequence[int] | None = None, axes: Axes = None, norm: str | None = None) -> ComplexTensor:
    """`fft` of several axes, by default of all; `s` are their sizes."""
    return as_complex(_each_axis(fft, _checked_input(x, "fftn"), _axes_with_sizes(x, s, axes, "fftn"), norm))


def ifftn(x: Input, s: Sequence[int] | None = None, axes: Axes = None, norm: str | None = None) -> ComplexTensor:
    """The inverse of `fftn`."""
    return as_complex(_each_axis(ifft, _checked_input(x, "ifftn"), _axes_with_sizes(x, s, axes, "ifftn"), norm))


def rfftn(x: Tensor, s: Sequence[int] | None = None, axes: Axes = None, norm: str | None = None) -> ComplexTensor:
    """`rfft` of the last of several axes, then `fft` of the others."""
    *others, (axis, n) = _axes_with_sizes(x, s, axes, "rfftn") or [(-1, None)]
    return as_complex(_each_axis(fft, rfft(x, n, axis, norm), others, norm))


def irfftn(x: Input, s: Sequence[int] | None = None, axes: Axes = None, norm: str | None = None) -> Tensor:
    """The inverse of `rfftn`."""
    *others, (axis, n) = _axes_with_sizes(x, s, axes, "irfftn") or [(-1, None)]
    return irfft(_each_axis(ifft, x, others, norm), n, axis, norm)


def fft2(x: Input, s: Sequence[int] | None = None, axes: Axes = (-2, -1), norm: str | None = None) -> ComplexTensor:
    """`fftn` of two axes."""
    return fftn(x, s, axes, norm)


def ifft2(x: Input, s: Sequence[int] | None = None, axes: Axes = (-2, -1), norm: str | None = None) -> ComplexTensor:
    """`ifftn` of two axes."""
    return ifftn(x, s, axes, norm)


def rfft2(x: Tensor, s: Sequence[int] | None = None, axes: Axes = (-2, -1), norm: str | None = None) -> ComplexTensor:
    """`rfftn` of two axes."""
    return rfftn(x, s, axes, norm)


def irfft2(x: Input, s: Sequence[int] | None = None, axes: Axes = (-2, -1), norm: str | None = None) -> Tensor:
    """`irfftn` of two axes."""
    return irfftn(x, s, axes, norm)


# --- frequencies -----------------------------------------------------------------------------------------------------
def _count(n: int, call: str) -> int:
    n = operator.index(n)
    if n < 1:
        raise ShapeError(f"{call}: {n} points: must be 1 or more.")
    return n


def fftfreq(n: int, d: float = 1.0, *, dtype: DTypeLike = dtypes.default_float, device: str | None = None) -> Tensor:
    """The frequencies of the values of `fft` of n points that are d apart: 0, 1, .., -1, each over n * d."""
    half = (_count(n, "fftfreq") - 1) // 2 + 1
    indices = Tensor.arange(n, device=device)
    return indices.sub(indices.ge(half).cast(dtypes.int64).mul(n)).cast(dtypes.float64).div(n * d).cast(dtype)


def rfftfreq(n: int, d: float = 1.0, *, dtype: DTypeLike = dtypes.default_float, device: str | None = None) -> Tensor:
    """The frequencies of the values of `rfft`: 0 to n // 2, each over n * d."""
    return Tensor.arange(_count(n, "rfftfreq") // 2 + 1, device=device).cast(dtypes.float64).div(n * d).cast(dtype)


def _shifted(x: Any, axes: Axes, sign: int) -> Any:
    chosen = list(range(x.ndim)) if axes is None else [axes] if isinstance(axes, int) else list(axes)
    if not chosen:
        return x
    half = [(x.shape[a] // 2 if sign > 0 else -(x.shape[a] // 2)) for a in chosen]
    return x.roll(tuple(half), tuple(chosen))


def fftshift(x: Any, axes: Axes = None) -> Any:
    """The frequency 0 in the middle of axes, by default of all."""
    return _shifted(x, axes, 1)


def ifftshift(x: Any, axes: Axes = None) -> Any:
    """The inverse of `fftshift`."""
    return _shifted(x, axes, -1)
