"""Rotary position embeddings (RoPE): pairs of entries of a head, rotated by an angle that grows with the position.

Pair i rotates by position * frequency, in radians, with frequency base ** (-2i / size). For contexts longer than the
trained one, models rescale the frequencies:

    factors    a divisor of each frequency, from the file (Llama 3, LongRoPE)
    linear     all frequencies divided by one factor
    yarn       low frequencies divided by the factor, high ones unchanged, a ramp between; cosine and sine are scaled

Source: Su et al., RoFormer (2021); Peng et al., YaRN (2023); Ding et al., LongRoPE (2024).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kernmill import FormatError, Tensor, cat, stack

from .config import Rope

__all__ = ["rotate", "tables"]

Array = np.ndarray[Any, Any]


def tables(rope: Rope, positions: int, factors: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return cosine and sine of each angle. Shapes: factors (size / 2,), the results (positions, size / 2) each."""
    frequencies = rope.base ** (-2.0 * np.arange(rope.size // 2) / max(1, rope.size))
    frequencies, growth = _stretched(rope, frequencies, None if factors is None else factors.numpy())
    angles = np.arange(positions)[:, None] * frequencies
    cosine, sine = (np.asarray(f(angles) * growth, np.float32) for f in (np.cos, np.sin))
    return Tensor(cosine), Tensor(sine)


def _stretched(rope: Rope, frequencies: Array, factors: Array | None) -> tuple[Array, float]:
    """Return the frequencies for the longer context, and the factor of cosine and sine."""
    if factors is not None:
        if not (np.isfinite(factors).all() and (factors > 0).all()):
            raise FormatError("rope: the frequency factors of the file must all be positive.")
        frequencies = frequencies / factors
    if rope.scaling == "linear":
        return frequencies / rope.factor, rope.attention_factor
    if rope.scaling != "yarn":
        return frequencies, rope.attention_factor
    low, high = (_pair_of_rotations(rope, rotations) for rotations in (rope.beta_fast, rope.beta_slow))
    low, high = max(0.0, math.floor(low)), min(rope.size - 1.0, math.ceil(high))
    ramp = np.clip((np.arange(len(frequencies)) - low) / max(0.001, high - low), 0, 1)  # 0: a high frequency, unchanged
    growth = rope.attention_factor * (1 + 0.1 * math.log(max(1.0, rope.factor)))
    return frequencies * (1 - ramp) + frequencies / rope.factor * ramp, growth


def _pair_of_rotations(rope: Rope, rotations: float) -> float:
    """Return the index, not rounded, of the pair that makes this many rotations within the trained context."""
    if rope.base <= 1 or rotations <= 0:
        raise FormatError(
            f"rope: yarn with base {rope.base:g} and {rotations:g} rotations has no frequencies to interpolate."
        )
    return rope.size * math.log(rope.trained_context / (rotations * 2 * math.pi)) / (2 * math.log(rope.base))


def rotate(x: Tensor, cosine: Tensor, sine: Tensor, *, by_halves: bool) -> Tensor:
    """Rotate the first `size` entries of heads. Shapes: x (.., tokens, width), cosine and sine (.., tokens, size / 2).

    Pair i is (i, i + size / 2) with `by_halves`, else (2i, 2i + 1), as in GGUF files of llama.
    """
    half = cosine.shape[-1]
    if not half:
        return x
    entries, rest = x[..., : 2 * half], x[..., 2 * half :]
    if by_halves:
        a, b = entries[..., :half], entries[..., half:]
    else:
        a, b = entries[..., ::2], entries[..., 1::2]
    first, second = a * cosine - b * sine, a * sine + b * cosine
    result = cat([first, second], -1) if by_halves else stack([first, second], -1).flatten(-2)
    return cat([result, rest], -1) if rest.shape[-1] else result
