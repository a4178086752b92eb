"""Tensor methods: attention, dropout and layer norm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

from kernmill.ir import DType, Ops, SettingError, ShapeError, promote, show_shape

from ..lazy import accumulator, is_training
from .elementwise import choose
from .images import Images

__all__ = ["Attention"]

_LEAST, _TINY = -3e38, 1e-30  # below every finite score, and below every sum of weights


class Attention(Images):
    """Attention, dropout and layer norm."""

    def dropout(self, p: float = 0.5, training: bool | None = None) -> Self:
        """In training: each element 0 with probability p, the others divided by 1 - p. Otherwise self.

        Without `training` it is so, but in a block `with train(False):`.

        Raises:
            SettingError: p outside 0..1.
        """
        if not 0 <= p <= 1:
            raise SettingError(f"dropout: p={p}: must be a number from 0 to 1.")
        if not (is_training() if training is None else training) or p == 0:
            return self
        x = self._floating()
        if p == 1:
            return x.mul(0)
        kept = self.rand(self.node_shape, device=self._device).ge(p)
        return choose(kept, x.div(1 - p), x._filled(0))

    def scaled_dot_product_attention(
        self,
        key: Self,
        value: Self,
        attn_mask: Self | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Self:
        """softmax(self @ key.T * scale + mask) @ value, over the last two axes; scale 1 / sqrt(size) by default.

        A bool mask is True for positions to attend to; a float mask is added. If key and value have fewer heads (axis
        -3), each of them serves a group of query heads, with PyTorch's `enable_gqa` or without. A fully masked row is
        0, as in PyTorch.

        Raises:
            ShapeError: query heads that are not a multiple of the key heads.
            SettingError: both a mask and `is_causal`.
        """
        if attn_mask is not None and is_causal:
            raise SettingError(
                "scaled_dot_product_attention: attn_mask with is_causal=True: give one of them. For a bool mask, "
                "attn_mask.tril() is causal too."
            )
        if attn_mask is None and not dropout_p and scale is None:
            return self._attention(key, value, is_causal)
        return self._any_attention(key, value, attn_mask, dropout_p, is_causal, scale)

    def _attention(self, key: Self, value: Self, is_causal: bool) -> Self:
        """The usual form, whose nodes are recorded (kernmill/recorded.py)."""
        return self._any_attention(key, value, None, 0.0, is_causal, None)

    def _any_attention(
        self, key: Self, value: Self, attn_mask: Self | None, dropout_p: float, is_causal: bool, scale: float | None
    ) -> Self:
        query, key, value = (t._floating() for t in (self, key, value))
        if min(t.ndim for t in (query, key, value)) < 2:
            shapes = ", ".join(show_shape(t.uop.shape) for t in (query, key, value))
            raise ShapeError(
                f"scaled_dot_product_attention: query, key and value of shapes {shapes}: the last two axes must be "
                "positions and features. Unsqueeze the vectors."
            )
        if query.ndim > 2 and key.ndim > 2 and 1 != key.node_shape[-3] != query.node_shape[-3]:
            return self._grouped(key, value, attn_mask, dropout_p, is_causal, scale)
        wide = accumulator(query.dtype)
        factor = 1 / math.sqrt(query.node_shape[-1]) if scale is None else scale
        scores = query.cast(wide).matmul(key.cast(wide).mT).mul(factor)
        if attn_mask is not None and not attn_mask.dtype.is_bool:
            scores = scores.add(attn_mask)
        seen = scores._below(0) if is_causal else None
        if attn_mask is not None and attn_mask.dtype.is_bool:
            below = attn_mask.uop.toposort(stop=lambda u: u.storage is not None)
            if any(node.storage is not None or node.op is Ops.BUFFER for node in below):  # no loop can end with it
                scores = choose(attn_mask, scores, scores._filled(-math.inf))
            else:
                seen = attn_mask if seen is None else attn_mask.logical_and(seen)
        hides_rows = attn_mask is not None
        return scores._attended(seen, value.cast(wide), query.dtype, dropout_p, hides_rows=hides_rows).cast(query.dtype)

    def layer_norm(
        self, normalized_shape: int | Sequence[int], weight: Self | None = None, bias: Self | None = None,
        eps: float = 1e-5,
    ) -> Self:  # fmt: skip
        """The last axes, of sizes `normalized_shape`, to mean 0 and variance 1; then times weight, plus bias.

        Half types are computed in float32, and ints are floats.

        Raises:
            ShapeError: other sizes.
        """
        shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        if not shape or self.node_shape[-len(shape) :] != shape:
            raise ShapeError(
                f"layer_norm: a tensor of shape {show_shape(self.uop.shape)} does not end in {shape}. Reshape it, or "
                "give the sizes of its last axes."
            )
        axes = tuple(range(-len(shape), 0))
        x = self._floating()
        dtype = x.dtype
        for state in (weight, bias):
            dtype = dtype if state is None else promote(dtype, state.dtype)
        x = x.cast(accumulator(x.dtype))
        centred = x.sub(x.mean(axes, keepdim=True))
        result = centred.mul(centred.square().mean(axes, keepdim=True).add(eps).rsqrt())
        result = result if weight is None else result.mul(weight)
        return (result if bias is None else result.add(bias)).cast(dtype)

    def _attended(self, seen: Self | None, value: Self, kind: DType, dropout_p: float, *, hides_rows: bool) -> Self:
        """Return softmax(self) @ value without masked scores, divided once per result; 0 for a fully masked row, if
        there can be one. Weights are rounded to `kind` before they are multiplied, as PyTorch's.

        Each reduction contains the mask itself, so that its loop can end early.
        """

        def visible(x: Self, seen: Self | None, otherwise: float) -> Self:
            return x if seen is None else choose(seen, x, x._filled(otherwise))

        scores = visible(self, seen, -math.inf)
        top = visible(scores, seen, -math.inf).max(-1, keepdim=True).detach()
        weights = scores.sub(top.maximum(_LEAST) if hides_rows else top).exp().cast(kind).cast(scores.dtype)
        total = visible(weights, seen, 0).sum(-1, keepdim=True)
        if hides_rows:
            total = total.maximum(_TINY)  # of a row that sees something it is 1 or more
        weights = weights.dropout(dropout_p, training=dropout_p > 0)
        if seen is None:
            return weights.matmul(value).div(total)
        terms = weights.unsqueeze(-1).mul(value.unsqueeze(-3))
        return visible(terms, seen.unsqueeze(-1), 0).sum(-2).div(total)

    def _grouped(
        self, key: Self, value: Self, mask: Self | None, dropout_p: float, is_causal: bool, scale: float | None
    ) -> Self:
        heads, own = self.node_shape[-3], key.node_shape[-3]
        if own == 0 or heads % own:
            raise ShapeError(
                f"scaled_dot_product_attention: query {show_shape(self.uop.shape)}, key {show_shape(key.uop.shape)}: "
                f"{heads} query heads do not share {own} key heads evenly. Make one a multiple of the other."
            )
        query = self.unflatten(-3, (own, heads // own))
        if mask is not None and mask.ndim > 2:
            mask = mask.unsqueeze(-3) if mask.node_shape[-3] == 1 else mask.unflatten(-3, (own, heads // own))
        result = query.scaled_dot_product_attention(
            key.unsqueeze(-3), value.unsqueeze(-3), mask, dropout_p, is_causal, scale
        )
        return result.reshape((*result.node_shape[:-4], heads, *result.node_shape[-2:]))
