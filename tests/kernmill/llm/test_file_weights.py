"""Weights of a file in memory are the values of the file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kernmill import Tensor
from kernmill.formats import gguf
from kernmill.llm.arch.weight import linear
from kernmill.llm.file_weights import arena_for, loaded
from kernmill.llm.kept_weights import KeptWeights
from kernmill.quant import save


def test_a_matrix_gives_the_products_of_the_file(tmp_path: Path) -> None:
    chance = np.random.default_rng(1)
    matrix = chance.standard_normal((64, 32)).astype(np.float32)
    path = tmp_path / "model.gguf"
    save(path, {"blk.0.ffn_up.weight": Tensor(matrix), "output_norm.weight": Tensor(matrix[0])}, {})
    file = gguf.read(path)
    with_arena = arena_for(file)
    x = chance.standard_normal((3, 32)).astype(np.float32)
    found = linear(Tensor(x), loaded(file, "blk.0.ffn_up.weight", with_arena, KeptWeights(file))).numpy()
    np.testing.assert_allclose(found, x @ matrix.T, rtol=1e-4, atol=1e-4)
    vector = loaded(file, "output_norm.weight", with_arena, KeptWeights(file))
    assert isinstance(vector, Tensor)
    np.testing.assert_array_equal(vector.numpy(), matrix[0])
