"""gemma3n: Gemma 3n, text only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kernmill import Tensor, cat

from .architecture import Around, Weights
from .cache import Cache, Positions
from .config import Config
from .layered import LayerInputs
from .tensors import GATED
from .weight import Weight, chosen

__all__ = ["Gemma3n"]

_STREAMS, _INPUT, _RANK = 4, 256, 64  # of all models: x has four streams, of which the first one is computed with
_OWN_KEYS, _SPARSE = 20, 10  # layers with keys of their own; with few active values in the feed-forward part
_DEVIATIONS = 1.6448533535003662  # above the mean: 5 of 100 normally distributed values are larger


class Gemma3n(LayerInputs):
    """Four streams of x (AltUp), of which each layer predicts all and corrects all; a low-rank part (LAuReL)."""

    has_streams = True
    period = 5
    assumed: Mapping[str, Any] = {"logit_cap": 30.0}

    def __init__(self, config: Config, weights: Weights, capacity: int) -> None:
        config = replace(config, shared_layers=max(0, config.layers - _OWN_KEYS))
        super().__init__(config, weights, capacity)
        shape = (_STREAMS - 1, config.width, config.width)
        self.projections: dict[str, Weight] = {
            name: self.needed(f"{name}.weight", *shape) for name in ("altup_proj", "altup_unembd_proj")
        }

    @classmethod
    def input_width(cls, c: Config) -> int:
        """The same in all models."""
        return _INPUT

    @classmethod
    def shares(cls, c: Config, n: int) -> bool:
        """True for all layers but the first twenty."""
        return n >= _OWN_KEYS

    @classmethod
    def shapes(cls, c: Config) -> dict[str, tuple[int, ...]]:
        """With the matrices of streams and of the low-rank part."""
        return super().shapes(c) | cls._own_shapes(c)

    @classmethod
    def _own_shapes(cls, c: Config) -> dict[str, tuple[int, ...]]:
        return {
            "altup_correct_coef.weight": (_STREAMS, _STREAMS),
            "altup_correct_scale.weight": (c.width,),
            "altup_predict_coef.weight": (_STREAMS * _STREAMS, _STREAMS),
            "altup_router.weight": (_STREAMS, c.width),
            "altup_router_norm.weight": (c.width,),
            "laurel_l.weight": (_RANK, c.width),
            "laurel_r.weight": (c.width, _RANK),
            "laurel_post_norm.weight": (c.width,),
        }

    @classmethod
    def names_in(cls, c: Config, n: int) -> tuple[dict[str, tuple[int, ...]], set[str]]:
        """All of these are needed."""
        shapes, needed = super().names_in(c, n)
        return shapes, needed | cls._own_shapes(c).keys()

    # --- streams
    def embed(self, tokens: Tensor, positions: Positions) -> Tensor:
        """Four streams behind each other: the rows of the tokens, and projections of the same length."""
        x = super().embed(tokens, positions).contiguous()
        flat = x.flatten(0, 1).unsqueeze(0)
        more = self._projected("altup_proj", flat.expand(_STREAMS - 1, *flat.shape[1:]).contiguous(), flat)
        return cat([x, *(one.reshape(x.shape) for one in more.unbind(0))], -1).contiguous()

    def _projected(self, name: str, x: Tensor, like: Tensor) -> Tensor:
        """Streams, each with its own matrix, as long as another one. Shapes: (streams - 1, rows, width)."""
        made = chosen(x, self.projections[name], Tensor.arange(_STREAMS - 1)).contiguous()
        lengths = [part.square().sum(-1, keepdim=True) for part in (like, made)]
        return made * (lengths[0] / lengths[1]).sqrt()

    def finished(self, x: Tensor) -> Tensor:
        """The mean of the first stream and the others, projected back."""
        streams = x.unflatten(-1, (_STREAMS, -1)).movedim(2, 0).flatten(1, 2).contiguous()
        more = self._projected("altup_unembd_proj", streams[1:].contiguous(), streams[:1])
        return ((streams[0] + more.sum(0)) / _STREAMS).unflatten(0, x.shape[:2])

    def layer_inputs(self, tokens: Tensor, x: Tensor) -> Tensor | None:
        """From the first stream."""
        return super().layer_inputs(tokens, x[..., : self.config.width].contiguous())

    def _shares(self, n: int, x: Tensor, name: str) -> Tensor:
        """Coefficients of streams that depend on x. Shapes: (.., width) -> (.., coefficients)."""
        routed = (self.normed(n, x, "altup_router_norm") / self.config.width).contiguous()
        return self.product(n, self.product(n, routed, "altup_router").tanh().contiguous(), name)

    def layer(self, n: int, x: Tensor, positions: Positions, around: Around, cache: Cache) -> Tensor:
        """Predict the streams, compute with the first, and correct all."""
        streams = x.unflatten(-1, (_STREAMS, -1))
        mixing = self._shares(n, streams[:, :, 0], "altup_predict_coef").unflatten(-1, (_STREAMS, _STREAMS))
        predicted = [
            streams[:, :, i] + sum((mixing[:, :, i, j : j + 1] * streams[:, :, j] for j in range(1, _STREAMS)),
                                   mixing[:, :, i, :1] * streams[:, :, 0])
            for i in range(_STREAMS)
        ]  # fmt: skip
        active = predicted[0].contiguous()
        y = self._first_stream(n, active, positions, around, cache)
        factors = self._shares(n, y, "altup_correct_coef") + 1
        corrected = [part + factors[..., i : i + 1] * (y - active) for i, part in enumerate(predicted)]
        first = (corrected[0] * self.vectors[n]["altup_correct_scale.weight"]).contiguous()
        added = self.layer_part(n, first, positions)
        return cat([corrected[0], *(part + added for part in corrected[1:])], -1).contiguous()

    def _first_stream(self, n: int, x: Tensor, positions: Positions, around: Around, cache: Cache) -> Tensor:
        """Attention, the low-rank part and the feed-forward part. Shapes: (sequences, tokens, width) to the same."""
        a = self.normed(n, x, "attn_norm").contiguous()
        low = self.product(n, self.product(n, a, "laurel_l").contiguous(), "laurel_r")
        low = a + self.normed(n, low, "laurel_post_norm")
        part = self.normed(n, self.attention(n, a, positions, around, cache), "post_attention_norm")
        x = ((x + part + low) * 0.5**0.5).contiguous()
        return (x + self.normed(n, self.feed_forward(n, self.normed(n, x, "ffn_norm")), "post_ffw_norm")).contiguous()

    def feed_forward(self, n: int, x: Tensor) -> Tensor:
        """A gated part; in the first layers only large gates count."""
        gate, up = self.products(n, x, GATED)
        if n < _SPARSE:
            gate = gate.contiguous()
            apart = gate - gate.mean(-1, keepdim=True)
            deviation = (apart.square().sum(-1, keepdim=True) / (gate.shape[-1] - 1)).sqrt()
            gate = (apart - deviation * _DEVIATIONS).relu()
        return self.product(n, (self.activation(gate) * up).contiguous(), "ffn_down")
