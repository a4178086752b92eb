from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kernmill import FormatError, Tensor
from kernmill.llm.arch import Config
from kernmill.llm.arch.weight import linear, nbytes, rows
from kernmill.llm.generate import Model

Array = np.ndarray[Any, Any]


class Bytes:
    """A matrix of int8 with one scale for each row: a form of its own."""

    def __init__(self, values: Array) -> None:
        scale = np.abs(values).max(-1, keepdims=True) / 127
        self.codes, self.scale = Tensor(np.round(values / scale).astype(np.int8)), Tensor(scale.astype(np.float32))
        self.shape, self.nbytes = values.shape, values.size + 4 * scale.size

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
    with pytest.raises(
        FormatError, match=r"^output_norm\.weight is in a packed form, and norms and biases are plain\."
    ):
        Model(Config.of(made.metadata), weights.get, capacity=16)
