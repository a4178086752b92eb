"""class Architecture: the decoder that all architectures here are, with the places where they differ.

    x = embedding of the tokens
    each layer:  x = x + attention(norm(x))
                 x = x + feed_forward(norm(x))
    logits = norm(x) @ output.T

A subclass says how pairs are rotated, what its activation is, and overrides what is different in it. Weights have the
names of GGUF files; each is asked for once, with the shape it must have.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from kernmill import FormatError, Tensor, where

from .cache import Cache
from .config import Config
from .rope import rotate, tables

__all__ = ["Architecture", "Weights"]

Weights = Callable[[str], Tensor | None]  # the tensor of a name, or None where the file has none


class Architecture:
    """A model: tokens in, logits out.

    Raises:
        FormatError: a tensor is missing or has another shape than the metadata say.
    """

    by_halves = True  # which entries of a head are rotated together: see rope.rotate

    def __init__(self, config: Config, weights: Weights, capacity: int) -> None:
        self.config, self.capacity, self._weights = config, capacity, weights
        embedding = self.tensor("token_embd.weight", None, config.width)
        self.vocabulary = embedding.shape[0]
        self.embedding = embedding
        tied = self.optional("output.weight", self.vocabulary, config.width)
        self.output = embedding if tied is None else tied
        self.output_norm = self.tensor("output_norm.weight", config.width)
        self.layers = [self.layer(n) for n in range(config.layers)]
        self.is_local = [self.has_window(n) for n in range(config.layers)]
        self.rope = {is_local: self.rope_tables(is_local) for is_local in set(self.is_local)}

    # --- weights
    def optional(self, name: str, *shape: int | None) -> Tensor | None:
        """A tensor that some models have; None in a shape stands for any size."""
        found = self._weights(name)
        if found is None:
            return None
        fits = len(shape) == found.ndim and all(s in (None, o) for s, o in zip(shape, found.shape, strict=True))
        if not fits:
            wanted = ", ".join("any" if size is None else str(size) for size in shape)
            raise FormatError(
                f"{name} has shape {found.shape}, and a {self.config.name} model of these sizes needs ({wanted}). "
                "The file's metadata and its tensors do not belong together."
            )
        return found

    def tensor(self, name: str, *shape: int | None) -> Tensor:
        """A tensor that the model needs."""
        found = self.optional(name, *shape)
        if found is None:
            raise FormatError(f"the file has no tensor {name}, which a {self.config.name} model needs.")
        return found

    def layer(self, n: int) -> dict[str, Tensor]:
        """The tensors of a layer by their names in it."""
        c = self.config
        queries, keys, values = c.heads * c.head_width, c.kv_heads * c.head_width, c.kv_heads * c.value_width
        needed: dict[str, tuple[int, ...]] = {
            "attn_norm.weight": (c.width,),
            "attn_q.weight": (queries, c.width),
            "attn_k.weight": (keys, c.width),
            "attn_v.weight": (values, c.width),
            "attn_output.weight": (c.width, c.heads * c.value_width),
            "ffn_norm.weight": (c.width,),
            "ffn_gate.weight": (c.feed_forward, c.width),
            "ffn_up.weight": (c.feed_forward, c.width),
            "ffn_down.weight": (c.width, c.feed_forward),
        }
        biases = {"attn_q.bias": queries, "attn_k.bias": keys, "attn_v.bias": values, "attn_output.bias": c.width}
        found = {name: self.tensor(f"blk.{n}.{name}", *shape) for name, shape in needed.items()}
        for name, size in biases.items():
            bias = self.optional(f"blk.{n}.{name}", size)
            if bias is not None:
                found[name] = bias
        return found

    # --- what differs
    def has_window(self, n: int) -> bool:
        """Whether a layer sees only the last `window` tokens."""
        return False

    def rope_factors(self) -> Tensor | None:
        """Divisors of the frequencies, where the file has some."""
        return self.optional("rope_freqs.weight", self.config.rope.size // 2)

    def rope_tables(self, is_local: bool) -> tuple[Tensor, Tensor]:
        """Cosine and sine for layers with or without a window."""
        return tables(self.config.rope, self.capacity, self.rope_factors())

    def activation(self, x: Tensor) -> Tensor:
        """What the gate of the feed-forward part goes through."""
        return x.silu()

    def embed(self, tokens: Tensor) -> Tensor:
        """Shapes: (tokens,) -> (tokens, width)."""
        return self.embedding[tokens].float()

    # --- the parts
    def forward(self, tokens: Tensor, position: Tensor, cache: Cache) -> Tensor:
        """The last hidden state of each token, normed; their keys and values go into the cache.

        Shapes: tokens (tokens,), position (): of the first of them; the result (tokens, width).
        """
        places = Tensor.arange(tokens.shape[0]) + position
        known = places.clamp(0, self.capacity - 1)
        turns = {is_local: (cosine[known], sine[known]) for is_local, (cosine, sine) in self.rope.items()}
        masks = {is_local: self.mask(places, is_local) for is_local in self.rope}
        x = self.embed(tokens)
        for n in range(self.config.layers):
            is_local = self.is_local[n]
            x = self.block(n, x, position, (*turns[is_local], masks[is_local]), cache)
        return self.norm(x, self.output_norm)

    def mask(self, places: Tensor, is_local: bool) -> Tensor:
        """Which places of the cache each token sees. Shapes: (tokens,) -> (tokens, capacity)."""
        seen, now = Tensor.arange(self.capacity), places.unsqueeze(-1)
        mask = seen <= now
        return mask & (seen > now - self.config.window) if is_local else mask

    def block(self, n: int, x: Tensor, position: Tensor, around: tuple[Tensor, Tensor, Tensor], cache: Cache) -> Tensor:
        """One layer. `around`: cosine, sine and mask."""
        layer = self.layers[n]
        x = x + self.attention(n, self.norm(x, layer["attn_norm.weight"]), position, around, cache)
        return x + self.feed_forward(n, self.norm(x, layer["ffn_norm.weight"]))

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """Divided by the root of the mean square of the last axis, times a weight."""
        return x * (x.square().mean(-1, keepdim=True) + self.config.epsilon).rsqrt() * weight

    def queries_keys_values(self, n: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Shapes: (tokens, width) -> (tokens, heads * width) each."""
        layer = self.layers[n]
        q, k, v = (x.linear(layer[f"attn_{name}.weight"], layer.get(f"attn_{name}.bias")) for name in "qkv")
        return q, k, v

    def head_norms(self, n: int, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """What is done to each head before it is rotated."""
        return q, k

    def attention(
        self, n: int, x: Tensor, position: Tensor, around: tuple[Tensor, Tensor, Tensor], cache: Cache
    ) -> Tensor:
        """Each token looks at the tokens before it; several query heads share a key head."""
        c, (cosine, sine, mask), layer = self.config, around, self.layers[n]
        q, k, v = (part.unflatten(-1, (-1, width)).transpose(0, 1) for part, width in zip(
            self.queries_keys_values(n, x), (c.head_width, c.head_width, c.value_width), strict=True
        ))  # fmt: skip
        q, k = self.head_norms(n, q, k)
        q, k = (rotate(part, cosine, sine, by_halves=self.by_halves) for part in (q, k))
        keys, values = cache.write(n, position, k, v)
        q = q.unflatten(0, (c.kv_heads, -1))  # (kv heads, group, tokens, width)
        scores = q.matmul(keys.unsqueeze(1).mT.float()) * self.scale()
        if c.attention_cap:
            scores = (scores / c.attention_cap).tanh() * c.attention_cap
        weights = where(mask, scores, -math.inf).softmax(-1)
        mixed = weights.matmul(values.unsqueeze(1).float()).flatten(0, 1).transpose(0, 1).flatten(1)
        return mixed.linear(layer["attn_output.weight"], layer.get("attn_output.bias"))

    def scale(self) -> float:
        """Of the scores."""
        return self.config.attention_scale or self.config.head_width**-0.5

    def feed_forward(self, n: int, x: Tensor) -> Tensor:
        """Up, gated, and down again."""
        layer = self.layers[n]
        gate, up = self.gate_and_up(n, x)
        return (self.activation(gate) * up).linear(layer["ffn_down.weight"])

    def gate_and_up(self, n: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """Shapes: (tokens, width) -> (tokens, feed forward) each."""
        layer = self.layers[n]
        return x.linear(layer["ffn_gate.weight"]), x.linear(layer["ffn_up.weight"])

    def logits(self, hidden: Tensor) -> Tensor:
        """Shapes: (tokens, width) -> (tokens, vocabulary)."""
        logits = hidden.linear(self.output)
        cap = self.config.logit_cap
        return (logits / cap).tanh() * cap if cap else logits
