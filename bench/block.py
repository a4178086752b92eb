"""One transformer block in each peer's words, and its first call in a process of its own."""

from __future__ import annotations

import importlib
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

__all__ = ["BLOCKS", "block_child"]

Array = np.ndarray[Any, Any]
_TOKENS, _WIDTH, _HEADS = 256, 1024, 16


def problem(tokens: int, width: int) -> tuple[list[Array], Array]:
    """Two norms, the joint projection, the output's, and the two of the MLP, each with a bias; and the input."""
    rng = np.random.default_rng(7)
    shapes = [(width,), (width,), (3 * width, width), (3 * width,), (width, width), (width,), (width,), (width,),
              (4 * width, width), (4 * width,), (width, 4 * width), (width,)]  # fmt: skip
    params = [(rng.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32) for shape in shapes]
    return params, rng.standard_normal((1, tokens, width), np.float32)


# --- forward: norm, attention, sum; norm, MLP, sum -------------------------------------------------------------------
def with_methods(_: Any, params: Sequence[Any], x: Any) -> Any:
    """kernmill and tinygrad."""
    g1, c1, wa, ba, wo, bo, g2, c2, w1, b1, w2, b2 = params
    batch, tokens, width = x.shape

    def norm(x: Any, weight: Any, bias: Any) -> Any:
        centered = x - x.mean(-1, keepdim=True)
        return centered * (centered.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight + bias

    joint = norm(x, g1, c1).matmul(wa.transpose(0, 1)) + ba
    joint = joint.reshape((batch, tokens, 3, _HEADS, width // _HEADS)).permute((2, 0, 3, 1, 4))
    seen = joint[0].scaled_dot_product_attention(joint[1], joint[2], is_causal=True)
    x = x + seen.transpose(1, 2).reshape((batch, tokens, width)).matmul(wo.transpose(0, 1)) + bo
    hidden = norm(x, g2, c2).matmul(w1.transpose(0, 1)) + b1
    hidden = 0.5 * hidden * (1 + (math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden * hidden * hidden)).tanh())
    return x + hidden.matmul(w2.transpose(0, 1)) + b2


def with_torch(torch: Any, params: Sequence[Any], x: Any) -> Any:
    g1, c1, wa, ba, wo, bo, g2, c2, w1, b1, w2, b2 = params
    functional = torch.nn.functional
    batch, tokens, width = x.shape
    joint = functional.linear(functional.layer_norm(x, (width,), g1, c1), wa, ba)
    q, k, v = joint.reshape(batch, tokens, 3, _HEADS, width // _HEADS).permute(2, 0, 3, 1, 4)
    seen = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    x = x + functional.linear(seen.transpose(1, 2).reshape(batch, tokens, width), wo, bo)
    hidden = functional.linear(functional.layer_norm(x, (width,), g2, c2), w1, b1)
    return x + functional.linear(functional.gelu(hidden, approximate="tanh"), w2, b2)


def with_arrays(lib: Any, params: Sequence[Any], x: Any) -> Any:
    """NumPy (the reference) and jax.numpy."""
    g1, c1, wa, ba, wo, bo, g2, c2, w1, b1, w2, b2 = params
    batch, tokens, width = x.shape

    def norm(x: Any, weight: Any, bias: Any) -> Any:
        centered = x - x.mean(-1, keepdims=True)
        return centered / lib.sqrt((centered * centered).mean(-1, keepdims=True) + 1e-5) * weight + bias

    joint = norm(x, g1, c1) @ wa.T + ba
    q, k, v = joint.reshape(batch, tokens, 3, _HEADS, width // _HEADS).transpose(2, 0, 3, 1, 4)
    scores = q @ k.swapaxes(-1, -2) / math.sqrt(width // _HEADS)
    scores = lib.where(lib.tri(tokens, dtype=bool), scores, -math.inf)
    weights = lib.exp(scores - scores.max(-1, keepdims=True))
    seen = weights @ v / weights.sum(-1, keepdims=True)
    x = x + seen.swapaxes(1, 2).reshape(batch, tokens, width) @ wo.T + bo
    hidden = norm(x, g2, c2) @ w1.T + b1
    hidden = 0.5 * hidden * (1 + lib.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden * hidden * hidden)))
    return x + hidden @ w2.T + b2


# --- first calls: what is returned lies in memory --------------------------------------------------------------------
Call = Callable[[], list[Any]]


def kernmill_block(params: list[Array], x: Array, is_gradient: bool) -> Call:
    kernmill = importlib.import_module("kernmill")
    weights = [kernmill.Tensor(p, requires_grad=is_gradient) for p in params]
    given = kernmill.Tensor(x)

    def call() -> list[Any]:
        result = with_methods(kernmill, weights, given)
        if is_gradient:
            result = result.square().mean()
            result.backward()
        made = [result, *(w.grad for w in weights if is_gradient)]
        made[0].realize(*made[1:])
        return made

    return call


def torch_block(params: list[Array], x: Array, is_gradient: bool) -> Call:
    torch = importlib.import_module("torch")
    weights = [torch.from_numpy(p).requires_grad_(is_gradient) for p in params]
    given = torch.from_numpy(x)

    def call() -> list[Any]:
        result = with_torch(torch, weights, given)
        if is_gradient:
            result = result.square().mean()
            result.backward()
        return [result.detach(), *(w.grad for w in weights if is_gradient)]

    return call


def jax_block(params: list[Array], x: Array, is_gradient: bool) -> Call:
    jax = importlib.import_module("jax")
    weights, given = [jax.numpy.array(p) for p in params], jax.numpy.array(x)

    def loss(weights: Any, given: Any) -> Any:
        return jax.numpy.square(with_arrays(jax.numpy, weights, given)).mean()

    def run(weights: Any, given: Any) -> list[Any]:
        if is_gradient:
            value, grads = jax.value_and_grad(loss)(weights, given)
            return [value, *grads]
        return [with_arrays(jax.numpy, weights, given)]

    return lambda: jax.block_until_ready(jax.jit(run)(weights, given))


def tinygrad_block(params: list[Array], x: Array, is_gradient: bool) -> Call:
    tinygrad = importlib.import_module("tinygrad")
    weights = [tinygrad.Tensor(p, device="CPU").realize() for p in params]
    given = tinygrad.Tensor(x, device="CPU").realize()

    def call() -> list[Any]:
        result = with_methods(tinygrad, weights, given)
        if is_gradient:
            result = result.square().mean().backward()
        made = [result, *(w.grad for w in weights if is_gradient)]
        made[0].realize(*made[1:])
        tinygrad.Device["CPU"].synchronize()
        return made

    return call


BLOCKS: dict[str, Callable[[list[Array], Array, bool], Call]] = {
    "kernmill": kernmill_block, "torch": torch_block, "jax": jax_block, "tinygrad": tinygrad_block,
}  # fmt: skip


def is_right(params: list[Array], x: Array, found: list[Array], is_gradient: bool) -> bool:
    """The result; or the loss, and the slope along a random direction, which all gradients share in."""
    wide, given = [p.astype(np.float64) for p in params], x.astype(np.float64)
    right = with_arrays(np, wide, given)
    if not is_gradient:
        return bool(np.allclose(found[0], right, rtol=1e-3, atol=1e-3))

    def loss(step: float) -> float:
        moved = [p + step * d for p, d in zip(wide, directions, strict=True)]
        return float(np.square(with_arrays(np, moved, given)).mean())

    rng = np.random.default_rng(1)
    directions = [rng.standard_normal(p.shape) for p in params]
    slope = (loss(1e-5) - loss(-1e-5)) / 2e-5
    along = sum(float((g.astype(np.float64) * d).sum()) for g, d in zip(found[1:], directions, strict=True))
    scale = math.sqrt(sum(float(np.square(g, dtype=np.float64).sum()) for g in found[1:]))  # of such a slope
    return bool(np.isclose(found[0], np.square(right).mean(), rtol=1e-4) and abs(along - slope) < 1e-2 * scale)


def block_child(name: str, is_gradient: bool, is_tiny: bool) -> None:
    """In a process of its own, imports and weights done: seconds of the first call, and whether it is right: JSON."""
    params, x = problem(8, 32) if is_tiny else problem(_TOKENS, _WIDTH)
    call = BLOCKS[name](params, x, is_gradient)
    start = time.perf_counter()
    made = call()
    facts: dict[str, Any] = {"first_s": time.perf_counter() - start, "end_ns": time.monotonic_ns()}
    found = [one.numpy() if hasattr(one, "numpy") else np.asarray(one) for one in made]
    facts["is_right"] = is_right(params, x, found, is_gradient)
    if name == "kernmill":
        counters = importlib.import_module("kernmill.runtime").counters
        facts |= {"compiled": counters.compiled, "from_disk": counters.from_disk, "llvmlite": "llvmlite" in sys.modules}
    print(json.dumps(facts))
