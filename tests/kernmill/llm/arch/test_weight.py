from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import Context, FormatError, Tensor, dtypes
from kernmill.llm.arch import Config, weight
from kernmill.llm.arch.weight import linear, nbytes, rows
from kernmill.llm.generate import Model
from kernmill.quant import QuantizedTensor, prefers_interleaved_rows

Array = np.ndarray[Any, Any]


class Bytes:
    """A matrix of int8 with one scale for each row: a form of its own."""

    def __init__(self, values: Array) -> None:
        scale = np.abs(values).max(-1, keepdims=True) / 127
        self.codes, self.scale = Tensor(np.round(values / scale).astype(np.int8)), Tensor(scale.astype(np.float32))
        self.shape, self.nbytes, self.device = values.shape, values.size + 4 * scale.size, self.codes.device

    def values(self) -> Array:
        return np.asarray(self.codes.numpy() * self.scale.numpy(), np.float64)

    def rows(self, ids: Tensor) -> Tensor:
        return self.codes[ids].float() * self.scale[ids]

    def linear(self, x: Tensor) -> Tensor:
        return x.linear(self.codes.float() * self.scale)


def test_rows_and_products_of_tensors() -> None:
    weight, x = np.arange(12, dtype=np.float16).reshape(4, 3), np.ones((2, 3), np.float32)
    assert rows(Tensor(weight), Tensor([[1, 3]])).tolist() == [[[3, 4, 5], [9, 10, 11]]]
    expected = x @ weight.T.astype(np.float32) + [1, 2, 3, 4]
    np.testing.assert_array_equal(linear(Tensor(x), Tensor(weight), Tensor([1.0, 2, 3, 4])).numpy(), expected)


def test_a_model_of_matrices_in_a_form_of_their_own(tiny: Any) -> None:
    made = tiny.make("llama", {}, {})
    weights: dict[str, Any] = {}
    for name, array in made.weights.items():
        weights[name] = Bytes(array) if array.ndim == 2 else Tensor(array.astype(np.float32))
        made.weights[name] = weights[name].values() if array.ndim == 2 else array
    model = Model(Config.of(made.metadata), weights.get, capacity=16, block=4)
    assert model.memory().weights == sum(map(nbytes, weights.values()))
    expected = tiny.Reference(made).logits(tiny.IDS)
    np.testing.assert_allclose(model.logits(tiny.IDS).numpy(), expected, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(model.next_logits(tiny.IDS[:5]), expected[4], rtol=2e-4, atol=2e-5)


def test_a_vector_must_be_plain(tiny: Any) -> None:
    made = tiny.make("llama", {}, {})
    weights: dict[str, Any] = {name: Tensor(array.astype(np.float32)) for name, array in made.weights.items()}
    weights["output_norm.weight"] = Bytes(made.weights["output_norm.weight"])
    with pytest.raises(FormatError, match=r"^output_norm\.weight is quantized: norms and biases must be floats\."):
        Model(Config.of(made.metadata), weights.get, capacity=16)


@pytest.mark.parametrize("values", ["Q8_0", "Q4_0", None])
def test_matrices_with_the_same_x_become_one(
    values: str | None, made: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they have one type: queries and keys alone where values have another. Biases stay what they are."""
    kinds = {"attn_v": values, "ffn_up": "Q8_0"} if values else {}
    chance = np.random.default_rng(6)
    tensors: dict[str, Any] = {
        f"blk.0.{name}.weight": QuantizedTensor.quantize(Tensor(chance.standard_normal((32, 32), np.float32)), kind)
        for name, kind in kinds.items()
        if kind is not None
    }
    tensors["blk.0.attn_k.bias"] = Tensor(chance.standard_normal(32, np.float32))
    path = made("Q8_0" if values else None, tensors=tensors)
    with Context(DEVICE="LLVM"):
        together = Model.from_gguf(path, block=4)
        monkeypatch.setattr(weight, "joined", lambda matrices: None)
        apart = Model.from_gguf(path, block=4)
        rows = {name: matrix.shape[0] for name, matrix in together.architecture.matrices[0].items()}
        if values or prefers_interleaved_rows(dtypes.float32):
            joined = {"attn_q.weight": 96} if values != "Q4_0" else {"attn_q.weight": 64, "attn_v.weight": 32}
            assert rows == joined | {"attn_output.weight": 32, "ffn_gate.weight": 64, "ffn_down.weight": 32}
        assert len(apart.architecture.matrices[0]) == 7
        assert together.architecture.bytes_by_layout == apart.architecture.bytes_by_layout
        for ids in ([5], [5, 9, 200, 7, 30, 31, 8]):
            np.testing.assert_allclose(together.next_logits(ids), apart.next_logits(ids), rtol=1e-4, atol=1e-4)
