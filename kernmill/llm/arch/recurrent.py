"""class RecurrentDecoder(Architecture): layers that keep a state of fixed size instead of keys and values.

A layer's states and its new tokens give its result and its next states: `RecurrentDecoder.step`. Many tokens are
computed together where a formula allows it, and give the same as one by one, up to rounding. Padding behind the tokens
of a prompt must not change a state: a step sets what padding adds to zero, and its decay to one.
Tests: tests/kernmill/llm/arch/test_recurrent.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernmill import FormatError, Tensor

from .architecture import Architecture, Around
from .cache import Cache, LayerMemory, Positions
from .config import Config

__all__ = ["RecurrentDecoder", "convolved", "of_text"]


class RecurrentDecoder(Architecture):
    """A decoder some of whose layers, or all, are recurrent: those without key heads, unless a subclass differs.

    A subclass lists the tensors of these layers in `recurrent_shapes`, those of them that files must have in
    `needs_recurrent`, and computes them in `step`.
    """

    has_states = True
    needs_recurrent: tuple[str, ...] = ()
    has_either = True  # a layer is recurrent, or has attention; False: it has both
    has_one_part = False  # a layer has no feed-forward part in addition to its first part

    @classmethod
    def check_sizes(cls, c: Config) -> None:
        """Check that a convolution has at least two taps."""
        if c.ssm.taps < 2 and not c.wkv.head_size:
            key = "ssm.conv_kernel" if c.ssm.inner else "shortconv.l_cache"
            raise FormatError(f"{c.name}.{key} is {c.ssm.taps}: must be at least 2. Convert the file again.")

    @classmethod
    def is_recurrent(cls, c: Config, n: int) -> bool:
        """True if a layer keeps states."""
        return not c.of_layer(n).kv_heads

    @classmethod
    def recurrent_shapes(cls, c: Config) -> dict[str, tuple[int, ...]]:
        """The tensors of a recurrent layer, by their names in the layer."""
        return {}

    @classmethod
    def state_shapes(cls, c: Config) -> tuple[tuple[int, ...], ...]:
        """Return what a recurrent layer keeps of a sequence."""
        return ()

    def step(self, n: int, x: Tensor, states: Sequence[Tensor], counts: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        """Compute new tokens of a recurrent layer. Returns the result and the states after the last of `counts` tokens.

        Shapes: x (sequences, tokens, width), states (sequences, ..), counts (sequences,); the results the same.
        """
        raise NotImplementedError

    @classmethod
    def shapes(cls, c: Config) -> dict[str, tuple[int, ...]]:
        """With the tensors of recurrent layers."""
        return super().shapes(c) | cls.recurrent_shapes(c)

    @classmethod
    def names_in(cls, c: Config, n: int) -> tuple[dict[str, tuple[int, ...]], set[str]]:
        """A layer has the tensors of attention, or those of a recurrent layer."""
        shapes, needed = super().names_in(c, n)
        if cls.is_recurrent(c, n):
            others = {name for name in shapes if name.startswith("attn_") and not name.startswith("attn_norm")}
            others -= cls.recurrent_shapes(c).keys()
            needed |= set(cls.needs_recurrent)
        else:
            others = {*cls.recurrent_shapes(c)} if cls.has_either else set[str]()
        return {name: shape for name, shape in shapes.items() if name not in others}, needed - others

    @classmethod
    def kept(cls, c: Config, n: int) -> LayerMemory:
        """Keys and values, or states."""
        kept = super().kept(c, n)
        return kept._replace(heads=0, states=cls.state_shapes(c)) if cls.is_recurrent(c, n) else kept

    def layer(self, n: int, x: Tensor, positions: Positions, around: Around, cache: Cache) -> Tensor:
        """One layer. Shapes: (sequences, tokens, width) to the same."""
        if self.has_one_part:
            return x + self.attention(n, self.normed(n, x, self.before_attention), positions, around, cache)
        return super().layer(n, x, positions, around, cache)

    def attention(self, n: int, x: Tensor, positions: Positions, around: Around, cache: Cache) -> Tensor:
        """Attend to the tokens before, or continue the states of a recurrent layer."""
        if not self.is_recurrent(self.config, n):
            return super().attention(n, x, positions, around, cache)
        return self.recurrent(n, x, positions, cache)

    def recurrent(self, n: int, x: Tensor, positions: Positions, cache: Cache) -> Tensor:
        """Continue the states of a layer. Shapes: (sequences, tokens, width) to the same."""
        result, after = self.step(n, x, self.states_of(n, x.shape[0], positions, cache), positions.counts)
        if n in cache.states:
            cache.write_states(n, positions, after)
        return result

    def states_of(self, n: int, sequences: int, positions: Positions, cache: Cache) -> list[Tensor]:
        """The states of a layer before the new tokens. Shapes: (sequences, ..) each."""
        if n in cache.states:
            return cache.read_states(n, positions)
        return [Tensor.zeros((sequences, *shape)) for shape in self.state_shapes(self.config)]


def of_text(x: Tensor, counts: Tensor | None) -> Tensor:
    """x with zeros for padding. Shapes: x (sequences, tokens, ..), counts (sequences,)."""
    if counts is None:
        return x
    is_text = Tensor.arange(x.shape[1]).unsqueeze(0) < counts.unsqueeze(1)
    return x * is_text.float().reshape(*is_text.shape, *[1] * (x.ndim - 2))


def convolved(x: Tensor, tail: Tensor, weight: Tensor, counts: Tensor | None) -> tuple[Tensor, Tensor]:
    """Sum of the last tokens of each channel, weighted; and the last tokens for the next call.

    Shapes: x (sequences, tokens, channels), tail (sequences, taps - 1, channels), weight (channels, taps).
    """
    count, taps = x.shape[1], weight.shape[1]
    whole = tail.cat(x, axis=1).contiguous()
    result = whole[:, :count] * weight[:, 0]
    for tap in range(1, taps):
        result = result + whole[:, tap : tap + count] * weight[:, tap]
    if counts is None:
        return result, whole[:, count:].contiguous()
    positions = counts.reshape(-1, 1, 1) + Tensor.arange(taps - 1).reshape(1, -1, 1)
    return result, whole.take_along_dim(positions, 1).contiguous()
