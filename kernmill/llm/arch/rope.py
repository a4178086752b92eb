"""Rotary positions: pairs of entries of a head, rotated by an angle that grows with the position.

Entry pair i rotates by position * base ** (-2i / size), in radians; models rescale it for contexts longer than trained:

    factors    a divisor of each frequency, from the file (Llama 3, LongRoPE)
    linear     all frequencies divided by one factor
    yarn       slow pairs divided by the factor, fast ones unchanged, a ramp between; the vectors grow slightly

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
    """Cosine and sine of each angle. Shapes: factors (size / 2,), the results (positions, size / 2) each."""
    frequencies = rope.base ** (-2.0 * np.arange(rope.size // 2) / max(1, rope.size))
    frequencies, growth = _stretched(rope, frequencies, None if factors is None else factors.numpy())
    angles = np.arange(positions)[:, None] * frequencies
    cosine, sine = (np.asarray(f(angles) * growth, np.float32) for f in (np.cos, np.sin))
    return Tensor(cosine), Tensor(sine)


def _stretched(rope: Rope, frequencies: Array, factors: Array | None) -> tuple[Array, float]:
    """Frequencies for the longer context, and the factor on cosine and sine."""
    if factors is not None:
        if not (np.isfinite(factors).all() and (factors > 0).all()):
            raise FormatError("rope: the frequency factors of the file must all be positive.")
        frequencies = frequencies / factors
    if rope.scaling == "linear":
        return frequencies / rope.factor, rope.attention_factor
    if rope.scaling != "yarn":
        return frequencies, rope.attention_factor
    low, high = (_pair_that_turns(rope, turns) for turns in (rope.beta_fast, rope.beta_slow))
    low, high = max(0.0, math.floor(low)), min(rope.size - 1.0, math.ceil(high))
    ramp = np.clip((np.arange(len(frequencies)) - low) / max(0.001, high - low), 0, 1)  # 0: fast, left alone
    growth = rope.attention_factor * (1 + 0.1 * math.log(max(1.0, rope.factor)))
    return frequencies * (1 - ramp) + frequencies / rope.factor * ramp, growth


def _pair_that_turns(rope: Rope, turns: float) -> float:
    """Return the pair with this many rotations within the trained context."""
    if rope.base <= 1 or turns <= 0:
        raise FormatError(
            f"rope: yarn with base {rope.base:g} and {turns:g} rotations has no frequencies to interpolate."
        )
    return rope.size * math.log(rope.trained_context / (turns * 2 * math.pi)) / (2 * math.log(rope.base))


def rotate(x: Tensor, cosine: Tensor, sine: Tensor, *, by_halves: bool) -> Tensor:
    """Heads with their first entries rotated. Shapes: x (.., tokens, width), cosine and sine (.., tokens, size / 2).

    Pair i is (i, i + size / 2) with `by_halves`, else (2i, 2i + 1), which is how llama's files order them.
    """
    half = cosine.shape[-1]
    if not half:
        return x
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    if by_halves:
        a, b = turned[..., :half], turned[..., half:]
    else:
        a, b = turned[..., ::2], turned[..., 1::2]
    first, second = a * cosine - b * sine, a * sine + b * cosine
    result = cat([first, second], -1) if by_halves else stack([first, second], -1).flatten(-2)
    return cat([result, rest], -1) if rest.shape[-1] else result
