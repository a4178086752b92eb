"""Tokenizers that are not built on the library: rwkv and plamo2. llama.cpp's ids, where it is installed."""

from __future__ import annotations

import ctypes
import importlib
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import FormatError, Tensor
from kernmill.llm.tokenizer import Tokenizer
from kernmill.quant import save

WORDS = ["the", "then", "he", "end", " a", " ab", "abc", "b", "日本", "日", "本語", "\n\n", "\n", "ß", "привет", "при",
         "👍", "'", "\\"]  # fmt: skip
TEXTS = ["", "then the end", "abcab ab\n\n\n", "日本語 日本 本語", "привет, ßß 👍👍", "it's a \\ b", "\ttab",
         "a<s>b the</s>", "\ufeffx"]  # fmt: skip


def escaped(data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "".join(f"\\x{byte:02x}" for byte in data)
    return "".join({"\n": "\\n", "\t": "\\t", "\r": "\\r", "'": "\\'", "\\": "\\\\"}.get(c, c) for c in text)


def rwkv() -> dict[str, Any]:
    data = [*(bytes((byte,)) for byte in range(256)), *(word.encode() for word in WORDS if len(word.encode()) > 1)]
    tokens = ["<s>", "</s>", *map(escaped, data)]
    return {
        "tokenizer.ggml.model": "rwkv", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, *[1] * (len(tokens) - 2)],
        "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.unknown_token_id": 0,
    }  # fmt: skip


def plamo2() -> dict[str, Any]:
    scores = np.random.default_rng(3).uniform(-12, -2, len(WORDS)).astype(np.float32)
    tokens = ["<unk>", "<s>", "</s>", "<pad>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    return {
        "tokenizer.ggml.model": "plamo2", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [2, 3, 3, 3, *[6] * 256, *[1] * len(WORDS)],
        "tokenizer.ggml.scores": [0.0] * 260 + scores.tolist(),
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
    }  # fmt: skip


VOCABULARIES = {"rwkv": rwkv, "plamo2": plamo2}


def texts() -> list[str]:
    rng = random.Random(5)
    return [*TEXTS, *("".join(rng.choices([*WORDS, " ", "x", "é", "語"], k=12)) for _ in range(40))]


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_text_comes_back(kind: str) -> None:
    tokenizer = Tokenizer(VOCABULARIES[kind]())
    for text in texts():
        ids = tokenizer.encode(text, add_special=False)
        assert tokenizer.decode(ids, show_special=True) == (text.removeprefix("\ufeff") if kind == "plamo2" else text)
    assert tokenizer.encode("the<s>", parse_special=True, add_special=False)[1:] == [tokenizer.bos_id]
    assert tokenizer.bos_id not in tokenizer.encode("the<s>", add_special=False)


def test_the_longest_token_and_the_best_sum() -> None:
    tokenizer = Tokenizer(rwkv())
    assert [tokenizer.tokens[i] for i in tokenizer.encode("thend abc", add_special=False)] == ["then", "d", " ab", "c"]
    keys = plamo2()
    keys["tokenizer.ggml.scores"] = [0.0] * 260 + [-1.0 if word in ("he", "end") else -9.0 for word in WORDS]
    tokenizer = Tokenizer(keys)
    assert [tokenizer.tokens[i] for i in tokenizer.encode("thend", add_special=False)] == ["then", "<0x64>"]
    keys["tokenizer.ggml.scores"][260 + WORDS.index("then")] = -2000.0
    tokenizer = Tokenizer(keys)
    assert [tokenizer.tokens[i] for i in tokenizer.encode("then", add_special=False)] == ["the", "<0x6E>"]


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_a_byte_without_a_token(kind: str) -> None:
    keys = VOCABULARIES[kind]()
    place = keys["tokenizer.ggml.tokens"].index({"rwkv": "\\x80", "plamo2": "<0x80>"}[kind])
    keys["tokenizer.ggml.tokens"][place] = "zzz"
    del keys["tokenizer.ggml.unknown_token_id"]
    with pytest.raises(FormatError, match=r"has no token for (the byte 128|each of the 256)"):
        Tokenizer(keys)


@pytest.mark.parametrize("kind", VOCABULARIES)
@pytest.mark.parametrize("parse_special", [False, True])
def test_ids_are_those_of_llama_cpp(kind: str, parse_special: bool, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    c: Any = importlib.import_module("llama_cpp")
    sizes = {"context_length": 8, "embedding_length": 8, "block_count": 1, "feed_forward_length": 8,
             "attention.head_count": 1, "attention.layer_norm_rms_epsilon": 1e-5}  # fmt: skip
    keys = VOCABULARIES[kind]() | {"general.architecture": "llama"} | {f"llama.{k}": v for k, v in sizes.items()}
    save(tmp_path / "a.gguf", {"token_embd.weight": Tensor(np.zeros((4, 4), np.float32))}, keys)
    options = c.llama_model_default_params()
    options.vocab_only = True
    model = c.llama_model_load_from_file(str(tmp_path / "a.gguf").encode(), options)
    vocabulary, tokenizer = c.llama_model_get_vocab(model), Tokenizer(keys)
    for text in texts():
        if "<s>" in text and not parse_special:  # llama.cpp makes control tokens from text
            continue
        data, found = text.encode(), (ctypes.c_int32 * 200)()
        count = c.llama_tokenize(vocabulary, data, len(data), found, 200, False, parse_special)
        assert tokenizer.encode(text, add_special=False, parse_special=parse_special) == list(found[:count]), text
    c.llama_model_free(model)
