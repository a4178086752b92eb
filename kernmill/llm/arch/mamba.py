"""mamba: Mamba and Falcon Mamba; also the recurrent layers of Jamba.

    S = exp(dt * a) * S + (dt * x) b^T          of each channel, a state of some numbers
    y = S c + d * x

Source: Gu and Dao, Mamba (2023).
"""

from __future__ import annotations

from collections.abc import Sequence

from kernmill import Tensor, stack

from .config import Config
from .recurrent import RecurrentDecoder, convolved, of_text
from .weight import parts_of

__all__ = ["Mamba"]


class Mamba(RecurrentDecoder):
    """Layers with nothing but a convolution and a state of each channel. Tokens of a prompt are read one by one."""

    has_one_part = True
    mixes = "never"
    lacks: tuple[str, ...] = (
        "attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight",
        "ffn_norm.weight", "ffn_gate.weight", "ffn_up.weight", "ffn_down.weight",
    )  # fmt: skip
    needs_recurrent: tuple[str, ...] = (
        "ssm_in.weight", "ssm_conv1d.weight", "ssm_conv1d.bias", "ssm_x.weight", "ssm_dt.weight", "ssm_dt.bias",
        "ssm_a", "ssm_d", "ssm_out.weight",
    )  # fmt: skip

    @classmethod
    def recurrent_shapes(cls, c: Config) -> dict[str, tuple[int, ...]]:
        """The matrices and vectors of a layer."""
        s = c.ssm
        return {
            "ssm_in.weight": (2 * s.inner, c.width),
            "ssm_conv1d.weight": (s.inner, s.taps),
            "ssm_conv1d.bias": (s.inner,),
            "ssm_x.weight": (s.rank + 2 * s.state, s.inner),
            "ssm_dt.weight": (s.inner, s.rank),
            "ssm_dt.bias": (s.inner,),
            "ssm_a": (s.inner, s.state),
            "ssm_d": (s.inner,),
            "ssm_out.weight": (c.width, s.inner),
        }

    @classmethod
    def state_shapes(cls, c: Config) -> tuple[tuple[int, ...], ...]:
        """The last tokens of the convolution, and a state for each channel."""
        return (c.ssm.taps - 1, c.ssm.inner), (c.ssm.inner, c.ssm.state)

    def step(self, n: int, x: Tensor, states: Sequence[Tensor], counts: Tensor | None) -> tuple[Tensor, list[Tensor]]:
        """A convolution, then the states; the result is gated."""
        s, vectors = self.config.ssm, self.vectors[n]
        x, gate = parts_of(self.product(n, x, "ssm_in"), [s.inner, s.inner])
        mixed, tail = convolved(x, states[0], vectors["ssm_conv1d.weight"], counts)
        x = (mixed + vectors["ssm_conv1d.bias"]).silu().contiguous()
        parts = parts_of(self.product(n, x, "ssm_x"), [s.rank, s.state, s.state])
        dt, b, c = (self.of_step(n, part, name) for part, name in zip(parts, ("dt", "b", "c"), strict=True))
        dt = of_text(self.product(n, dt.contiguous(), "ssm_dt").softplus(), counts).contiguous()
        y, state = scan(x, dt, vectors["ssm_a"], b, c, states[1])
        y = (y + x * vectors["ssm_d"]) * gate.silu()
        return self.product(n, y.contiguous(), "ssm_out"), [tail, state]

    def of_step(self, n: int, x: Tensor, name: str) -> Tensor:
        """A time step or a vector of states before it is used: normed in Falcon Mamba."""
        if not self.config.ssm.is_normed:
            return x
        return x * (x.square().mean(-1, keepdim=True) + self.config.epsilon).rsqrt()


def scan(x: Tensor, dt: Tensor, a: Tensor, b: Tensor, c: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Continue the states of channels. Returns a value for each token and channel, and the last states.

    Shapes: x and dt (sequences, tokens, channels), a (channels, numbers), b and c (sequences, tokens, numbers), state
    (sequences, channels, numbers).
    """
    given, found = dt * x, list[Tensor]()
    for t in range(x.shape[1]):
        state = state * (dt[:, t].unsqueeze(-1) * a).exp() + given[:, t].unsqueeze(-1) * b[:, t].unsqueeze(1)
        state = state.contiguous()
        found.append((state * c[:, t].unsqueeze(1)).sum(-1))
    return stack(found, 1), state
