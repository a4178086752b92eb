"""LoRA adapters merged into a file: the file computes what the adapters do at run time."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import FormatError
from kernmill.commands.cli import main
from kernmill.formats import gguf
from kernmill.llm import Model
from tests.kernmill.llm.test_adapters import IDS, NAMES, TIED, pairs, write_adapter, write_vector
from tests.tiny_models import CASES, weights_of, write

EXPERTS = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps")


def of_experts(rank: int) -> dict[str, tuple[Any, Any]]:
    """A pair for each stack of the first layer, with its own matrices for each expert."""
    chance, found = np.random.default_rng(3), {}
    for name in EXPERTS:
        experts, out, into = weights_of(CASES["qwen3moe"])[f"blk.0.{name}.weight"].shape
        shapes = (experts, rank, into), (experts, out, rank)
        found[f"blk.0.{name}.weight"] = tuple(
            np.asarray(chance.standard_normal(shape) * 0.2, np.float32) for shape in shapes
        )
    return found  # type: ignore[return-value]


def logits(path: Path | str, **options: Any) -> Any:
    with Model.from_gguf(path, tokenizer=None, capacity=64, block=16, **options) as model:
        return model.logits(IDS).numpy()


def test_a_merged_file_computes_what_adapters_do(tmp_path: Path) -> None:
    base = write(TIED, tmp_path / "base.gguf")
    weights = weights_of(TIED)
    one = write_adapter(tmp_path / "one.gguf", pairs(weights, 4, 1, *NAMES, "token_embd.weight"))
    two = write_adapter(tmp_path / "two.gguf", pairs(weights, 2, 2, "attn_q", "attn_k"))
    out = tmp_path / "merged.gguf"
    assert main(["quantize", str(base), str(out), "COPY", "--lora", one, "--lora-scaled", f"{two}:0.5"]) == 0
    np.testing.assert_allclose(logits(out), logits(base, adapters={one: 1.0, two: 0.5}), atol=2e-4)
    assert [*gguf.read(out).entries] == [*gguf.read(base).entries]
    q8, q8_merged = tmp_path / "q8.gguf", tmp_path / "q8-merged.gguf"
    assert main(["quantize", str(base), str(q8), "Q8_0"]) == 0
    assert main(["quantize", str(q8), str(q8_merged), "COPY", "--lora", one]) == 0
    types = [{name: e.type.name for name, e in gguf.read(path).entries.items()} for path in (q8, q8_merged)]
    assert types[0] == types[1]
    expected = logits(base, adapters=[one])
    assert (logits(q8_merged) - expected).std() < 0.1 * expected.std()


def test_adapters_of_experts_at_run_time_and_merged(tmp_path: Path) -> None:
    base = write(CASES["qwen3moe"], tmp_path / "base.gguf")
    one = write_adapter(tmp_path / "one.gguf", of_experts(4), general__architecture="qwen3moe")
    out = tmp_path / "merged.gguf"
    assert main(["quantize", str(base), str(out), "COPY", "--lora", one]) == 0
    found = logits(base, adapters=[one])
    assert np.abs(found - logits(base)).max() > 0.05
    np.testing.assert_allclose(found, logits(out), atol=2e-4)
    with Model.from_gguf(base, tokenizer=None, capacity=64, block=16, adapters=[one]) as model:
        np.testing.assert_allclose(model.next_logits(IDS), found[-1], atol=2e-4)  # one token: its own experts only


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: write_vector(path, {1: np.ones(64, np.float32)}), "a control vector .* cannot be merged"),
        (
            lambda path: write_adapter(path, pairs(weights_of(TIED), 4, 1, *NAMES), general__architecture="qwen2"),
            "the adapter is for a model of architecture 'qwen2'",
        ),
        (
            lambda path: write_adapter(path, {"blk.9.attn_q.weight": (np.ones((2, 64)), np.ones((64, 2)))}),
            "the model has no weight blk.9.attn_q.weight",
        ),
        (
            lambda path: write_adapter(path, {"blk.0.attn_q.weight": (np.ones((2, 32)), np.ones((64, 2)))}),
            "the model's matrix .* needs",
        ),
    ],
)
def test_an_adapter_that_does_not_fit_leaves_no_file(
    tmp_path: Path, make: Any, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    base, out = write(TIED, tmp_path / "base.gguf"), tmp_path / "out.gguf"
    bad = str(make(tmp_path / "bad.gguf"))
    assert main(["quantize", str(base), str(out), "COPY", "--lora", bad]) == 2
    assert re.search(words, capsys.readouterr().err)
    assert not out.exists()


def test_a_pair_of_experts_with_the_wrong_number_is_refused(tmp_path: Path) -> None:
    base = write(CASES["qwen3moe"], tmp_path / "base.gguf")
    few = {name: (a[:2], b[:2]) for name, (a, b) in of_experts(4).items()}
    one = write_adapter(tmp_path / "one.gguf", few, general__architecture="qwen3moe")
    with pytest.raises(FormatError, match=r"the pair of blk.0.ffn_(gate|up|down)_exps.weight has shapes .* needs"):
        logits(base, adapters=[one])
