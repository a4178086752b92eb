"""lfm2: LFM 2 of Liquid AI."""

from __future__ import annotations

from collections.abc import Sequence

from kernmill import Tensor

from .config import Config
from .recurrent import RecurrentDecoder, convolved
from .weight import parts_of

__all__ = ["Lfm2"]


class Lfm2(RecurrentDecoder):
    """Layers without key heads are short convolutions between two gates; the others norm their heads."""

    output_norm = "token_embd_norm"
    needs_besides = ("attn_q_norm.weight", "attn_k_norm.weight")
    needs_recurrent = ("shortconv.conv.weight", "shortconv.in_proj.weight", "shortconv.out_proj.weight")

    @classmethod
    def recurrent_shapes(cls, c: Config) -> dict[str, tuple[int, ...]]:
        """The gates and the convolution."""
        return {
            "shortconv.conv.weight": (c.width, c.ssm.taps),
            "shortconv.in_proj.weight": (3 * c.width, c.width),
            "shortconv.out_proj.weight": (c.width, c.width),
        }

    @classmethod
    def state_shapes(cls, c: Config) -> tuple[tuple[int, ...], ...]:
        """The last tokens of the convolution."""
        return ((c.ssm.taps - 1, c.width),)

    def has_window(self, n: int) -> bool:
        """True in all layers with attention, if the file has a window."""
        return self.config.window > 0 and not self.is_recurrent(self.config, n)

    def step(self, n: int, x: Tensor, states: Sequence[Tensor], counts: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        """A gate, a convolution, a gate."""
        before, behind, x = parts_of(self.product(n, x, "shortconv.in_proj"), [self.config.width] * 3)
        mixed, tail = convolved(before * x, states[0], self.vectors[n]["shortconv.conv.weight"], counts)
        return self.product(n, (behind * mixed).contiguous(), "shortconv.out_proj"), [tail]
