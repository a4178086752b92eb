"""Mixtures of experts against plain NumPy in float64: one token and one expert at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import Context, FormatError, Tensor
from kernmill.llm.arch import ARCHITECTURES
from kernmill.llm.arch.config import Experts
from kernmill.llm.arch.experts import Choice, apart, chosen_experts
from kernmill.llm.generate import Model
from kernmill.quant import QuantizedTensor, save
from tests.kernmill.llm.arch.test_dense import HEAD, KV, OF_HEADS, QKV, VOCABULARY, Plain, Row, W, biases, silu

Array = np.ndarray[Any, Any]
Shapes = dict[str, tuple[int, ...]]
COUNT, USED, WIDE, SHARED = 5, 2, 12, 10  # experts, those of a token, their width, that of shared ones
NO_DENSE: Shapes = {f"ffn_{name}.weight": () for name in ("gate", "up", "down")}
EXPERTS: Shapes = {
    "ffn_gate_inp.weight": (COUNT, W),
    "ffn_gate_exps.weight": (COUNT, WIDE, W),
    "ffn_up_exps.weight": (COUNT, WIDE, W),
    "ffn_down_exps.weight": (COUNT, W, WIDE),
}
SHARED_ONES: Shapes = {
    "ffn_gate_shexp.weight": (SHARED, W), "ffn_up_shexp.weight": (SHARED, W), "ffn_down_shexp.weight": (W, SHARED),
}  # fmt: skip
ROWS_NORMED: Shapes = {"attn_q_norm.weight": (W,), "attn_k_norm.weight": (KV * HEAD,)}
BIASED: Shapes = {"exp_probs_b.bias": (COUNT,)}
KEYS: dict[str, Any] = {
    "expert_count": COUNT, "expert_used_count": USED, "expert_feed_forward_length": WIDE, "block_count": 2,
}  # fmt: skip
SHARED_KEY = {"expert_shared_feed_forward_length": SHARED}
SIGMOID = {"expert_gating_func": 2, "expert_weights_norm": True, "expert_weights_scale": 1.5}


@dataclass
class Mixed(Row):
    """A row with experts. `dense`: layers that have none. `gating` "chosen" is a softmax over all that is normed."""

    gating: str = "softmax"
    normed: bool = True
    scale: float = 1.0
    groups: tuple[int, int] = (1, 1)
    dense: frozenset[int] = frozenset()
    clamped: bool = False
    weighs_input: bool = False
    used: int = USED
    more: Shapes = field(default_factory=dict)  # tensors of layers with experts


def mixed(more: Shapes | None = None, keys: dict[str, Any] | None = None, **row: Any) -> Mixed:
    return Mixed(keys=KEYS | (keys or {}), more=EXPERTS | (more or {}), **row)


EXPERT_BIASES: Shapes = {
    "ffn_gate_inp.bias": (COUNT,), "ffn_gate_exps.bias": (COUNT, WIDE), "ffn_up_exps.bias": (COUNT, WIDE),
    "ffn_down_exps.bias": (COUNT, W),
}  # fmt: skip
YARN = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 32}
MIXTURES = {
    "llama": mixed(pairs=True, keys={"expert_feed_forward_length": None, "feed_forward_length": WIDE}),
    "qwen2moe": mixed(SHARED_ONES | {"ffn_gate_inp_shexp.weight": (W,)}, SHARED_KEY, layer=QKV, normed=False),
    "qwen3moe": mixed(layer=OF_HEADS, heads_normed="head"),
    "qwen3vlmoe": mixed(layer=OF_HEADS, heads_normed="head"),
    "olmoe": mixed(layer=ROWS_NORMED, heads_normed="row", normed=False),
    "granitemoe": mixed(
        SHARED_ONES, SHARED_KEY | {"embedding_scale": 3.0, "residual_scale": 0.4, "logit_scale": 5.0}, pairs=True,
        embedding_scale=3.0, residual_scale=0.4, logit_scale=1 / 5,
    ),
    "phimoe": mixed(layer=QKV | biases("attn_output", "attn_norm", "ffn_norm"), layer_norm=True,
                    extra={"output_norm.bias": (W,), "output.bias": (VOCABULARY,)}),
    "dots1": mixed(SHARED_ONES | BIASED, SIGMOID | SHARED_KEY | {"leading_dense_block_count": 1}, layer=OF_HEADS,
                   heads_normed="head", gating="sigmoid", scale=1.5, dense=frozenset({0})),
    "ernie4_5-moe": mixed(SHARED_ONES | BIASED, SHARED_KEY | {"leading_dense_block_count": 1, "block_count": 4,
                                                              "interleave_moe_layer_step": 2},
                          pairs=True, dense=frozenset({0, 2})),
    "hunyuan-moe": mixed(SHARED_ONES, SHARED_KEY, layer=OF_HEADS, heads_normed="after"),
    "glm4moe": mixed(SHARED_ONES | BIASED, SHARED_KEY | {"leading_dense_block_count": 1, "rope__dimension_count": 4,
                                                         "expert_weights_norm": True, "expert_weights_scale": 1.5},
                     layer=QKV | {"ffn_norm.weight": (), "post_attention_norm.weight": (W,)}, scale=1.5,
                     gating="sigmoid", norms=("attn_norm", "post_attention_norm"), dense=frozenset({0})),
    "gpt-oss": mixed(
        EXPERT_BIASES, YARN | {"attention__sliding_window": 3, "block_count": 3}, clamped=True, gating="chosen",
        layer=QKV | biases("attn_output") | {"attn_sinks.weight": (4,), "ffn_norm.weight": (),
                                             "post_attention_norm.weight": (W,)},
        norms=("attn_norm", "post_attention_norm"), window=lambda n: 3 if n % 2 == 0 else 0,
    ),
    "minimax-m2": mixed(BIASED, {"expert_gating_func": 2, "rope__dimension_count": 4}, layer=ROWS_NORMED,
                        heads_normed="row", gating="sigmoid"),
}  # fmt: skip


class PlainMixed(Plain):
    """With experts: one token at a time."""

    row: Mixed

    def rotated(self, x: Array) -> Array:
        """Stretched as YaRN says where the file asks for it: pairs that turn often stay, slow ones are divided."""
        if self.tiny.key("rope.scaling.type") != "yarn":
            return super().rotated(x)
        half, factor, context = HEAD // 2, self.tiny.key("rope.scaling.factor"), 32
        fast, slow = (HEAD * np.log(context / (t * 2 * np.pi)) / (2 * np.log(100.0)) for t in (32.0, 1.0))
        fast, slow = max(0.0, np.floor(fast)), min(HEAD - 1.0, np.ceil(slow))
        out, growth = x.copy(), 1 + 0.1 * np.log(factor)
        for t in range(len(x)):
            for i in range(half):
                part = min(1.0, max(0.0, (i - fast) / max(0.001, slow - fast)))
                speed = 100.0 ** (-2 * i / HEAD) * ((1 - part) + part / factor)
                z = (x[t, :, i] + 1j * x[t, :, i + half]) * np.exp(1j * t * speed) * growth
                out[t, :, i], out[t, :, i + half] = z.real, z.imag
        return out

    def softmax(self, scores: Array, n: int, head: int) -> Array:
        sinks = self.w.get(f"blk.{n}.attn_sinks.weight")
        if sinks is None:
            return super().softmax(scores, n, head)
        every = np.exp(np.append(scores, sinks[head]))
        return np.asarray(every[:-1] / every.sum())

    def expert(self, x: Array, b: str, e: int) -> Array:
        gate, up = (self.of_expert(x, f"{b}ffn_{name}_exps", e) for name in ("gate", "up"))
        if self.row.clamped:
            gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
            return self.of_expert(gate / (1 + np.exp(-1.702 * gate)) * (up + 1), f"{b}ffn_down_exps", e)
        return self.of_expert(silu(gate) * up, f"{b}ffn_down_exps", e)

    def of_expert(self, x: Array, name: str, e: int) -> Array:
        bias = self.w.get(f"{name}.bias")
        return np.asarray(self.w[f"{name}.weight"][e] @ x + (0.0 if bias is None else bias[e]))

    def feed_forward(self, n: int, x: Array) -> Array:
        b, row = f"blk.{n}.", self.row
        if n in row.dense:
            return super().feed_forward(n, x)
        out = np.zeros_like(x)
        for t, one in enumerate(x):
            logits = self.product(one, f"{b}ffn_gate_inp")
            scores = 1 / (1 + np.exp(-logits)) if row.gating == "sigmoid" else np.exp(logits) / np.exp(logits).sum()
            by = scores + self.w.get(f"{b}exp_probs_b.bias", 0.0)
            experts = np.argsort(-by, kind="stable")[: row.used]
            weights = scores[experts]
            weights = weights / weights.sum() if row.normed else weights
            for e, weight in zip(experts, weights * row.scale, strict=True):
                if row.weighs_input:
                    out[t] += self.expert(one * weight, b, e)
                    continue
                out[t] += weight * self.expert(one, b, e)
            if f"{b}ffn_up_shexp.weight" in self.w:
                gate, up = (self.product(one, f"{b}ffn_{name}_shexp") for name in ("gate", "up"))
                shared = self.product(silu(gate) * up, f"{b}ffn_down_shexp")
                g = self.w.get(f"{b}ffn_gate_inp_shexp.weight")
                out[t] += shared if g is None else shared / (1 + np.exp(-g @ one))
        return out


def made(tiny: Any, name: str, arch: str = "", **changes: Any) -> Any:
    """A tiny random model of a row; experts in the layers that have them, a dense part in the others."""
    row = MIXTURES[name]
    keys = {key: value for key, value in (row.keys | changes).items() if value is not None}
    model = tiny.make(arch or name, row.extra, row.layer | row.more, **keys)
    for n in range(keys["block_count"]):
        gone = row.more if n in row.dense else NO_DENSE
        for key in gone:
            del model.weights[f"blk.{n}.{key}"]
    return model


@pytest.mark.parametrize("name", MIXTURES)
def test_logits_are_those_of_numpy(tiny: Any, name: str) -> None:
    """The whole text at once in blocks, and one token after a few."""
    model, ids = made(tiny, name), tiny.IDS
    expected = PlainMixed(model, MIXTURES[name]).logits(ids)
    found = model.model(block=8)
    np.testing.assert_allclose(found.logits(ids).numpy(), expected, rtol=2e-4, atol=3e-5)
    for count in (3, 4, len(ids)):
        np.testing.assert_allclose(found.next_logits(ids[:count]), expected[count - 1], rtol=2e-4, atol=3e-5)
    shapes = {key: array.shape for key, array in model.weights.items()}
    ARCHITECTURES[model.arch].check(found.config, shapes)


@pytest.mark.parametrize("name", MIXTURES)
def test_every_tensor_counts(tiny: Any, name: str) -> None:
    """Each tensor is read; one of the experts' that is missing is named."""
    model, used = made(tiny, name), set[str]()
    tensors = dict(model.weights)

    def find(key: str) -> Any:
        used.add(key)
        return Tensor(tensors[key].astype(np.float32)) if key in tensors else None

    Model.of(model.metadata, find, capacity=16)
    assert set(tensors) <= used
    last = KEYS["block_count"] - 1
    del tensors[missing := f"blk.{last}.ffn_down_exps.weight"]
    with pytest.raises(FormatError, match=rf"^the file has no tensor {missing}, which a {model.arch} model needs\.$"):
        Model.of(model.metadata, find, capacity=16)


def test_gate_and_up_in_one_tensor(tiny: Any) -> None:
    """Newer files hold both of each expert behind each other."""
    model, ids = made(tiny, "qwen3moe"), tiny.IDS
    expected = PlainMixed(model, MIXTURES["qwen3moe"]).logits(ids)
    for n in range(2):
        parts = [model.weights.pop(f"blk.{n}.ffn_{name}_exps.weight") for name in ("gate", "up")]
        model.weights[f"blk.{n}.ffn_gate_up_exps.weight"] = np.concatenate(parts, 1)
    found = model.model()
    np.testing.assert_allclose(found.logits(ids).numpy(), expected, rtol=2e-4, atol=3e-5)
    np.testing.assert_allclose(found.next_logits(ids[:3]), expected[2], rtol=2e-4, atol=3e-5)


def test_greedy_tokens_of_two_sequences(tiny: Any) -> None:
    """Those of one by one, which are NumPy's."""
    model = made(tiny, "qwen3moe")
    texts, numpy = [tiny.IDS[:5], tiny.IDS[3:6]], PlainMixed(model, MIXTURES["qwen3moe"])
    found = model.model(sequences=2).generate_all(texts, max_tokens=4)
    for step in found:
        for text, token in zip(texts, step, strict=True):
            assert token == numpy.logits(text)[-1].argmax()
            text.append(token)
    alone = list(model.model().generate(tiny.IDS[:5], max_tokens=4))
    ids = list(tiny.IDS[:5])
    for token in alone:
        assert token == numpy.logits(ids)[-1].argmax()
        ids.append(token)


def test_a_file_is_the_model(tiny: Any, tmp_path: Path) -> None:
    model = made(tiny, "glm4moe")
    save(tmp_path / "a.gguf", {key: Tensor(w.astype(np.float32)) for key, w in model.weights.items()}, model.metadata)
    found = Model.from_gguf(tmp_path / "a.gguf", capacity=16, block=8)
    expected = PlainMixed(model, MIXTURES["glm4moe"]).logits(tiny.IDS)
    np.testing.assert_allclose(found.logits(tiny.IDS).numpy(), expected, rtol=2e-4, atol=3e-5)
    np.testing.assert_allclose(found.next_logits(tiny.IDS[:3]), expected[2], rtol=2e-4, atol=3e-5)


def test_layers_that_predict_further_tokens_are_not_computed(tiny: Any, tmp_path: Path) -> None:
    """GLM 4.5 counts such a layer in block_count: it was computed as the last layer of the text."""
    model = made(tiny, "glm4moe")
    expected = PlainMixed(model, MIXTURES["glm4moe"]).logits(tiny.IDS)
    ahead = {key.replace("blk.1.", "blk.2."): w for key, w in model.weights.items() if key.startswith("blk.1.")}
    ahead["blk.2.nextn.eh_proj.weight"] = np.ones((W, 2 * W))
    tensors = {key: Tensor(w.astype(np.float32)) for key, w in (model.weights | ahead).items()}
    metadata = model.metadata | {"glm4moe.block_count": 3, "glm4moe.nextn_predict_layers": 1}
    save(tmp_path / "a.gguf", tensors, metadata)
    found = Model.from_gguf(tmp_path / "a.gguf", capacity=16, block=8)
    np.testing.assert_allclose(found.next_logits(tiny.IDS[:3]), expected[2], rtol=2e-4, atol=3e-5)
    with pytest.raises(FormatError) as caught:
        Model.of(metadata | {"glm4moe.nextn_predict_layers": 3}, tensors.get)
    assert str(caught.value) == "glm4moe.nextn_predict_layers is 3: must be less than the 3 layers."


@pytest.mark.parametrize("kind", ["Q8_0", "MXFP4", "F16"])
def test_stacks_of_blocks_and_halves(tiny: Any, tmp_path: Path, kind: str) -> None:
    """A file with experts of 64 rows, interleaved as they are loaded, against its values in NumPy."""
    wide = {"embedding_length": 64, "expert_feed_forward_length": 32, "attention.key_length": HEAD}
    more = {"gate": (COUNT, 32, 64), "up": (COUNT, 32, 64), "down": (COUNT, 64, 32)}
    shapes = {f"ffn_{name}_exps.weight": shape for name, shape in more.items()}
    dense: Shapes = {"ffn_gate.weight": (), "ffn_up.weight": (), "ffn_down.weight": ()}
    model = tiny.make("qwen3moe", {}, OF_HEADS | dense | shapes | {"ffn_gate_inp.weight": (COUNT, 64)},
                      **{key.replace(".", "__"): value for key, value in (KEYS | wide).items()})  # fmt: skip
    tensors: dict[str, Any] = {key: Tensor(w.astype(np.float32)) for key, w in model.weights.items()}
    for key in tensors:
        if "exps" in key:
            stack = tensors[key]
            tensors[key] = stack.half() if kind == "F16" else QuantizedTensor.quantize(stack, kind)
            values = tensors[key] if kind == "F16" else tensors[key].dequantize()
            model.weights[key] = values.float().numpy().astype(np.float64)
    save(tmp_path / "a.gguf", tensors, model.metadata)
    found = Model.from_gguf(tmp_path / "a.gguf", capacity=16, block=8)
    expected = PlainMixed(model, MIXTURES["qwen3moe"]).logits(tiny.IDS)
    with Context(QUANT_ACT="float"):
        np.testing.assert_allclose(found.logits(tiny.IDS).numpy(), expected, rtol=2e-4, atol=5e-5)
        np.testing.assert_allclose(found.next_logits(tiny.IDS[:3]), expected[2], rtol=2e-4, atol=5e-5)


@pytest.mark.parametrize("name", ["dots1", "gpt-oss"])
def test_two_on_opencl(tiny: Any, name: str, opencl: str) -> None:
    model, ids = made(tiny, name), tiny.IDS[:8]
    expected = PlainMixed(model, MIXTURES[name]).logits(ids)
    with Context(DEVICE=opencl):
        found = model.model(capacity=8, block=8)
        np.testing.assert_allclose(found.logits(ids).numpy(), expected, rtol=2e-4, atol=3e-5)
        np.testing.assert_allclose(found.next_logits(ids[:2]), expected[1], rtol=2e-4, atol=3e-5)


# --- the choice, and rows sorted by expert
def test_the_choice_by_groups() -> None:
    """Two of four groups by the sum of their two best scores with the bias; weights are scores without it."""
    chance = np.random.default_rng(3)
    logits, bias = chance.standard_normal((6, 16)), chance.standard_normal(16)
    sizes = Experts(16, 3, 8, gating="sigmoid", is_normed=True, scale=2.5, groups=4, groups_used=2)
    found = chosen_experts(Tensor(logits.astype(np.float32)), sizes, Tensor(bias.astype(np.float32)))
    for one, ids, weights in zip(logits, found.ids.numpy(), found.weights.numpy(), strict=True):
        scores = 1 / (1 + np.exp(-one))
        by = scores + bias
        groups = np.argsort([-np.sort(group)[-2:].sum() for group in by.reshape(4, 4)])[:2]
        allowed = [e for e in range(16) if e // 4 in groups]
        expected = sorted(allowed, key=lambda e: -by[e])[:3]
        assert ids.tolist() == expected
        np.testing.assert_allclose(weights, scores[expected] / scores[expected].sum() * 2.5, rtol=1e-5)


def test_equal_scores_take_the_first_experts() -> None:
    found = chosen_experts(Tensor.zeros(2, 6), Experts(6, 3, 8, gating="chosen", is_normed=False))
    assert found.ids.tolist() == [[0, 1, 2]] * 2
    np.testing.assert_allclose(found.weights.numpy(), 1 / 3, rtol=1e-6)


@pytest.mark.parametrize(("tokens", "count", "used"), [(1, 4, 2), (2, 8, 3), (9, 4, 2), (16, 3, 1), (32, 4, 4)])
@pytest.mark.parametrize("is_one", [False, True], ids=["spread", "all to one"])
def test_rows_apart_are_each_rows(tokens: int, count: int, used: int, is_one: bool) -> None:
    """Expert e multiplies by e + 1; also where the first of them has all rows, and in tiles of few rows."""
    chance = np.random.default_rng(tokens)
    order = np.stack([np.arange(count) if is_one else chance.permutation(count) for _ in range(tokens)])
    ids, weights = order[:, :used], chance.random((tokens, used)).astype(np.float32)
    x = chance.standard_normal((tokens, 3)).astype(np.float32)
    choice = Choice(Tensor(ids.astype(np.int64)), Tensor(weights))
    size = 1 << (0 if is_one else 40)  # of a matrix: in a cache, or in none
    found = apart(Tensor(x), choice, count, lambda rows, of, _: rows * (of + 1).float().reshape(-1, 1, 1), size)
    np.testing.assert_allclose(found.numpy(), (weights * (ids + 1)).sum(1, keepdims=True) * x, rtol=1e-5, atol=1e-6)


# --- files that do not fit
FAULTS: list[tuple[str, dict[str, Any], str]] = [
    ("qwen3moe", {"expert_count": None},
     "the file has no qwen3moe.expert_count, which is required."),
    ("qwen3moe", {"expert_used_count": None},
     "the file has no qwen3moe.expert_used_count, which is required."),
    ("qwen3moe", {"expert_used_count": 6},
     "qwen3moe.expert_used_count is 6: a token cannot use more than the 5 experts."),
    ("qwen3moe", {"expert_used_count": 0},
     "qwen3moe.expert_used_count is 0, not an integer from 1 to 2147483647."),
    ("dots1", {"expert_group_count": 2},
     "dots1: 2 of 2 groups of 5 experts, 2 of which a token uses: groups are equally large, and those that are used "
     "have as many experts. Convert the file again."),
    ("dots1", {"expert_group_count": 5, "expert_group_used_count": 1},
     "dots1: 1 of 5 groups of 5 experts, 2 of which a token uses: groups are equally large, and those that are used "
     "have as many experts. Convert the file again."),
    ("dots1", {"expert_gating_func": 9},
     "dots1.expert_gating_func is 9: must be one of 1 (softmax), 2 (sigmoid), 3 (chosen)."),
    ("qwen3moe", {"expert_count": 6},
     "blk.0.ffn_gate_inp.weight has shape (5, 24), and a qwen3moe model of these sizes needs (6, 24). The file's "
     "metadata and tensors are inconsistent: embedding_length 24, feed_forward_length 20, "
     "attention.head_count 4, attention.head_count_kv 2, attention.key_length 6, attention.value_length 6, "
     "expert_count 6, expert_feed_forward_length 12."),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "message"), FAULTS, ids=lambda value: str(value)[:40])
def test_what_does_not_fit_is_named(tiny: Any, name: str, changes: dict[str, Any], message: str) -> None:
    model = made(tiny, name)
    for key, value in changes.items():
        model.metadata[f"{name}.{key}"] = value
    with pytest.raises(FormatError) as caught:
        model.model()
    assert str(caught.value) == message


def test_a_dense_architecture_has_no_experts(tiny: Any) -> None:
    with pytest.raises(FormatError) as caught:
        tiny.make("qwen3", {}, OF_HEADS, **KEYS).model()
    assert str(caught.value) == (
        "qwen3.expert_count is 5, and models of this architecture have no experts. Convert the file again."
    )
