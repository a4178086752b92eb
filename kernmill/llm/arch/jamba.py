"""jamba: Jamba of AI21."""

from __future__ import annotations

from kernmill import Tensor

from .architecture import Architecture
from .config import Config
from .experts import expert_shapes
from .mamba import Mamba
from .tensors import DENSE, EXPERTS

__all__ = ["Jamba"]


class Jamba(Mamba):
    """Mamba with attention in some layers, without rope, and experts in those where the file has them."""

    has_one_part = False
    mixes = "sometimes"
    is_normed = False
    lacks = ()
    needs_recurrent = (*Mamba.needs_recurrent, "ssm_dt_norm.weight", "ssm_b_norm.weight", "ssm_c_norm.weight")

    @classmethod
    def recurrent_shapes(cls, c: Config) -> dict[str, tuple[int, ...]]:
        """With norms of time steps and of vectors."""
        s = c.ssm
        norms = {"ssm_dt_norm.weight": s.rank, "ssm_b_norm.weight": s.state, "ssm_c_norm.weight": s.state}
        return super().recurrent_shapes(c) | {name: (size,) for name, size in norms.items()}

    def names_of(self, n: int) -> tuple[dict[str, tuple[int, ...]], set[str]]:
        """A layer has experts if the file has its router: the metadata do not say which."""
        shapes, needed = super().names_of(n)
        dense = {f"{name}.weight" for name in DENSE}
        mixed = {f"{name}.weight" for name in ("ffn_gate_inp", "ffn_down_exps", *EXPERTS)}
        has_experts = self._weights(f"blk.{n}.ffn_gate_inp.weight") is not None
        others = dense if has_experts else {*expert_shapes(self.config)}
        shapes = self.shapes(self.config.of_layer(n)) | expert_shapes(self.config) | shapes
        left = {name: shape for name, shape in shapes.items() if name not in others}
        return left, needed - dense - mixed | (mixed if has_experts else dense)

    def has_rope(self, n: int) -> bool:
        """False."""
        return False

    def of_step(self, n: int, x: Tensor, name: str) -> Tensor:
        """Normed."""
        return Architecture.norm(self, x, self.vectors[n][f"ssm_{name}_norm.weight"])
