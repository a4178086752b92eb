"""Language models against llama.cpp: the files are models, the table's arithmetic is right, both sides agree."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from bench.llama import GOALS, Line, apart, chosen_tests, main, markdown, measured, verdicts
from bench.model_file import write_model
from kernmill.formats import gguf
from kernmill.llm import Model
from kernmill.quant import load_tensor

FACTS = {"cpu": "C", "cores": 2, "caches": {}, "system": "s", "versions": {}, "load": 0.0, "llama": "1"}


@pytest.mark.parametrize("mix", GOALS)
def test_a_random_file_is_a_model(mix: str, tmp_path: Path) -> None:
    write_model(tmp_path / "a.gguf", "tiny", mix)
    file = gguf.read(tmp_path / "a.gguf")
    assert {"F16": "F16", "Q4_K_M": "Q4_K"}.get(mix, mix) in {entry.type.name for entry in file.entries.values()}
    first, second = (bytes(file.values(f"blk.{n}.attn_q.weight")) for n in (0, 1))
    assert first != second
    logits = Model.from_gguf(file, capacity=8).next_logits([3, 4, 5])
    assert logits.shape == (512,)
    assert np.isfinite(logits).all()
    assert logits.std() > 0.01


def test_the_embedding_is_as_long_as_the_vocabulary(tmp_path: Path) -> None:
    """llama.cpp refuses a file with more rows than tokens."""
    words = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.tokens": ["a", "b", "c"], "general.name": "x"}
    write_model(tmp_path / "a.gguf", "tiny", "Q4_0", words)
    file = gguf.read(tmp_path / "a.gguf")
    assert file.entries["token_embd.weight"].shape[0] == file.metadata["llama.vocab_size"] == 3


@pytest.mark.parametrize("kind", ["Q3_K", "IQ1_M", "IQ2_XXS", "NVFP4"])
def test_a_file_of_one_type_holds_values_of_the_usual_size(kind: str, tmp_path: Path) -> None:
    if kind.startswith("IQ"):
        pytest.importorskip("gguf")
    write_model(tmp_path / "a.gguf", "tiny", f"all {kind}")
    file = gguf.read(tmp_path / "a.gguf")
    assert {entry.type.name for entry in file.entries.values()} == {kind, "F32"}
    spread = load_tensor(file, "blk.1.ffn_up.weight").dequantize().std().item()  # type: ignore[union-attr]
    assert np.isfinite(spread)
    assert 0.008 < spread < 0.03 or kind == "NVFP4"  # whose scales have no exponent in common
    assert "".join(verdicts(line(mix=f"all {kind}"))).startswith("1.00x: met")


def test_a_vocabulary_is_taken_over(tmp_path: Path) -> None:
    words = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["a"] * 600, "general.name": "no"}
    write_model(tmp_path / "a.gguf", "tiny", "Q8_0", words)
    file = gguf.read(tmp_path / "a.gguf")
    assert file.metadata["tokenizer.ggml.tokens"] == ("a",) * 600
    assert file.entries["token_embd.weight"].shape == (600, 256)
    assert file.metadata["general.name"] == "random tiny"


def line(test: str = "tg128", threads: int = 1, mix: str = "Q4_0", failed: str = "") -> Line:
    return Line(mix, test, threads, 10**9, 0.01, [24.0, 26.0, 25.0], [20.0] * 3, [50.0] * 3, failed)


def test_goals_are_those_of_the_issue() -> None:
    assert verdicts(line()) == ["1.20x: met", "85% of reading: short by 41%"]
    assert verdicts(line(mix="Q4_K_M"))[0] == "1.60x: short by 22%"
    assert verdicts(line(mix="Q4_K_M", threads=2))[0] == "1.00x: met"  # never slower
    assert verdicts(line(test="pp512", mix="F16", threads=2)) == ["4.00x: short by 69%"]


def test_the_table() -> None:
    text = markdown(FACTS, "0.5B", [line(), line("pp512"), line(failed="logits are 1 apart")])
    assert "| Q4_0 | 1.00 GB | tg128 | 1 | 3 | 25.0 | 20.0 | **1.25** (1.23-1.27) | 50% | 40% | 1.0% | " in text
    assert "| Q4_0 | 1.00 GB | pp512 | 1 | 3 | 25.0 | 20.0 | **1.25** (1.23-1.27) |  |  | 1.0% | " in text
    assert text.endswith("* **Q4_0 tg128**, threads 1: logits are 1 apart\n")


def test_how_far_logits_are_apart() -> None:
    assert apart(np.array([3.0, 4.5]), np.array([3.0, 4.0])) == pytest.approx(0.1)
    assert not apart(np.array([np.nan]), np.array([1.0])) < 1


def test_an_unknown_mix(capsys: pytest.CaptureFixture[str]) -> None:
    for given, said in (
        (["Q4_0", "--types", "Q4_1"], "Q4_0 and --types: give mixes or types, not both"),
        (["Q9"], "Q9: must be one of F16, Q8_0, Q4_0, Q6_K, Q4_K_M"),
        (["--types", "Q9"], "choose from 'F16'"),
    ):
        with pytest.raises(SystemExit):
            main(given)
        assert said in capsys.readouterr().err.replace("choose from F16", "choose from 'F16'")


@pytest.mark.parametrize(("mix", "shape"), [("all Q2_K", "layers"), ("Q4_0", "0.5B")])
def test_what_was_kept_is_shown(
    mix: str, shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Types shown without --types were said to have the shape of the mixes."""
    monkeypatch.setitem(sys.modules, "llama_cpp", ModuleType("llama_cpp"))
    kept = tmp_path / "kept.json"
    kept.write_text(json.dumps({"machine": FACTS, "lines": [dataclasses.asdict(line(mix=mix))]}))
    assert main(["--show", str(kept)]) == 0
    assert f"in the shape {shape}," in capsys.readouterr().out


def test_both_sides_agree(tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp")
    for mix in GOALS:
        write_model(tmp_path / "a.gguf", "tiny", mix)
        found = measured(tmp_path / "a.gguf", mix, "tg2", 1, 1)
        assert not found.failed
        assert json.dumps(found.kernmill)


def test_an_encoder_takes_tests_of_texts_only() -> None:
    """Named regression: `--architectures bert --tests pp64` was a traceback after minutes."""
    assert chosen_tests("bert F16", "pp64,em32") == ["em32"]
    assert chosen_tests("mamba2 Q4_K_M", "tg16,em32,pp64") == ["tg16", "pp64"]
    with pytest.raises(ValueError, match="bert F16 is an encoder: it takes em"):
        chosen_tests("bert F16", "pp64")
    with pytest.raises(ValueError, match="--tests x9: must be tg, pp or em"):
        chosen_tests("Q4_0", "tg16,x9")
