"""rwkv7: RWKV 7 (Goose).

    S = S diag(w) + (S a) b^T + v k^T;  y = S r          of each head, a matrix (values, keys)

`a` is a key of length 1 with its sign turned, `b` the same key times a rate: the state forgets what it held there.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from kernmill import Tensor, cat

from .config import Config
from .recurrent import of_text
from .rwkv import Rwkv, chunks

__all__ = ["Rwkv7"]

_MIXED = "rwkvag"  # six inputs of the first part, each its own mixture of a token and the one before
_SLOWEST = -0.606531  # of the logarithm of a decay: -exp(-0.5)


class Rwkv7(Rwkv):
    """A generalized delta rule; values are mixed with those of the first layer, which are passed on behind x."""

    @classmethod
    def mixing_shapes(cls, c: Config) -> dict[str, tuple[int, ...]]:
        """The tensors of this version."""
        w, vector = c.wkv, (c.width,)
        ranks = {"w": w.decay_rank, "a": w.rate_rank, "v": w.value_rank, "g": w.gate_rank}
        return {
            **{f"time_mix_{name}0": vector for name in "wav"},
            **{f"time_mix_{name}1": (rank, c.width) for name, rank in ranks.items()},
            **{f"time_mix_{name}2": (c.width, rank) for name, rank in ranks.items()},
            "time_mix_lerp_fused": (6, c.width),
            **{f"time_mix_{name}": vector for name in ("k_k", "k_a", "r_k")},
        }

    @classmethod
    def names_in(cls, c: Config, n: int) -> tuple[dict[str, tuple[int, ...]], set[str]]:
        """The first layer's values are not mixed; its file has tensors of another shape for that."""
        shapes, needed = super().names_in(c, n)
        if not n:
            shapes |= {
                "time_mix_v1.weight": (c.wkv.rate_rank, c.width),
                "time_mix_v2.weight": (c.width, c.wkv.rate_rank),
            }
            needed -= {f"time_mix_v{i}.weight" for i in range(3)}
        return shapes, needed

    def variant(self, n: int) -> Hashable:
        """The first layer and the last one take and pass on x alone."""
        return n == 0, n == self.config.layers - 1

    def _width_before(self, n: int) -> int:
        """Of x, and of the values of the first layer between it and the last one."""
        return self.config.width * (1 if n in (0, self.config.layers) else 2)

    def carried(self, n: int, x: Tensor) -> Tensor | None:
        """The values of the first layer."""
        return x[..., self.config.width :] if n else None

    def residual(self, x: Tensor) -> Tensor:
        """x without the values of the first layer."""
        return x[..., : self.config.width]

    def after_layer(self, n: int, x: Tensor, value: Tensor) -> Tensor:
        """x, and the values of the first layer if another follows."""
        return x if n == self.config.layers - 1 else x.cat(value, axis=-1)

    def normed(self, n: int, x: Tensor, name: str) -> Tensor:
        """x normed, without what is passed on behind it."""
        return super().normed(n, self.residual(x), name)

    def time_mix(
        self, n: int, x: Tensor, before: Tensor, state: Tensor, carried: Tensor | None, counts: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The first part."""
        vectors, config = self.vectors[n], self.config
        lerps = vectors["time_mix_lerp_fused.weight"]
        mixed = {name: (x + (before - x) * lerps[i]).contiguous() for i, name in enumerate(_MIXED)}
        r = self.product(n, mixed["r"], "time_mix_receptance")
        k, v = self.product(n, mixed["k"], "time_mix_key"), self.product(n, mixed["v"], "time_mix_value")
        decay = self._low(n, mixed["w"], "w").sigmoid() * _SLOWEST
        rate = self._low(n, mixed["a"], "a").sigmoid()
        if carried is not None:
            v = v + (carried - v) * self._low(n, mixed["v"], "v").sigmoid()
        gate = self.small(n, self.small(n, mixed["g"], "time_mix_g1").sigmoid(), "time_mix_g2")
        key = (k * vectors["time_mix_k_k.weight"]).unflatten(-1, (-1, config.wkv.head_size))
        key = (key * key.square().sum(-1, keepdim=True).sqrt().clamp(1e-12).reciprocal()).flatten(-2)
        k = k * (1 + (rate - 1) * vectors["time_mix_k_a.weight"])
        own = self.heads(k) * self.heads(r) * vectors["time_mix_r_k.weight"].reshape(-1, 1, config.wkv.head_size)
        own = (own.sum(-1, keepdim=True) * self.heads(v)).transpose(1, 2).flatten(-2)
        k, b, decay = (of_text(part, counts) for part in (k, key * rate, decay))
        y, state = _wkv([self.heads(part) for part in (r, k, v, -key, b, decay)], state)
        y = ((self.normed_heads(n, y) + own) * gate).contiguous()
        return self.product(n, y, "time_mix_output"), state, v if carried is None else carried

    def _low(self, n: int, x: Tensor, name: str) -> Tensor:
        """A product with a matrix of low rank, in two parts, and its bias; of decays with tanh between them."""
        first = self.small(n, x, f"time_mix_{name}1")
        first = first.tanh() if name == "w" else first
        return self.small(n, first, f"time_mix_{name}2") + self.vectors[n][f"time_mix_{name}0.weight"]

    def channel_mix(self, n: int, x: Tensor, before: Tensor) -> Tensor:
        """The second part."""
        keys = self.product(n, self.lerped(n, x, before, "channel_mix_lerp_k").contiguous(), "channel_mix_key")
        return self.product(n, keys.relu().square().contiguous(), "channel_mix_value")


def _wkv(parts: Sequence[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
    """Continue the states of heads. `parts` are r, k, v, a, b and the logarithm of a decay of each key.

    Shapes: parts (sequences, heads, tokens, width) each, state (sequences, heads, width, width).
    """
    r, k, v, a, b, decay = parts
    if r.shape[2] == 1:
        erased = (state * a).sum(-1, keepdim=True).contiguous()
        state = (state * decay.exp() + erased * b + v.transpose(-1, -2) * k).contiguous()
        return (state * r).sum(-1).unsqueeze(2), state
    found: list[Tensor] = []
    for few in chunks(r.shape[2]):
        y, state = _wkv_chunk([part[:, :, few] for part in parts], state)
        found.append(y)
    return cat(found, 2), state


def _wkv_chunk(parts: Sequence[Tensor], state: Tensor) -> tuple[Tensor, Tensor]:
    """`_wkv` of a chunk by matrix products: what the tokens erase is the solution of a triangular system."""
    r, k, v, a, b, decay = parts
    sums = decay.cumsum(2).contiguous()
    grown, shrunk = sums.exp(), sums.neg().exp()  # within a chunk at most e ** 10
    r, a = (r * grown).contiguous(), (a * (sums - decay).exp()).contiguous()
    k, b, v = (k * shrunk).contiguous(), (b * shrunk).contiguous(), v.contiguous()
    among = a.matmul(b.mT).neg().contiguous()  # only what is below its diagonal is read
    alone = a.matmul(state.mT) + a.matmul(k.mT).tril(-1).contiguous().matmul(v)
    erased = among.solve_triangular(alone.contiguous(), unitriangular=True).contiguous()
    y = r.matmul(state.mT) + r.matmul(b.mT).tril().contiguous().matmul(erased)
    y = y + r.matmul(k.mT).tril().contiguous().matmul(v)
    last = grown[:, :, -1:]
    added = erased.mT.matmul((b * last).contiguous()) + v.mT.matmul((k * last).contiguous())
    return y.contiguous(), (state * last + added).contiguous()
