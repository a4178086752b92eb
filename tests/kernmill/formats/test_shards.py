"""The index of weights in several files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kernmill import FormatError, Tensor, nn


def made(folder: Path, table: Any = None) -> Path:
    nn.state.save(folder / "m-1.safetensors", {"a": Tensor([1.0]), "b": Tensor([2.0])})
    nn.state.save(folder / "m-2.safetensors", {"c": Tensor([3.0])})
    table = table or {"a": "m-1.safetensors", "b": "m-1.safetensors", "c": "m-2.safetensors"}
    index = folder / "m.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 12}, "weight_map": table}))
    return index


@pytest.mark.parametrize("mmap", [True, False])
def test_all_files_are_one_state(tmp_path: Path, mmap: bool) -> None:
    found = nn.state.load(made(tmp_path), mmap=mmap)
    assert {name: tensor.item() for name, tensor in found.items()} == {"a": 1, "b": 2, "c": 3}


def test_parts_of_pytorch(tmp_path: Path) -> None:
    torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
    torch.save({"a": torch.ones(2)}, tmp_path / "p.bin")
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "p.bin"}}))
    assert nn.state.load(index)["a"].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ({"a": "../m-1.safetensors"}, "its file is '../m-1.safetensors', which is not a name in the same folder"),
        ({"a": "/etc/passwd"}, "is not a name in the same folder"),
        ({"a": ".."}, "is not a name in the same folder"),
        ({"a": ""}, "is not a name in the same folder"),
        ({"a": 3}, "is not a name in the same folder"),
        ({"a": "m-1.safetensors"}, r"m-1\.safetensors and the index differ in b\."),
        ({"c": "m-2.safetensors", "d": "m-2.safetensors"}, "differ in d"),
        ({"a": "missing.safetensors"}, "No such file"),
        ({"a": "m.safetensors.index.json"}, "is another index"),
        (["a"], "it has no weight_map"),
    ],
)
def test_an_index_that_lies(tmp_path: Path, table: Any, text: str) -> None:
    with pytest.raises(FormatError, match=text):
        nn.state.load(made(tmp_path, table))


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b"\xff\xfe", b"[" * 100_000, b'{"weight_map": {}}'])
def test_bytes_that_are_no_index(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "m.json").write_bytes(data)
    with pytest.raises(FormatError, match=r"m\.json: (is not valid JSON|it has no weight_map)"):
        nn.state.load(tmp_path / "m.json")
