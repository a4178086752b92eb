"""Files of other formats: the error says what the file is and what to do."""

from __future__ import annotations

import pickle
from pathlib import Path

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
    assert said(path, b"\x89HDF\r\n\x1a\n" + bytes(9)).startswith(
        "is an HDF5 file, as Keras writes weights. Use arrays w"
    )
    assert said(path, bytes.fromhex("08071204707974")).startswith(
        "is a protocol buffer, as an ONNX model. Use kernmill.onnx.load(path)."
    )
    assert said(path, b"\x1f\x8b" + bytes(9)) == "is a gzip file. Use gzip -d first."
    assert said(path, b"<!DOCTYPE html>") == "is a web page or XML. Use the address of the file itself."
    assert said(path, b"version https://git-lfs.github.com/spec/v1") == (
        "is a Git LFS pointer instead of the file. Use git lfs pull."
    )
    assert said(path, b"\x81\xa6params" + bytes(40)).startswith(
        "is MessagePack, as Flax writes weights. Use arrays from f"
    )
    assert said(path, b"\x1c\0\0\0TFL3" + bytes(40)).startswith("is a TensorFlow Lite model. Use its arrays, then nn.s")
    assert said(path, b"m".ljust(257, b"\0") + b"ustar\0" + bytes(300)) == "is a tar archive. Use tar -xf first."
    assert said(path, b"\xff" * 30).startswith("at byte 0: the header length")


def test_the_reader_of_one_format_names_the_others(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", w=np.ones(3))
    with pytest.raises(FormatError, match=r"is a NumPy archive \(\.npz\)\. Use nn\.state\.load\(path\)\.$"):
        nn.state.load_metadata(tmp_path / "a.npz")
    (tmp_path / "b").write_bytes(pickle.dumps({"a": 1}))
    with pytest.raises(FormatError, match=r"is a Python pickle, as an old PyTorch checkpoint\. Use nn\.state\.load"):
        nn.state.load_metadata(tmp_path / "b")


def test_every_length_of_a_header_is_still_read(tmp_path: Path) -> None:
    """A header of 60 to 700 bytes begins with every byte, also those of other formats."""
    for pad in range(300):
        nn.state.save(tmp_path / "m", {"a" * (1 + pad): Tensor([1.0])})
        assert list(nn.state.load(tmp_path / "m")) == ["a" * (1 + pad)]
