"""Perplexity of chunks, the file of a base model, and how far predictions are from it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import FormatError, SettingError
from kernmill.llm import Model
from kernmill.llm.perplexity import Base, _packed, chunks_of, predictions, with_begin
from tests.tiny_models import CASES, write

TEXT = "ab a bab " * 12


def log_probabilities(model: Model, ids: list[int]) -> np.ndarray[Any, Any]:
    logits = model.logits(ids).numpy().astype(np.float64)
    assert model.tokenizer is not None
    logits = logits[:, : len(model.tokenizer)]
    return np.asarray(logits - np.log(np.exp(logits).sum(1, keepdims=True)))


def test_the_second_half_of_each_chunk_is_predicted(made: Callable[..., Path]) -> None:
    """By the definition: the tokens size // 2 + 1 .. of a chunk, after its begin token and all before."""
    with Model.from_gguf(made(), capacity=16) as model:
        assert model.tokenizer is not None
        chunks = chunks_of(model, TEXT, 16, 2)
        ids = model.tokenizer.encode(TEXT)
        np.testing.assert_array_equal(chunks.ravel(), ids[:32])
        loss = []
        for start in (0, 16):
            rows = log_probabilities(model, [1, *ids[start + 1 : start + 16]])
            loss += [-rows[n][ids[start + n + 1]] for n in range(8, 15)]
        found = predictions(model, chunks)
    np.testing.assert_allclose(found.loss, loss, rtol=1e-5)
    assert found.perplexity() == pytest.approx(np.exp(np.mean(loss)), rel=1e-5)
    assert found.divergence is None


def test_a_chunk_begins_with_its_own_token_where_the_vocabulary_adds_none(made: Callable[..., Path]) -> None:
    with Model.from_gguf(made(metadata={"tokenizer.ggml.add_bos_token": False}), capacity=16) as model:
        chunk = chunks_of(model, TEXT, 16, 2)[1]
        assert with_begin(model, chunk) == [*chunk]


def test_a_base_is_written_and_read(made: Callable[..., Path], tmp_path: Path) -> None:
    """The file's head and size are llama.cpp's; a model is as near to itself as the file is fine."""
    target = tmp_path / "base"
    with Model.from_gguf(made(), capacity=16) as model:
        chunks = chunks_of(model, TEXT, 16, 3)
        alone = predictions(model, chunks, target=target)
        base = Base(target)
        found = predictions(model, base.chunks, base=base)
    vocabulary = 263
    raw = target.read_bytes()
    assert raw[:20] == b"_logits_" + struct.pack("<Iii", 16, vocabulary, 3)
    assert len(raw) == 20 + 4 * 48 + 3 * 7 * 2 * (264 + 4)
    np.testing.assert_array_equal(base.chunks, chunks)
    np.testing.assert_allclose(found.loss, alone.loss)
    assert found.base_loss is not None
    assert found.divergence is not None
    assert found.change is not None
    assert found.same_top is not None
    is_kept = alone.loss < 16  # the file has nothing that is much less likely than the most likely token
    np.testing.assert_allclose(found.base_loss[is_kept], alone.loss[is_kept], atol=16 / 65535)
    assert is_kept.sum() > 10
    assert np.abs(found.divergence).max() < 16 / 65535
    assert np.abs(found.change).max() < 16 / 65535
    assert found.same_top.all()
    with Model.from_gguf(made("Q4_0"), capacity=16) as other:
        apart = predictions(other, base.chunks, base=base)
        rows = log_probabilities(other, with_begin(other, chunks[0]))[8:15]
    theirs = base.rows(0, 7).astype(np.float64)
    assert apart.divergence is not None
    assert apart.divergence.mean() > 1e-3
    wanted = (np.exp(theirs) * (theirs - rows)).sum(1)
    np.testing.assert_allclose(apart.divergence[:7], wanted, atol=1e-4)


def test_rows_keep_sixteen_below_the_largest() -> None:
    rows = np.log(np.array([[0.9, 0.1, 1e-12], [1 / 3, 1 / 3, 1 / 3]], np.float32))
    raw = np.frombuffer(_packed(rows), np.uint8).reshape(2, -1)
    assert raw.shape[1] == 8 + 8
    step, least = raw[0, :8].copy().view("<f4")
    codes = raw[:, 8:].copy().view("<u2")
    assert least == rows[0, 0] - 16
    np.testing.assert_allclose(step * codes[0, :2] + least, rows[0, :2], atol=16 / 65535)
    assert codes[0, 2] == 0
    np.testing.assert_array_equal(codes[1], 0)
    np.testing.assert_array_equal(raw[1, :8].copy().view("<f4"), [0, rows[1, 0]])


def test_mistakes(made: Callable[..., Path], tmp_path: Path) -> None:
    target = tmp_path / "base"
    with Model.from_gguf(made(), capacity=16) as model:
        with pytest.raises(SettingError, match=r"has \d+ tokens, and a context of 16 needs at least 32\. Give"):
            chunks_of(model, "ab", 16)
        with pytest.raises(SettingError, match=r"a context of 3 tokens is too small"):
            chunks_of(model, TEXT, 3)
        chunks = chunks_of(model, TEXT, 16, 1)
        predictions(model, chunks, target=target)
        raw = target.read_bytes()
        with pytest.raises(FormatError, match=r"none/base: cannot be written: No such file"):
            predictions(model, chunks, target=tmp_path / "none" / "base")
    for content, message in (
        (raw[:-1], r"base: \d+ bytes for 1 chunks of 16 tokens and a vocabulary of 263, which need \d+\."),
        (b"GGUF" + raw[4:], r"base: it has no log probabilities of a model\. Write such a file first"),
        (raw[:10], r"base: it has no log probabilities"),
        (raw[:8] + struct.pack("<Iii", 16, -263, 1) + raw[20:], r"The file is not complete"),
    ):
        target.write_bytes(content)
        with pytest.raises(FormatError, match=message):
            Base(target)
    target.write_bytes(raw)
    with (
        Model.from_gguf(write(CASES["llama"], tmp_path / "other.gguf"), capacity=16) as other,
        pytest.raises(SettingError, match=r"the model has 280 tokens, and the base in .*base has 263\. Compare"),
    ):
        predictions(other, chunks, base=Base(target))
    with (
        Model.from_gguf(write(CASES["bert"], tmp_path / "bert.gguf"), capacity=16) as encoder,
        pytest.raises(SettingError, match=r"bert is an encoder: it predicts no text"),
    ):
        predictions(encoder, chunks)
