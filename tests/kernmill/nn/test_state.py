"""Weights into files and back, with the safetensors package as the other side."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from kernmill import DType, DTypeError, FormatError, Tensor, dtypes, nn

safetensors_numpy = pytest.importorskip("safetensors.numpy")


@pytest.mark.parametrize("dtype", dtypes.data, ids=str)
def test_every_dtype_comes_back(tmp_path: Path, dtype: DType) -> None:
    tensor = Tensor([0, 1, 1, 0, 1, 1], dtype).reshape(2, 3)
    path = tmp_path / "x.safetensors"
    nn.state.save(path, {"a": tensor, "empty": Tensor.zeros(0, 4, dtype=dtype), "one": tensor[0, 1]})
    back = nn.state.load(path)
    assert {name: (t.dtype, t.shape) for name, t in back.items()} == {
        "a": (dtype, (2, 3)), "empty": (dtype, (0, 4)), "one": (dtype, ()),
    }  # fmt: skip
    assert back["a"].tolist() == tensor.tolist()


def test_the_package_reads_what_we_write(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    layer = nn.Linear(3, 2)
    nn.state.save(path, layer, {"made by": "kernmill"})
    theirs = safetensors_numpy.load_file(path)
    assert layer.bias is not None
    np.testing.assert_array_equal(theirs["weight"], layer.weight.numpy())
    np.testing.assert_array_equal(theirs["bias"], layer.bias.numpy())
    assert nn.state.load_metadata(path) == {"made by": "kernmill"}


def test_we_read_what_the_package_writes(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    arrays = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "h": np.ones(3, np.float16), "i": np.array([2**40])}
    safetensors_numpy.save_file(arrays, path)
    for name, tensor in nn.state.load(path).items():
        np.testing.assert_array_equal(tensor.numpy(), arrays[name])


def test_a_file_that_is_in_use_may_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    nn.state.save(path, {"a": Tensor.ones(3)})
    old = nn.state.load(path)["a"]
    nn.state.save(path, {"a": old * 2})
    assert old.tolist() == [1, 1, 1]
    assert nn.state.load(path)["a"].tolist() == [2, 2, 2]
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]


def test_weights_of_a_file_can_be_trained(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    nn.state.save(path, {"a": Tensor.ones(3)})
    weight = nn.state.load(path)["a"].requires_grad_()
    optimizer = nn.optim.SGD([weight], lr=0.5)
    weight.sum().backward()
    optimizer.step()
    assert weight.tolist() == [0.5, 0.5, 0.5]
    assert nn.state.load(path)["a"].tolist() == [1, 1, 1]


def test_a_bool_is_0_or_1(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    nn.state.save(path, {"a": Tensor([True, False])})
    path.write_bytes(path.read_bytes()[:-1] + b"\2")
    with pytest.raises(FormatError, match="tensor 'a': a BOOL is 2, not 0 or 1"):
        nn.state.load(path)


def test_saving_with_the_path_last_says_the_order(tmp_path: Path) -> None:
    with pytest.raises(DTypeError, match=r"save: str in place of tensors\. Write save\(path, state\)"):
        nn.state.save(nn.Linear(2, 2).state_dict(), str(tmp_path / "w.safetensors"))  # type: ignore[arg-type]
