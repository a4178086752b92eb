"""Files of other formats: the error says what the file is and what to do."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import FormatError, Tensor, nn

SAVE = "then nn.state.save(path, {name: Tensor(array) for name, array in arrays.items()})"


def said(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(FormatError) as raised:
        nn.state.load(path)
    return str(raised.value).removeprefix(f"{path}: ")


def test_a_file_is_named_by_its_first_bytes(tmp_path: Path) -> None:
    """Named regression: a `.pt` file was "damaged", with a header length of 85966670672."""
    path = tmp_path / "m"
    np.savez(tmp_path / "a.npz", w=np.ones(3))
    assert said(path, (tmp_path / "a.npz").read_bytes()) == (
        f"is a NumPy archive (.npz). Use arrays = np.load(path), {SAVE}."
    )
    np.save(tmp_path / "a.npy", np.ones(3))
    assert said(path, (tmp_path / "a.npy").read_bytes()) == "is a NumPy array (.npy). Use Tensor(np.load(path))."
    assert said(path, b"GGUF" + bytes(20)) == "is a GGUF file. Use kernmill.llm.Model.from_gguf(path)."
    assert said(path, pickle.dumps({"a": 1})).startswith(
        "is a Python pickle, as an old PyTorch checkpoint. Use arrays = t"
    )
    assert said(path, b"\x89HDF\r\n\x1a\n" + bytes(9)).startswith(
        "is an HDF5 file, as Keras writes weights. Use arrays w"
    )
    assert said(path, bytes.fromhex("08071204707974")).startswith(
        "is a protocol buffer, as an ONNX model. Use arrays wit"
    )
    assert said(path, b"\x1f\x8b" + bytes(9)) == "is a gzip file. Use gzip -d first."
    assert said(path, b"<!DOCTYPE html>") == "is a web page or XML. Use the address of the file itself."
    assert said(path, b"version https://git-lfs.github.com/spec/v1") == (
        "is a Git LFS pointer instead of the file. Use git lfs pull."
    )
    assert said(path, b"\xff" * 30).startswith("at byte 0: the header length")


@pytest.mark.parametrize("is_new", [True, False])
def test_a_checkpoint_of_torch(tmp_path: Path, is_new: bool) -> None:
    torch: Any = pytest.importorskip("torch")
    torch.save({"w": torch.ones(3)}, tmp_path / "m.pt", _use_new_zipfile_serialization=is_new)
    text = said(tmp_path / "copy", (tmp_path / "m.pt").read_bytes())
    assert "PyTorch" in text
    assert text.endswith(f"Use arrays = torch.load(path, weights_only=True) where PyTorch is installed, {SAVE}.")


def test_every_length_of_a_header_is_still_read(tmp_path: Path) -> None:
    """A header of 60 to 700 bytes begins with every byte, also those of other formats."""
    for pad in range(300):
        nn.state.save(tmp_path / "m", {"a" * (1 + pad): Tensor([1.0])})
        assert list(nn.state.load(tmp_path / "m")) == ["a" * (1 + pad)]
