"""class Architecture: the decoder that all architectures here are, with the places where they differ.

    x = embedding of the tokens
    each layer:  x = x + attention(norm(x))
                 x = x + feed_forward(norm(x))
    logits = norm(x) @ output.T

A subclass names the tensors that it needs besides, and overrides what is different in it. Tensors have the names that
GGUF files give them, and are checked for their shapes. Weights may be of any float dtype; what flows is float32.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial

from kernmill import FormatError, Tensor, where

from .cache import Cache, Places
from .config import Config
from .rope import rotate, tables
from .weight import Weight, join, linear, nbytes, parts_of, rows

__all__ = ["Architecture", "Weights"]

Weights = Callable[[str], Weight | None]  # the tensor of a name, or None where the file has none
_ATTENTION, _GATED = ("attn_q", "attn_k", "attn_v"), ("ffn_gate", "ffn_up")
_OF_LAYER = re.compile(r"blk\.\d+\.")
Around = tuple[Tensor, Tensor, Tensor]  # cosine, sine and mask of a pass
Layers = Callable[[Hashable, Tensor, Sequence[Weight], Sequence[Tensor], Callable[[], Tensor]], Tensor]


def _check_fits(c: Config, name: str, shape: Sequence[int], wanted: Sequence[int | None]) -> None:
    """A tensor has the shape that the metadata ask for, where None stands for any size."""
    if len(shape) != len(wanted) or any(size not in (None, own) for size, own in zip(wanted, shape, strict=True)):
        sizes = ", ".join("any" if size is None else str(size) for size in wanted)
        raise FormatError(
            f"{name} has shape {tuple(shape)}, and a {c.name} model of these sizes needs ({sizes}). The file's "
            f"metadata and its tensors do not belong together: {c.sizes}."
        )


class Architecture:
    """A model: tokens in, logits out.

    Raises:
        FormatError: a tensor is missing or has another shape than the metadata say.
    """

    by_halves = True  # which entries of a head are rotated together: see rope.rotate
    needs_always = ("attn_norm.weight", "attn_output.weight", "ffn_norm.weight", "ffn_up.weight", "ffn_down.weight")
    needs: tuple[str, ...] = ("attn_q.weight", "attn_k.weight", "attn_v.weight", "ffn_gate.weight")
    needs_besides: tuple[str, ...] = ()
    same_x: tuple[tuple[str, ...], ...] = (_ATTENTION, _GATED)  # matrices that become one where they can: see products

    def __init__(self, config: Config, weights: Weights, capacity: int) -> None:
        self.config, self.capacity, self._weights = config, capacity, weights
        self.embedding = self.needed("token_embd.weight", None, config.width)
        self.vocabulary = self.embedding.shape[0]
        output = self.found("output.weight", self.vocabulary, config.width)
        self.output = self.embedding if output is None else output
        self.output_norm = self.vector("output_norm.weight", config.width)
        self.matrices: list[dict[str, Weight]] = []
        self.vectors: list[dict[str, Tensor]] = []  # norms and biases
        for n in range(config.layers):
            self.add_layer(n)
        self.is_local = [self.has_window(n) for n in range(config.layers)]
        self.rope = {is_local: self.rope_tables(is_local) for is_local in set(self.is_local)}

    # --- weights
    def found(self, name: str, *shape: int | None) -> Weight | None:
        """What the file has under a name, if it has; None in a shape stands for any size."""
        weight = self._weights(name)
        if weight is None:
            return None
        if isinstance(weight, Tensor) and not weight.dtype.is_float:
            raise FormatError(
                f"{name} is {weight.dtype.name}, and weights are floats or blocks. Convert the file again."
            )
        if len(shape) == 1 and not isinstance(weight, Tensor):
            raise FormatError(f"{name} is in a packed form, and norms and biases are plain. Convert the file again.")
        _check_fits(self.config, name, weight.shape, shape)
        return weight

    def needed(self, name: str, *shape: int | None) -> Weight:
        """A tensor that the model needs."""
        weight = self.found(name, *shape)
        if weight is None:
            raise FormatError(f"the file has no tensor {name}, which a {self.config.name} model needs.")
        return weight

    def vector(self, name: str, *shape: int | None) -> Tensor:
        """A vector that the model needs."""
        weight = self.needed(name, *shape)
        assert isinstance(weight, Tensor)
        return weight

    @property
    def nbytes(self) -> int:
        """Bytes of all weights, each counted once."""
        weights: list[Weight] = [self.embedding, self.output, self.output_norm]
        for matrices, vectors in zip(self.matrices, self.vectors, strict=True):
            weights += [*matrices.values(), *vectors.values()]
        return sum({id(weight): nbytes(weight) for weight in weights}.values())

    @classmethod
    def needed_names(cls) -> tuple[str, ...]:
        """The tensors that a layer must have, by their names in the layer."""
        return (*cls.needs_always, *cls.needs, *cls.needs_besides)

    @classmethod
    def shapes(cls, c: Config) -> dict[str, tuple[int, ...]]:
        """Every tensor that a layer can have, by its name in the layer."""
        queries, keys, values = c.heads * c.head_width, c.kv_heads * c.head_width, c.kv_heads * c.value_width
        return {
            "attn_norm.weight": (c.width,),
            "attn_q.weight": (queries, c.width),
            "attn_k.weight": (keys, c.width),
            "attn_v.weight": (values, c.width),
            "attn_q.bias": (queries,),
            "attn_k.bias": (keys,),
            "attn_v.bias": (values,),
            "attn_q_norm.weight": (c.head_width,),
            "attn_k_norm.weight": (c.head_width,),
            "attn_output.weight": (c.width, c.heads * c.value_width),
            "attn_output.bias": (c.width,),
            "post_attention_norm.weight": (c.width,),
            "ffn_norm.weight": (c.width,),
            "ffn_gate.weight": (c.feed_forward, c.width),
            "ffn_up.weight": (c.feed_forward, c.width),
            "ffn_down.weight": (c.width, c.feed_forward),
            "ffn_gate.bias": (c.feed_forward,),
            "ffn_up.bias": (c.feed_forward,),
            "ffn_down.bias": (c.width,),
            "post_ffw_norm.weight": (c.width,),
        }

    @classmethod
    def check(cls, c: Config, shapes: Mapping[str, Sequence[int]]) -> None:
        """The sizes are those of the tensors of a file, before memory is asked for by them.

        Raises:
            FormatError: a tensor has another shape than the metadata say.
        """
        whole = {"token_embd.weight": (None, c.width), "output.weight": (None, c.width)}
        layer = cls.shapes(c)
        for name, shape in shapes.items():
            _check_fits(c, name, shape, whole.get(name) or layer.get(_OF_LAYER.sub("", name)) or shape)

    def add_layer(self, n: int) -> None:
        """Take the tensors that a layer has, by their names in it."""
        wanted = self.needed_names()
        matrices: dict[str, Weight] = {}
        vectors: dict[str, Tensor] = {}
        for name, shape in self.shapes(self.config).items():
            weight = (self.needed if name in wanted else self.found)(f"blk.{n}.{name}", *shape)
            if len(shape) == 1 and isinstance(weight, Tensor):
                vectors[name] = weight
            elif weight is not None:
                matrices[name] = weight
        for names in self.same_x:
            join(matrices, [f"{name}.weight" for name in names])
        self.matrices.append(matrices)
        self.vectors.append(vectors)

    # --- what differs
    def has_window(self, n: int) -> bool:
        """Whether a layer sees only the last `window` tokens."""
        return False

    def rope_factors(self) -> Tensor | None:
        """Divisors of the frequencies, where the file has some."""
        return self.factors("rope_freqs.weight")

    def factors(self, name: str) -> Tensor | None:
        """A divisor for each frequency, if the file has them."""
        found = self.found(name, self.config.rope.size // 2)
        return found if isinstance(found, Tensor) else None

    def rope_tables(self, is_local: bool) -> tuple[Tensor, Tensor]:
        """Cosine and sine for layers with or without a window."""
        return tables(self.config.rope, self.capacity, self.rope_factors())

    def activation(self, x: Tensor) -> Tensor:
        """What the gate of the feed-forward part goes through."""
        return x.silu()

    def scale(self) -> float:
        """Of the scores."""
        return self.config.attention_scale or self.config.head_width**-0.5

    def embed(self, tokens: Tensor) -> Tensor:
        """Shapes: (sequences, tokens) -> (sequences, tokens, width)."""
        return rows(self.embedding, tokens)

    # --- the parts
    def forward(self, tokens: Tensor, places: Places, cache: Cache, layers: Layers | None = None) -> Tensor:
        """The last hidden state of each token, normed; their keys and values go into the cache.

        `layers` gives what a layer makes: of its kind, x, its weights, its keys and values, and what builds it.
        Shapes: tokens (sequences, tokens); the result (sequences, tokens, width).
        """
        count = tokens.shape[1]
        around = {
            is_local: (
                places.rows(cosine, count).unsqueeze(1),
                places.rows(sine, count).unsqueeze(1),
                self.mask(places, count, is_local),
            )
            for is_local, (cosine, sine) in self.rope.items()
        }
        x = self.embed(tokens)
        for n, (matrices, vectors) in enumerate(zip(self.matrices, self.vectors, strict=True)):
            build = partial(self.layer, n, x, places, around[self.is_local[n]], cache)
            if layers is None:
                x = build()
                continue
            kind, weights = (self.is_local[n], *matrices, *vectors), [*matrices.values(), *vectors.values()]
            x = layers(kind, x, weights, [cache.keys[n], cache.values[n]], build)
        return self.norm(x, self.output_norm)

    def layer(self, n: int, x: Tensor, places: Places, around: Around, cache: Cache) -> Tensor:
        """One layer. Shapes: (sequences, tokens, width) to the same."""
        layer = self.vectors[n]
        part = self.attention(n, self.norm(x, layer["attn_norm.weight"]), places, around, cache)
        x = x + self.norm(part, layer.get("post_attention_norm.weight"))
        part = self.feed_forward(n, self.norm(x, layer["ffn_norm.weight"]))
        return x + self.norm(part, layer.get("post_ffw_norm.weight"))

    def mask(self, places: Places, count: int, is_local: bool) -> Tensor:
        """What each token sees. Shapes: (sequences, 1, 1, count, end)."""
        every = Tensor.arange(self.capacity)
        seen, now = every[: places.end], places.rows(every, count).unflatten(-1, (1, 1, -1, 1))
        mask = seen <= now
        return mask & (seen > now - self.config.window) if is_local else mask

    def norm(self, x: Tensor, weight: Tensor | None) -> Tensor:
        """Divided by the root of the mean square of the last axis, times the weight; without one x as it is."""
        if weight is None:
            return x
        return x * (x.square().mean(-1, keepdim=True) + self.config.epsilon).rsqrt() * weight

    def queries_keys_values(self, n: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Shapes: (sequences, tokens, width) -> (sequences, tokens, heads * width) each."""
        q, k, v = self.products(n, x, _ATTENTION)
        return q, k, v

    def product(self, n: int, x: Tensor, name: str) -> Tensor:
        """With a matrix of a layer, and its bias where there is one."""
        return linear(x, self.matrices[n][f"{name}.weight"], self.vectors[n].get(f"{name}.bias"))

    def products(self, n: int, x: Tensor, names: Sequence[str]) -> list[Tensor]:
        """The same x with several matrices of a layer, and their biases where there are some."""
        rows = [self.shapes(self.config)[f"{name}.weight"][0] for name in names]
        found: list[Tensor] = []
        for name in names:
            matrix = self.matrices[n].get(f"{name}.weight")  # None: it lies in the one before
            if matrix is not None:
                found += parts_of(linear(x, matrix), rows[len(found) :])
        biases = [self.vectors[n].get(f"{name}.bias") for name in names]
        return [part if bias is None else part + bias for part, bias in zip(found, biases, strict=True)]

    def attention(self, n: int, x: Tensor, places: Places, around: Around, cache: Cache) -> Tensor:
        """Each token looks at those before it; several query heads share a key head."""
        c, (cosine, sine, mask), layer = self.config, around, self.vectors[n]
        q, k, v = (part.unflatten(-1, (-1, width)).transpose(1, 2) for part, width in zip(
            self.queries_keys_values(n, x), (c.head_width, c.head_width, c.value_width), strict=True
        ))  # fmt: skip
        q, k = self.norm(q, layer.get("attn_q_norm.weight")), self.norm(k, layer.get("attn_k_norm.weight"))
        q, k = (rotate(part, cosine, sine, by_halves=self.by_halves) for part in (q, k))
        has_many = x.shape[1] > 1
        q, k, v = (part.contiguous() if has_many else part for part in (q, k, v))  # attention is a kernel by itself
        keys, values = (part.unsqueeze(2) for part in cache.write(n, places, k, v))
        q = q.unflatten(1, (c.kv_heads, -1))  # (sequences, kv heads, group, tokens, width)
        if has_many and not c.attention_cap:  # each of many tokens sees a part: loops end there
            mixed = q.scaled_dot_product_attention(keys, values, mask, scale=self.scale())
        else:
            scores = q.matmul(keys.mT) * self.scale()
            if c.attention_cap:
                scores = (scores / c.attention_cap).tanh() * c.attention_cap
            mixed = where(mask, scores, -math.inf).softmax(-1).matmul(values)
        mixed = mixed.flatten(1, 2).transpose(1, 2).flatten(2).contiguous()  # heads side by side
        return self.product(n, mixed, "attn_output")

    def feed_forward(self, n: int, x: Tensor) -> Tensor:
        """Up, gated, and down again."""
        gate, up = self.gate_and_up(n, x)
        return self.product(n, (self.activation(gate) * up).contiguous(), "ffn_down")  # once, not for each output

    def gate_and_up(self, n: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """Shapes: (sequences, tokens, width) -> (sequences, tokens, feed forward) each."""
        gate, up = self.products(n, x, _GATED)
        return gate, up

    def logits(self, hidden: Tensor) -> Tensor:
        """Shapes: (.., width) -> (.., vocabulary)."""
        logits, cap = linear(hidden, self.output), self.config.logit_cap
        return (logits / cap).tanh() * cap if cap else logits
