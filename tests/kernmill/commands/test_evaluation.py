"""`kernmill perplexity` and `kernmill imatrix`."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from kernmill.commands.cli import main
from kernmill.formats import gguf
from kernmill.quant.importance import read
from tests.tiny_models import CASES, write


@pytest.fixture(autouse=True)
def on_device() -> None:
    """Once is enough: the commands choose their device themselves."""
    pytest.importorskip("tokenizers")


def figures(out: str) -> dict[str, float]:
    return {name.strip(): float(value) for name, value in re.findall(r"^(.{24}) +(-?[\d.]+)(?: |$)", out, re.MULTILINE)}


def test_a_model_is_compared_with_a_base(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, text, base = write(CASES["llama"], tmp_path / "m.gguf"), tmp_path / "text", tmp_path / "base"
    text.write_text("abcdefghij klmnop " * 8)
    words = ["perplexity", str(path), "-c", "16", "--chunks", "2", "-t", "1"]
    assert main([*words, "-f", str(text), "--kl-divergence-base", str(base)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("2 chunks of 16 tokens, of which 14 were predicted\nperplexity ")
    alone = figures(out)["perplexity"]
    assert main([*words, "--kl-divergence-base", str(base), "--kl-divergence"]) == 0
    found = figures(capsys.readouterr().out)
    assert found["perplexity"] == alone
    assert found["perplexity of the base"] == pytest.approx(alone, rel=1e-3)
    assert found["same top token, %"] == 100
    assert abs(found["KL divergence, largest"]) < 1e-3


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, text = str(write(CASES["llama"], tmp_path / "m.gguf")), tmp_path / "text"
    text.write_bytes(b"\xff")
    for words, message in (
        ([], "perplexity: no text. Give a file with -f; - is stdin."),
        (["-f", ""], "perplexity: the path is empty"),
        (["-f", "nowhere"], "nowhere: cannot be read: No such file or directory. Give the path of a text."),
        (["-f", str(text)], f"{text}: cannot be read: it is not in UTF-8. Give the path of a text."),
        (["--kl-divergence"], "perplexity: --kl-divergence compares with a base. Give its --kl-divergence-base FILE."),
        (["--kl-divergence", "--kl-divergence-base", str(text)], f"{text}: it has no log probabilities of a model."),
    ):
        assert main(["perplexity", path, *words]) == 2
        assert capsys.readouterr().err.startswith(f"kernmill: {message}")


def test_an_importance_matrix_is_written_used_and_added_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, text, target = write(CASES["llama"], tmp_path / "m.gguf"), tmp_path / "text", tmp_path / "i.gguf"
    text.write_text("abcdefghij klmnop " * 8)
    words = ["imatrix", str(path), "-f", str(text), "-c", "16", "-o", str(target)]
    assert main([*words, "--chunks", "2"]) == 0
    assert capsys.readouterr().out == f"{target}: 21 matrices, 2 chunks of 16 tokens\n"
    assert main([*words[:2], "--in-file", str(target), "--in-file", str(target), "-o", str(tmp_path / "both")]) == 0
    both, one = read(tmp_path / "both"), read(target)
    assert (both.chunks, both.texts) == (4, [str(text)] * 2)
    name = "blk.1.ffn_down.weight"
    np.testing.assert_allclose(both.columns[name].sums, 2 * one.columns[name].sums)
    quantized = tmp_path / "q.gguf"
    assert main(["quantize", str(path), str(quantized), "Q4_0", "--imatrix", str(target)]) == 0
    assert gguf.read(quantized).metadata["quantize.imatrix.file"] == str(target)
    capsys.readouterr()
    for wrong, message in (
        ([*words[:-1], str(path)], f"{path}: is the model. Write to a different path with -o."),
        ([*words[:2], "-o", str(target)], "imatrix: no text. Give a file with -f"),
        ([*words, "-c", "128"], "imatrix: the text has "),
        (["quantize", str(path), str(quantized), "Q4_0", "--imatrix", ""], "quantize: the path is empty"),
        (["quantize", str(path), str(quantized), "Q4_0", "--imatrix", str(text)], f"{text}: at byte "),
    ):
        assert main(wrong) == 2
        assert capsys.readouterr().err.startswith(f"kernmill: {message}")
