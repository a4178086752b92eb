"""qwen3next: Qwen 3 Next."""

from __future__ import annotations

from kernmill import Tensor, cat

from .config import Config
from .delta import DeltaNet
from .weight import parts_of

__all__ = ["Qwen3Next"]


class Qwen3Next(DeltaNet):
    """Delta nets with experts. Rates are in one matrix by key head; in early files all else is too, in `ssm_in`."""

    mixes = "always"
    needs_recurrent = (*DeltaNet.needs_recurrent, "ssm_ba.weight")
    are_interleaved = True

    @classmethod
    def recurrent_shapes(cls, c: Config) -> dict[str, tuple[int, ...]]:
        """With the matrices of this model."""
        s = c.ssm
        both = 2 * (s.groups * s.state + s.inner)
        return super().recurrent_shapes(c) | {
            "ssm_ba.weight": (2 * s.rank, c.width),
            "ssm_in.weight": (both, c.width),
        }

    def names_of(self, n: int) -> tuple[dict[str, tuple[int, ...]], set[str]]:
        """An early file has one matrix for two."""
        shapes, needed = super().names_of(n)
        if "ssm_in.weight" in shapes and self._weights(f"blk.{n}.ssm_in.weight") is not None:
            needed = needed - {"attn_qkv.weight", "attn_gate.weight"}
        return shapes, needed

    def mixed_and_gate(self, n: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries, keys and values of all heads behind each other; and the gate."""
        if "ssm_in.weight" not in self.matrices[n]:
            return super().mixed_and_gate(n, x)
        s = self.config.ssm
        values = s.inner // s.groups
        of_heads = self.product(n, x, "ssm_in").unflatten(-1, (s.groups, -1))
        q, k, v, gate = (part.flatten(-2) for part in parts_of(of_heads, [s.state, s.state, values, values]))
        return cat([q, k, v], -1).contiguous(), gate

    def rates(self, n: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """From one matrix, by key head."""
        both = self.product(n, x, "ssm_ba").unflatten(-1, (self.config.ssm.groups, 2, -1))
        beta, rate = (part.flatten(-2) for part in both.unbind(-2))
        return beta, rate
