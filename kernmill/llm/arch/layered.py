"""class LayerInputs(Gemma2): what Gemma 3n and 4 share: an input for each layer, and layers without keys of their own.

Each layer has a small embedding of the token, mixed with a projection of x. The last layers attend to the keys and
values of an earlier layer of their kind, with or without a window.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from kernmill import FormatError, Tensor

from .architecture import Around, Weights
from .cache import Cache, LayerMemory, Positions
from .config import Config
from .gemma3 import Gemma3
from .tensors import ATTENTION
from .weight import linear, rows

__all__ = ["LayerInputs"]


class LayerInputs(Gemma3):
    """Gemma 3 with inputs of layers, shared keys and values, normed values, and scores without a factor."""

    assumed: Mapping[str, Any] = {}
    needs_inputs = True  # False: only files that name a width have them

    def __init__(self, config: Config, weights: Weights, capacity: int) -> None:
        super().__init__(config, weights, capacity)
        width = self.input_width(config)
        if not width:
            return
        whole = config.layers * width
        self.layer_table = self.needed("per_layer_token_embd.weight", None, whole)
        self.layer_projection = self.needed("per_layer_model_proj.weight", whole, config.width)
        self.ends["per_layer_proj_norm.weight"] = self.vector("per_layer_proj_norm.weight", width)
        if self.layer_table.shape[0] != self.vocabulary:
            raise FormatError(
                f"per_layer_token_embd.weight has {self.layer_table.shape[0]} rows, and token_embd.weight "
                f"{self.vocabulary}. The file's tensors are inconsistent."
            )

    @classmethod
    def input_width(cls, c: Config) -> int:
        """Of the input of a layer; 0: it has none."""
        return c.layer_input

    @classmethod
    def shares(cls, c: Config, n: int) -> bool:
        """True if a layer has no keys of its own."""
        return n >= c.layers - c.shared_layers

    def source(self, n: int) -> int:
        """The layer whose keys and values a layer reads: the last one of its kind that has some."""
        c = self.config
        return max((m for m in range(c.layers - c.shared_layers) if self.is_local[m] == self.is_local[n]), default=0)

    @classmethod
    def shapes(cls, c: Config) -> dict[str, tuple[int, ...]]:
        """With the matrices of a layer's input."""
        width = cls.input_width(c)
        if not width:
            return super().shapes(c)
        return super().shapes(c) | {
            "inp_gate.weight": (width, c.width), "proj.weight": (c.width, width), "post_norm.weight": (c.width,),
        }  # fmt: skip

    @classmethod
    def names_in(cls, c: Config, n: int) -> tuple[dict[str, tuple[int, ...]], set[str]]:
        """Layers that share keys need none."""
        shapes, needed = super().names_in(c, n)
        if cls.input_width(c):
            needed |= {"inp_gate.weight", "proj.weight", "post_norm.weight"}
        if cls.shares(c, n):
            needed -= {"attn_k.weight", "attn_v.weight", "attn_k_norm.weight"}
        return shapes, needed

    @classmethod
    def kept(cls, c: Config, n: int) -> LayerMemory:
        """Keys and values, if they are its own."""
        kept = super().kept(c, n)
        return kept._replace(heads=0) if cls.shares(c, n) else kept

    def joins(self, n: int) -> Sequence[tuple[str, ...]]:
        """Queries stay alone where a layer has no keys of its own, though a file may hold some."""
        return [names for names in self.same_x if names != ATTENTION or not self.shares(self.config, n)]

    def variant(self, n: int) -> Hashable:
        """Each layer is built: it reads an input, or the cache of another layer, that are its own."""
        return n

    def scale(self) -> float:
        """1: heads are normed."""
        return 1.0

    def layer_inputs(self, tokens: Tensor, x: Tensor) -> Tensor | None:
        """Inputs of layers. Shapes: (sequences, tokens), (sequences, tokens, width) -> (.., layers, input width)."""
        c, width = self.config, self.input_width(self.config)
        if not width:
            return None
        own = rows(self.layer_table, tokens).unflatten(-1, (c.layers, width)) * math.sqrt(width)
        projected = (linear(x, self.layer_projection) * c.width**-0.5).unflatten(-1, (c.layers, width))
        inputs = (self.norm(projected, self.ends["per_layer_proj_norm.weight"]) + own) * math.sqrt(0.5)
        return inputs.contiguous()

    def layer_part(self, n: int, x: Tensor, positions: Positions) -> Tensor:
        """Return what the input of a layer adds to x. Shapes: (sequences, tokens, width) to the same."""
        assert positions.inputs is not None
        gate = self.activation(self.product(n, x, "inp_gate")) * positions.inputs[:, :, n].to(x.device)
        return self.normed(n, self.product(n, gate.contiguous(), "proj"), "post_norm")

    def value_heads(self, n: int, v: Tensor) -> Tensor:
        """Values of heads, normed without a weight."""
        v = super().value_heads(n, v)
        return v * (v.square().mean(-1, keepdim=True) + self.config.epsilon).rsqrt()

    def attention(self, n: int, x: Tensor, positions: Positions, around: Around, cache: Cache) -> Tensor:
        """Attend to own keys, or to those of an earlier layer."""
        if not self.shares(self.config, n):
            return super().attention(n, x, positions, around, cache)
        c = self.config.of_layer(n)
        q = self._heads(n, self.product(n, x, "attn_q"), "attn_q_norm", c.head_width)
        q, _ = self._positioned(n, q, q, positions, around)
        keys, values = cache.read(self.source(n), positions)
        return self.product(n, self.mixed(n, q, keys, values, around[2]), "attn_output")
