"""ALiBi: scores that fall with the distance of two tokens, in each head at another rate.

Source: Press et al., Train Short, Test Long (2021).
"""

from __future__ import annotations

import numpy as np

from kernmill import Tensor

__all__ = ["slopes"]


def slopes(heads: int, largest: float = 8.0) -> Tensor:
    """Return what the scores of a head lose for each token of distance. Shapes: (heads,)."""
    whole = 1 << (heads.bit_length() - 1)  # the largest power of two
    first = 2.0 ** (-largest * np.arange(1, whole + 1) / whole)
    between = 2.0 ** (-largest / 2 * np.arange(1, 2 * (heads - whole), 2) / whole)
    return Tensor(np.concatenate([first, between]).astype(np.float32))
