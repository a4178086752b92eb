"""Architectures near llama against plain NumPy in float64: what differs in each is spelled out once more in a row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import Context, FormatError, SettingError, Tensor
from kernmill.llm.arch import ARCHITECTURES
from kernmill.llm.generate import Model
from kernmill.quant import save

Array = np.ndarray[Any, Any]
Shapes = dict[str, tuple[int, ...]]
W, F, HEADS, KV, HEAD = 24, 20, 4, 2, 6
VOCABULARY = 17


def silu(x: Array) -> Array:
    return np.asarray(x / (1 + np.exp(-x)))


def gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


def relu_squared(x: Array) -> Array:
    return np.asarray(np.maximum(x, 0) ** 2)


@dataclass
class Row:
    """What an architecture does. `extra` and `layer`: shapes of more tensors of the model and of a layer; (): none."""

    layer: Shapes = field(default_factory=dict)
    extra: Shapes = field(default_factory=dict)
    keys: dict[str, Any] = field(default_factory=dict)
    pairs: bool = False
    layer_norm: bool = False
    activation: Callable[[Array], Array] = silu
    parallel: bool = False
    norms: tuple[str, str] = ("attn_norm", "ffn_norm")
    posts: tuple[str, str] = ("", "")
    has_rope: Callable[[int], bool] = lambda n: True
    window: Callable[[int], int] = lambda n: 0
    heads_normed: str = ""  # "head", "row" or "after" the rotation
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    arch: str = ""


def biases(*names: str) -> Shapes:
    sizes = {"attn_q": W, "attn_k": KV * HEAD, "attn_v": KV * HEAD, "ffn_up": F, "ffn_gate": F}
    return {f"{name}.bias": (sizes.get(name, W),) for name in names}


QKV = biases("attn_q", "attn_k", "attn_v")
NO_GATE: Shapes = {"ffn_gate.weight": ()}
NO_NORMS: Shapes = {"attn_norm.weight": (), "ffn_norm.weight": ()}
POSTS: Shapes = {"post_attention_norm.weight": (W,), "post_ffw_norm.weight": (W,)}
OF_HEADS: Shapes = {"attn_q_norm.weight": (HEAD,), "attn_k_norm.weight": (HEAD,)}
ALL_BIASES = QKV | biases("attn_output", "ffn_up", "ffn_down", "attn_norm", "ffn_norm")
END: Shapes = {"output_norm.bias": (W,)}
TIED: Shapes = {"output.weight": ()}
NO_FFN_NORM: Shapes = {"ffn_norm.weight": ()}
TWO_UP: Shapes = {"ffn_gate.weight": (), "ffn_up.weight": (2 * F, W)}
PARTIAL = {"rope__dimension_count": 4}
EPSILON: dict[str, Any] = {"attention__layer_norm_rms_epsilon": None, "attention__layer_norm_epsilon": 1e-3}
OF_LAYER_NORM: dict[str, Any] = {"layer_norm": True, "extra": END, "activation": gelu}

ROWS = {
    "gemma": Row(activation=gelu, embedding_scale=W**0.5, extra=TIED),
    "granite": Row(
        pairs=True, embedding_scale=3.0, residual_scale=0.4, logit_scale=1 / 5,
        keys={"embedding_scale": 3.0, "residual_scale": 0.4, "logit_scale": 5.0, "attention__scale": 0.3},
    ),
    "granite without rope": Row(has_rope=lambda n: False, keys={"rope__scaling__finetuned": False}, arch="granite"),
    "smollm3": Row(pairs=True, has_rope=lambda n: n % 4 != 3, keys={"block_count": 5}),
    "internlm2": Row(pairs=True),
    "ernie4_5": Row(pairs=True, extra=TIED),
    "exaone": Row(),
    "arcee": Row(pairs=True, activation=relu_squared, layer=NO_GATE),
    "seed_oss": Row(layer=QKV | NO_FFN_NORM | {"post_attention_norm.weight": (W,)},
                    norms=("attn_norm", "post_attention_norm")),
    "hunyuan-dense": Row(layer=OF_HEADS, heads_normed="after"),
    "olmo2": Row(
        layer=NO_NORMS | POSTS | {"attn_q_norm.weight": (W,), "attn_k_norm.weight": (KV * HEAD,)},
        norms=("", ""), posts=("post_attention_norm", "post_ffw_norm"), heads_normed="row",
    ),
    "exaone4": Row(
        layer=NO_NORMS | POSTS | OF_HEADS, norms=("", ""), posts=("post_attention_norm", "post_ffw_norm"),
        heads_normed="head", window=lambda n: 0 if n % 4 == 3 else 3, has_rope=lambda n: n % 4 != 3,
        keys={"block_count": 5, "attention__sliding_window": 3},
    ),
    "exaone4 without windows": Row(
        layer=NO_NORMS | POSTS | OF_HEADS, norms=("", ""), posts=("post_attention_norm", "post_ffw_norm"),
        heads_normed="head", arch="exaone4",
    ),
    "chatglm": Row(pairs=True, layer=TWO_UP | QKV, keys=PARTIAL),
    "glm4": Row(pairs=True, layer=TWO_UP | POSTS | QKV, keys=PARTIAL,
                posts=("post_attention_norm", "post_ffw_norm")),
    "pangu-embedded": Row(layer=QKV | biases("attn_output")),
    "codeshell": Row(layer=ALL_BIASES | NO_GATE, keys=EPSILON, **OF_LAYER_NORM),
    "starcoder2": Row(layer=ALL_BIASES | NO_GATE, keys=EPSILON, **OF_LAYER_NORM),
    "gptneox": Row(layer=ALL_BIASES | NO_GATE, keys=PARTIAL, parallel=True, **OF_LAYER_NORM),
    "gptneox in turn": Row(layer=ALL_BIASES | NO_GATE, keys={"use_parallel_residual": False}, arch="gptneox",
                           **OF_LAYER_NORM),
    "gpt2": Row(layer=ALL_BIASES | NO_GATE, has_rope=lambda n: False, layer_norm=True, activation=gelu,
                extra=END | TIED | {"position_embd.weight": (64, W)}),
    "phi2": Row(layer=QKV | biases("attn_norm", "attn_output", "ffn_up", "ffn_down") | NO_GATE | NO_FFN_NORM,
                keys=PARTIAL, parallel=True, norms=("attn_norm", "attn_norm"), layer_norm=True, activation=gelu,
                extra=END | {"output.bias": (VOCABULARY,)}),
    "falcon": Row(layer=biases("attn_norm") | NO_GATE | NO_FFN_NORM, parallel=True, norms=("attn_norm", "attn_norm"),
                  **OF_LAYER_NORM),
    "falcon 40": Row(
        layer=biases("attn_norm", "attn_norm_2") | {"attn_norm_2.weight": (W,)} | NO_GATE | NO_FFN_NORM, parallel=True,
        norms=("attn_norm_2", "attn_norm"), arch="falcon", **OF_LAYER_NORM,
    ),
    "nemotron": Row(layer=biases("attn_norm", "ffn_norm") | NO_GATE, keys=PARTIAL, layer_norm=True, extra=END,
                    activation=relu_squared),
    "stablelm": Row(layer=biases("attn_norm", "ffn_norm") | QKV, keys=PARTIAL, layer_norm=True, extra=END),
    "starcoder": Row(layer=ALL_BIASES | NO_GATE | {"attn_k.weight": (HEAD, W), "attn_v.weight": (HEAD, W)}
                     | {"attn_k.bias": (HEAD,), "attn_v.bias": (HEAD,)}, keys={"attention__head_count_kv": 1},
                     has_rope=lambda n: False, layer_norm=True, activation=gelu,
                     extra=END | {"position_embd.weight": (64, W)}),
    "orion": Row(layer=biases("attn_norm", "ffn_norm"), layer_norm=True, extra=END, keys=EPSILON),
    "xverse": Row(pairs=True),
    "baichuan": Row(pairs=True),
    "qwen2vl": Row(layer=QKV, keys={"rope__dimension_sections": [1, 1, 1, 0]}),
    "qwen3vl": Row(layer=OF_HEADS, heads_normed="head",
                   keys={"rope__dimension_sections": [1, 1, 1, 0], "n_deepstack_layers": 0}),
    "stablelm parallel": Row(layer=biases("attn_norm") | NO_FFN_NORM, parallel=True, norms=("attn_norm", "attn_norm"),
                             layer_norm=True, extra=END, keys=PARTIAL, arch="stablelm"),
    "command-r": Row(pairs=True, layer=NO_FFN_NORM, parallel=True, norms=("attn_norm", "attn_norm"), layer_norm=True,
                     extra=TIED, logit_scale=0.25, keys={"logit_scale": 0.25}),
    "cohere2": Row(pairs=True, layer=NO_FFN_NORM, parallel=True, norms=("attn_norm", "attn_norm"), layer_norm=True,
                   extra=TIED, window=lambda n: 0 if n % 4 == 3 else 3, has_rope=lambda n: n % 4 != 3,
                   logit_scale=0.5, keys={"logit_scale": 0.5, "attention__sliding_window": 3, "block_count": 5}),
}  # fmt: skip


class Plain:
    """A decoder in NumPy: one head at a time."""

    def __init__(self, tiny: Any, row: Row) -> None:
        self.w, self.row, self.tiny = tiny.weights, row, tiny
        self.epsilon = tiny.key("attention.layer_norm_rms_epsilon") or tiny.key("attention.layer_norm_epsilon")
        self.turned = tiny.key("rope.dimension_count", HEAD)

    def norm(self, x: Array, name: str) -> Array:
        if not name:
            return x
        x = x - x.mean(-1, keepdims=True) if self.row.layer_norm else x
        x = x / np.sqrt((x**2).mean(-1, keepdims=True) + self.epsilon)
        return np.asarray(x * self.w[f"{name}.weight"] + self.w.get(f"{name}.bias", 0.0))

    def product(self, x: Array, name: str) -> Array:
        return np.asarray(x @ self.w[f"{name}.weight"].T + self.w.get(f"{name}.bias", 0.0))

    def rotated(self, x: Array) -> Array:
        """Shapes: (tokens, heads, width)."""
        half, out = self.turned // 2, x.copy()
        turn = np.exp(1j * np.outer(np.arange(len(x)), 100.0 ** (-np.arange(half) / half)))[:, None]
        first, second = ((slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if self.row.pairs else
                         (slice(0, half), slice(half, 2 * half)))  # fmt: skip
        z = (x[..., first] + 1j * x[..., second]) * turn
        out[..., first], out[..., second] = z.real, z.imag
        return out

    def attention(self, n: int, x: Array) -> Array:
        row, b, count = self.row, f"blk.{n}.", len(x)
        q, k, v = (self.product(x, f"{b}attn_{c}") for c in "qkv")
        if row.heads_normed == "row":
            q, k = self.norm(q, f"{b}attn_q_norm"), self.norm(k, f"{b}attn_k_norm")
        q, k, v = (part.reshape(count, -1, HEAD) for part in (q, k, v))
        if row.heads_normed == "head":
            q, k = self.norm(q, f"{b}attn_q_norm"), self.norm(k, f"{b}attn_k_norm")
        if row.has_rope(n):
            q, k = self.rotated(q), self.rotated(k)
        if row.heads_normed == "after":
            q, k = self.norm(q, f"{b}attn_q_norm"), self.norm(k, f"{b}attn_k_norm")
        mixed, window, group = np.zeros((count, HEADS, HEAD)), row.window(n) or count, HEADS // k.shape[1]
        for t in range(count):
            for h in range(HEADS):
                seen = slice(max(0, t - window + 1), t + 1)
                scores = k[seen, h // group] @ q[t, h] * self.tiny.key("attention.scale", HEAD**-0.5)
                mixed[t, h] = self.softmax(scores, n, h) @ v[seen, h // group]
        return self.product(mixed.reshape(count, -1), f"{b}attn_output")

    def softmax(self, scores: Array, n: int, head: int) -> Array:
        chances = np.exp(scores - scores.max())
        return np.asarray(chances / chances.sum())

    def feed_forward(self, n: int, x: Array) -> Array:
        up = self.product(x, f"blk.{n}.ffn_up")
        if up.shape[1] == 2 * F:
            up = self.row.activation(up[:, :F]) * up[:, F:]
        elif f"blk.{n}.ffn_gate.weight" in self.w:
            up = self.row.activation(self.product(x, f"blk.{n}.ffn_gate")) * up
        else:
            up = self.row.activation(up)
        return self.product(up, f"blk.{n}.ffn_down")

    def logits(self, ids: list[int]) -> Array:
        row, x = self.row, self.w["token_embd.weight"][ids] * self.row.embedding_scale
        if "position_embd.weight" in self.w:
            x = x + self.w["position_embd.weight"][: len(ids)]
        for n in range(self.tiny.key("block_count")):
            before, after = ([name and f"blk.{n}.{name}" for name in names] for names in (row.norms, row.posts))
            mixed = self.norm(self.attention(n, self.norm(x, before[0])), after[0])
            if row.parallel:
                x = x + mixed + self.feed_forward(n, self.norm(x, before[1]))
                continue
            x = x + mixed * row.residual_scale
            x = x + self.norm(self.feed_forward(n, self.norm(x, before[1])), after[1]) * row.residual_scale
        output = self.w.get("output.weight", self.w["token_embd.weight"])
        logits = self.norm(x, "output_norm") @ output.T + self.w.get("output.bias", 0.0)
        return np.asarray(logits * row.logit_scale)


def made(tiny: Any, name: str) -> Any:
    """A tiny random model of a row."""
    row = ROWS[name]
    keys = {key: value for key, value in row.keys.items() if value is not None}
    model = tiny.make(row.arch or name, row.extra, row.layer, **keys)
    for key in row.keys.keys() - keys.keys():
        del model.metadata[f"{model.arch}.{key.replace('__', '.')}"]
    return model


@pytest.mark.parametrize("name", ROWS)
def test_logits_are_those_of_numpy(tiny: Any, name: str) -> None:
    """The whole text at once in blocks, and one token after a few."""
    model, ids = made(tiny, name), tiny.IDS
    expected = Plain(model, ROWS[name]).logits(ids)
    found = model.model()
    np.testing.assert_allclose(found.logits(ids).numpy(), expected, rtol=2e-4, atol=3e-5)
    for count in (3, 4, len(ids)):
        np.testing.assert_allclose(found.next_logits(ids[:count]), expected[count - 1], rtol=2e-4, atol=3e-5)
    shapes = {key: array.shape for key, array in model.weights.items()}
    ARCHITECTURES[model.arch].check(found.config, shapes)


@pytest.mark.parametrize("name", ROWS)
def test_every_tensor_counts(tiny: Any, name: str) -> None:
    """Each tensor of a file is read: a bias or a norm that is left out would be a wrong model."""
    model, used = made(tiny, name), set[str]()
    tensors = dict(model.weights)

    def find(key: str) -> Any:
        used.add(key)
        return Tensor(tensors[key].astype(np.float32)) if key in tensors else None

    Model.of(model.metadata, find, capacity=16)
    assert set(tensors) <= used
    missing = next(key for key in tensors if key.endswith("attn_output.weight"))
    del tensors[missing]
    with pytest.raises(FormatError, match=rf"^the file has no tensor {missing}, which a {model.arch} model needs\.$"):
        Model.of(model.metadata, find, capacity=16)


@pytest.mark.parametrize("name", ["gpt2", "olmo2", "falcon 40", "phi2", "stablelm parallel", "chatglm"])
def test_a_file_is_the_model(tiny: Any, name: str, tmp_path: Path) -> None:
    """Every tensor of the file is used, and matrices are interleaved as they are loaded."""
    model = made(tiny, name)
    save(tmp_path / "a.gguf", {key: Tensor(w.astype(np.float32)) for key, w in model.weights.items()}, model.metadata)
    found = Model.from_gguf(tmp_path / "a.gguf", capacity=16, block=4)
    expected = Plain(model, ROWS[name]).logits(tiny.IDS)
    np.testing.assert_allclose(found.logits(tiny.IDS).numpy(), expected, rtol=2e-4, atol=3e-5)
    np.testing.assert_allclose(found.next_logits(tiny.IDS[:3]), expected[2], rtol=2e-4, atol=3e-5)


@pytest.mark.parametrize("name", ["olmo2", "gpt2", "command-r"])
def test_one_of_each_group_on_opencl(tiny: Any, name: str, opencl: str) -> None:
    model, ids = made(tiny, name), tiny.IDS[:5]
    with Context(DEVICE=opencl):
        found = model.model(capacity=8).logits(ids).numpy()
    np.testing.assert_allclose(found, Plain(model, ROWS[name]).logits(ids), rtol=2e-4, atol=3e-5)


def test_positions_that_gpt2_has_not_learned(tiny: Any) -> None:
    with pytest.raises(SettingError) as caught:
        made(tiny, "gpt2").model(capacity=65)
    assert str(caught.value) == (
        "Model: capacity=65: must be at most 64, the number of learned positions of this model."
    )
