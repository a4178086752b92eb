"""ALiBi: scores that fall with the distance of two tokens, in each head at another rate.

Source: Press et al., Train Short, Test Long (2021).
"""

from __future__ import annotations

import numpy as np

from kernmill import Tensor, where

from .cache import Positions

__all__ = ["falling", "slopes"]


def slopes(heads: int, largest: float = 8.0) -> Tensor:
    """Return what the scores of a head lose for each token of distance. Shapes: (heads,)."""
    whole = 1 << (heads.bit_length() - 1)  # the largest power of two
    first = 2.0 ** (-largest * np.arange(1, whole + 1) / whole)
    between = 2.0 ** (-largest / 2 * np.arange(1, 2 * (heads - whole), 2) / whole)
    return Tensor(np.concatenate([first, between]).astype(np.float32))


def falling(mask: Tensor, positions: Positions, capacity: int, heads: tuple[int, int], largest: float = 8.0) -> Tensor:
    """Scores to add that fall with the distance, and -inf where a mask is False. `heads`: of queries and of keys.

    Shapes: mask (sequences, 1, 1, tokens, end) -> (sequences, key heads, queries of each, tokens, end).
    """
    every = Tensor.arange(capacity)
    seen, now = every[: positions.end], positions.rows(every, mask.shape[-2]).unflatten(-1, (1, 1, -1, 1))
    falls = (seen - now).abs().float() * -slopes(heads[0], largest).reshape(heads[1], -1, 1, 1)
    return where(mask, falls, falls._filled(float("-inf"))).contiguous()
