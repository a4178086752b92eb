"""mpt: MPT of MosaicML."""

from __future__ import annotations

from kernmill import FormatError, Tensor

from .alibi import Alibi
from .config import Config

__all__ = ["Mpt"]


class Mpt(Alibi):
    """Layer norms, GELU, scores that fall with the distance; queries, keys and values may be clamped."""

    has_layer_norm = True
    has_gate = False
    lacks = ("ffn_gate.weight",)

    @classmethod
    def check_sizes(cls, c: Config) -> None:
        """Check that the file has a slope."""
        if not c.largest_slope:
            raise FormatError(f"{c.name}.attention.max_alibi_bias is 0: learned positions are not supported.")

    def largest_slope(self) -> float:
        """As the file says."""
        return self.config.largest_slope

    def activation(self, x: Tensor) -> Tensor:
        """GELU by its tanh formula, as in llama.cpp."""
        return x.gelu("tanh")

    def queries_keys_values(self, n: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Clamped, if the file says so."""
        q, k, v = super().queries_keys_values(n, x)
        limit = self.config.clamp_kqv
        return (q.clamp(-limit, limit), k.clamp(-limit, limit), v.clamp(-limit, limit)) if limit else (q, k, v)
