"""mamba2: Mamba 2, Codestral Mamba; also the recurrent layers of Granite 4, Nemotron H and Falcon H1.

    S = exp(dt * a) * S + (dt * x) b^T          of each head, a matrix (width of a head, numbers)
    y = S c + d * x

Many tokens are matrix products: y = (C B^T * decays) (dt * x) + decay * C S. `decays` holds exp of the sums of dt * a
between two tokens, which are at most 0.
Source: Dao and Gu, Transformers are SSMs (2024).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernmill import FormatError, Tensor, where

from .config import Config
from .recurrent import RecurrentDecoder, convolved, of_text
from .weight import parts_of

__all__ = ["Mamba2", "Mamba2Layers"]

_TOGETHER = 64  # tokens: their matrices of decays have the square of it


class Mamba2Layers(RecurrentDecoder):
    """RecurrentDecoder layers with a convolution and a matrix for each head."""

    needs_recurrent: tuple[str, ...] = (
        "ssm_in.weight", "ssm_conv1d.weight", "ssm_dt.bias", "ssm_a", "ssm_d", "ssm_norm.weight", "ssm_out.weight",
    )  # fmt: skip

    @classmethod
    def check_sizes(cls, c: Config) -> None:
        """Check that heads and groups divide the inner size."""
        super().check_sizes(c)
        s = c.ssm
        if not s.rank or not s.groups or s.inner % s.rank or s.inner % s.groups or s.rank % s.groups:
            raise FormatError(
                f"{c.name}: ssm.inner_size {s.inner} must be a multiple of ssm.time_step_rank {s.rank}, and that "
                f"of ssm.group_count {s.groups}. Convert the file again."
            )

    @classmethod
    def recurrent_shapes(cls, c: Config) -> dict[str, tuple[int, ...]]:
        """The matrices and vectors of a layer."""
        s = c.ssm
        mixed = s.inner + 2 * s.groups * s.state
        return {
            "ssm_in.weight": (s.inner + mixed + s.rank, c.width),
            "ssm_conv1d.weight": (mixed, s.taps),
            "ssm_conv1d.bias": (mixed,),
            "ssm_dt.bias": (s.rank,),
            "ssm_a": (s.rank, 1),
            "ssm_d": (s.rank, 1),
            "ssm_norm.weight": (s.groups, s.inner // max(1, s.groups)),
            "ssm_out.weight": (c.width, s.inner),
        }

    @classmethod
    def state_shapes(cls, c: Config) -> tuple[tuple[int, ...], ...]:
        """The last tokens of the convolution, and a matrix for each head."""
        s = c.ssm
        return (s.taps - 1, s.inner + 2 * s.groups * s.state), (s.rank, s.inner // max(1, s.rank), s.state)

    def step(self, n: int, x: Tensor, states: Sequence[Tensor], counts: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        """A convolution, then the states of heads; the result is gated and normed by groups."""
        s, vectors = self.config.ssm, self.vectors[n]
        numbers = s.groups * s.state
        gate, mixed, dt = parts_of(self.product(n, x, "ssm_in"), [s.inner, s.inner + 2 * numbers, s.rank])
        mixed, tail = convolved(mixed, states[0], vectors["ssm_conv1d.weight"], counts)
        bias = vectors.get("ssm_conv1d.bias")
        mixed = (mixed if bias is None else mixed + bias).silu().contiguous()
        x, b, c = parts_of(mixed, [s.inner, numbers, numbers])
        x = x.unflatten(-1, (s.rank, -1))
        b, c = (part.unflatten(-1, (s.groups, s.state)) for part in (b, c))
        dt = of_text((dt + vectors["ssm_dt.bias"]).softplus(), counts).contiguous()
        y, state = scan(x, dt, vectors["ssm_a"].reshape(s.rank), b, c, states[1])
        y = (y + x * vectors["ssm_d"]).flatten(-2) * gate.silu()
        norm = vectors.get("ssm_norm.weight")
        if norm is not None:
            y = y.unflatten(-1, (s.groups, -1)).contiguous()
            y = (y * (y.square().mean(-1, keepdim=True) + self.config.epsilon).rsqrt() * norm).flatten(-2)
        return self.product(n, y.contiguous(), "ssm_out"), [tail, state]


class Mamba2(Mamba2Layers):
    """RecurrentDecoder layers only."""

    has_one_part = True
    lacks = (
        "attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight",
        "ffn_norm.weight", "ffn_gate.weight", "ffn_up.weight", "ffn_down.weight",
    )  # fmt: skip
    needs_recurrent = (*Mamba2Layers.needs_recurrent, "ssm_conv1d.bias")


def scan(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Continue the states of heads. Returns a row for each token and head, and the last states.

    Shapes: x (sequences, tokens, heads, width), dt (sequences, tokens, heads), a (heads,), b and c (sequences, tokens,
    groups, numbers), state (sequences, heads, width, numbers).
    """
    count, found = x.shape[1], list[Tensor]()
    if count == 1:
        heads = x.shape[2] // b.shape[2]
        b, c = (part.squeeze(1).unsqueeze(2).expand(-1, -1, heads, -1).flatten(1, 2).unsqueeze(2) for part in (b, c))
        decay, given = (dt * a).exp().squeeze(1), (x * dt.unsqueeze(-1)).squeeze(1)
        state = (state * decay.reshape(*decay.shape, 1, 1) + given.unsqueeze(-1) * b).contiguous()
        return (state * c).sum(-1).unsqueeze(1), state
    for start in range(0, count, _TOGETHER):
        part = slice(start, min(count, start + _TOGETHER))
        y, state = _scan_chunk(x[:, part], dt[:, part], a, b[:, part], c[:, part], state)
        found.append(y)
    return found[0] if len(found) == 1 else found[0].cat(*found[1:], axis=1), state


def _scan_chunk(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """`scan` by matrix products."""
    sequences, count, heads, width = x.shape
    groups = b.shape[2]
    sums = (dt * a).cumsum(1).transpose(1, 2).contiguous()  # (sequences, heads, tokens)
    given = (x * dt.unsqueeze(-1)).transpose(1, 2).contiguous()  # (sequences, heads, tokens, width)
    b, c = (part.transpose(1, 2).contiguous() for part in (b, c))  # (sequences, groups, tokens, numbers)
    every = Tensor.arange(count)
    is_before = every.unsqueeze(0) <= every.unsqueeze(1)
    apart = sums.unsqueeze(-1) - sums.unsqueeze(-2)
    decays = where(is_before, apart, apart._filled(-math.inf)).exp().unflatten(1, (groups, -1))
    scores = (c.matmul(b.mT).unsqueeze(2) * decays).contiguous()  # (sequences, groups, heads of it, tokens, tokens)
    by_group = given.unflatten(1, (groups, -1))
    old = state.unflatten(1, (groups, -1))
    decay = sums.exp().unflatten(1, (groups, -1)).unsqueeze(-1)
    y = scores.matmul(by_group) + c.unsqueeze(2).matmul(old.mT) * decay
    last = (sums[..., -1:] - sums).exp().unflatten(1, (groups, -1)).unsqueeze(-1)
    added = (by_group * last).contiguous().mT.matmul(b.unsqueeze(2))  # (.., width, numbers)
    state = (old * decay[..., -1:, :] + added).reshape(sequences, heads, width, -1)
    return y.reshape(sequences, heads, count, width).transpose(1, 2).contiguous(), state.contiguous()
