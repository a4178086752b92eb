"""rwkv6: RWKV 6 (Finch).

y = r (S + u k v^T);  S = diag(w) S + k v^T          of each head, a matrix (keys, values)
"""

from __future__ import annotations

import math
from collections.abc import Hashable

from kernmill import Tensor, cat, where

from .config import Config
from .recurrent import of_text
from .rwkv import Rwkv, chunks

__all__ = ["Rwkv6"]

_MIXED = "wkvrg"  # five inputs of the first part, each its own mixture of a token and the one before


class Rwkv6(Rwkv):
    """Mixtures and decays that depend on the token."""

    @classmethod
    def mixing_shapes(cls, c: Config) -> dict[str, tuple[int, ...]]:
        """The tensors of this version."""
        w = c.wkv
        size = max(1, w.head_size)
        return {
            "time_mix_w1": (5 * w.mix_rank, c.width),
            "time_mix_w2": (5, c.width, w.mix_rank),
            "time_mix_lerp_x": (c.width,),
            "time_mix_lerp_fused": (5, c.width),
            **{f"time_mix_lerp_{name}": (c.width,) for name in _MIXED},
            "time_mix_first": (c.width // size, size),
            "time_mix_decay": (c.width,),
            "time_mix_decay_w1": (w.decay_rank, c.width),
            "time_mix_decay_w2": (c.width, w.decay_rank),
            "time_mix_gate": (c.width, c.width),
            "channel_mix_lerp_r": (c.width,),
            "channel_mix_receptance": (c.width, c.width),
        }

    @classmethod
    def optional_names(cls) -> set[str]:
        """Parts of mixtures: all in one tensor, or in five."""
        return {f"time_mix_lerp_{name}.weight" for name in ("fused", *_MIXED)}

    def names_of(self, n: int) -> tuple[dict[str, tuple[int, ...]], set[str]]:
        """The parts of mixtures are in one tensor, or in five."""
        shapes, needed = super().names_of(n)
        is_fused = self._weights(f"blk.{n}.time_mix_lerp_fused.weight") is not None
        return shapes, needed | {f"time_mix_lerp_{name}.weight" for name in (("fused",) if is_fused else _MIXED)}

    def time_mix(
        self, n: int, x: Tensor, before: Tensor, state: Tensor, carried: Tensor | None, counts: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The first part."""
        vectors = self.vectors[n]
        first = self.small(n, self.lerped(n, x, before, "time_mix_lerp_x"), "time_mix_w1").tanh()
        first = first.unflatten(-1, (5, -1)).movedim(-2, 0).flatten(1, 2).contiguous()  # (5, rows, rank)
        parts = first.matmul(vectors["time_mix_w2.weight"].mT).unflatten(1, x.shape[:2])
        fused = vectors.get("time_mix_lerp_fused.weight")
        lerps = [vectors[f"time_mix_lerp_{name}.weight"] if fused is None else fused[i]
                 for i, name in enumerate(_MIXED)]  # fmt: skip
        mixed = [(x + (before - x) * (part + lerp)).contiguous()
                 for part, lerp in zip(parts.unbind(0), lerps, strict=True)]  # fmt: skip
        k, v, r = (self.product(n, mixed[i], f"time_mix_{name}") for i, name in ((1, "key"), (2, "value"),
                                                                                 (3, "receptance")))  # fmt: skip
        gate = self.product(n, mixed[4], "time_mix_gate").silu()
        rate = self.small(n, self.small(n, mixed[0], "time_mix_decay_w1").tanh(), "time_mix_decay_w2")
        decay = of_text((rate + vectors["time_mix_decay.weight"]).exp().neg(), counts)
        k = of_text(k, counts)
        r, k, v_heads, decay = (self.heads(part) for part in (r, k, v, decay))
        y, state = _wkv(r, k, v_heads, decay, vectors["time_mix_first.weight"], state)
        return self.product(n, (self.normed_heads(n, y) * gate).contiguous(), "time_mix_output"), state, v

    def channel_mix(self, n: int, x: Tensor, before: Tensor) -> Tensor:
        """The second part."""
        keys = self.product(n, self.lerped(n, x, before, "channel_mix_lerp_k").contiguous(), "channel_mix_key")
        gate = self.product(n, self.lerped(n, x, before, "channel_mix_lerp_r").contiguous(), "channel_mix_receptance")
        return gate.sigmoid() * self.product(n, keys.relu().square().contiguous(), "channel_mix_value")

    def variant(self, n: int) -> Hashable:
        """Some layers halve x."""
        return self._is_halved(n)

    def _is_halved(self, n: int) -> bool:
        every = self.config.wkv.rescale_every
        return every > 0 and (n + 1) % every == 0

    def after_layer(self, n: int, x: Tensor, value: Tensor) -> Tensor:
        """x, halved after some layers: the file's weights are scaled to it."""
        return x * 0.5 if self._is_halved(n) else x


def _wkv(r: Tensor, k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Continue the states of heads. `decay` is the logarithm of a factor of each key.

    Shapes: r, k, v and decay (sequences, heads, tokens, width), bonus (heads, width), state (sequences, heads, width,
    width).
    """
    own = (r * k * bonus.unsqueeze(1)).sum(-1, keepdim=True) * v
    if r.shape[2] == 1:
        y = (r.transpose(-1, -2) * state).sum(-2, keepdim=True) + own
        return y, (state * decay.transpose(-1, -2).exp() + k.transpose(-1, -2) * v).contiguous()
    found: list[Tensor] = []
    for part in chunks(r.shape[2]):
        y, state = _wkv_chunk(r[:, :, part], k[:, :, part], v[:, :, part], decay[:, :, part], state)
        found.append(y)
    return cat(found, 2) + own, state


def _wkv_chunk(r: Tensor, k: Tensor, v: Tensor, decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Return what a chunk of tokens reads of the states before each, and the states after it."""
    count = r.shape[2]
    sums = decay.cumsum(2).contiguous()
    earlier = sums - decay
    every = Tensor.arange(count)
    is_before = (every.unsqueeze(0) < every.unsqueeze(1)).unsqueeze(-1)
    apart = earlier.unsqueeze(3) - sums.unsqueeze(2)  # (.., tokens, tokens before, width)
    scores = where(is_before, apart, apart._filled(-math.inf)).exp() * r.unsqueeze(3) * k.unsqueeze(2)
    y = (r * earlier.exp()).contiguous().matmul(state) + scores.sum(-1).contiguous().matmul(v)
    later = (k * (sums[:, :, -1:] - sums).exp()).contiguous()
    return y.contiguous(), (state * sums[:, :, -1:].transpose(-1, -2).exp() + later.mT.matmul(v)).contiguous()
