"""Recipes: which tensor of a file gets which type, by patterns, single types and mixes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import FormatError, Tensor, quantize
from kernmill.commands.cli import main
from kernmill.formats import gguf
from kernmill.quant import save
from kernmill.quant.importance import Columns, Importance
from kernmill.quant.recipe import Recipe, choices
from tests.kernmill.against import only_on

NAMES = ("token_embd", "blk.0.attn_q", "blk.0.attn_v", "blk.0.ffn_down", "output")
on_device = only_on("LLVM")  # that the devices agree is tested elsewhere


def source(path: Path, names: tuple[str, ...] = NAMES, width: int = 256) -> Path:
    tensors = {f"{name}.weight": Tensor(np.full((2, width), 0.5, np.float32)) for name in names}
    tensors["blk.0.attn_norm.weight"] = Tensor(np.ones(width, np.float32))
    save(path, tensors, {"general.architecture": "llama", "llama.block_count": 1, "general.name": "m"})
    return path


def types(path: Path, mix: str, **how: Any) -> list[str]:
    """In the order of NAMES; the norm is unchanged."""
    found = choices(gguf.read(path), Recipe(mix, **how))
    assert found["blk.0.attn_norm.weight"].type.name == "F32"
    return [found[f"{name}.weight"].type.name for name in NAMES if f"{name}.weight" in found]


def test_each_option(tmp_path: Path) -> None:
    path = source(tmp_path / "in")
    assert types(path, "Q4_K_M") == ["Q4_K", "Q4_K", "Q6_K", "Q6_K", "Q6_K"]
    assert types(path, "Q4_K_M", pure=True) == ["Q4_K"] * 5
    assert types(path, "Q4_K_M", keep_output=True) == ["Q4_K", "Q4_K", "Q6_K", "Q6_K", "F32"]
    assert types(path, "Q4_K_M", output="f16", embedding="q8_0") == ["Q8_0", "Q4_K", "Q6_K", "Q6_K", "F16"]
    patterns = ((r"attn_[qk]", "q5_k"), ("attn_", "Q3_K"))  # the first decides
    assert types(path, "Q4_K_M", tensor_types=patterns) == ["Q4_K", "Q5_K", "Q3_K", "Q6_K", "Q6_K"]
    assert types(path, "Q4_K_M", tensor_types=patterns, pure=True) == ["Q4_K", "Q5_K", "Q3_K", "Q4_K", "Q4_K"]
    tied = source(tmp_path / "tied", NAMES[:4])
    assert types(tied, "Q4_K_M", output="Q8_0") == ["Q8_0", "Q4_K", "Q6_K", "Q6_K"]
    assert types(tied, "Q4_K_M", output="Q8_0", embedding="Q5_K")[0] == "Q5_K"
    narrow = source(tmp_path / "narrow", width=96)
    assert types(narrow, "Q8_0", tensor_types=(("attn_q", "Q6_K"), ("attn_v", "Q4_K"))) == [
        "Q8_0", "Q8_0", "Q5_0", "Q8_0", "Q8_0",
    ]  # fmt: skip


def test_mistakes(tmp_path: Path) -> None:
    path = source(tmp_path / "in")
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        (
            {"tensor_types": (("ffn_up", "Q4_K"),)},
            r"--tensor-type 'ffn_up' is in no name of a matrix of .*in\. kernmill",
        ),
        ({"tensor_types": (("(", "Q4_K"),)}, r"quantize: '\(' is not a regular expression: "),
        ({"tensor_types": (("attn", "Q4_K_M"),)}, r"quantize: type 'Q4_K_M': must be one of F32, F16, BF16, Q4_0"),
        ({"output": "I8"}, r"quantize: type 'I8': must be one of"),
        ({"embedding": "Q8_K"}, r"quantize: type 'Q8_K': must be one of"),
    )
    for how, message in cases:
        with pytest.raises(FormatError, match=message):
            choices(gguf.read(path), Recipe("Q4_K_M", **how))


def test_types_of_few_bits_need_the_importance_of_columns(tmp_path: Path) -> None:
    """Where llama.cpp needs it: not for the embedding, nor for the output."""
    path, found = source(tmp_path / "in"), Importance({}, where="m")
    for mix in ("IQ2_XXS", "IQ1_S", "Q2_K_S"):
        with pytest.raises(FormatError, match=r"attn_q\.weight': \w+ has too few bits .* no importance matrix"):
            choices(gguf.read(path), Recipe(mix))
    found.columns["blk.0.attn_q.weight"] = Columns(np.ones((1, 256)), np.ones(1))
    with pytest.raises(FormatError, match=r"attn_v\.weight': IQ2_XS has too few bits .* m does not have it\. Compute"):
        choices(gguf.read(path), Recipe("IQ2_XS", importance=found, pure=True))
    for name in ("attn_v", "ffn_down"):
        found.columns[f"blk.0.{name}.weight"] = found.columns["blk.0.attn_q.weight"]
    assert types(path, "IQ2_XS", importance=found) == ["Q2_K", "IQ2_XS", "Q2_K", "IQ2_XS", "Q5_K"]
    assert types(path, "IQ2_XS", importance=found, pure=True) == ["IQ2_XS"] * 5
    assert types(path, "IQ3_S") == ["IQ3_S", "IQ3_S", "IQ3_S", "IQ3_S", "Q6_K"]


def test_a_dry_run_prints_what_would_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, target = source(tmp_path / "in"), tmp_path / "out"
    words = ["quantize", str(path), str(target), "Q4_K_M", "--tensor-type", "attn_q=Q8_0", "--leave-output-tensor"]
    assert main([*words, "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["tensor", "shape", "from", "to", "bytes"]
    assert lines[2].split() == ["blk.0.attn_q.weight", "2", "x", "256", "F32", "Q8_0", "544"]
    total = 288 + 544 + 2 * 420 + 2048 + 1024
    assert lines[-1].startswith(f"total: {total:,} bytes (0.00 MiB) from 11,264, ")
    assert not target.exists()
    assert main(words) == 0
    assert sum(entry.stop - entry.start for entry in gguf.read(target).entries.values()) == total


def test_metadata_are_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, target = str(source(tmp_path / "in")), str(tmp_path / "out")
    words = ["quantize", path, target, "Q8_0", "--override-kv"]
    more = ["a=int:-3", "--override-kv", "b=float:0.5", "--override-kv", "c=bool:true"]
    assert main([*words, "general.name=str:x=y:z", "--override-kv", *more]) == 0
    metadata = gguf.read(target).metadata
    assert [metadata[key] for key in ("general.name", "a", "b", "c")] == ["x=y:z", -3, 0.5, True]
    capsys.readouterr()
    for text in ("a", "a=3", "a=int:x", "a=bool:1", "=int:1", "a=what:1"):
        assert main([*words, text]) == 2
        assert capsys.readouterr().err.startswith(f"kernmill: quantize: --override-kv {text!r}: must be KEY=KIND:VALUE")
    assert main([*words[:-1], "--tensor-type", "Q8_0"]) == 2
    assert "--tensor-type 'Q8_0': must be a regular expression, = and a type" in capsys.readouterr().err


def test_a_split_file_stays_split(tmp_path: Path) -> None:
    source(tmp_path / "in.gguf")
    assert main(["split", str(tmp_path / "in.gguf"), str(tmp_path / "m"), "--split-max-tensors", "3"]) == 0
    first = tmp_path / "m-00001-of-00002.gguf"
    recipe = Recipe("Q8_0", keep_split=True)
    quantize.run(first, tmp_path / "out.gguf", recipe, report=lambda line: None)
    found = gguf.read(tmp_path / "out-00001-of-00002.gguf")
    assert {entry.part for entry in found.entries.values()} == {0, 1}
    assert found.entries["output.weight"].type.name == "Q8_0"
    assert found.metadata["general.file_type"] == 7
    with pytest.raises(FormatError, match=r"m-00001-of-00002\.gguf: is the input file"):
        quantize.run(first, tmp_path / "m", recipe, report=lambda line: None)
