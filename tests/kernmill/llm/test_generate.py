from __future__ import annotations

import copy
import gc
import pickle
import re
import time
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import Context, FormatError, IndexRangeError, SettingError, Tensor, dtypes, quant
from kernmill.captures.ownership import buffer_of
from kernmill.formats import gguf as gguf_format
from kernmill.formats.gguf_types import ValueType
from kernmill.formats.gguf_write import Typed
from kernmill.formats.quoting import escaped
from kernmill.ir import KernmillError, setting, weak
from kernmill.llm.arch import ARCHITECTURES, Config
from kernmill.llm.generate import Model
from kernmill.llm.sampling import Sampler
from kernmill.quant import FloatMatrix, QuantizedTensor

Array = np.ndarray[Any, Any]
STORIES = "stories260K/stories260Ktok512.gguf"
BABY = "babyllama105/babyllama105-f32.gguf"


def load(file: Any, **options: Any) -> Model:
    pytest.importorskip("tokenizers")
    return Model.from_gguf(file.path, **options)


class PlainLlama:
    """The same models in NumPy: one token at a time, one head at a time, in float64."""

    def __init__(self, file: Any) -> None:
        self.w = {name: np.asarray(array, np.float64) for name, array in file.tensors.items()}
        self.layers = file.metadata["llama.block_count"]
        self.heads, self.kv = (file.metadata[f"llama.attention.head_count{end}"] for end in ("", "_kv"))
        self.seen: list[list[tuple[Array, Array]]] = [[] for _ in range(self.layers)]

    @staticmethod
    def norm(x: Array, weight: Array) -> Array:
        return np.asarray(x / np.sqrt(np.mean(x**2) + 1e-5) * weight)

    def step(self, token: int) -> Array:
        w, x = self.w, self.w["token_embd.weight"][token]
        size = len(x) // self.heads
        turn = np.exp(1j * len(self.seen[0]) * 10000.0 ** (-np.arange(0, size, 2) / size))
        for n in range(self.layers):
            h = self.norm(x, w[f"blk.{n}.attn_norm.weight"])
            q, k, v = ((w[f"blk.{n}.attn_{c}.weight"] @ h).reshape(-1, size) for c in "qkv")
            q, k = (((p[:, ::2] + 1j * p[:, 1::2]) * turn).view(np.float64) for p in (q, k))
            self.seen[n].append((k, v))
            out = []
            for head in range(self.heads):
                group = head * self.kv // self.heads
                scores = np.array([q[head] @ old[group] for old, _ in self.seen[n]]) / np.sqrt(size)
                chances = np.exp(scores - scores.max())
                out.append(
                    sum(c * old[group] for c, (_, old) in zip(chances / chances.sum(), self.seen[n], strict=True))
                )
            x = x + w[f"blk.{n}.attn_output.weight"] @ np.concatenate(out)
            h = self.norm(x, w[f"blk.{n}.ffn_norm.weight"])
            gate = w[f"blk.{n}.ffn_gate.weight"] @ h
            x = x + w[f"blk.{n}.ffn_down.weight"] @ (gate / (1 + np.exp(-gate)) * (w[f"blk.{n}.ffn_up.weight"] @ h))
        return np.asarray(w["output.weight"] @ self.norm(x, w["output_norm.weight"]))

    def greedy(self, ids: list[int], count: int) -> list[int]:
        made: list[int] = []
        for token in ids:
            logits = self.step(token)
        while len(made) < count and (best := int(np.argmax(logits))) != 2:
            made.append(best)
            logits = self.step(best)
        return made


# --- trained models --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("file", "prompt", "count"),
    [
        (STORIES, "Once upon a time", 100),
        (STORIES, "The big dog", 60),
        (BABY, "Once upon a time, there was a litt", 120),
    ],
)
def test_greedy_text_is_that_of_plain_numpy(file: str, prompt: str, count: int, gguf: Callable[[str], Any]) -> None:
    model = load(gguf(file), block=8)
    assert model.tokenizer is not None
    ids = model.tokenizer.encode(prompt)
    assert list(model.generate(ids, max_tokens=count)) == PlainLlama(gguf(file)).greedy(ids, count)


def test_stories_are_told(gguf: Callable[[str], Any]) -> None:
    model = load(gguf(STORIES))
    text = "".join(model.complete("Once upon a time", max_tokens=40))
    assert text.startswith(", there was a little girl named Lily. She loved to play outside")


def test_the_text_that_llama_cpp_writes(gguf: Callable[[str], Any], shared_data: Callable[[str], Any]) -> None:
    """greedy_250.txt: ids and text, written with the file that was checked against it."""
    line, rest = (shared_data("babyllama105") / "greedy_250.txt").read_text(encoding="utf-8").split("\n", 1)
    ids = [int(word) for word in line.removeprefix("ids:").split()]
    assert list(load(gguf(BABY)).generate([1], max_tokens=249)) == ids[1:250]
    assert rest.startswith("text:  Once upon a time")


TEXT = (
    "One day, a boy named Tim went to the park. He saw a big tree and a small cat. Tim was very happy. "
    '"Can we play?" he said. The cat ran up the tree, and Tim could not get it down.'
)


def perplexity(logits: Array, ids: list[int]) -> float:
    logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return float(np.exp(-np.mean([row[i] for row, i in zip(logs, ids[1:], strict=True)])))


@pytest.mark.parametrize("name", [STORIES, BABY])
def test_perplexity_is_that_of_plain_numpy(name: str, gguf: Callable[[str], Any]) -> None:
    """Within 0.1 %, on a fixed text."""
    file = gguf(name)
    model = load(file, block=16)
    assert model.tokenizer is not None
    ids, reference = model.tokenizer.encode(TEXT), PlainLlama(file)
    ours = model.logits(ids[:-1]).numpy().astype(np.float64)
    theirs = np.array([reference.step(i) for i in ids[:-1]])
    assert perplexity(ours, ids) == pytest.approx(perplexity(theirs, ids), rel=1e-3)
    np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", [STORIES, BABY, BABY.replace("f32", "f16"), BABY.replace("f32", "q8_0")])
def test_perplexity_is_that_of_llama_cpp(name: str, gguf: Callable[[str], Any]) -> None:
    """Within 0.1 % for floats (its cache is float16), 1 % where both round activations to 8 bits."""
    peer = pytest.importorskip("llama_cpp")
    file = gguf(name)
    model = load(file, block=16)
    assert model.tokenizer is not None
    ids = model.tokenizer.encode(TEXT)
    other = peer.Llama(str(file.path), n_ctx=len(ids), logits_all=True, n_threads=1, verbose=False)
    assert other.tokenize(TEXT.encode()) == ids
    other.eval(ids[:-1])
    theirs = perplexity(np.asarray(other.scores[: len(ids) - 1], np.float64), ids)
    other.close()
    ours = perplexity(model.logits(ids[:-1]).numpy().astype(np.float64), ids)
    assert ours == pytest.approx(theirs, rel=1e-2 if "q8_0" in name else 1e-3)


# --- a random model --------------------------------------------------------------------------------------------------
def random_model(capacity: int = 12, block: int = 4, arch: str = "llama", **options: Any) -> Model:
    chance = np.random.default_rng(5)
    keys = {
        "context_length": 12,
        "embedding_length": 8,
        "block_count": 1,
        "feed_forward_length": 12,
        "attention.head_count": 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    metadata: dict[str, Any] = {"general.architecture": arch} | {f"llama.{k}": v for k, v in keys.items()}
    shapes = {"token_embd": (7, 8), "output_norm": (8,), "blk.0.attn_norm": (8,), "blk.0.ffn_norm": (8,)}
    shapes |= {f"blk.0.attn_{name}": (8, 8) for name in ("q", "k", "v", "output")}
    shapes |= {"blk.0.ffn_gate": (12, 8), "blk.0.ffn_up": (12, 8), "blk.0.ffn_down": (8, 12)}
    tensors = {f"{n}.weight": Tensor(chance.standard_normal(s).astype(np.float32)) for n, s in shapes.items()}
    return Model(Config.of(metadata), tensors.get, capacity=capacity, block=block, **options)


def test_the_cache_is_used_again_for_what_is_the_same() -> None:
    model, fresh = random_model(), random_model()
    model.next_logits([1, 2, 3, 4, 5])
    for ids in ([1, 2, 3, 4, 5], [1, 2, 6], [1, 2, 6, 0, 0, 3], [1], [4, 4, 4, 4, 4, 4, 4, 4]):
        expected = fresh.logits(ids).numpy()[-1]
        np.testing.assert_allclose(model.next_logits(ids), expected, rtol=1e-4, atol=1e-5)


def test_one_captured_graph_serves_every_position() -> None:
    model = random_model()
    list(model.generate([1], max_tokens=10))
    assert model._last.cache_info()[:2] == (1, 9)


@pytest.mark.parametrize("count", [130, 300, 320, 520, 600, 640])
def test_a_long_prompt_in_large_blocks(count: int, made: Callable[..., Path]) -> None:
    """Where a matrix unit multiplies them (functions stand for it): as in small ones, at every length."""
    ids = [n * 7 % 90 for n in range(count)]
    with Context(TARGET="amx", QUANT_ACT="float"):
        large, small = (Model.from_gguf(made("Q8_0"), capacity=643, block=block) for block in (None, 64))
        assert (large.block, large.large_block, small.large_block) == (64, 512, 64)
        for text in (ids, [*ids, 3, 4]):
            want = small.next_logits(text)
            np.testing.assert_allclose(large.next_logits(text), want, atol=1e-4 * np.abs(want).max())
            assert large.computed_tokens == small.computed_tokens == len(text)
    with Context(TARGET="avx2"):
        assert Model.from_gguf(made("Q8_0"), capacity=640).large_block == 64


class Vocabulary:
    """What generation asks of a tokenizer."""

    def __init__(self, end_ids: frozenset[int], size: int) -> None:
        self.end_ids, self.size = end_ids, size

    def __len__(self) -> int:
        return self.size


def test_generation_ends() -> None:
    model = random_model()
    assert len(list(model.generate([1, 2, 3], max_tokens=4))) == 4
    assert list(model.generate([1, 2, 3], max_tokens=0)) == []
    assert len(list(model.generate([1, 2, 3]))) == 10  # the last one needs no place
    everything = list(model.generate([1, 2, 3]))

    model.tokenizer = Vocabulary(frozenset({everything[2]}), 7)  # type: ignore[assignment]
    assert list(model.generate([1, 2, 3])) == everything[: everything.index(everything[2])]


def test_rows_past_the_vocabulary_are_never_chosen() -> None:
    model = random_model()
    best = int(np.argmax(model.next_logits([1, 2, 3])))
    model.tokenizer = Vocabulary(frozenset(), best)  # type: ignore[assignment]
    assert max(model.generate([1, 2, 3])) < best


def test_a_stopped_generation_leaves_the_model_usable() -> None:
    model = random_model()
    expected = list(model.generate([1, 2, 3], max_tokens=5))
    running = model.generate([1, 2, 3], max_tokens=5)
    next(running)
    running.close()
    assert list(model.generate([1, 2, 3], max_tokens=5)) == expected


def test_several_sequences_are_what_each_is_alone() -> None:
    alone, together = random_model(), random_model(sequences=3)
    prompts = [[1], [2, 3, 4, 5, 6, 1, 2, 3, 4], [3, 3, 2]]
    for given in (prompts, prompts[::-1], prompts[:2], prompts):  # the cache of one call is there in the next
        steps = list(together.generate_all(given, max_tokens=6))
        for n, prompt in enumerate(given):
            made = [token for step in steps if (token := step[n]) is not None]
            assert made == list(alone.generate(prompt, max_tokens=6))
    assert len(list(alone.generate(prompts[1]))) == 4
    assert [step[1] for step in together.generate_all(prompts, max_tokens=6)][4:] == [None, None]


def test_a_cache_of_halves() -> None:
    logits = random_model(cache_type="f16").logits([1, 2, 3, 4, 5]).numpy()
    expected = random_model().logits([1, 2, 3, 4, 5]).numpy()
    np.testing.assert_allclose(logits, expected, atol=0.02)
    assert np.abs(logits - expected).max() > 0


def test_a_seed_repeats() -> None:
    model = random_model()
    texts = [list(model.generate([1], Sampler(temperature=2, min_p=0, seed=s), 8)) for s in (3, 3, 4)]
    assert texts[0] == texts[1] != texts[2]


def test_an_embedding_has_length_1() -> None:
    model = random_model()
    vector = model.embed([1, 2, 3]).numpy()
    expected = model.hidden([1, 2, 3]).numpy().mean(0)
    np.testing.assert_allclose(vector, expected / np.linalg.norm(expected), rtol=1e-5)


def test_a_model_is_not_copied() -> None:
    """The error was one of memoryviews."""
    for copied in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(KernmillError, match=r"^Model: a model cannot be pickled or copied: "):
            copied(random_model())


# --- mistakes --------------------------------------------------------------------------------------------------------
FAULTS: list[tuple[Callable[[], object], type[Exception], str]] = [
    (
        lambda: random_model(arch="talkie"),
        FormatError,
        "the file has no talkie.embedding_length, which is required.",
    ),
    (
        lambda: random_model(capacity=0),
        SettingError,
        "Model: capacity=0, sequences=1, block=4: must be integers >= 1.",
    ),
    (
        lambda: random_model(capacity=2.5),  # type: ignore[arg-type]
        SettingError,
        "Model: capacity=2.5, sequences=1, block=4: must be integers >= 1.",
    ),
    (  # it was a TypeError of the code that makes graphs
        lambda: random_model(capacity=True),
        SettingError,
        "Model: capacity=True, sequences=1, block=4: must be integers >= 1.",
    ),
    *(
        (
            partial(lambda count: list(random_model().generate([1], max_tokens=count)), count),
            SettingError,
            f"generate: max_tokens={count!r}: must be an integer >= 0. Leave it out for no limit.",
        )
        for count in (-1, 2.5, "5", True)  # it was no token, three, a TypeError, one token
    ),
    (  # it was a TypeError
        lambda: list(random_model().generate_all(None)),  # type: ignore[arg-type]
        SettingError,
        "generate: prompts=None. Give a list of token ids for each text.",
    ),
    (
        lambda: list(random_model().generate([1], 0.8)),  # type: ignore[arg-type]
        SettingError,
        "generate: sampler=0.8. Give a Sampler, such as Sampler(temperature=0.8), or None.",
    ),
    (
        lambda: random_model().next_logits([]),
        SettingError,
        "logits: no tokens. Give at least one, such as the begin token.",
    ),
    (
        lambda: list(random_model().generate([1] * 13)),
        SettingError,
        "generate: 13 tokens exceed the cache capacity of 12. Shorten the text, or build the model with a larger "
        "capacity "
        "(it was trained on 12).",
    ),
    *(
        (
            call,
            SettingError,
            f"{name}: token ids must be integers. Encode text with tokenizer.encode(), or pass it to complete().",
        )
        for name, call in (
            ("generate", lambda: list(random_model().generate("ab"))),  # type: ignore[arg-type]
            ("logits", lambda: random_model().logits([1.5])),  # type: ignore[list-item]
            ("embed", lambda: random_model().embed([1.5])),  # type: ignore[arg-type]
        )
    ),
    (
        lambda: random_model().logits([1, 7]),
        IndexRangeError,
        "logits: token id 7 is unknown. Ids are 0 to 6.",
    ),
    (
        lambda: list(random_model().generate_all([[1], [2]])),
        SettingError,
        "generate: 2 prompts, and the model was built for 1 at once. Give fewer, or build it with more sequences.",
    ),
    (
        lambda: list(random_model().complete("x")),
        SettingError,
        "complete: the model was built without a tokenizer. Use generate() with token ids.",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), FAULTS, ids=[text[:30] for _, _, text in FAULTS])
def test_a_mistake_is_a_sentence(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message


def test_a_context_that_no_memory_holds() -> None:
    with pytest.raises(SettingError) as caught:
        random_model(capacity=1 << 50)
    assert re.fullmatch(
        rf"Model: a context of {1 << 50} tokens takes 67108864\.00 GiB, and the device has [\d.]+ GiB left\. "
        r"Choose a smaller context \(capacity; kernmill run: -c; kernmill bench: -p and -n\), or a cache type of fewer "
        r"bits \(cache_type; kernmill run: --cache-type\)\.",
        str(caught.value),
    )


def test_an_unknown_architecture() -> None:
    known = random_model().config
    with pytest.raises(FormatError) as caught:
        Model(replace(known, name="talkie"), lambda name: None)
    assert str(caught.value) == (
        f"general.architecture is 'talkie', which kernmill cannot run yet. It runs {', '.join(sorted(ARCHITECTURES))}."
    )


# --- files -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", [None, "Q8_0", "Q4_0"])
def test_a_file_is_a_model(kind: str | None, made: Callable[..., Path]) -> None:
    """Blocks stay blocks, and mean their values."""
    path = made(kind)
    model = Model.from_gguf(path, block=4)
    matrix = model.architecture.matrices[0]["attn_q.weight"]
    is_interleaved = quant.prefers_interleaved_rows(dtypes.float32)
    assert isinstance(matrix, QuantizedTensor if kind is not None else FloatMatrix if is_interleaved else Tensor)
    laid = matrix if isinstance(matrix, Tensor) else matrix.data
    (buffer,) = (node.storage for node in laid.uop.toposort() if node.storage is not None)
    assert not buffer.whole.is_borrowed  # in memory of its own, which has large pages
    weights = quant.load(path)
    plain = {n: w.dequantize().realize() if isinstance(w, QuantizedTensor) else w for n, w in weights.items()}
    expected = Model.of(gguf_format.read(path).metadata, plain.get, block=4).logits([1, 50, 60, 70, 80])
    with Context(QUANT_ACT="float"):
        np.testing.assert_allclose(model.logits([1, 50, 60, 70, 80]).numpy(), expected.numpy(), rtol=1e-3, atol=1e-3)
    entries = gguf_format.read(path).entries
    filled = {
        n: -(-w.shape[0] // 16) * 16 / w.shape[0] if len(w.shape) == 2 and (is_interleaved or kind is not None) else 1
        for n, w in weights.items()
    }
    stored = sum((entry.stop - entry.start) * filled[name] for name, entry in entries.items())
    assert model.memory()[:2] == (stored, 2 * 64 * 32 * 4)


def test_weights_of_blocks_lie_side_by_side_and_go_with_the_model(made: Callable[..., Path]) -> None:
    model = Model.from_gguf(made("Q4_0"), block=4)
    matrices = [m for layer in model.architecture.matrices for m in layer.values() if isinstance(m, QuantizedTensor)]
    wholes = {weakref.ref(buffer_of(m.data).owner) for m in matrices}  # type: ignore[union-attr]
    assert len(matrices) > len(wholes) == 1
    model.next_logits([1, 2, 3])
    del model, matrices
    gc.collect()
    limit = time.monotonic() + 20  # a thread may be making a large page of it
    while any(whole() is not None for whole in wholes) and time.monotonic() < limit:
        weak.sweep()  # as the next allocation does: what is known of a node that is gone may hold others
        time.sleep(1e-3)
    assert all(whole() is None for whole in wholes)


@pytest.mark.parametrize("kind", [None, "Q8_0"])
def test_no_tensor_of_the_file_is_read_after_loading(kind: str | None, made: Callable[..., Path]) -> None:
    """Each small tensor that was read in the file's pages brought 2 MB of it into memory, and changed with the file."""
    path = made(kind)
    expected = Model.from_gguf(path).next_logits([1, 2, 3])
    model = Model.from_gguf(path)
    with open(path, "r+b") as file:
        begin = min(entry.start for entry in gguf_format.read(path).entries.values())
        file.seek(begin)
        file.write(bytes(path.stat().st_size - begin))
    assert np.array_equal(model.next_logits([1, 2, 3]), expected)


@pytest.mark.parametrize(("wanted", "found"), [(0, 0), (1, 2)])
def test_a_models_kernels_are_compiled_beside_it(
    wanted: int, found: int, made: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first one on, so that LLVM is not in this process's memory; not where the user wants no such process."""
    seen = set[object]()
    load_tensor = quant.load_tensor

    def noting(*args: Any, **options: Any) -> Any:
        seen.add(setting("COMPILER_PROCESS"))
        return load_tensor(*args, **options)

    monkeypatch.setattr("kernmill.llm.file_weights.load_tensor", noting)
    with Context(COMPILER_PROCESS=wanted):
        Model.from_gguf(made("Q8_0"))
        assert setting("COMPILER_PROCESS") == wanted
    assert seen == {found}


def test_a_file_that_is_open_and_one_without_tokens(made: Callable[..., Path]) -> None:
    file = gguf_format.read(made("Q8_0", metadata={"tokenizer.ggml.model": "none"}))
    model = Model.from_gguf(file, capacity=8)
    assert model.tokenizer is None
    assert model.capacity == 8
    assert len(list(model.generate([1, 2], max_tokens=3))) == 3
    assert model.computed_tokens == 4
    model.reset()
    assert len(list(model.generate([1, 2], max_tokens=1))) == 1
    assert (model.computed_tokens, model.replays, model.builds) == (6, 5, 1)


@pytest.mark.parametrize("kind", ["f16", "q8_0", "q4_0"])
def test_trained_weights_in_fewer_bits(
    kind: str, gguf: Callable[[str], Any], shared_data: Callable[[str], Path]
) -> None:
    """The first words of greedy_250.txt, and text that stays as likely to the model of whole floats."""
    line = (shared_data("babyllama105") / "greedy_250.txt").read_text(encoding="utf-8").split("\n", 1)[0]
    expected = [int(word) for word in line.removeprefix("ids:").split()]
    ids = [1, *load(gguf(f"babyllama105/babyllama105-{kind}.gguf"), block=8).generate([1], max_tokens=100)]
    assert ids[:60] == expected[:60]
    logits = load(gguf(BABY), block=16).logits(ids[:-1]).numpy().astype(np.float64)
    chances = np.exp(logits - logits.max(1, keepdims=True))
    chances /= chances.sum(1, keepdims=True)
    assert np.exp(-np.log(chances[np.arange(len(ids) - 1), ids[1:]]).mean()) < 2


CLEAR = "\x1b[2J" * 10**6
SIZES = (
    "embedding_length 32, feed_forward_length 32, attention.head_count 2, attention.head_count_kv 2, "
    "attention.key_length 16, attention.value_length 16"
)
FILES: list[tuple[dict[str, Any], str]] = [
    ({"drop": "token_embd.weight"}, "the file has no tensor token_embd.weight, which a llama model needs."),
    ({"drop": "blk.0.ffn_up.weight"}, "the file has no tensor blk.0.ffn_up.weight, which a llama model needs."),
    (
        {"tensors": {"blk.0.attn_q.weight": Tensor.zeros(16, 32)}},
        "blk.0.attn_q.weight has shape (16, 32), and a llama model of these sizes needs (32, 32). The file's "
        f"metadata and tensors are inconsistent: {SIZES}.",
    ),
    *(  # before any memory is counted: it was said that the context is too long
        (
            {"metadata": {f"llama.{key}": 2**31 - 1, "llama.attention.key_length": 16}},
            f"{name} has shape {shape}, and a llama model of these sizes needs ({wanted}). The file's metadata and "
            f"tensors are inconsistent: {SIZES.replace(old, f'{key} {2**31 - 1}')}.",
        )
        for key, old, name, shape, wanted in (
            ("embedding_length", "embedding_length 32", "token_embd.weight", "(263, 32)", "any, 2147483647"),
            (
                "attention.value_length",
                "attention.value_length 16",
                "blk.0.attn_v.weight",
                "(32, 32)",
                "4294967294, 32",
            ),
        )
    ),
    (
        {"drop": "blk.0.attn_norm.weight", "metadata": {"llama.block_count": 2**31 - 1}},
        "the file has no tensor blk.0.attn_norm.weight, which a llama model needs.",
    ),
    (
        {"metadata": {"general.architecture": [1, 2]}},
        "general.architecture is (1, 2), not the name of an architecture. Convert the file again.",
    ),
    (
        {"metadata": {"general.architecture": CLEAR}},
        f"general.architecture is '{escaped(CLEAR)}', which kernmill cannot run yet. "
        f"It runs {', '.join(sorted(ARCHITECTURES))}.",
    ),
    (
        {"metadata": {"general.type": Typed(ValueType.UINT8, [1, 2])}, "drop": "output_norm.weight"},
        "the file has no tensor output_norm.weight, which a llama model needs.",
    ),
    (
        {"tensors": {"blk.0.attn_q.weight": Tensor.zeros(32, 32, dtype=dtypes.int32)}},
        "blk.0.attn_q.weight is int32: weights must be floats or quantized. Convert the file again.",
    ),
    (
        {"tensors": {"token_embd.weight": Tensor.zeros(200, 32)}},
        "tokenizer.ggml.tokens has 263 tokens, and token_embd.weight has rows for 200. The file's vocabulary and "
        "tensors are inconsistent.",
    ),
    (
        {"tensors": {"blk.0.attn_sub_norm.weight": Tensor.zeros(32), "blk.1.x": Tensor.zeros(32)}},
        "tensor blk.0.attn_sub_norm.weight and 1 more is not part of llama; the output would be wrong. Use a file "
        "of the standard architecture.",
    ),
    (  # what is for images and for ranking is let be
        {
            "tensors": dict.fromkeys(
                ("rope_factors_long.weight", "v.patch_embd.weight", "cls.output.weight"), Tensor.zeros(4)
            )
        },
        "tensor rope_factors_long.weight is not part of llama; the output would be wrong. Use a file of the "
        "standard architecture.",
    ),
    (
        {"metadata": {"general.architecture": ""}},
        "the file has no general.architecture, which is required. Convert it again.",
    ),
    *(
        (
            {"metadata": {"llama.block_count": layers}},
            f"llama.block_count is {layers}, and blk.0 is the last layer with tensors. The file's metadata and "
            "tensors are inconsistent.",
        )
        for layers in (2, 10**6)
    ),
    (
        {"metadata": {"general.type": "adapter"}},
        "it is an adapter to a model (general.type 'adapter'), not a model. Give the model's own file.",
    ),
    (
        {"metadata": {"general.architecture": "talkie"}},
        f"general.architecture is 'talkie', which kernmill cannot run yet. It runs {', '.join(sorted(ARCHITECTURES))}.",
    ),
]


@pytest.mark.parametrize(("change", "message"), FILES, ids=[text[:30] for _, text in FILES])
def test_a_file_that_is_no_model_is_a_sentence(change: dict[str, Any], message: str, made: Callable[..., Path]) -> None:
    path = made(**change)
    with pytest.raises(FormatError) as caught:
        Model.from_gguf(path)
    assert str(caught.value) == f"{path}: {message}"


def test_a_vocabulary_without_a_model_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "vocabulary.gguf"
    quant.save(path, {}, {"general.architecture": "qwen2"})
    with pytest.raises(FormatError) as caught:
        Model.from_gguf(path)
    assert str(caught.value) == (
        f"{path}: it has no tensors, only metadata, such as a vocabulary. Give the model's own file."
    )


def test_a_file_that_is_no_gguf_names_itself_once(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"no model")
    with pytest.raises(FormatError) as caught:
        Model.from_gguf(tmp_path / "x.gguf")
    assert str(caught.value).count("x.gguf") == 1
