"""Attention in its variants, and rotary positions."""

from __future__ import annotations

import math
from typing import Any

from kernmill.ir import SettingError, ShapeError, dtypes

from ...methods.elementwise import where
from ...tensor import Tensor
from ..table import NodeCall, operator
from ..values import dtype_of, tensor_of


def _split_heads(x: Tensor, count: int | None, what: str) -> Tensor:
    if x.ndim == 4:
        return x
    if not count:
        raise ShapeError(f"Attention: {what} of three axes needs the number of heads. Change the model.")
    return x.reshape(x.shape[0], x.shape[1], count, -1).transpose(1, 2)


@operator("Attention")
def attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, past_key: Tensor | None = None,
    past_value: Tensor | None = None, lengths: Tensor | None = None, *, is_causal: int = 0,
    kv_num_heads: int | None = None, q_num_heads: int | None = None, qk_matmul_output_mode: int = 0,
    scale: float | None = None, softcap: float = 0.0, softmax_precision: int | None = None,
    left_window_size: int = -1, right_window_size: int = -1, call: NodeCall,
) -> tuple[Tensor, ...]:  # fmt: skip
    q = _split_heads(query, q_num_heads, "the query")
    k, v = _split_heads(key, kv_num_heads, "the key"), _split_heads(value, kv_num_heads, "the value")
    past = 0
    if past_key is not None and past_value is not None:
        k, v, past = past_key.cat(k, axis=2), past_value.cat(v, axis=2), past_key.shape[2]
    present = k, v
    group = q.shape[1] // k.shape[1]
    if group > 1:
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    root = math.sqrt(1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    scores = (q * root).cast(q.dtype) @ (k * root).cast(k.dtype).transpose(-1, -2)
    raw = scores
    if softcap:
        scores = (scores / softcap).tanh() * softcap
    capped = scores
    allowed = _allowed(q, k, past, lengths, (is_causal, left_window_size, right_window_size))
    scores, allowed = _masked(scores, mask, allowed)
    wide = scores.cast(dtype_of(softmax_precision) or scores.dtype) if softmax_precision else scores
    low = where(allowed, wide, wide._own(-math.inf)) if allowed is not None else wide
    weights = low.softmax(-1)
    if allowed is not None or mask is not None:  # a row without a key is zeros
        weights = where(low.max(-1, True).eq(-math.inf), weights._own(0), weights)
    weights = weights.cast(q.dtype)
    y = weights.cast(v.dtype) @ v
    if query.ndim == 3:
        y = y.transpose(1, 2).reshape(query.shape[0], query.shape[1], -1)
    shown = (raw, capped, low.cast(q.dtype), weights)[qk_matmul_output_mode]
    return (y, *present, shown)[: max(call.outputs, 1)]


def _allowed(q: Tensor, k: Tensor, past: int, lengths: Tensor | None, limits: tuple[int, int, int]) -> Tensor | None:
    """The keys that each query may see, by position."""
    causal, left, right = limits
    queries = Tensor.arange(q.shape[2]).reshape(-1, 1) + past
    keys = Tensor.arange(k.shape[2])
    rules = list[Tensor]()
    if lengths is not None:
        wide = lengths.cast(dtypes.int64).reshape(-1, 1, 1, 1)
        rules.append(keys.lt(wide))
        queries = queries + (wide - q.shape[2])
    if causal:
        rules.append(keys.le(queries))
    if left >= 0:
        rules.append(keys.ge(queries - left))
    if right >= 0:
        rules.append(keys.le(queries + right))
    found: Tensor | None = None
    for rule in rules:
        found = rule if found is None else found & rule
    return found


def _masked(scores: Tensor, mask: Tensor | None, allowed: Tensor | None) -> tuple[Tensor, Tensor | None]:
    if mask is None:
        return scores, allowed
    missing = scores.shape[-1] - mask.shape[-1]
    if missing > 0 and mask.shape[-1] != 1:  # keys that the mask does not reach
        value = False if mask.dtype.is_bool else -math.inf
        mask = mask.pad([(0, 0)] * (mask.ndim - 1) + [(0, missing)], value=value)
    if not mask.dtype.is_bool:
        return scores + mask, allowed
    return scores, mask if allowed is None else mask & allowed


@operator("FlexAttention", domain="ai.onnx.preview")
def flex_attention(
    query: Tensor, key: Tensor, value: Tensor, *, score_mod: Any = None, prob_mod: Any = None,
    softmax_precision: int | None = None, scale: float | None = None, call: NodeCall,
) -> Tensor:  # fmt: skip
    group = query.shape[1] // key.shape[1]
    k, v = (t.repeat_interleave(group, 1) if group > 1 else t for t in (key, value))
    wide = dtype_of(softmax_precision or 0) if softmax_precision else None
    wide = wide or (query.dtype if query.dtype is dtypes.float64 else dtypes.float32)
    scores = ((query @ k.transpose(-1, -2)).cast(wide)) * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if score_mod is not None:
        scores = tensor_of(call.body(score_mod, [scores])[0])
    weights = scores.softmax(-1)
    if prob_mod is not None:
        weights = tensor_of(call.body(prob_mod, [weights])[0])
    return weights.cast(v.dtype) @ v


@operator("RotaryEmbedding")
def rotary_embedding(
    x: Tensor, cos: Tensor, sin: Tensor, positions: Tensor | None = None, *, interleaved: int = 0, num_heads: int = 0,
    rotary_embedding_dim: int = 0,
) -> Tensor:  # fmt: skip
    t = x.transpose(1, 2) if x.ndim == 4 else x.reshape(x.shape[0], x.shape[1], num_heads, -1)
    size = rotary_embedding_dim or t.shape[-1]
    if positions is not None:
        cos, sin = cos[positions], sin[positions]
    cos, sin = cos.unsqueeze(2), sin.unsqueeze(2)
    turned, rest = t[..., :size], t[..., size:]
    a, b = (turned[..., ::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    real, imaginary = cos * a - sin * b, sin * a + cos * b
    turned = real.stack(imaginary, axis=-1).reshape(turned.shape) if interleaved else real.cat(imaginary, axis=-1)
    y = turned.cat(rest, axis=-1) if rest.shape[-1] else turned
    return y.transpose(1, 2) if x.ndim == 4 else y.reshape(x.shape)


@operator("LinearAttention")
def linear_attention(
    query: Tensor, key: Tensor, value: Tensor, past: Tensor | None = None, decay: Tensor | None = None,
    beta: Tensor | None = None, *, chunk_size: int = 64, kv_num_heads: int, q_num_heads: int, scale: float = 0.0,
    update_rule: str = "gated_delta",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The recurrence, a step for each token; each state is a matrix (d_k, d_v) of a head."""
    if update_rule not in ("linear", "gated", "delta", "gated_delta"):
        raise SettingError(f"LinearAttention: update_rule={update_rule!r} is unknown. Change the model.")
    batch, length = query.shape[:2]
    q = query.reshape(batch, length, q_num_heads, -1)
    k, v = (t.reshape(batch, length, kv_num_heads, -1) for t in (key, value))
    by = scale or 1 / math.sqrt(q.shape[-1])
    wide = dtypes.float64 if query.dtype is dtypes.float64 else dtypes.float32
    q, k, v = q.cast(wide), k.cast(wide), v.cast(wide)
    state = (
        past.cast(wide) if past is not None
        else Tensor.zeros(batch, kv_num_heads, k.shape[-1], v.shape[-1], dtype=wide)
    )  # fmt: skip
    gate = decay.cast(wide).reshape(batch, length, kv_num_heads, -1).exp() if decay is not None else None
    rate = beta.cast(wide).reshape(batch, length, -1, 1) if beta is not None else None
    outputs = list[Tensor]()
    for t in range(length):
        if "gated" in update_rule and gate is not None:
            state = state * gate[:, t].unsqueeze(-1)
        new = v[:, t]
        if "delta" in update_rule:
            new = new - (k[:, t].unsqueeze(-2) @ state).squeeze(-2)
            new = new * rate[:, t] if rate is not None else new
        state = state + k[:, t].unsqueeze(-1) * new.unsqueeze(-2)
        heads = state.repeat_interleave(q_num_heads // kv_num_heads, 1)
        outputs.append((q[:, t].unsqueeze(-2) @ heads).squeeze(-2) * by)
    first, *others = outputs
    y = first.stack(*others, axis=1).reshape(batch, length, -1)
    return y.cast(query.dtype), state.cast(past.dtype if past is not None else query.dtype)
