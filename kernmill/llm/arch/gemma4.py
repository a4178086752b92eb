"""gemma4: Gemma 4, text only."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from kernmill import Tensor

from .architecture import Around
from .cache import Cache, Positions
from .config import Config
from .experts import apart, chosen_experts
from .layered import LayerInputs
from .rope import tables
from .tensors import DENSE, GATED

__all__ = ["Gemma4"]


class Gemma4(LayerInputs):
    """Heads of another width in layers with a window; keys that are also values; experts next to a dense part."""

    mixes = "sometimes"
    may_lack = ("attn_v.weight",)

    @classmethod
    def shapes(cls, c: Config) -> dict[str, tuple[int, ...]]:
        """With the norms around experts, and a factor of each layer's result."""
        norms = ("post_ffw_norm_1", "pre_ffw_norm_2", "post_ffw_norm_2")
        shapes = super().shapes(c) | {"layer_output_scale.weight": (1,)}
        if c.experts.count:
            shapes |= {f"{name}.weight": (c.width,) for name in norms} | {"ffn_gate_inp.scale": (c.width,)}
        return shapes

    @classmethod
    def names_in(cls, c: Config, n: int) -> tuple[dict[str, tuple[int, ...]], set[str]]:
        """A layer with experts has a dense part as well."""
        shapes, needed = super().names_in(c, n)
        if c.experts.are_in(n):
            dense = {f"{name}.weight" for name in DENSE}
            shapes |= {name: cls.shapes(c.of_layer(n))[name] for name in dense}
            needed |= dense | {"ffn_gate_inp.scale", "post_ffw_norm_1.weight", "pre_ffw_norm_2.weight",
                               "post_ffw_norm_2.weight"}  # fmt: skip
        return shapes, needed

    def rope_tables(self, is_local: bool) -> tuple[Tensor, Tensor]:
        """Layers with a window have a base and a size of their own; the others divisors of the frequencies."""
        rope = self.config.rope
        if not is_local:
            return tables(rope, self.capacity, self.rope_factors())
        near = replace(rope, base=rope.local_base or 10000.0, size=rope.local_size or rope.size, scaling="none",
                       attention_factor=1.0)  # fmt: skip
        return tables(near, self.capacity)

    def queries_keys_values(self, n: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Keys are values too where a layer has no matrix for these."""
        if self.has_values[n]:
            return super().queries_keys_values(n, x)
        q, k = self.products(n, x, ("attn_q", "attn_k"))
        return q, k, k

    def add_layer(self, n: int) -> None:
        """Take the tensors, and note whether values have a matrix."""
        super().add_layer(n)
        names = ("attn_v.weight", "attn_qkv.weight")
        self.has_values = [*getattr(self, "has_values", []), any(self._weights(f"blk.{n}.{name}") is not None
                                                                 for name in names)]  # fmt: skip

    def layer(self, n: int, x: Tensor, positions: Positions, around: Around, cache: Cache) -> Tensor:
        """One layer, then its input, then its factor."""
        part = self.attention(n, self.normed(n, x, "attn_norm"), positions, around, cache)
        x = x + self.normed(n, part, "post_attention_norm")
        x = x + self.normed(n, self._both_parts(n, x), "post_ffw_norm")
        if positions.inputs is not None:
            x = x + self.layer_part(n, x.contiguous(), positions)
        scale = self.vectors[n].get("layer_output_scale.weight")
        return x if scale is None else x * scale

    def _both_parts(self, n: int, x: Tensor) -> Tensor:
        """The dense part, and the sum of experts where the layer has them."""
        gate, up = self.products(n, self.normed(n, x, "ffn_norm"), GATED)
        dense = self.product(n, (self.activation(gate) * up).contiguous(), "ffn_down")
        if "ffn_gate_inp.weight" not in self.matrices[n]:
            return dense
        e, vectors, width = self.config.experts, self.vectors[n], self.config.width
        flat = x.flatten(0, 1).contiguous()
        routed = flat * (flat.square().mean(-1, keepdim=True) + self.config.epsilon).rsqrt() * width**-0.5
        choice = chosen_experts(
            self.product(n, (routed * vectors["ffn_gate_inp.scale"]).contiguous(), "ffn_gate_inp"), e
        )
        rows = self.normed(n, flat, "pre_ffw_norm_2").contiguous()
        mixed = apart(rows, choice, e.count, partial(self._experts_of, n), self._bytes_of_expert(n)).reshape(x.shape)
        return self.normed(n, dense, "post_ffw_norm_1") + self.normed(n, mixed, "post_ffw_norm_2")
