"""Sums of squares of what the matrices of a model are multiplied with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernmill import SettingError
from kernmill.llm import Model
from kernmill.llm.arch import architecture, experts
from kernmill.llm.imatrix import Collector, importance_of
from kernmill.llm.perplexity import chunks_of, with_begin
from kernmill.quant.importance import Importance
from tests.tiny_models import CASES, W, weights_of, write

TEXT = "abcdefghij klmnop " * 20


def computed(path: Path, size: int, *, with_output: bool = False) -> tuple[Importance, list[list[int]]]:
    watcher = Collector(with_output=with_output)
    with Model.from_gguf(path, capacity=size, watcher=watcher) as model:
        chunks = chunks_of(model, TEXT, size, 2)
        return importance_of(model, watcher, chunks, "text"), [with_begin(model, chunk) for chunk in chunks]


def test_sums_of_squares_of_each_column(tmp_path: Path) -> None:
    """Of the first layer's normed rows; and of hidden states, which the output reads."""
    case, path = CASES["llama"], tmp_path / "m.gguf"
    write(case, path)
    found, ids = computed(path, 16, with_output=True)
    weights = weights_of(case)
    rows = weights["token_embd.weight"][np.concatenate(ids)].astype(np.float64)
    rows = rows / np.sqrt((rows**2).mean(1, keepdims=True) + 1e-5) * weights["blk.0.attn_norm.weight"]
    for name in ("attn_q", "attn_k", "attn_v"):
        columns = found.columns[f"blk.0.{name}.weight"]
        np.testing.assert_allclose(columns.sums, [(rows**2).sum(0)], rtol=1e-4)
        np.testing.assert_array_equal(columns.counts, [32])
    assert (found.texts, found.chunks, found.size) == (["text"], 2, 16)
    wanted = {name for name in weights if name.startswith("blk.") and weights[name].ndim == 2} | {"output.weight"}
    assert found.columns.keys() == wanted
    with Model.from_gguf(path, capacity=16) as model:
        hidden = np.concatenate([model.hidden(chunk).numpy() for chunk in ids]).astype(np.float64)
    np.testing.assert_allclose(found.columns["output.weight"].sums, [(hidden**2).sum(0)], rtol=1e-4)


@pytest.mark.parametrize("name", ["qwen3moe", "gpt-oss"])
def test_rows_that_fill_up_tiles_do_not_count(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of experts: the same sums as with a tile for each token."""
    write(CASES[name], tmp_path / "m.gguf")
    found, _ = computed(tmp_path / "m.gguf", 32)
    apart = experts.apart
    monkeypatch.setattr(architecture, "apart", lambda x, choice, count, *others: apart(x, choice, 1 << 20, *others))
    alone, _ = computed(tmp_path / "m.gguf", 32)
    layers = [name for name in found.columns if name.endswith("_exps.weight")]
    assert layers
    for layer in layers:
        columns, other = found.columns[layer], alone.columns[layer]
        assert columns.sums.shape[0] == 6
        assert columns.counts.sum() == 2 * 64
        np.testing.assert_array_equal(columns.counts, other.counts)
        np.testing.assert_allclose(columns.sums, other.sums, rtol=1e-3, atol=1e-5)
    assert found.columns["blk.0.attn_q.weight"].sums.shape == (1, W)


def test_an_encoder_is_refused(tmp_path: Path) -> None:
    write(CASES["bert"], tmp_path / "m.gguf")
    with pytest.raises(SettingError, match="imatrix: bert is an encoder"):
        computed(tmp_path / "m.gguf", 16)
