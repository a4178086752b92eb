"""t5encoder: the encoder of T5, for vectors of texts."""

from __future__ import annotations

import numpy as np

from kernmill import FormatError, Tensor, where

from .architecture import Architecture, Weights
from .cache import Positions
from .config import Config

__all__ = ["T5Encoder", "buckets"]

_FARTHEST = 128  # tokens of distance: from there on all are in one bucket


def buckets(distances: np.ndarray, count: int, is_causal: bool) -> np.ndarray:
    """Return the bucket of each distance, key position - query position: small ones have their own, larger ones share
    one by their logarithm. Keys behind a query have the upper half of the buckets, unless `is_causal`."""
    of_side = count if is_causal else count // 2
    apart = np.maximum(-distances, 0) if is_causal else np.abs(distances)
    exact = of_side // 2
    ratio = np.log(np.maximum(apart, 1) / exact) / np.log(_FARTHEST / exact)
    far = np.minimum(exact + (ratio * (of_side - exact)).astype(np.int64), of_side - 1)
    found = np.where(apart < exact, apart, far)
    return np.asarray(found if is_causal else found + of_side * (distances > 0), np.int32)


class T5Encoder(Architecture):
    """Scores with a bias by the distance of two tokens, the same in all layers; a gate in newer models only."""

    is_encoder = True
    may_lack = ("ffn_gate.weight",)
    after_attention = after_feed_forward = ""

    def __init__(self, config: Config, weights: Weights, capacity: int) -> None:
        super().__init__(config, weights, capacity)
        distances = np.arange(-capacity + 1, capacity)
        table = self.vectors[0]["attn_rel_b.weight"]
        self._falls = table[Tensor(buckets(distances, table.shape[0], self.is_causal))].float().contiguous().realize()

    @classmethod
    def named(cls, name: str) -> str:
        """Layers and the last norm are those of an encoder."""
        name = name.replace(".attn_output.", ".attn_o.")
        return name if name.startswith(("token_embd", "cls", "output.")) else f"enc.{name}"

    @classmethod
    def check_sizes(cls, c: Config) -> None:
        """Check that there are buckets for both sides."""
        if c.buckets < 4 or c.buckets % 4:
            raise FormatError(
                f"{c.name}.attention.relative_buckets_count is {c.buckets}: must be a multiple of 4. Convert the file "
                "again."
            )

    @classmethod
    def shapes(cls, c: Config) -> dict[str, tuple[int, ...]]:
        """With the biases of scores."""
        return super().shapes(c) | {"attn_rel_b.weight": (c.buckets, c.heads)}

    @classmethod
    def names_in(cls, c: Config, n: int) -> tuple[dict[str, tuple[int, ...]], set[str]]:
        """The first layer has the biases of all."""
        shapes, needed = super().names_in(c, n)
        return shapes, needed if n else needed | {"attn_rel_b.weight"}

    def has_rope(self, n: int) -> bool:
        """False."""
        return False

    def scale(self) -> float:
        """1: the weights contain it."""
        return 1.0

    def mask(self, positions: Positions, count: int, is_local: bool) -> Tensor:
        """Biases of scores, -inf for padding."""
        every = Tensor.arange(self.capacity)
        seen, now = every[: positions.end], positions.rows(every, count).unsqueeze(-1)
        falls = self._falls[seen - now + (self.capacity - 1)].movedim(-1, 1).unsqueeze(2)
        return where(super().mask(positions, count, is_local), falls, falls._filled(float("-inf"))).contiguous()

    def feed_forward(self, n: int, x: Tensor) -> Tensor:
        """A GELU gate, or ReLU without a gate."""
        if "ffn_gate.weight" in self.matrices[n]:
            return super().feed_forward(n, x)
        return self.product(n, self.product(n, x, "ffn_up").relu().contiguous(), "ffn_down")

    def activation(self, x: Tensor) -> Tensor:
        """GELU by its tanh formula."""
        return x.gelu("tanh")
