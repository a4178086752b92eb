"""Scales of groups of values: the best of a few tries, by weighted least squares.

Each try computes codes with a scale, and the best real scale (and least value) for these codes. The one with the
smallest weighted error is taken. Tests: tests/kernmill/quant/test_fitting.py.
"""

from __future__ import annotations

from ..methods.elementwise import where
from ..tensor import Tensor

__all__ = ["chosen_try", "fit_around_zero", "fit_from_least", "inverse", "largest", "weighed"]


def inverse(x: Tensor) -> Tensor:
    """1 / x, and 0 for 0."""
    return where(x.eq(0), x._filled(0.0), x.reciprocal())


def largest(x: Tensor) -> Tensor:
    """The value of the largest magnitude along the last axis, the first of several: [.., n] to [.., 1]."""
    most, least = x.max(-1, keepdim=True), x.min(-1, keepdim=True)
    first = x.gather(-1, x.abs().argmax(-1, keepdim=True))
    return where(most.eq(-least), first, where(most.gt(-least), most, least))


def weighed(x: Tensor, importance: Tensor) -> Tensor:
    """Return the weights of squared errors: the importance of a column, more for large values. A group of no importance
    counts as any other. Shapes: x and importance [.., groups, n], the result the same.

    The factor is the root of x squared and twice the mean square of all groups, as the reference quantizer has it.
    """
    is_known = importance.max(-1, keepdim=True).gt(0)
    size = (x.square() + 2 * x.square().mean((-2, -1), keepdim=True)).sqrt()
    return where(is_known, importance, importance._filled(1.0)) * size


def chosen_try(gain: Tensor, *values: Tensor) -> list[Tensor]:
    """Of each tensor [.., tries] the value where the gain is largest: [.., 1]."""
    best = gain.argmax(-1, keepdim=True)
    return [value.gather(-1, best) for value in values]


def fit_from_least(x: Tensor, weights: Tensor, most: int, tries: int, first: float) -> tuple[Tensor, Tensor]:
    """Fit scale and minus the least value so that x is near scale * code - least, codes 0 to `most`: [.., n] to [..,
    1].

    It tries `tries` scales that map the range of x to most + first, most + first + 0.1, ..
    """
    least, top = x.min(-1, keepdim=True).clamp(max=0), x.max(-1, keepdim=True)
    reach = inverse(top - least)
    factors = (Tensor.arange(tries).float() * 0.1 + (most + first)).reshape(tries, 1)
    above = x - least  # sums of it lose fewer bits than sums of x
    codes = (above.unsqueeze(-2) * (factors * reach.unsqueeze(-2))).round().clamp(0, most)
    w, wx = weights.unsqueeze(-2), (weights * above).unsqueeze(-2)
    sum_w, sum_x = w.sum(-1), wx.sum(-1)
    sum_l, sum_l2, sum_xl = (w * codes).sum(-1), (w * codes * codes).sum(-1), (wx * codes).sum(-1)
    determinant = sum_w * sum_l2 - sum_l * sum_l
    is_line = determinant.gt(1e-6 * sum_w * sum_l2)  # else all codes are equal, or nearly
    scale = where(is_line, (sum_w * sum_xl - sum_x * sum_l) / determinant, (top - least) / most)
    offset = where(is_line, (sum_l2 * sum_x - sum_l * sum_xl) / determinant, scale._filled(0.0))
    is_high = offset.gt(-least)  # the least value is at most 0
    offset = where(is_high, -least, offset)
    scale = where(is_high, (sum_xl + least * sum_l) * inverse(sum_l2), scale)
    gain = scale * (2 * sum_xl - scale * sum_l2 - 2 * offset * sum_l) + offset * (2 * sum_x - offset * sum_w)
    scale, offset = chosen_try(gain, scale, offset)
    return scale, -least - offset


def fit_around_zero(x: Tensor, weights: Tensor, half_range: int, tries: int) -> Tensor:
    """Fit a scale so that x is near scale * code, codes -half_range to half_range - 1: [.., n] to [.., 1]."""
    reach = inverse(largest(x))
    factors = (Tensor.arange(tries).float() * 0.1 + (half_range - (tries // 2) * 0.1)).reshape(tries, 1)
    codes = (x.unsqueeze(-2) * (factors * -reach.unsqueeze(-2))).round().clamp(-half_range, half_range - 1)
    sum_xl = ((weights * x).unsqueeze(-2) * codes).sum(-1)
    scale = sum_xl * inverse((weights.unsqueeze(-2) * codes * codes).sum(-1))
    return chosen_try(scale * sum_xl, scale)[0]
