"""Encoders against plain NumPy in float64: each token with all others, and each text alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import FormatError, SettingError, Tensor
from kernmill.llm import Model
from kernmill.llm.arch import Config
from kernmill.quant import save
from tests.tiny_models import CASES, HEADS, W, metadata_of, weights_of, write

Array = np.ndarray[Any, Any]
D = W // HEADS
ENCODERS = [
    name for name, case in CASES.items() if case.keys.get("attention.causal") is False and case.arch != "t5encoder"
]
OF_RMS, OF_SILU = ("eurobert", "gemma-embedding", "llama-embed"), ("nomic-bert", "eurobert", "llama-embed")
TEXTS = [[1, 5, 9, 200, 33, 270, 12, 12, 7, 81, 3, 14, 90, 41, 260, 11, 2], [1, 8, 2], [1, 44, 100, 261, 2]]


def norm(x: Array, w: dict[str, Array], name: str) -> Array:
    """A layer norm where the model has them, else by the root of the mean square; x without a weight."""
    if f"{name}.weight" not in w:
        return x
    if "rms" not in w:
        x = x - x.mean(-1, keepdims=True)
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-5) * w[f"{name}.weight"]
                      + w.get(f"{name}.bias", 0.0))  # fmt: skip


def gelu(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


def silu(x: Array) -> Array:
    return np.asarray(x / (1 + np.exp(-x)))


def rotated(x: Array, base: float, pairs: bool) -> Array:
    """Heads (tokens, heads, D), the entries i and i + D / 2 together, or `pairs` of neighbors."""
    if pairs:
        order = np.argsort(np.r_[0:D:2, 1:D:2])
        return np.asarray(rotated(x[..., np.argsort(order)], base, False)[..., order])
    z = x[..., : D // 2] + 1j * x[..., D // 2 :]
    angles = np.arange(len(x))[:, None, None] * base ** (-2.0 * np.arange(D // 2) / D)
    z = z * np.exp(1j * angles)
    return np.concatenate([z.real, z.imag], -1)


def attention(x: Array, w: dict[str, Array], arch: str, base: float, window: int) -> Array:
    if "attn_qkv.weight" in w:
        parts = np.split(x @ w["attn_qkv.weight"].T, 3, -1)
    else:
        parts = [x @ w[f"attn_{c}.weight"].T + w.get(f"attn_{c}.bias", 0.0) for c in "qkv"]
    if arch == "jina-bert-v2":
        parts[:2] = norm(parts[0], w, "attn_q_norm"), norm(parts[1], w, "attn_k_norm")
    q, k, v = (part.reshape(len(x), HEADS, D) for part in parts)
    if arch == "gemma-embedding":
        q, k = norm(q, w, "attn_q_norm"), norm(k, w, "attn_k_norm")
    if arch not in ("bert", "jina-bert-v2"):
        q, k = (rotated(part, base, arch == "llama-embed") for part in (q, k))
    far = np.abs(np.arange(len(x))[:, None] - np.arange(len(x)))
    made = np.zeros((len(x), HEADS, D))
    for h in range(HEADS):
        scores = q[:, h] @ k[:, h].T / np.sqrt(D)
        if arch == "jina-bert-v2":
            scores = scores - 2.0 ** (-8 * (h + 1) / HEADS) * far
        shares = np.exp(np.where(far <= window // 2, scores, -np.inf) if window else scores)
        made[:, h] = shares / shares.sum(-1, keepdims=True) @ v[:, h]
    return np.asarray(made.reshape(len(x), -1) @ w["attn_output.weight"].T + w.get("attn_output.bias", 0.0))


def feed_forward(x: Array, w: dict[str, Array], activation: Callable[[Array], Array]) -> Array:
    if "ffn_gate_inp.weight" in w:
        chances = np.exp(x @ w["ffn_gate_inp.weight"].T)
        chances /= chances.sum(-1, keepdims=True)
        made = np.zeros_like(x)
        for t, row in enumerate(x):
            for e in np.argsort(-chances[t])[:2]:
                up = activation(w["ffn_up_exps.weight"][e] @ row)
                made[t] += chances[t, e] * (w["ffn_down_exps.weight"][e] @ up)
        return made
    up = x @ w["ffn_up.weight"].T + w.get("ffn_up.bias", 0.0)
    if "ffn_gate.weight" in w:
        up = activation(x @ w["ffn_gate.weight"].T) * up
    elif w["ffn_down.weight"].shape[1] < up.shape[1]:
        gate, up = np.split(up, 2, -1)
        up = activation(gate) * up
    else:
        up = activation(up)
    return np.asarray(up @ w["ffn_down.weight"].T + w.get("ffn_down.bias", 0.0))


def states(name: str, ids: list[int]) -> Array:
    """The last states of a text."""
    case = CASES[name]
    whole = {k: v.astype(np.float64) for k, v in weights_of(case).items()}
    of_rms = {"rms": np.ones(1)} if case.arch in OF_RMS else {}
    whole |= of_rms
    x = whole["token_embd.weight"][ids] * (np.sqrt(W) if case.arch == "gemma-embedding" else 1.0)
    x = x + (whole["token_types.weight"][0] if "token_types.weight" in whole else 0.0)
    if "position_embd.weight" in whole:
        x = x + whole["position_embd.weight"][: len(ids)]
    x = norm(x, whole, "token_embd_norm")

    def is_local(n: int) -> bool:
        return n % 3 > 0 if case.arch == "modern-bert" else n % 6 < 5

    has_windows = case.arch in ("modern-bert", "gemma-embedding")
    bases = {"modern-bert": 100.0, "gemma-embedding": 10000.0}
    activation = silu if case.arch in OF_SILU else gelu
    for n in range(metadata_of(case)[f"{case.arch}.block_count"]):
        w = {k.removeprefix(f"blk.{n}."): v for k, v in whole.items() if k.startswith(f"blk.{n}.")} | of_rms
        base, window = (bases[case.arch], 8) if has_windows and is_local(n) else (1000.0, 0)
        part = attention(norm(x, w, "attn_norm"), w, case.arch, base, window)
        x = norm(x + norm(part, w, "post_attention_norm"), w, "attn_output_norm")
        part = feed_forward(norm(x, w, "ffn_norm"), w, activation)
        x = norm(x + norm(part, w, "post_ffw_norm"), w, "layer_output_norm")
    return norm(x, whole, "output_norm")


def model_of(name: str, **options: Any) -> Model:
    weights = {key: Tensor(array) for key, array in weights_of(CASES[name]).items()}
    return Model(Config.of(metadata_of(CASES[name])), weights.get, capacity=64, **options)


@pytest.mark.parametrize("name", ENCODERS)
def test_vectors_are_those_of_numpy(name: str) -> None:
    """Of several texts at once, which are padded: the padding changes nothing."""
    case = CASES[name]
    model = model_of(name)
    whole = weights_of(case)
    expected = []
    for ids in TEXTS:
        x = states(name, ids)
        vector = {1: x.mean(0), 2: x[0], 3: x[-1]}[case.keys["pooling_type"]]
        for dense in ("dense_2.weight", "dense_3.weight"):
            vector = whole[dense].astype(np.float64) @ vector if dense in whole else vector
        expected.append(vector)
    np.testing.assert_allclose(model.embed(TEXTS, normalize=False).numpy(), expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(model.hidden(TEXTS[0]).numpy(), states(name, TEXTS[0]), rtol=2e-4, atol=2e-5)


def test_texts_of_many_lengths_are_what_each_is_alone() -> None:
    model = model_of("bert")
    chance = np.random.default_rng(5)
    texts = [chance.integers(3, 279, length).tolist() for length in (1, 3, 17, 2, 40, 64, 5, 24, 25, 31)]
    together = model.embed(texts).numpy()
    assert together.shape == (10, W)
    np.testing.assert_allclose(np.linalg.norm(together, axis=-1), 1, rtol=1e-5)
    for text, row in zip(texts[:4], together, strict=False):
        np.testing.assert_allclose(model.embed(text).numpy(), row, rtol=1e-4, atol=1e-6)


def test_a_causal_model_gives_several_vectors_too() -> None:
    model = model_of("qwen3 2")
    for text, row in zip(TEXTS, model.embed(TEXTS, normalize=False).numpy(), strict=True):
        np.testing.assert_allclose(row, model.hidden(text).numpy()[-1], rtol=1e-4, atol=1e-5)


def test_an_encoder_writes_no_text() -> None:
    model = model_of("bert")
    with pytest.raises(SettingError) as caught:
        model.generate([1, 2])
    assert str(caught.value) == (
        "generate: bert is an encoder: its tokens attend to later ones too, so that it predicts no text. "
        "Use embed(), or a causal model."
    )
    assert sum(model.memory()) > 0
    assert model.memory().context == 0


def test_what_cannot_be_embedded() -> None:
    model = model_of("bert")
    for texts, message in (
        ([], "embed: no texts and no token ids. Give at least one."),
        ([1, "a"], "embed: the list has token ids and texts. Give one of both kinds."),
        (3, "embed: 3 is neither a text nor a list of texts or token ids."),
        ([[1], [1] * 65], "embed: 65 tokens exceed the cache capacity of 64. "),
    ):
        with pytest.raises(SettingError) as caught:
            model.embed(texts)  # type: ignore[arg-type]
        assert str(caught.value).startswith(message)
    with pytest.raises(SettingError, match=r"^Model: capacity=300: must be at most 256, the number of learned"):
        Model.of(metadata_of(CASES["bert"]) | {"bert.context_length": 300}, _weights("bert"), tokenizer=None)
    with pytest.raises(SettingError, match=r"^rerank: the file's pooling type is cls, not rank\."):
        model.rerank("a", ["b"])


def _weights(name: str, **more: Array) -> Callable[[str], Tensor | None]:
    return {key: Tensor(array) for key, array in (weights_of(CASES[name]) | more).items()}.get


@pytest.mark.parametrize("name", ["bert", "modern-bert", "qwen3"])
def test_documents_are_ranked(name: str, tmp_path: Path) -> None:
    """The classifier reads the first state, the mean, or the last one; pairs have the tokens of their kind."""
    pytest.importorskip("tokenizers")
    case, chance = CASES[name], np.random.default_rng(2)
    head = {"cls.output.weight": chance.standard_normal((1, W)).astype(np.float32)}
    if name != "qwen3":
        head["cls.weight"] = (chance.standard_normal((W, W)) * 0.2).astype(np.float32)
    keys: dict[str, Any] = {f"{case.arch}.pooling_type": 4, "tokenizer.ggml.add_bos_token": True,
                            "tokenizer.ggml.seperator_token_id": 2, "tokenizer.ggml.add_sep_token": True}  # fmt: skip
    if name == "qwen3":
        keys["tokenizer.chat_template.rerank"] = "<s>{query}?{document}</s>"
    path = tmp_path / "ranks.gguf"
    save(path, {k: Tensor(v) for k, v in (weights_of(case) | head).items()}, metadata_of(case) | keys)
    with Model.from_gguf(path) as model:
        tokenizer = model.tokenizer
        assert tokenizer is not None
        scores = model.rerank("ab c", ["ba", "ccc d"]).numpy()
        for score, document in zip(scores, ("ba", "ccc d"), strict=True):
            if name == "qwen3":
                ids = tokenizer.encode(f"<s>ab c?{document}</s>", add_special=False, parse_special=True)
                assert (ids[0], ids[-1]) == (1, 2)
            else:
                parts = [tokenizer.encode(text, add_special=False) for text in ("ab c", document)]
                ids = [1, *parts[0], 2, *parts[1]]
            x = model.hidden(ids).numpy().astype(np.float64)
            vector = {"bert": x[0], "modern-bert": x.mean(0), "qwen3": x[-1]}[name]
            if "cls.weight" in head:
                vector = (gelu if name == "modern-bert" else np.tanh)(head["cls.weight"] @ vector)
            expected = 1.0 if name == "qwen3" else (head["cls.output.weight"] @ vector)[0]
            np.testing.assert_allclose(score, expected, rtol=1e-3, atol=1e-5)


def test_a_file_is_the_model(tmp_path: Path) -> None:
    path = write(CASES["bert"], tmp_path / "bert.gguf")
    with Model.from_gguf(path, tokenizer=None, capacity=64) as model:
        np.testing.assert_allclose(model.embed(TEXTS).numpy(), model_of("bert").embed(TEXTS).numpy(), atol=1e-6)
    changed = weights_of(CASES["bert"])
    changed["blk.0.attn_output_norm.weight"] = np.ones(W + 1, np.float32)
    save(path, {key: Tensor(array) for key, array in changed.items()}, metadata_of(CASES["bert"]))
    with pytest.raises(FormatError, match=r"blk\.0\.attn_output_norm\.weight has shape \(65,\)"):
        Model.from_gguf(path, tokenizer=None)
