"""Signals: windows, Fourier transforms as products with matrices of sines, mel weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kernmill.ir import ShapeError, dtypes

from ...tensor import Tensor
from ..table import operator
from ..values import Host, dtype_of


def _window(name: str, terms: tuple[float, ...]) -> None:
    @operator(name)
    def run(size: Host, *, output_datatype: int = 1, periodic: int = 1) -> Tensor:
        n = int(size.item())
        at = np.arange(n) * (2 * math.pi / (n if periodic else max(n - 1, 1)))
        values = np.asarray(sum(c * np.cos(i * at) for i, c in enumerate(terms)))
        return Tensor(values).cast(dtype_of(output_datatype) or dtypes.float32)


_window("HannWindow", (0.5, -0.5))
_window("HammingWindow", (25 / 46, -21 / 46))
_window("BlackmanWindow", (0.42, -0.5, 0.08))


def _transform(real: Tensor, imaginary: Tensor | None, length: int, inverse: bool) -> tuple[Tensor, Tensor]:
    """The discrete Fourier transform of the last axis."""
    n = real.shape[-1]
    angle = np.outer(np.arange(n), np.arange(length)) % length * (2 * math.pi / length)
    cos = Tensor(np.cos(angle)).cast(real.dtype)
    sin = Tensor(np.sin(angle) * (1 if inverse else -1)).cast(real.dtype)
    a, b = real @ cos, real @ sin
    if imaginary is not None:
        a, b = a - imaginary @ sin, b + imaginary @ cos
    return (a / length, b / length) if inverse else (a, b)


@operator("DFT")
def dft(
    x: Tensor, length: Host = None, axis_in: Host = None, *, axis: int | None = None, inverse: int = 0,
    onesided: int = 0, opset: int,
) -> Tensor:  # fmt: skip
    given = axis_in.item() if axis_in is not None else axis if axis is not None else (1 if opset < 20 else -2)
    at = int(given) % x.ndim
    if at == x.ndim - 1:
        raise ShapeError("DFT: the last axis has the real and imaginary parts. Change the model.")
    rows = x.movedim(at, -2)
    size = rows.shape[-2]
    wanted = int(length.item()) if length is not None else (2 * (size - 1) if onesided and inverse else size)
    real, imaginary = rows[..., 0], rows[..., 1] if rows.shape[-1] == 2 else None
    if onesided and inverse:  # the other half is the conjugate of the first
        half = imaginary if imaginary is not None else real * 0
        tail = slice(1, wanted - size + 1)
        real = real.cat(real[..., tail].flip(-1), axis=-1)
        imaginary = half.cat(-half[..., tail].flip(-1), axis=-1)
    if real.shape[-1] != wanted:
        cut = [(0, 0)] * (real.ndim - 1) + [(0, wanted - real.shape[-1])]
        real, imaginary = real.pad(cut), imaginary.pad(cut) if imaginary is not None else None
    a, b = _transform(real, imaginary, wanted, bool(inverse))
    if onesided and inverse:
        return a.unsqueeze(-1).movedim(-2, at)
    if onesided:
        a, b = a[..., : wanted // 2 + 1], b[..., : wanted // 2 + 1]
    return a.stack(b, axis=-1).movedim(-2, at)


@operator("STFT")
def stft(x: Tensor, step: Host, window: Tensor | None = None, length: Host = None, *, onesided: int = 1) -> Tensor:
    size = int(length.item()) if length is not None else window.shape[0] if window is not None else 0
    if size <= 0:
        raise ShapeError("STFT: it needs a window or the length of a frame. Change the model.")
    signal = x if x.ndim == 3 else x.unsqueeze(-1)
    frames = signal.unfold(1, size, int(step.item()))  # (batch, frames, parts, size)
    frames = frames if window is None else frames * window
    real, imaginary = frames[:, :, 0], frames[:, :, 1] if frames.shape[2] == 2 else None
    a, b = _transform(real, imaginary, size, False)
    keep = size // 2 + 1 if onesided else size
    return a[..., :keep].stack(b[..., :keep], axis=-1)


@operator("MelWeightMatrix")
def mel_weight_matrix(bins: Host, length: Host, rate: Host, low: Host, high: Host, *, output_datatype: int = 1) -> Any:
    count, size = int(bins.item()), int(length.item())
    spectrum = size // 2 + 1
    mel = [2595 * math.log10(1 + float(f.item()) / 700) for f in (low, high)]
    step = (mel[1] - mel[0]) / (count + 2)
    hertz = 700 * (10 ** ((np.arange(count + 2) * step + mel[0]) / 2595) - 1)
    edges = ((size + 1) * hertz // rate.item()).astype(int)
    weights = np.zeros((spectrum, count))
    for i in range(count):
        left, middle, right = edges[i : i + 3]
        if middle == left:
            weights[middle, i] = 1
        else:
            weights[left : middle + 1, i] = (np.arange(left, middle + 1) - left) / (middle - left)
        if right > middle:
            weights[middle:right, i] = (right - np.arange(middle, right)) / (right - middle)
    return Tensor(weights).cast(dtype_of(output_datatype) or dtypes.float32)
