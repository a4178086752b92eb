"""Tiny random models, and what they compute: token by token and head by head in float64, straight from the papers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from kernmill import Tensor
from kernmill.llm.arch import Config
from kernmill.llm.generate import Model

Array = np.ndarray[Any, Any]
SIZES = {
    "context_length": 64,
    "embedding_length": 24,
    "block_count": 2,
    "feed_forward_length": 20,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.freq_base": 100.0,
}
VOCABULARY = 17


@dataclass
class Tiny:
    """Metadata and weights of a small model."""

    metadata: dict[str, Any]
    weights: dict[str, Array]

    def key(self, name: str, default: Any = None) -> Any:
        return self.metadata.get(f"{self.arch}.{name}", default)

    @property
    def arch(self) -> str:
        return str(self.metadata["general.architecture"])

    def model(self, capacity: int = 16, block: int = 4, **options: Any) -> Model:
        tensors = {name: Tensor(array.astype(np.float32)) for name, array in self.weights.items()}
        return Model(Config.of(self.metadata), tensors.get, capacity=capacity, block=block, **options)


def make(arch: str, extra: dict[str, tuple[int, ...]], layer: dict[str, tuple[int, ...]], **keys: Any) -> Tiny:
    """Random weights. `extra` and `layer`: more shapes, of the model and of each layer; () leaves a tensor out."""
    sizes = SIZES | {name.replace("__", "."): value for name, value in keys.items()}
    width, heads, kv = (sizes[k] for k in ("embedding_length", "attention.head_count", "attention.head_count_kv"))
    head, ff = sizes.get("attention.key_length", width // heads), sizes["feed_forward_length"]
    shapes = {
        "token_embd.weight": (VOCABULARY, width),
        "output.weight": (VOCABULARY, width),
        "output_norm.weight": (width,),
        **extra,
    }
    parts = {
        "attn_norm.weight": (width,),
        "attn_q.weight": (heads * head, width),
        "attn_k.weight": (kv * head, width),
        "attn_v.weight": (kv * head, width),
        "attn_output.weight": (width, heads * head),
        "ffn_norm.weight": (width,),
        "ffn_gate.weight": (ff, width),
        "ffn_up.weight": (ff, width),
        "ffn_down.weight": (width, ff),
        **layer,
    }
    for n in range(sizes["block_count"]):
        shapes |= {f"blk.{n}.{name}": shape for name, shape in parts.items()}
    chance = np.random.default_rng(len(arch) + len(keys))
    weights = {}
    for name, shape in shapes.items():
        if shape:
            is_norm = "norm" in name
            spread = 0.2 if is_norm or "bias" in name else 1.2 / np.sqrt(shape[-1])
            weights[name] = (chance.standard_normal(shape) * spread + is_norm).astype(np.float32).astype(np.float64)
    return Tiny({"general.architecture": arch} | {f"{arch}.{k}": v for k, v in sizes.items()}, weights)


# --- the reference ---------------------------------------------------------------------------------------------------
def norm(x: Array, weight: Array, epsilon: float) -> Array:
    return np.asarray(x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + epsilon) * weight)


def turn(x: Array, angles: Array, growth: float, by_halves: bool) -> Array:
    """One head of one token: pairs as complex numbers."""
    n = 2 * len(angles)
    real, imaginary = (x[: n // 2], x[n // 2 : n]) if by_halves else (x[:n:2], x[1:n:2])
    z = (real + 1j * imaginary) * np.exp(1j * angles) * growth
    out = x.copy()
    if by_halves:
        out[: n // 2], out[n // 2 : n] = z.real, z.imag
    else:
        out[:n:2], out[1:n:2] = z.real, z.imag
    return out


@dataclass
class Layer:
    """What the reference knows of one layer besides its weights: from here on each architecture is spelled out."""

    frequencies: Array
    growth: float = 1.0
    window: int = 0


class Reference:
    """Logits of every token of a text."""

    def __init__(self, tiny: Tiny, layers: list[Layer] | None = None) -> None:
        self.tiny, self.w = tiny, tiny.weights
        self.width, self.heads = tiny.key("embedding_length"), tiny.key("attention.head_count")
        self.kv, self.eps = tiny.key("attention.head_count_kv"), tiny.key("attention.layer_norm_rms_epsilon")
        self.head = tiny.key("attention.key_length", self.width // self.heads)
        turned = tiny.key("rope.dimension_count", self.head)
        plain = Layer(tiny.key("rope.freq_base") ** -(np.arange(0, turned, 2) / turned))
        self.layers = [plain] * tiny.key("block_count") if layers is None else layers

    def logits(self, ids: list[int]) -> Array:
        gemma = self.tiny.arch in ("gemma2", "gemma3")
        x = self.w["token_embd.weight"][ids] * (np.sqrt(self.width) if gemma else 1.0)
        for n, layer in enumerate(self.layers):
            w = {k.removeprefix(f"blk.{n}."): v for k, v in self.w.items() if k.startswith(f"blk.{n}.")}
            part = self.attention(norm(x, w["attn_norm.weight"], self.eps), w, layer)
            x = x + (norm(part, w["post_attention_norm.weight"], self.eps) if gemma else part)
            part = self.feed_forward(norm(x, w["ffn_norm.weight"], self.eps), w)
            x = x + (norm(part, w["post_ffw_norm.weight"], self.eps) if gemma else part)
        x = norm(x, self.w["output_norm.weight"], self.eps)
        logits = x @ self.w.get("output.weight", self.w["token_embd.weight"]).T
        cap = self.tiny.key("final_logit_softcapping")
        return np.asarray(cap * np.tanh(logits / cap) if cap else logits)

    def attention(self, x: Array, w: dict[str, Array], layer: Layer) -> Array:
        count, d, group = len(x), self.head, self.heads // self.kv
        if "attn_qkv.weight" in w:
            joined = x @ w["attn_qkv.weight"].T + w.get("attn_qkv.bias", 0.0)
            ends = np.cumsum([self.heads * d, self.kv * d])
            q, k, v = np.split(joined, ends, axis=1)
        else:
            q, k, v = (x @ w[f"attn_{c}.weight"].T + w.get(f"attn_{c}.bias", 0.0) for c in "qkv")
        q, k, v = q.reshape(count, -1, d), k.reshape(count, -1, d), v.reshape(count, -1, d)
        if "attn_q_norm.weight" in w:
            q, k = norm(q, w["attn_q_norm.weight"], self.eps), norm(k, w["attn_k_norm.weight"], self.eps)
        by_halves = self.tiny.arch != "llama"
        q, k = q.copy(), k.copy()
        for t in range(count):
            for part in (q, k):
                for h in range(part.shape[1]):
                    part[t, h] = turn(part[t, h], t * layer.frequencies, layer.growth, by_halves)
        scale = self.tiny.key("attention.scale", 1 / np.sqrt(d))
        cap = self.tiny.key("attn_logit_softcapping")
        mixed = np.zeros((count, self.heads, d))
        for t in range(count):
            first = max(0, t - layer.window + 1) if layer.window else 0
            for h in range(self.heads):
                scores = np.array([q[t, h] @ k[j, h // group] * scale for j in range(first, t + 1)])
                scores = cap * np.tanh(scores / cap) if cap else scores
                chances = np.exp(scores - scores.max())
                mixed[t, h] = (chances / chances.sum()) @ v[first : t + 1, h // group]
        return mixed.reshape(count, -1) @ w["attn_output.weight"].T + w.get("attn_output.bias", 0.0)

    def feed_forward(self, x: Array, w: dict[str, Array]) -> Array:
        if "ffn_gate.weight" in w:
            gate, up = (x @ w[f"ffn_{name}.weight"].T + w.get(f"ffn_{name}.bias", 0.0) for name in ("gate", "up"))
        else:
            gate, up = np.split(x @ w["ffn_up.weight"].T + w.get("ffn_up.bias", 0.0), 2, axis=1)
        if self.tiny.arch in ("gemma2", "gemma3"):
            gate = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        else:
            gate = gate / (1 + np.exp(-gate))
        return np.asarray((gate * up) @ w["ffn_down.weight"].T + w.get("ffn_down.bias", 0.0))


IDS = [3, 1, 4, 1, 5, 9, 2, 6, 16, 0, 7]


def check(tiny: Tiny, layers: list[Layer] | None = None, capacity: int = 16) -> None:
    """The whole text at once in blocks, and token after token: both are what the reference says."""
    expected = Reference(tiny, layers).logits(IDS)
    model = tiny.model(capacity)
    np.testing.assert_allclose(model.logits(IDS).numpy(), expected, rtol=2e-4, atol=2e-5)
    for count in (1, 2, 3, 4, len(IDS)):
        np.testing.assert_allclose(model.next_logits(IDS[:count]), expected[count - 1], rtol=2e-4, atol=2e-5)


class Tools:
    """What the tests of architectures use."""

    Layer, Reference, Tiny = Layer, Reference, Tiny
    IDS, VOCABULARY = IDS, VOCABULARY
    make = staticmethod(make)
    check = staticmethod(check)


@pytest.fixture
def tiny() -> type[Tools]:
    return Tools
