"""Weights into files and back, with the safetensors package as the other side."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import DType, DTypeError, FormatError, Tensor, dtypes, nn, quant
from kernmill.formats import safetensors
from kernmill.runtime import get_device

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
    with pytest.raises(DTypeError, match=r"save: str instead of tensors\. Write save\(path, state\)"):
        nn.state.save(nn.Linear(2, 2).state_dict(), str(tmp_path / "w.safetensors"))  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [0, 1, 1000, 4096, 50_000])
@pytest.mark.parametrize("kind", ["safetensors", "gguf"])
def test_a_file_that_is_cut_short_or_overwritten_changes_no_tensor(
    kind: str, size: int, device: str, tmp_path: Path
) -> None:
    values = np.arange(1 << 14, dtype=np.float32)
    path = tmp_path / f"state.{kind}"
    state = {"a": Tensor(values), "b": Tensor(values.astype(np.int32)[:100])}
    if kind == "gguf":
        quant.save(path, state, {"general.architecture": "none"})
        loaded: Any = quant.load(path)
    else:
        nn.state.save(path, state)
        loaded = nn.state.load(path)
    os.truncate(path, size)
    with path.open("r+b") as file:
        file.write(b"\xff" * size)
    np.testing.assert_array_equal(loaded["a"].numpy(), values)
    assert (loaded["a"] + 1).sum().item() == pytest.approx(float((values + 1).sum()))
    np.testing.assert_array_equal(loaded["b"].numpy(), values.astype(np.int32)[:100])


def test_mapping_a_file_is_an_option(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    nn.state.save(path, {"a": Tensor([1.0, 2.0, 3.0])})
    mapped, copied = nn.state.load(path, mmap=True)["a"], nn.state.load(path)["a"]
    with path.open("r+b") as file:
        file.seek(-12, os.SEEK_END)
        file.write(np.array([7.0, 8.0, 9.0], np.float32).tobytes())
    assert copied.tolist() == [1.0, 2.0, 3.0]
    if mapped.device == "LLVM":
        assert mapped.tolist() == [7.0, 8.0, 9.0]


def test_a_file_that_becomes_shorter_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state.safetensors"
    nn.state.save(path, {"a": Tensor.ones(5000)})
    parse = safetensors.parse

    def cut(*args: Any) -> Any:
        found = parse(*args)
        os.truncate(path, 10_000)
        return found

    monkeypatch.setattr(safetensors, "parse", cut)
    with pytest.raises(FormatError) as caught:
        nn.state.load(path)
    begin = os.path.getsize(path) and caught.value.args[0].split("at byte ")[1].split(":")[0]
    assert str(caught.value) == (
        f"{path}: at byte {begin}: 20000 bytes were expected and {10_000 - int(begin)} could be read. The file was "
        "truncated while it was read; load it again."
    )


def test_gguf_files_are_states(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    weight = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
    state: dict[str, Any] = {"a": Tensor([1.0, 2.0]), "w": quant.QuantizedTensor.quantize(Tensor(weight), "Q8_0")}
    quant.save(path, state, {"general.architecture": "none"})
    found = nn.state.load(path)
    assert found["a"].tolist() == [1, 2]
    assert isinstance(found["w"], quant.QuantizedTensor)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(FormatError, match=r"m\.gguf"):
        nn.state.load(path)


def test_loaded_tensors_are_in_memory_that_is_reused(tmp_path: Path) -> None:
    """Fresh pages from the system for each tensor took half the time of a load."""
    path = tmp_path / "x.safetensors"
    nn.state.save(path, {"a": Tensor(np.arange(1 << 16, dtype=np.float32))})
    allocator = get_device("LLVM").allocator
    before = allocator.held_bytes()[0]
    loaded = nn.state.load(path, device="LLVM")["a"]
    assert allocator.held_bytes()[0] >= before + loaded.nbytes
    loaded[0] = 5.0  # a write moves it: nobody else sees it
    again = nn.state.load(path, device="LLVM")["a"]
    assert (loaded[0].item(), loaded[1].item(), again[0].item()) == (5.0, 1.0, 0.0)
