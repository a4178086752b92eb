"""The extension of Fourier transforms: kernmill.fft with the standard's arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kernmill.ir import DType, dtypes

from .. import fft as _fft
from .dtypes import Array

__all__ = [
    "fft", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifftn", "ifftshift", "ihfft", "irfft", "irfftn", "rfft",
    "rfftfreq", "rfftn",
]  # fmt: skip


def _one_axis(name: str) -> Callable[..., Any]:
    def function(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
        return getattr(_fft, name)(x, n, axis, norm)  # type: ignore[no-any-return]

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"The standard's `{name}`: kernmill.fft.{name}."
    return function


def _more_axes(name: str) -> Callable[..., Any]:
    def function(
        x: Any, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: str = "backward"
    ) -> Array:
        return getattr(_fft, name)(x, s, axes, norm)  # type: ignore[no-any-return]

    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"The standard's `{name}`: kernmill.fft.{name}."
    return function


fft, ifft, rfft, irfft, hfft, ihfft = map(_one_axis, ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft"))
fftn, ifftn, rfftn, irfftn = map(_more_axes, ("fftn", "ifftn", "rfftn", "irfftn"))


def fftfreq(n: int, /, *, d: float = 1.0, dtype: DType | None = None, device: str | None = None) -> Array:
    """The frequencies of `fft`."""
    return _fft.fftfreq(n, d, dtype=dtype or dtypes.default_float, device=device)


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: DType | None = None, device: str | None = None) -> Array:
    """The frequencies of `rfft`."""
    return _fft.rfftfreq(n, d, dtype=dtype or dtypes.default_float, device=device)


def fftshift(x: Any, /, *, axes: int | Sequence[int] | None = None) -> Array:
    """The frequency 0 in the middle."""
    return _fft.fftshift(x, axes)  # type: ignore[no-any-return]


def ifftshift(x: Any, /, *, axes: int | Sequence[int] | None = None) -> Array:
    """The inverse of `fftshift`."""
    return _fft.ifftshift(x, axes)  # type: ignore[no-any-return]
