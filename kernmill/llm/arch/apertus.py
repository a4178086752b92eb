"""apertus: Apertus."""

from __future__ import annotations

import math
from collections.abc import Hashable

from kernmill import FormatError, Tensor, where

from .architecture import Architecture
from .config import Config

__all__ = ["Apertus"]


class Apertus(Architecture):
    """Normed heads, and an ungated feed-forward part with xIELU, whose numbers are those of each layer."""

    has_gate = False
    needs_besides = ("attn_q_norm.weight", "attn_k_norm.weight")
    lacks = ("ffn_gate.weight",)

    @classmethod
    def check_sizes(cls, c: Config) -> None:
        """Check that the file has the numbers of the activation."""
        if not c.xielu:
            raise FormatError("xielu.alpha_n is missing: an apertus model has alpha_n, alpha_p, beta and eps.")

    def variant(self, n: int) -> Hashable:
        """The numbers of the activation are constants of a layer."""
        return tuple(number[n % len(number)] for number in self.config.xielu)

    def feed_forward(self, n: int, x: Tensor) -> Tensor:
        """Up, activated, and down again."""
        negative, positive, beta, least = (number[n % len(number)] for number in self.config.xielu)
        up, grows = self.product(n, x, "ffn_up"), _softplus(positive)
        below = ((up.minimum(up._filled(least)).exp() - 1) - up) * (beta + _softplus(negative)) + up * beta
        return self.product(n, where(up > 0, up * up * grows + up * beta, below).contiguous(), "ffn_down")


def _softplus(x: float) -> float:
    return math.log1p(math.exp(x)) if x < 20 else x
