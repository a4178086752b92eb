"""Rows: attention of 16 heads over 1024 places of width 64, full and causal, in float32 and bfloat16."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from .expression import Expression, contiguous_bf16, prepare_expression
from .row import Goal, Row

__all__ = ["ATTENTION_ROWS", "attention"]

Array = np.ndarray[Any, Any]
Size = tuple[int, ...]


def heads(is_half: bool, rng: np.random.Generator, size: Size) -> tuple[Array, ...]:
    """Query, key and value of shape (batch, heads, places, width)."""
    made = tuple(rng.standard_normal(size, np.float32) for _ in range(3))
    return tuple(contiguous_bf16(one) for one in made) if is_half else made


def attention(is_causal: bool, q: Array, k: Array, v: Array) -> Array:
    """The reference."""
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    if is_causal:
        scores = np.where(np.tri(*scores.shape[-2:], dtype=np.bool_), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights @ v / weights.sum(-1, keepdims=True)  # type: ignore[no-any-return]


def flops(is_causal: bool, size: Size) -> float:
    """Of both products; half of them with the mask."""
    return 4.0 * math.prod(size) * size[-2] / (2 if is_causal else 1)


def jax_attention(is_causal: bool, jax: Any, q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    if is_causal:
        scores = jax.numpy.where(jax.numpy.tri(*scores.shape[-2:], dtype=bool), scores, -math.inf)
    return jax.nn.softmax(scores, -1) @ v


def row(dtype: str, is_causal: bool, ratio: float) -> Row:
    is_half = dtype == "bfloat16"
    run: dict[str, Any] = {
        "kernmill": lambda _, q, k, v: q.scaled_dot_product_attention(k, v, is_causal=is_causal),
        "numpy": lambda _, q, k, v: attention(is_causal, q, k, v),
        "torch": lambda torch, q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal),
        "jax": partial(jax_attention, is_causal),
        "onnxruntime": lambda g, q, k, v: g.Attention(q, k, v, is_causal=int(is_causal)),
        "tinygrad": lambda _, q, k, v: q.scaled_dot_product_attention(k, v, is_causal=is_causal),
    }
    if is_half:
        run = {name: run[name] for name in ("kernmill", "torch", "jax")}
    work = Expression(
        (1, 16, 1024, 64), (1, 2, 19, 8), partial(heads, is_half), partial(attention, is_causal), run,
        partial(flops, is_causal), 2e-2 if is_half else 2e-5, "fma", dtype="bfloat16" if is_half else "",
    )  # fmt: skip
    name = f"attention_{'bf16' if is_half else 'f32'}{'_causal' if is_causal else ''}"
    about = f"{dtype} attention 1 x 16 x 1024 x 64{', causal' if is_causal else ''}; torch: its fused one"
    return Row(name, about, partial(prepare_expression, work), "GFLOP/s", goals=(Goal("torch", ratio),))


ATTENTION_ROWS: list[Row] = [
    row("float32", False, 1.1), row("float32", True, 1.4), row("bfloat16", False, 1.5), row("bfloat16", True, 1.7),
]  # fmt: skip
