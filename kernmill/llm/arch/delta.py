"""class DeltaNet: gated delta nets, the recurrent layers of Qwen 3 Next and Qwen 3.5; between them gated attention.

    S = decay * S;  S = S + beta * (v - S k) k^T          of each head, a matrix (values, keys)
    y = S q

A chunk of tokens is matrix products and one triangular system: what each token adds depends on what those before it
added. Source: Yang et al., Gated Delta Networks (2024).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from kernmill import FormatError, Tensor, where

from .architecture import Around, Weights
from .cache import Cache, Positions
from .config import Config
from .recurrent import RecurrentDecoder, convolved, of_text
from .weight import parts_of

__all__ = ["DeltaNet", "delta"]

_TOGETHER = 64  # tokens of a chunk


class DeltaNet(RecurrentDecoder):
    """Three of four layers are delta nets. In the others the result of attention is gated by a part of `attn_q`."""

    before_feed_forward, after_attention = "post_attention_norm", ""
    lacks = ("ffn_norm.weight",)
    needs_besides = ("post_attention_norm.weight", "attn_q_norm.weight", "attn_k_norm.weight")
    needs_recurrent: tuple[str, ...] = (
        "attn_qkv.weight", "attn_gate.weight", "ssm_conv1d.weight", "ssm_dt.bias", "ssm_a", "ssm_norm.weight",
        "ssm_out.weight",
    )  # fmt: skip
    are_interleaved = False  # which key head a value head uses: its number by the number of key heads, or its rest

    def __init__(self, config: Config, weights: Weights, capacity: int) -> None:
        e = config.experts
        if e.count and not e.shared_width:
            config = replace(config, experts=replace(e, shared_width=config.feed_forward))
        super().__init__(config, weights, capacity)

    @classmethod
    def check_sizes(cls, c: Config) -> None:
        """Check that heads of keys divide those of values."""
        super().check_sizes(c)
        s = c.ssm
        if not s.groups or s.rank % s.groups or not s.state or s.inner != s.rank * s.state:
            raise FormatError(
                f"{c.name}: ssm.time_step_rank {s.rank} must be a multiple of ssm.group_count {s.groups}, and "
                f"ssm.inner_size {s.inner} {s.rank} heads of ssm.state_size {s.state}. Convert the file again."
            )

    @classmethod
    def is_recurrent(cls, c: Config, n: int) -> bool:
        """True in all layers but every fourth, or as the file says."""
        recurrent = c.recurrent_layers
        return recurrent[n] if isinstance(recurrent, tuple) else (n + 1) % (recurrent or 4) != 0

    @classmethod
    def shapes(cls, c: Config) -> dict[str, tuple[int, ...]]:
        """With gates next to queries."""
        return super().shapes(c) | {"attn_q.weight": (2 * c.heads * c.head_width, c.width)}

    @classmethod
    def recurrent_shapes(cls, c: Config) -> dict[str, tuple[int, ...]]:
        """The matrices and vectors of a layer."""
        s = c.ssm
        mixed = 2 * s.groups * s.state + s.inner
        return {
            "attn_qkv.weight": (mixed, c.width),
            "attn_gate.weight": (s.inner, c.width),
            "ssm_conv1d.weight": (mixed, s.taps),
            "ssm_dt.bias": (s.rank,),
            "ssm_a": (s.rank,),
            "ssm_norm.weight": (s.state,),
            "ssm_out.weight": (c.width, s.inner),
        }

    @classmethod
    def state_shapes(cls, c: Config) -> tuple[tuple[int, ...], ...]:
        """The last tokens of the convolution, and a matrix for each head."""
        s = c.ssm
        return (s.taps - 1, 2 * s.groups * s.state + s.inner), (s.rank, s.state, s.state)

    def mixed_and_gate(self, n: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """Queries, keys and values of all heads behind each other; and the gate."""
        return self.product(n, x, "attn_qkv"), self.product(n, x, "attn_gate")

    def rates(self, n: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of each head how much a token adds, and its decay, before the sigmoid and the softplus."""
        raise NotImplementedError

    def step(self, n: int, x: Tensor, states: Sequence[Tensor], counts: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        """A convolution, the states of heads, a norm of each head and a gate."""
        s, vectors, epsilon = self.config.ssm, self.vectors[n], self.config.epsilon
        mixed, gate = self.mixed_and_gate(n, x)
        beta, rate = self.rates(n, x)
        mixed, tail = convolved(mixed, states[0], vectors["ssm_conv1d.weight"], counts)
        keys = s.groups * s.state
        q, k, v = (part.unflatten(-1, (-1, s.state)) for part in parts_of(mixed.silu(), [keys, keys, s.inner]))
        q, k = (part * (part.square().sum(-1, keepdim=True) + epsilon).rsqrt() for part in (q, k))
        q, k = (self._for_values(part.contiguous()) for part in (q * s.state**-0.5, k))
        beta = of_text(beta.sigmoid(), counts).contiguous()
        decay = of_text((rate + vectors["ssm_dt.bias"]).softplus() * vectors["ssm_a"], counts).contiguous()
        y, state = delta(q, k, v.contiguous(), decay, beta, states[1])
        y = y * (y.square().mean(-1, keepdim=True) + epsilon).rsqrt() * vectors["ssm_norm.weight"]
        y = y.flatten(-2) * gate.silu()
        return self.product(n, y.contiguous(), "ssm_out"), [tail, state]

    def _for_values(self, x: Tensor) -> Tensor:
        """Heads of keys, repeated for the heads of values. Shapes: (.., key heads, width) -> (.., heads, width)."""
        s = self.config.ssm
        times, axis = s.rank // s.groups, -2 if self.are_interleaved else -3
        if times == 1:
            return x
        wide = x.unsqueeze(axis)
        shape = [*wide.shape]
        shape[axis] = times
        return wide.expand(*shape).flatten(-3, -2)

    def attention(self, n: int, x: Tensor, positions: Positions, around: Around, cache: Cache) -> Tensor:
        """A delta net, or attention with a gate."""
        if self.is_recurrent(self.config, n):
            return self.recurrent(n, x, positions, cache)
        q, k, v = self.queries_keys_values(n, x)
        q, gate = (part.flatten(-2) for part in q.unflatten(-1, (self.config.heads, 2, -1)).unbind(-2))
        mixed = self.attended(n, q, k, v, positions, around, cache)
        return self.product(n, (mixed * gate.sigmoid()).contiguous(), "attn_output")


def delta(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Continue the states of heads. Returns a row for each token and head, and the last states.

    `decay` is the logarithm of a factor. Shapes: q and k (sequences, tokens, heads, keys), v (sequences, tokens, heads,
    values), decay and beta (sequences, tokens, heads), state (sequences, heads, values, keys).
    """
    count, found = q.shape[1], list[Tensor]()
    if count == 1:
        q, k, v, decay, beta = (part.squeeze(1) for part in (q, k, v, decay, beta))
        state = state * decay.exp().unsqueeze(-1).unsqueeze(-1)
        error = ((v - (state * k.unsqueeze(-2)).sum(-1)) * beta.unsqueeze(-1)).contiguous()
        state = (state + error.unsqueeze(-1) * k.unsqueeze(-2)).contiguous()
        return (state * q.unsqueeze(-2)).sum(-1).unsqueeze(1), state
    for start in range(0, count, _TOGETHER):
        part = slice(start, min(count, start + _TOGETHER))
        y, state = _delta_chunk(q[:, part], k[:, part], v[:, part], decay[:, part], beta[:, part], state)
        found.append(y)
    return found[0] if len(found) == 1 else found[0].cat(*found[1:], axis=1), state


def _delta_chunk(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """`delta` by matrix products."""
    q, k, v = (part.transpose(1, 2).contiguous() for part in (q, k, v))  # (sequences, heads, tokens, width)
    sums, beta = decay.cumsum(1).transpose(1, 2).contiguous(), beta.transpose(1, 2).unsqueeze(-1)
    every = Tensor.arange(q.shape[2])
    apart = sums.unsqueeze(-1) - sums.unsqueeze(-2)
    decays = where(every.unsqueeze(0) <= every.unsqueeze(1), apart, apart._filled(-math.inf)).exp()
    since = sums.exp().unsqueeze(-1)
    among = (k.matmul(k.mT) * decays * beta).contiguous()  # its diagonal is not read
    alone = ((v - k.matmul(state.mT) * since) * beta).contiguous()
    added = among.solve_triangular(alone, unitriangular=True).contiguous()
    y = q.matmul(state.mT) * since + (q.matmul(k.mT) * decays).contiguous().matmul(added)
    later = (k * (sums[..., -1:] - sums).exp().unsqueeze(-1)).contiguous()
    state = state * since[:, :, -1:] + added.mT.matmul(later)
    return y.transpose(1, 2).contiguous(), state.contiguous()
