"""Commands on a model's file: vectors, scores, ids, and what is in it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import Tensor
from kernmill.commands.cli import main
from kernmill.llm import Model
from kernmill.quant import save
from tests.tiny_models import CASES, W, metadata_of, weights_of, write


@pytest.fixture(autouse=True)
def on_device() -> None:
    """Once is enough: the commands choose their device themselves."""
    pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(CASES["bert"], tmp_path_factory.mktemp("models") / "bert.gguf")


def test_vectors_of_lines(encoder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "texts").write_text("abc\nb a\n")
    assert main(["embed", str(encoder), "-p", "cab", "-f", str(tmp_path / "texts")]) == 0
    rows = np.array([json.loads(line) for line in capsys.readouterr().out.splitlines()])
    with Model.from_gguf(encoder) as model:
        expected = model.embed(["cab", "abc", "b a"]).numpy()
    np.testing.assert_allclose(rows, expected, rtol=1e-5, atol=1e-6)
    assert main(["embed", str(encoder), "-p", "cab", "--embd-normalize", "-1"]) == 0
    assert np.linalg.norm(json.loads(capsys.readouterr().out)) > 1.5


def test_the_best_document_is_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    case = CASES["bert"]
    weights: dict[str, Any] = weights_of(case)
    weights["cls.output.weight"] = np.random.default_rng(1).standard_normal((1, W)).astype(np.float32)
    path = tmp_path / "ranks.gguf"
    save(path, {name: Tensor(array) for name, array in weights.items()}, metadata_of(case) | {"bert.pooling_type": 4})
    assert main(["rerank", str(path), "-q", "abc", "-p", "a", "-p", "b b", "-p", "cc"]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    scores = [float(score) for score, _ in lines]
    assert scores == sorted(scores, reverse=True)
    assert sorted(text for _, text in lines) == ["a", "b b", "cc"]


def test_ids_of_a_text(encoder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokenize", str(encoder), "-p", "a</s>", "--ids", "--no-bos"]) == 0
    assert json.loads(capsys.readouterr().out)[-1] == 2
    assert main(["tokenize", str(encoder), "-p", "a</s>", "--ids", "--no-bos", "--no-parse-special"]) == 0
    assert 2 not in json.loads(capsys.readouterr().out)
    assert main(["tokenize", str(encoder), "a"]) == 0
    assert "      1 -> '<s>'" in capsys.readouterr().out


def test_what_is_in_a_file(encoder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(encoder)]) == 0
    text = capsys.readouterr().out
    assert re.search(r'general.architecture +"bert"', text)
    assert re.search(r"tokenizer.ggml.tokens +\[.*\] \(280 entries\)", text)
    assert main(["show", str(encoder), "--tensors"]) == 0
    assert re.search(r"blk.0.attn_q.weight +F32 +64 x 64 +0.02 MiB", capsys.readouterr().out)
    assert main(["show", str(encoder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["types"]["all"][0] == len(found["tensors"])


def test_mistakes(encoder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, message in (
        (["rerank", str(encoder), "-q", "a", "-p", "b"], "rerank: the file's pooling type is cls, not rank."),
        (["rerank", str(encoder), "b"], "rerank: no query. Give it with -q TEXT."),
        (["embed", "", "-p", "a"], "embed: the path is empty: is a variable of the shell unset?"),
        (["embed", str(encoder), "-f", "nowhere"], "nowhere: cannot be read: "),
    ):
        assert main(words) == 2
        assert capsys.readouterr().err.startswith(f"kernmill: {message}")
