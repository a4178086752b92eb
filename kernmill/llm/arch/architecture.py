"""class Architecture(LayerTensors): the decoder of all architectures, with hooks for their differences.

    x = embedding of the tokens
    each layer:  x = x + attention(norm(x))
                 x = x + feed_forward(norm(x))
    logits = norm(x) @ output.T

A subclass sets the attributes of `Architecture` and overrides the methods that are different in it. Tensors have the
names that GGUF files give them, and their shapes are checked. Weights may be of any float dtype; activations are
float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from functools import partial

from kernmill import Tensor, scope, where

from .cache import Cache, LayerMemory, LayerTurns, Positions
from .config import Config
from .experts import Choice, apart, chosen_experts, expert_shapes
from .pooling import Pooling
from .rope import rotate, tables
from .tensors import ATTENTION, EXPERTS, GATED, SHARED, LayerTensors, Weights
from .weight import Weight, chosen, linear, nbytes, parts_of, rows

__all__ = ["Architecture", "Weights"]

Around = tuple[Tensor, Tensor, Tensor]  # cosine, sine and mask of a pass
Layers = Callable[[Hashable, Tensor, Sequence[Weight], Sequence[Tensor], Callable[[], Tensor]], Tensor]


class Architecture(LayerTensors):
    """A model: tokens in, logits out.

    Raises:
        FormatError: a tensor is missing or has another shape than the metadata say.
    """

    is_encoder = False  # tokens attend to later ones too, whatever the file says: no text is generated
    has_states = False  # some layers are recurrent
    has_streams = False  # several streams of x, which the training does not know
    by_halves = True  # which entries of a head are rotated together: see rope.rotate
    has_layer_norm = False  # a norm subtracts the mean, and may have a bias
    is_parallel = False  # attention and feed-forward part read the same x
    can_shift = True  # keys in the cache can be rotated to other positions
    norms_rotated = False  # heads are normed after they are rotated, not before
    period = 0  # the last of this many layers has no window, the others have one; 0: no layer has one
    weighs_input = False  # the weights of experts multiply their x, not their results
    before_attention, after_attention = "attn_norm", "post_attention_norm"  # names of norms; "": none
    before_feed_forward, after_feed_forward = "ffn_norm", "post_ffw_norm"
    ranked = "cls"  # the state that an encoder's classifier reads
    output_norm = "output_norm"  # the name of the last norm; "": none

    def __init__(self, config: Config, weights: Weights, capacity: int) -> None:
        self.check_sizes(config)
        config = self._with_experts(config)
        self.config, self.capacity, self._weights = config, capacity, lambda name: weights(self.named(name))
        self.embedding = self.needed("token_embd.weight", None, config.width)
        known = self.embedding.shape[0]
        self.vocabulary = known if config.part is None else config.part.vocabulary
        output = self.found("output.weight", known, config.width)
        self.output = self.embedding if output is None else output
        self.ends: dict[str, Tensor] = {}
        if self.output_norm:
            self.ends["output_norm.weight"] = self.vector(f"{self.output_norm}.weight", config.width)
            self.add_end("output_norm.bias", config.width)
        self.add_end("output.bias", known)
        self.pooling = Pooling.of(config, self.found, "last" if self.is_causal else self.ranked, self.rank_activation)
        self.matrices: list[dict[str, Weight]] = []
        self.vectors: list[dict[str, Tensor]] = []  # norms and biases
        for n in range(config.layers):
            if n in config.own_layers:
                self.add_layer(n)
            else:
                self.matrices.append({})
                self.vectors.append({})
        self.added: dict[int, list[Tensor]] = {}  # by layer: what control vectors add to its result
        self.is_local = [self.has_window(n) for n in range(config.layers)]
        self.is_rotated = [self.has_rope(n) for n in range(config.layers)]
        self.rope = {is_local: self.rope_tables(is_local) for is_local in set(self.is_local)}

    @property
    def is_causal(self) -> bool:
        """True if tokens attend to earlier ones only."""
        return self.config.is_causal and not self.is_encoder

    @classmethod
    def kept(cls, c: Config, n: int) -> LayerMemory:
        """Return what a layer keeps of the tokens before."""
        of = c.of_layer(n)
        return LayerMemory(of.kv_heads, of.head_width, of.value_width)

    # --- differences
    def has_window(self, n: int) -> bool:
        """True if a layer sees only the last `window` tokens: by the file's pattern, or by `period`."""
        pattern = self.config.window_pattern or self.period
        if not self.config.window or not self.period:
            return False
        return pattern[n] if isinstance(pattern, tuple) else n % pattern < pattern - 1

    def has_rope(self, n: int) -> bool:
        """True if a layer rotates queries and keys."""
        return True

    def variant(self, n: int) -> Hashable:
        """Return what a layer does differently from others with the same tensors; equal if they compute the same."""
        return self.is_local[n], self.is_rotated[n]

    def rope_factors(self) -> Tensor | None:
        """Divisors of the frequencies, where the file has some."""
        return self.factors("rope_freqs.weight")

    def rope_tables(self, is_local: bool) -> tuple[Tensor, Tensor]:
        """Cosine and sine for layers with or without a window."""
        return tables(self.config.rope, self.capacity, self.rope_factors())

    def activation(self, x: Tensor) -> Tensor:
        """Apply the activation of the feed-forward part."""
        return x.silu()

    def rank_activation(self, x: Tensor) -> Tensor:
        """Apply the activation of the classifier of a model that ranks."""
        return x.tanh()

    def scale(self) -> float:
        """Of the scores."""
        return self.config.attention_scale or self.config.head_width**-0.5

    def embed(self, tokens: Tensor, positions: Positions) -> Tensor:
        """The x of the first layer. Shapes: (sequences, tokens) -> (sequences, tokens, width)."""
        part = self.config.part
        x = rows(self.embedding, tokens) if part is None else part.embedded(self.embedding, tokens)
        return x * self.config.embedding_scale if self.config.embedding_scale else x

    # --- the parts
    def forward(self, tokens: Tensor, positions: Positions, cache: Cache, layers: Layers | None = None) -> Tensor:
        """Return the normed last hidden state of each token; their keys and values are written to the cache.

        `layers` builds a layer from its kind, x, its weights, its keys and values, and a builder function.
        Shapes: tokens (sequences, tokens); the result (sequences, tokens, width).
        """
        count = tokens.shape[1]
        around = {
            is_local: (
                positions.rows(cosine, count).unsqueeze(1),
                positions.rows(sine, count).unsqueeze(1),
                self.mask(positions, count, is_local),
            )
            for is_local, (cosine, sine) in self.rope.items()
        }
        part = self.config.part
        if part is None or part.is_first:
            x = self.embed(tokens, positions)
        else:
            x = part.received((*tokens.shape, self._width_before(part.first)))
        positions = positions._replace(inputs=self.layer_inputs(tokens, x))
        if part is not None and part.by_tensors:
            layers = None  # a reduction ends a graph: none is a template
        for n in self.config.own_layers:
            matrices, vectors = self.matrices[n], self.vectors[n]
            if self.config.homes:
                x = x.to(self.config.homes[n])
            build = partial(self._changed_layer, n, x, positions, around[self.is_local[n]], cache)
            if layers is None:
                x = build()
                continue
            added = self.added.get(n, ())
            kind = (self.variant(n), len(added), *matrices, *vectors)
            weights = [*matrices.values(), *vectors.values(), *added]
            x = layers(kind, x, weights, cache.of_layer(n), build)
        if self.config.homes:
            x = x.to(self.config.homes[-1])
        if part is not None and not part.is_last:
            return part.passed_on(x)
        x = self.finished(x)
        return self.norm(x, self.ends.get("output_norm.weight"), self.ends.get("output_norm.bias"))

    def _changed_layer(self, n: int, x: Tensor, positions: Positions, around: Around, cache: Cache) -> Tensor:
        """One layer, and the directions of control vectors."""
        x = self.layer(n, x, positions, around, cache)
        for direction in self.added.get(n, ()):
            x = x + direction
        return x

    def layer_inputs(self, tokens: Tensor, x: Tensor) -> Tensor | None:
        """Return what layers take in addition to x; None: nothing. Shapes: (sequences, tokens, layers, width)."""
        return None

    def _width_before(self, n: int) -> int:
        """Return how many values of each token layer `n` takes, and after the last layer those of its result."""
        return self.config.width

    def finished(self, x: Tensor) -> Tensor:
        """Return the x of the last norm from that of the last layer."""
        return x

    def layer(self, n: int, x: Tensor, positions: Positions, around: Around, cache: Cache) -> Tensor:
        """One layer. Shapes: (sequences, tokens, width) to the same."""
        before_attention, before_feed_forward = self.norms_before(n)
        with scope("layer.attention"):
            part = self.attention(n, self.normed(n, x, before_attention), positions, around, cache)
            part = self.normed(n, part, self.after_attention)
        if self.is_parallel_in(n):
            with scope("layer.feed_forward"):
                return x + part + self.feed_forward(n, self.normed(n, x, before_feed_forward))
        with scope("layer.feed_forward"):
            x = x + self._scaled(part)
            part = self.feed_forward(n, self.normed(n, x, before_feed_forward))
            return x + self._scaled(self.normed(n, part, self.after_feed_forward))

    def norms_before(self, n: int) -> tuple[str, str]:
        """Return the names of the norms before attention and before the feed-forward part of a layer."""
        return self.before_attention, self.before_feed_forward

    def is_parallel_in(self, n: int) -> bool:
        """True if attention and feed-forward part of a layer read the same x."""
        return self.is_parallel

    def _scaled(self, part: Tensor) -> Tensor:
        """Scale the part that is added to x."""
        return part * self.config.residual_scale if self.config.residual_scale else part

    def normed(self, n: int, x: Tensor, name: str) -> Tensor:
        """x normed with the weight of that name of a layer, and its bias; x if the layer has none."""
        return self.norm(x, self.vectors[n].get(f"{name}.weight"), self.vectors[n].get(f"{name}.bias"))

    def mask(self, positions: Positions, count: int, is_local: bool) -> Tensor:
        """Return which positions each token attends to; floats are added to scores.

        Shapes: (sequences, 1, 1, count, end), with floats also a size for each key head and each head of its group.
        """
        every = Tensor.arange(self.capacity)
        seen, now = every[: positions.end], positions.rows(every, count).unflatten(-1, (1, 1, -1, 1))
        if self.is_causal:
            mask = seen <= now
            return mask & (seen > now - self.config.window) if is_local else mask
        assert positions.lengths is not None
        mask = (seen < positions.lengths.unflatten(0, (-1, 1, 1, 1, 1))) | seen.eq(now)  # padding sees at least itself
        return mask & ((seen - now).abs() <= self.config.window // 2) if is_local else mask

    def norm(self, x: Tensor, weight: Tensor | None, bias: Tensor | None = None) -> Tensor:
        """x divided by the root mean square of its last axis, times the weight; without a weight x.

        With `has_layer_norm` the mean is subtracted first.
        """
        if weight is None:
            return x
        if self.has_layer_norm:
            x = x - x.mean(-1, keepdim=True)
        x = x * (x.square().mean(-1, keepdim=True) + self.config.epsilon).rsqrt() * weight
        return x if bias is None else x + bias

    def queries_keys_values(self, n: int, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Shapes: (sequences, tokens, width) -> (sequences, tokens, heads * width) each."""
        q, k, v = self.products(n, x, ATTENTION)
        return q, k, v

    def product(self, n: int, x: Tensor, name: str) -> Tensor:
        """Multiply by a matrix of a layer, and add its bias if there is one."""
        return linear(x, self.matrices[n][f"{name}.weight"], self.vectors[n].get(f"{name}.bias"))

    def products(self, n: int, x: Tensor, names: Sequence[str]) -> list[Tensor]:
        """The same x with several matrices of a layer, and their biases where there are some."""
        c = self.config.of_layer(n)
        shapes = self.shapes(c) | expert_shapes(c)
        rows = [shapes[f"{name}.weight"][0] for name in names]
        found: list[Tensor] = []
        for name in names:
            matrix = self.matrices[n].get(f"{name}.weight")  # None: it is merged into the one before
            if matrix is not None:
                found += parts_of(linear(x, matrix), rows[len(found) :])
        biases = [self.vectors[n].get(f"{name}.bias") for name in names]
        return [part if bias is None else part + bias for part, bias in zip(found, biases, strict=True)]

    def attention(self, n: int, x: Tensor, positions: Positions, around: Around, cache: Cache) -> Tensor:
        """Attend to the tokens before each token; several query heads share a key head."""
        mixed = self.attended(n, *self.queries_keys_values(n, x), positions, around, cache)
        return self.summed(self.product(n, mixed, "attn_output"))

    def attended(
        self, n: int, q: Tensor, k: Tensor, v: Tensor, positions: Positions, around: Around, cache: Cache
    ) -> Tensor:
        """Return the sums of values, of all heads. Shapes: (sequences, tokens, heads * width) each, and the result."""
        c = self.config.of_layer(n)
        q, k = self._heads(n, q, "attn_q_norm", c.head_width), self._heads(n, k, "attn_k_norm", c.head_width)
        q, k = self._positioned(n, q, k, positions, around)
        v = self.value_heads(n, v)
        k, v = (part.contiguous() if q.shape[2] > 1 else part for part in (k, v))
        return self.mixed(n, q, *cache.write(n, positions, k, v), around[2])

    def value_heads(self, n: int, v: Tensor) -> Tensor:
        """Heads of values. Shapes: (sequences, tokens, heads * width) -> (sequences, heads, tokens, width)."""
        return v.unflatten(-1, (-1, self.config.of_layer(n).value_width)).transpose(1, 2)

    def mixed(self, n: int, q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
        """Return the values that each token attends to, weighted by scores, of all heads.

        Shapes: q (sequences, heads, tokens, width), keys and values (sequences, kv heads, end, width) -> (sequences,
        tokens, heads * width).
        """
        c, has_many = self.config, q.shape[2] > 1
        q = q.contiguous() if has_many else q  # attention is a separate kernel
        keys, values = keys.unsqueeze(2), values.unsqueeze(2)
        q = q.unflatten(1, (keys.shape[1], -1))  # (sequences, kv heads, group, tokens, width)
        sinks = self.vectors[n].get("attn_sinks.weight")
        if has_many and not c.attention_cap and sinks is None:  # each token attends to a range: loops end there
            mixed = q.scaled_dot_product_attention(keys, values, mask, scale=self.scale())
        else:
            scores = q.matmul(keys.mT) * self.scale()
            if c.attention_cap:
                scores = (scores / c.attention_cap).tanh() * c.attention_cap
            scores = where(mask, scores, -math.inf) if mask.dtype.is_bool else scores + mask
            mixed = (scores.softmax(-1) if sinks is None else self._with_sinks(scores, sinks)).matmul(values)
        return mixed.flatten(1, 2).transpose(1, 2).flatten(2).contiguous()  # concatenate the heads

    def summed(self, product: Tensor) -> Tensor:
        """The sum over all ranks, if the columns of a matrix are divided between them."""
        return product if self.config.part is None else self.config.part.summed(product)

    def _positioned(self, n: int, q: Tensor, k: Tensor, positions: Positions, around: Around) -> tuple[Tensor, Tensor]:
        """Rotate the heads of queries and keys by their positions, and norm them where that comes after."""
        if self.is_rotated[n]:
            q, k = (rotate(part, *around[:2], by_halves=self.by_halves) for part in (q, k))
        if self.norms_rotated:
            q, k = self.normed(n, q, "attn_q_norm"), self.normed(n, k, "attn_k_norm")
        return q, k

    def _turned_keys(self, n: int, keys: Tensor, turns: LayerTurns) -> Tensor:
        """Rotate keys of a layer from the cache to other positions. Shapes: (.., tokens, width) to the same."""
        return rotate(keys, *turns[self.is_local[n]], by_halves=self.by_halves) if self.is_rotated[n] else keys

    def _with_sinks(self, scores: Tensor, sinks: Tensor) -> Tensor:
        """Softmax of scores and one more, of the sink of a head, that has no value.

        Shapes: scores (sequences, kv heads, group, tokens, end), sinks (heads,).
        """
        sink = sinks.reshape(1, scores.shape[1], scores.shape[2], 1, 1)
        most = scores.max(-1, keepdim=True).maximum(sink)
        shares = (scores - most).exp()
        return shares / (shares.sum(-1, keepdim=True) + (sink - most).exp())

    def _heads(self, n: int, rows: Tensor, norm: str, width: int) -> Tensor:
        """Heads of queries or keys, normed one by one, or all together where the norm's weight is as long as a row.

        Shapes: (sequences, tokens, heads * width) -> (sequences, heads, tokens, width).
        """
        weight = self.vectors[n].get(f"{norm}.weight")
        is_of_row = weight is not None and weight.shape != (width,)
        rows = self.normed(n, rows, norm) if is_of_row else rows
        split = rows.unflatten(-1, (-1, width)).transpose(1, 2)
        return split if is_of_row or self.norms_rotated else self.normed(n, split, norm)

    def feed_forward(self, n: int, x: Tensor) -> Tensor:
        """Up, activated, and down again; the sum of some experts where the layer has them."""
        if "ffn_gate_inp.weight" in self.matrices[n]:
            return self._mixture(n, x)
        if self.has_gate:
            gate, up = self.products(n, x, GATED)
            up = self.activation(gate) * up
        else:
            up = self.activation(self.product(n, x, "ffn_up"))
        return self.summed(self.product(n, up.contiguous(), "ffn_down"))  # once, not for each output

    def _mixture(self, n: int, x: Tensor) -> Tensor:
        """The experts of each token, and those that all tokens use. Shapes: (sequences, tokens, width) to the same."""
        e, vectors = self.config.experts, self.vectors[n]
        rows = x.flatten(0, 1).contiguous()
        choice = chosen_experts(self.product(n, rows, "ffn_gate_inp"), e, vectors.get("exp_probs_b.bias"))
        if self.weighs_input:
            inputs = rows.unsqueeze(1) * choice.weights.unsqueeze(-1)
            choice = choice._replace(weights=choice.weights._filled(1.0))
        else:
            inputs = rows
        if self.config.part is not None:
            choice = Choice(*self.config.part.chosen_here(*choice, e.count))
        result = apart(inputs, choice, e.here or e.count, partial(self._experts_of, n), self._bytes_of_expert(n))
        if "ffn_down_shexp.weight" in self.matrices[n]:
            *gate, up = self.products(n, rows, SHARED if self.has_gate else SHARED[1:])
            mixed = self.activation(gate[0]) * up if gate else self.activation(up)
            shared = self.product(n, mixed.contiguous(), "ffn_down_shexp")
            weight = vectors.get("ffn_gate_inp_shexp.weight")
            result = result + (shared if weight is None else shared * (rows * weight).sum(-1, keepdim=True).sigmoid())
        return self.summed(result.reshape(x.shape))

    def _bytes_of_expert(self, n: int) -> int:
        """The size of the matrix of an expert."""
        stack = self.matrices[n]["ffn_down_exps.weight"]
        return nbytes(stack) // stack.shape[0]

    def _experts_of(self, n: int, x: Tensor, ids: Tensor, counts: Tensor | None) -> Tensor:
        """Rows with the expert of their tile; those from its count on may be anything.

        Shapes: (tiles, rows, width), (tiles,), (tiles,) -> (tiles, rows, width).
        """
        matrices, vectors, width = self.matrices[n], self.vectors[n], self.config.experts.width
        parts: list[Tensor] = []
        for name in EXPERTS:
            if f"{name}.weight" in matrices:  # None: it is merged into the one before, or there are no gates
                product = chosen(x, matrices[f"{name}.weight"], ids, counts=counts)
                parts += parts_of(product, [width] * (2 - len(parts)))
        biases = [vectors.get(f"{name}.bias") for name in EXPERTS[-len(parts) :]]
        *gate, up = (
            part if bias is None else part + bias[ids].unsqueeze(1) for part, bias in zip(parts, biases, strict=True)
        )
        mixed = (self._activated(gate[0], up) if gate else self.activation(up)).contiguous()
        return chosen(mixed, matrices["ffn_down_exps.weight"], ids, vectors.get("ffn_down_exps.bias"), counts)

    def _activated(self, gate: Tensor, up: Tensor) -> Tensor:
        """Activate a gate and multiply: the input of `ffn_down_exps`."""
        return self.activation(gate) * up

    def logits(self, hidden: Tensor) -> Tensor:
        """Shapes: (.., width) -> (.., vocabulary)."""
        part, cap = self.config.part, self.config.logit_cap
        if part is not None and not part.is_last:
            return part.at_the_first(Tensor.zeros(*hidden.shape[:-1], self.vocabulary))
        with scope("output"):
            logits = linear(hidden, self.output, self.ends.get("output.bias"))
            logits = (logits / cap).tanh() * cap if cap else logits
        return logits if part is None else part.at_the_first(logits)
