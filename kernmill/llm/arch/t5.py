"""t5: T5, Flan-T5 and others of an encoder and a decoder: text to text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from kernmill import FormatError, SettingError, Tensor, where

from .architecture import Architecture, Around, Weights
from .cache import Cache, LayerMemory, Positions
from .config import Config
from .t5encoder import T5Encoder
from .weight import linear, nbytes

__all__ = ["T5"]

_KEYS, _VALUES = "cross_keys", "cross_values"  # of a layer: what it makes of the source


class T5(T5Encoder):
    """A decoder whose layers also attend to the states that an encoder computes of the *source*, once for each text.

    Where the embedding is the output too, states are scaled before it, as in transformers; llama.cpp leaves it out.
    """

    is_encoder = False
    can_shift = False
    has_streams = True  # of the source, and of the text

    def __init__(self, config: Config, weights: Weights, capacity: int) -> None:
        if config.homes or config.part is not None:
            raise SettingError("Model: t5 runs on one device and one rank. Choose one: DEVICE=LLVM.")
        super().__init__(config, weights, capacity)
        shared = {"token_embd.weight": self.embedding, "output.weight": None}
        inner = replace(config, layers=config.encoder_layers, is_causal=False)
        self.encoder = T5Encoder(inner, lambda name: shared[name] if name in shared else weights(name), capacity)
        self._lengths = Tensor(np.zeros(1, np.int32))  # of the sources

    @classmethod
    def named(cls, name: str) -> str:
        """Layers and the last norm are those of a decoder."""
        if name.startswith(("enc.", "dec.")):
            return name
        return super().named(name).replace("enc.", "dec.", 1)

    @classmethod
    def kept(cls, c: Config, n: int) -> LayerMemory:
        """Keys and values of the decoder's own tokens."""
        return Architecture.kept(c, n)

    @classmethod
    def shapes(cls, c: Config) -> dict[str, tuple[int, ...]]:
        """With the attention to the source."""
        inner = c.heads * c.head_width
        return super().shapes(c) | {
            "cross_attn_norm.weight": (c.width,),
            "cross_attn_q.weight": (inner, c.width),
            "cross_attn_k.weight": (inner, c.width),
            "cross_attn_v.weight": (inner, c.width),
            "cross_attn_o.weight": (c.width, inner),
            "cross_attn_rel_b.weight": (c.buckets, c.heads),  # in some files, and in no formula
        }

    @classmethod
    def names_in(cls, c: Config, n: int) -> tuple[dict[str, tuple[int, ...]], set[str]]:
        """A layer must have the attention to the source."""
        shapes, needed = super().names_in(c, n)
        return shapes, needed | {f"cross_attn_{part}.weight" for part in ("norm", "q", "k", "v", "o")}

    @classmethod
    def check(cls, c: Config, shapes: Mapping[str, Sequence[int]]) -> None:
        """Check encoder and decoder, each with its own number of layers."""
        if c.heads != c.kv_heads or c.head_width != c.value_width:
            raise FormatError(f"{c.name}: keys and values must have the heads of queries. Convert the file again.")
        super().check(c, {name.removeprefix("dec."): shape for name, shape in shapes.items() if name[:4] != "enc."})
        T5Encoder.check(
            replace(c, layers=c.encoder_layers),
            {name: shape for name, shape in shapes.items() if name[:4] != "dec."},
        )

    @property
    def bytes_by_layout(self) -> dict[tuple[str, str], int]:
        """Bytes of all weights, and of the keys and values of sources."""
        found = dict(super().bytes_by_layout)
        for key, size in self.encoder.bytes_by_layout.items():
            found[key] = found.get(key, 0) + size
        key = next(key for key, size in self.encoder.bytes_by_layout.items() if size >= nbytes(self.embedding))
        found[key] -= nbytes(self.embedding)  # it is one
        return found

    # --- the source
    def allot(self, sequences: int) -> None:
        """Make room for the source of each sequence. Shapes: (sequences, heads, capacity, width) in each layer."""
        c = self.config
        self._lengths = Tensor(np.zeros(sequences, np.int32))
        for vectors in self.vectors:
            for name in (_KEYS, _VALUES):
                vectors[name] = Tensor(np.zeros((sequences, c.heads, self.capacity, c.head_width), np.float32))

    def put_source(self, number: int, states: Tensor, length: int) -> None:
        """Replace the source of a sequence by the states of its tokens; those from `length` on are padding.

        Shapes: states (tokens, width).
        """
        now = np.array(self._lengths.numpy())
        now[number] = length
        for matrices, vectors in zip(self.matrices, self.vectors, strict=True):
            for name, part in ((_KEYS, "k"), (_VALUES, "v")):
                made = linear(states, matrices[f"cross_attn_{part}.weight"])
                heads = made.unflatten(-1, (self.config.heads, -1)).transpose(0, 1).unsqueeze(0)
                vectors[name][number : number + 1, :, : states.shape[0]] = heads.contiguous()
                vectors[name].realize()
        self._lengths.assign(Tensor(now)).realize()

    def _of_sequences(self, table: Tensor, positions: Positions) -> Tensor:
        """The entries of the sequences of a step. Shapes: (all, ..) -> (sequences, ..)."""
        return table[: len(positions.first)] if positions.chosen is None else table[positions.chosen.ids]

    def layer(self, n: int, x: Tensor, positions: Positions, around: Around, cache: Cache) -> Tensor:
        """One layer: attention to its own tokens, to the source, and the feed-forward part."""
        x = x + self.attention(n, self.normed(n, x, "attn_norm"), positions, around, cache)
        x = x + self._attention_to_source(n, self.normed(n, x, "cross_attn_norm"), positions)
        return x + self.feed_forward(n, self.normed(n, x, "ffn_norm"))

    def _attention_to_source(self, n: int, x: Tensor, positions: Positions) -> Tensor:
        q = self.product(n, x, "cross_attn_q").unflatten(-1, (self.config.heads, -1)).transpose(1, 2)
        keys, values = (self._of_sequences(self.vectors[n][name], positions) for name in (_KEYS, _VALUES))
        lengths = self._of_sequences(self._lengths, positions)
        is_seen = Tensor.arange(self.capacity) < lengths.unflatten(0, (-1, 1, 1, 1, 1))
        mask = where(is_seen, 0.0, float("-inf")).expand(lengths.shape[0], 1, 1, x.shape[1], self.capacity)
        return self.product(n, self.mixed(n, q, keys, values, mask.contiguous()), "cross_attn_o")

    def logits(self, hidden: Tensor) -> Tensor:
        """Scaled as the file says, or by the width's root where the embedding is the output."""
        usual = self.config.width**-0.5 if self.output is self.embedding else 1.0
        scale = self.config.logit_scale or usual
        return super().logits(hidden if scale == 1 else hidden * scale)
