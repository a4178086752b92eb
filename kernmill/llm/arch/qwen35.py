"""qwen35, qwen35moe: Qwen 3.5, text only."""

from __future__ import annotations

from kernmill import Tensor

from .config import Config
from .delta import DeltaNet

__all__ = ["Qwen35", "Qwen35Moe"]


class Qwen35(DeltaNet):
    """Delta nets with a matrix for each rate."""

    needs_recurrent = (*DeltaNet.needs_recurrent, "ssm_beta.weight", "ssm_alpha.weight")
    same_x = (*DeltaNet.same_x, ("ssm_beta", "ssm_alpha"))

    @classmethod
    def recurrent_shapes(cls, c: Config) -> dict[str, tuple[int, ...]]:
        """With the matrices of rates."""
        rates = {f"{name}.weight": (c.ssm.rank, c.width) for name in ("ssm_beta", "ssm_alpha")}
        return super().recurrent_shapes(c) | rates

    def rates(self, n: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """From two matrices."""
        beta, rate = self.products(n, x, ("ssm_beta", "ssm_alpha"))
        return beta, rate


class Qwen35Moe(Qwen35):
    """With experts and a gated shared one."""

    mixes = "always"
