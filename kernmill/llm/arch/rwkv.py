"""class Rwkv(RecurrentDecoder): what RWKV 6 and 7 share: layer norms, parts that see the token before, states of heads.

Source: Peng et al., Eagle and Finch (2024), Goose (2025).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from kernmill import FormatError, Tensor

from .architecture import Around, Weights
from .cache import Cache, Positions
from .config import Config
from .recurrent import RecurrentDecoder
from .weight import Weight, linear

__all__ = ["Rwkv", "chunks"]

_EPSILON = 64e-5  # of the norm of heads
_TOGETHER = 16  # tokens of a chunk: products of decays stay above 0


class Rwkv(RecurrentDecoder):
    """Two parts of each layer mix a token with the one before; the first one keeps a matrix for each head."""

    has_layer_norm = True
    before_attention, before_feed_forward, after_attention, after_feed_forward = "attn_norm", "attn_norm_2", "", ""
    lacks = (
        "attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight",
        "ffn_norm.weight", "ffn_gate.weight", "ffn_up.weight", "ffn_down.weight",
    )  # fmt: skip
    needs_besides = ("attn_norm.bias", "attn_norm_2.weight", "attn_norm_2.bias")

    def __init__(self, config: Config, weights: Weights, capacity: int) -> None:
        super().__init__(config, weights, capacity)
        for name in ("token_embd_norm.weight", "token_embd_norm.bias"):
            self.ends[name] = self.vector(name, config.width)

    @classmethod
    def check_sizes(cls, c: Config) -> None:
        """Check that heads divide the width."""
        if not c.wkv.head_size or c.width % c.wkv.head_size:
            raise FormatError(
                f"{c.name}.wkv.head_size is {c.wkv.head_size}: must divide embedding_length {c.width}. Convert the "
                "file again."
            )

    @classmethod
    def mixing_shapes(cls, c: Config) -> dict[str, tuple[int, ...]]:
        """The tensors of both parts that are not in all versions, without `.weight`."""
        raise NotImplementedError

    @classmethod
    def recurrent_shapes(cls, c: Config) -> dict[str, tuple[int, ...]]:
        """The tensors of both parts."""
        square, vector = (c.width, c.width), (c.width,)
        shapes: dict[str, tuple[int, ...]] = {
            f"time_mix_{name}": square for name in ("key", "value", "receptance", "output")
        }
        shapes |= {"time_mix_ln": vector, "channel_mix_lerp_k": vector}
        shapes |= {"channel_mix_key": (c.feed_forward, c.width), "channel_mix_value": (c.width, c.feed_forward)}
        shapes |= cls.mixing_shapes(c)
        return {f"{name}.weight": shape for name, shape in shapes.items()} | {"time_mix_ln.bias": vector}

    @classmethod
    def state_shapes(cls, c: Config) -> tuple[tuple[int, ...], ...]:
        """The last input of both parts, and a matrix for each head."""
        size = max(1, c.wkv.head_size)
        return (1, c.width), (1, c.width), (c.width // size, size, size)

    @classmethod
    def names_in(cls, c: Config, n: int) -> tuple[dict[str, tuple[int, ...]], set[str]]:
        """All tensors are needed."""
        shapes, needed = super().names_in(c, n)
        return shapes, needed | cls.recurrent_shapes(c).keys() - cls.optional_names()

    @classmethod
    def optional_names(cls) -> set[str]:
        """Tensors that a file may lack."""
        return set()

    @classmethod
    def check(cls, c: Config, shapes: Mapping[str, Sequence[int]]) -> None:
        """Check the shapes; vectors of mixing may have more axes of size 1."""
        flat = {name: [size for size in shape if size > 1] if "_lerp_" in name else shape
                for name, shape in shapes.items()}  # fmt: skip
        super().check(c, flat)

    def found(self, name: str, *shape: int | None) -> Weight | None:
        """Return the tensor of this name, or None."""
        weight = self._weights(name) if "_lerp_" in name else None
        sizes = [size or 1 for size in shape]
        if isinstance(weight, Tensor) and weight.shape != tuple(sizes) and prod(weight.shape) == prod(sizes):
            return weight.reshape(sizes).contiguous().realize()
        return super().found(name, *shape)

    def embed(self, tokens: Tensor, positions: Positions) -> Tensor:
        """The rows of the tokens, normed."""
        ends = self.ends
        return self.norm(super().embed(tokens, positions), ends["token_embd_norm.weight"], ends["token_embd_norm.bias"])

    def layer(self, n: int, x: Tensor, positions: Positions, around: Around, cache: Cache) -> Tensor:
        """One layer: the states of both parts are read first and written last."""
        first, second, heads = self.states_of(n, x.shape[0], positions, cache)
        part = self.normed(n, x, self.before_attention).contiguous()
        before, first = self.shifted(part, first, positions.counts)
        mixed, heads, value = self.time_mix(n, part, before, heads, self.carried(n, x), positions.counts)
        x = self.residual(x) + mixed
        part = self.normed(n, x, self.before_feed_forward).contiguous()
        before, second = self.shifted(part, second, positions.counts)
        x = x + self.channel_mix(n, part, before)
        if n in cache.states:
            cache.write_states(n, positions, [first, second, heads])
        return self.after_layer(n, x, value)

    def carried(self, n: int, x: Tensor) -> Tensor | None:
        """Return what layers pass on in addition to x."""
        return None

    def residual(self, x: Tensor) -> Tensor:
        """x without what layers pass on in addition to it."""
        return x

    def after_layer(self, n: int, x: Tensor, value: Tensor) -> Tensor:
        """The x of the next layer. `value`: the first part's values."""
        return x

    def time_mix(
        self, n: int, x: Tensor, before: Tensor, state: Tensor, carried: Tensor | None, counts: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The first part: its result, its states and its values. Shapes: x and `before` (sequences, tokens, width)."""
        raise NotImplementedError

    def channel_mix(self, n: int, x: Tensor, before: Tensor) -> Tensor:
        """The second part."""
        raise NotImplementedError

    def shifted(self, x: Tensor, last: Tensor, counts: Tensor | None) -> tuple[Tensor, Tensor]:
        """The token before each, and the last one. Shapes: x (sequences, tokens, width), last (sequences, 1, width)."""
        whole = last.cat(x, axis=1).contiguous()
        before = whole[:, :-1]
        if counts is None:
            return before, whole[:, -1:].contiguous()
        return before, whole.take_along_dim(counts.reshape(-1, 1, 1), 1).contiguous()

    def lerped(self, n: int, x: Tensor, before: Tensor, name: str) -> Tensor:
        """x moved towards the token before it by a learned part."""
        return x + (before - x) * self.vectors[n][f"{name}.weight"]

    def small(self, n: int, x: Tensor, name: str) -> Tensor:
        """A product with a matrix that files never quantize."""
        return linear(x.contiguous(), self.vectors[n][f"{name}.weight"])

    def heads(self, x: Tensor) -> Tensor:
        """Shapes: (sequences, tokens, width) -> (sequences, heads, tokens, width of a head)."""
        return x.unflatten(-1, (-1, self.config.wkv.head_size)).transpose(1, 2).contiguous()

    def normed_heads(self, n: int, x: Tensor) -> Tensor:
        """Each head normed. Shapes: (sequences, heads, tokens, width of a head) -> (sequences, tokens, width)."""
        x = x - x.mean(-1, keepdim=True)
        x = x * (x.square().mean(-1, keepdim=True) + _EPSILON).rsqrt()
        vectors = self.vectors[n]
        return x.transpose(1, 2).flatten(-2) * vectors["time_mix_ln.weight"] + vectors["time_mix_ln.bias"]


def chunks(count: int) -> list[slice]:
    """Ranges of tokens that are computed together."""
    return [slice(start, min(count, start + _TOGETHER)) for start in range(0, count, _TOGETHER)]
