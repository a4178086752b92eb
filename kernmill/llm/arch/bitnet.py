"""bitnet: BitNet b1.58."""

from __future__ import annotations

from collections.abc import Sequence

from kernmill import Tensor

from .architecture import Architecture, Around
from .cache import Cache, Positions
from .config import Config
from .tensors import GATED

__all__ = ["BitNet"]


class BitNet(Architecture):
    """Norms within both parts, and a factor for each matrix where the file has one."""

    needs_besides = ("attn_sub_norm.weight", "ffn_sub_norm.weight")

    @classmethod
    def shapes(cls, c: Config) -> dict[str, tuple[int, ...]]:
        """With the norms and factors."""
        shapes = super().shapes(c)
        matrices = [name.removesuffix(".weight") for name, shape in shapes.items() if len(shape) == 2]
        norms = {"attn_sub_norm.weight": (c.heads * c.value_width,), "ffn_sub_norm.weight": (c.feed_forward,)}
        return shapes | norms | {f"{name}.scale": (1,) for name in matrices}

    def _scaled_by(self, n: int, x: Tensor, name: str) -> Tensor:
        scale = self.vectors[n].get(f"{name}.scale")
        return x if scale is None else x * scale

    def product(self, n: int, x: Tensor, name: str) -> Tensor:
        """With the matrix's factor."""
        return self._scaled_by(n, super().product(n, x, name), name)

    def products(self, n: int, x: Tensor, names: Sequence[str]) -> list[Tensor]:
        """With the factor of each matrix."""
        parts = super().products(n, x, names)
        return [self._scaled_by(n, part, name) for part, name in zip(parts, names, strict=True)]

    def attention(self, n: int, x: Tensor, positions: Positions, around: Around, cache: Cache) -> Tensor:
        """Attention, normed before the last matrix."""
        mixed = self.attended(n, *self.queries_keys_values(n, x), positions, around, cache)
        return self.product(n, self.normed(n, mixed, "attn_sub_norm").contiguous(), "attn_output")

    def feed_forward(self, n: int, x: Tensor) -> Tensor:
        """A gated part, normed before the last matrix."""
        gate, up = self.products(n, x, GATED)
        return self.product(n, self.normed(n, gate.silu() * up, "ffn_sub_norm").contiguous(), "ffn_down")
