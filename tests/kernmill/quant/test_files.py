"""Tensors of GGUF files: there and back, of real models, and what is said of a file that lacks something."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import DTypeError, FormatError, Tensor, dtypes
from kernmill.formats import gguf
from kernmill.formats.gguf_types import tensor_type
from kernmill.formats.gguf_write import NewTensor, write
from kernmill.quant import QuantizedTensor, load, load_tensor, save

X = np.random.default_rng(6).standard_normal((2, 256)).astype(np.float32)


def test_there_and_back(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    plain = {
        dtype.name: Tensor([[1, -2, 3]]).cast(dtype)
        for dtype in (dtypes.float32, dtypes.float16, dtypes.bfloat16, dtypes.float64, dtypes.int8, dtypes.int64)
    }
    packed = {name: QuantizedTensor.quantize(Tensor(X), name) for name in ("Q4_K", "Q8_0")}
    save(path, {**plain, **packed}, {"general.architecture": "llama", "n": 3})
    found = load(path)
    assert list(found) == [*plain, *packed]
    for name, tensor in plain.items():
        back = found[name]
        assert isinstance(back, Tensor)
        assert (back.dtype, back.shape, back.tolist()) == (tensor.dtype, tensor.shape, tensor.tolist())
    for name, weight in packed.items():
        same = found[name]
        assert isinstance(same, QuantizedTensor)
        assert (same.type.name, same.shape) == (name, X.shape)
        np.testing.assert_array_equal(same.dequantize().numpy(), weight.dequantize().numpy())


def test_missing_and_unreadable(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    write(path, {}, {"sums": NewTensor(tensor_type("Q8_1"), (32,), memoryview(bytes(36)))})
    file = gguf.read(path)
    with pytest.raises(FormatError, match=r"x\.gguf: it has no tensor 'w'\. The model is not complete; convert"):
        load_tensor(file, "w")
    with pytest.raises(FormatError, match=r"tensor 'sums' is of type Q8_1, which is for computation only "):
        load_tensor(file, "sums")
    with pytest.raises(DTypeError, match=r"save: tensor 'b' is bool, which GGUF does not have\. Cast it to one of"):
        save(path, {"b": Tensor([True])}, {})
    given: Any = {"w": np.zeros(3)}
    with pytest.raises(DTypeError) as caught:
        save(path, given, {})
    assert str(caught.value) == (
        "save: tensor 'w' is of type ndarray. Give a Tensor or a QuantizedTensor; wrap data in Tensor(..)."
    )


def test_real_models_agree(shared_data: Callable[[str], Path]) -> None:
    """The same weights in four types; each with the error of its type."""
    folder = shared_data("babyllama105")
    name = "blk.0.ffn_up.weight"
    files = {kind: gguf.read(folder / f"babyllama105-{kind}.gguf") for kind in ("f32", "f16", "q8_0", "q4_0")}
    read = {kind: load_tensor(file, name) for kind, file in files.items()}
    values = {k: (t.dequantize() if isinstance(t, QuantizedTensor) else t.float()).numpy() for k, t in read.items()}
    want = values["f32"]
    assert want.shape == (352, 128)
    for kind, bound in {"f16": 3e-4, "q8_0": 6e-3, "q4_0": 0.1}.items():
        assert np.sqrt(np.mean((values[kind] - want) ** 2) / np.mean(want**2)) < bound, kind


def test_interleaved_rows_are_not_written(tmp_path: Path) -> None:
    """They were, as if they lay one after the other."""
    laid = QuantizedTensor.quantize(Tensor(np.ones((16, 32), np.float32)), "Q8_0").interleaved()
    with pytest.raises(FormatError, match="'w' has 16 rows interleaved"):
        save(tmp_path / "m.gguf", {"w": laid}, {})
