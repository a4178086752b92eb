"""Writing IQ1, IQ2 and IQ3: blocks of 256 values by a search of codebook entries.

For each group, a few scales are tried. With each, every 8 (or 4) values take the entry with the smallest weighted
error. The best real scale for these entries is computed, as in fitting.py. Then the scales are rounded to
4 bits (3 of IQ1), the entries are searched again, and the scale of the block is fitted to them.

Where signs have seven bits, the number of negative values is even: the value of the smallest weighted square changes
its sign otherwise. Tests: tests/kernmill/quant/test_grid_writing.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from kernmill.ir import dtypes

from ..methods.elementwise import where
from ..methods.movement import cat
from ..tensor import Tensor
from .bits import half_bytes, pack
from .codebooks import codebook
from .fitting import chosen_try, inverse, weighed

__all__ = ["WRITERS"]

_TRIES = 8  # scales of a group: they map its largest magnitude to parts of the largest number of the codebook
_FIRST, _STEP = 0.65, 0.1  # of these parts
_EIGHTH = 0.125


@functools.lru_cache(maxsize=32)
def _points(name: str, device: str) -> Tensor:
    """The entries of a codebook, float32 [entries, values of one]; of IQ1 with an eighth more, then with one less."""
    grid: Any = codebook(name).astype(np.float32)
    if name.startswith("IQ1"):
        grid = np.concatenate([grid + _EIGHTH, grid - _EIGHTH])
    return Tensor(grid, device=device).realize()


def _nearest_entry(x: Tensor, weights: Tensor, points: Tensor) -> Tensor:
    """Return the index of the entry with the smallest weighted error: [.., n] to [..]."""
    x, weights = x.unsqueeze(-2), weights.unsqueeze(-2)
    return (weights * points * (points - 2 * x)).sum(-1).argmin(-1)


def _fit_scales(x: Tensor, weights: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """The scale of each group with the smallest error, and by how much it lowers the error: [.., groups, vectors, n] to
    [.., groups]."""
    top = points.abs().max()
    reach = inverse(x.abs().flatten(-2).max(-1, keepdim=True)) * top
    factors = Tensor.arange(_TRIES).float() * _STEP + _FIRST
    inverses = (reach * factors).unsqueeze(-1).unsqueeze(-1)  # [.., groups, tries, 1, 1]
    x, weights = x.unsqueeze(-3), weights.unsqueeze(-3)
    found = points[
        _nearest_entry(x * inverses, weights.expand(*inverses.shape[:-2], *x.shape[-2:]), points).contiguous()
    ]
    sum_xg, sum_gg = ((weights * part * found).sum((-2, -1)) for part in (x, found))
    scale = (sum_xg * inverse(sum_gg)).clamp(0)
    gain = (scale * (2 * sum_xg - scale * sum_gg)).contiguous()
    scale, gain = chosen_try(gain, scale.contiguous(), gain)
    return scale.squeeze(-1).contiguous(), gain.squeeze(-1).contiguous()


def _with_even_signs(x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Magnitudes and signs of vectors, a negative magnitude where a sign had to change: [.., 8] each; signs 0 or 1."""
    negative = x.lt(0).int()
    odd = negative.sum(-1, keepdim=True) & 1
    least = (weights * x.square()).argmin(-1, keepdim=True)
    changes = Tensor.arange(8, dtype=dtypes.int32).eq(least.int()).logical_and(odd.ne(0))
    return where(changes, -x.abs(), x.abs()), where(changes, 1 - negative, negative)


class _GridSearch:
    """The codes of blocks: `index` [.., vectors], `steps` the scales of groups [.., groups], `d` the bytes of the scale
    of a block, and `signs`, a byte for each 8 values. A value is d * unit * (steps * twice + 1) * sign * entry.
    """

    def __init__(
        self, name: str, x: Tensor, importance: Tensor | None, groups: int, *, most: int, even: bool | None
    ) -> None:
        blocks = x.unflatten(-1, (8, 32))
        weights = weighed(blocks, blocks._filled(1.0) if importance is None else importance.unflatten(-1, (8, 32)))
        points = _points(name, x.device)
        eights = (groups, 32 // groups, 8)
        x, weights = (part.flatten(-2).unflatten(-1, eights).contiguous() for part in (x.unsqueeze(-2), weights))
        if even is not None:
            x, signs = _with_even_signs(x, weights) if even else (x.abs(), x.lt(0).int())
            self.signs = pack(signs.flatten(-3), 1, 1)
            x = x.contiguous()
        n = points.shape[1]
        x, weights = (part.flatten(-2).unflatten(-1, (-1, n)) for part in (x, weights))
        tables = points.split(len(codebook(name)), 0) if name == "IQ1_S" else [points]
        fits = [_fit_scales(x, weights, table) for table in tables]
        is_second = fits[-1][1].gt(fits[0][1])
        scale = where(is_second, fits[-1][0], fits[0][0]).contiguous()
        top = scale.max(-1, keepdim=True) / (2 * most + 1)  # a scale is an odd number of these
        self.steps = ((scale * inverse(top) - 1) / 2).round().clamp(0, most)
        odd = (self.steps * 2 + 1).contiguous()
        factors = (odd * top).contiguous()
        scaled = (x * inverse(factors).unsqueeze(-1).unsqueeze(-1)).contiguous()
        indices = [_nearest_entry(scaled, weights, table).contiguous() for table in tables]
        self.is_second = is_second
        self.index = where(
            is_second.unsqueeze(-1), indices[-1] + (len(points) - len(tables[-1])), indices[0]
        ).contiguous()
        found = points[self.index] * odd.unsqueeze(-1).unsqueeze(-1)
        axes = (-3, -2, -1)
        fitted = (weights * x * found).sum(axes) * inverse((weights * found * found).sum(axes))
        self.unit = where(fitted.gt(0), fitted, top.squeeze(-1)).unsqueeze(-1)  # of the odd numbers

    def bytes_of(self, factor: float) -> Tensor:
        """The scale of a block, if its odd numbers are multiplied by its `factor`."""
        return half_bytes(self.unit * factor)

    def flat(self, part: Tensor) -> Tensor:
        """Of all vectors of a block, as int32: [.., groups, vectors] to [.., vectors]."""
        return part.flatten(-2).cast(dtypes.int32)


def _as_bytes(x: Tensor, count: int, dtype: Any = dtypes.uint32) -> Tensor:
    """Bytes of numbers, the lowest first: [.., n] to [.., count * n]."""
    places = Tensor.arange(count, dtype=dtype) * 8
    return (x.cast(dtype).unsqueeze(-1) >> places & 255).cast(dtypes.uint8).flatten(-2)


def _low(index: Tensor) -> Tensor:
    return (index & 255).cast(dtypes.uint8)


def _words_of_signs(found: _GridSearch) -> Tensor:
    """Four times seven bits of signs and four of a scale, as bytes: [.., 8, 4]."""
    sevens = (found.signs & 127).cast(dtypes.uint32).unflatten(-1, (8, 4))
    word = (sevens << Tensor.arange(4, dtype=dtypes.uint32) * 7).sum(-1, dtype=dtypes.uint32)
    return _as_bytes(word | found.steps.cast(dtypes.uint32) << 28, 4).unflatten(-1, (8, 4))


def _nibbles(found: _GridSearch) -> Tensor:
    return pack(found.steps.cast(dtypes.uint8), 4, 1)


def _write_iq2_xxs(x: Tensor, importance: Tensor | None = None) -> dict[str, Tensor]:
    found = _GridSearch("IQ2_XXS", x, importance, 8, most=15, even=True)
    groups = cat([_low(found.index), _words_of_signs(found)], axis=-1)
    return {"d": found.bytes_of(8), "qs": groups.flatten(-2)}


def _write_iq2_xs(x: Tensor, importance: Tensor | None = None) -> dict[str, Tensor]:
    found = _GridSearch("IQ2_XS", x, importance, 16, most=15, even=True)
    word = found.flat(found.index) | (found.signs & 127).cast(dtypes.int32) << 9
    return {"d": found.bytes_of(8), "qs": _as_bytes(word, 2), "scales": _nibbles(found)}


def _write_iq2_s(x: Tensor, importance: Tensor | None = None) -> dict[str, Tensor]:
    found = _GridSearch("IQ2_S", x, importance, 16, most=15, even=False)
    index = found.flat(found.index)
    return {"d": found.bytes_of(8), "qs": _low(index), "signs": found.signs, "qh": pack(index >> 8, 2, 1),
            "scales": _nibbles(found)}  # fmt: skip


def _write_iq3_xxs(x: Tensor, importance: Tensor | None = None) -> dict[str, Tensor]:
    found = _GridSearch("IQ3_XXS", x, importance, 8, most=15, even=True)
    scales = _words_of_signs(found).flatten(-2)
    return {"d": found.bytes_of(4), "qs": _low(found.flat(found.index)), "scales": scales}


def _write_iq3_s(x: Tensor, importance: Tensor | None = None) -> dict[str, Tensor]:
    found = _GridSearch("IQ3_S", x, importance, 8, most=15, even=False)
    index = found.flat(found.index)
    return {"d": found.bytes_of(1), "qs": _low(index), "qh": pack(index >> 8, 1, 1), "signs": found.signs,
            "scales": _nibbles(found)}  # fmt: skip


# --- IQ1: entries without signs, with an eighth more or less: the upper half of the indices has less
def _write_iq1_s(x: Tensor, importance: Tensor | None = None) -> dict[str, Tensor]:
    found = _GridSearch("IQ1_S", x, importance, 8, most=7, even=None)
    index = found.index.cast(dtypes.uint16)
    high = ((index >> 8 & 7) << Tensor.arange(4, dtype=dtypes.uint16) * 3).sum(-1, dtype=dtypes.uint16)
    word = high | found.steps.cast(dtypes.uint16) << 12 | found.is_second.cast(dtypes.uint16) << 15
    return {"d": found.bytes_of(1), "qs": _low(found.flat(index)), "qh": _as_bytes(word, 2, dtypes.uint16)}


def _write_iq1_m(x: Tensor, importance: Tensor | None = None) -> dict[str, Tensor]:
    found = _GridSearch("IQ1_M", x, importance, 16, most=7, even=None)
    index = found.flat(found.index)
    nibbles = (index >> 8 & 7 | index >> 11 << 3).cast(dtypes.uint8)
    d = found.unit.half().bitcast(dtypes.uint16)
    fours = d >> Tensor.arange(4, dtype=dtypes.uint16) * 4 & 15
    steps = found.steps.cast(dtypes.uint16).unflatten(-1, (4, 4)) << Tensor.arange(4, dtype=dtypes.uint16) * 3
    scales = _as_bytes(steps.sum(-1, dtype=dtypes.uint16) | fours << 12, 2, dtypes.uint16)
    return {"qs": _low(index), "qh": pack(nibbles, 4, 1), "scales": scales}


WRITERS: dict[str, Callable[..., dict[str, Tensor]]] = {
    "IQ2_XXS": _write_iq2_xxs, "IQ2_XS": _write_iq2_xs, "IQ2_S": _write_iq2_s, "IQ3_XXS": _write_iq3_xxs,
    "IQ3_S": _write_iq3_s, "IQ1_S": _write_iq1_s, "IQ1_M": _write_iq1_m,
}  # fmt: skip
