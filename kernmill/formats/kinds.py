"""The kind of a weight file by its first bytes: which reader reads it, or the remedy."""

from __future__ import annotations

import os

from .disk import opened

__all__ = ["kind_of", "other_kind"]

_SAVE = "nn.state.save(path, {name: Tensor(array) for name, array in arrays.items()})"
_LOAD = "nn.state.load(path)"
_HEAD_BYTES = 264  # the name of a tar archive ends there
# first bytes, content of the first 264, the reader, description, remedy
_KINDS: tuple[tuple[tuple[bytes, ...], bytes, str, str, str], ...] = (
    ((b"PK\x03\x04",), b".npy", "npz", "is a NumPy archive (.npz)", _LOAD),
    ((b"PK\x03\x04",), b"", "torch", "is a zip archive, as PyTorch writes checkpoints (.pt, .pth)", _LOAD),
    ((b"PK\x05\x06",), b"", "npz", "is an empty zip archive", _LOAD),
    ((b"GGUF",), b"", "gguf", "is a GGUF file", _LOAD),
    ((b"\x93NUMPY",), b"", "npy", "is a NumPy array (.npy)", _LOAD),
    (tuple(bytes((0x80, protocol)) for protocol in range(2, 6)), b"", "torch",
     "is a Python pickle, as an old PyTorch checkpoint", _LOAD),
    ((b"\x89HDF\r\n\x1a\n",), b"", "", "is an HDF5 file, as Keras writes weights",
     f"arrays with the package h5py, then {_SAVE}"),
    (tuple(bytes((8, version)) for version in range(1, 32)), b"", "", "is a protocol buffer, as an ONNX model",
     "kernmill.onnx.load(path)"),
    ((b"\x1f\x8b",), b"", "", "is a gzip file", "gzip -d first"),
    ((b"version https://git-lfs",), b"", "", "is a Git LFS pointer instead of the file", "git lfs pull"),
    ((b"<",), b"", "", "is a web page or XML", "the address of the file itself"),
    (tuple(bytes((0x80 + n, 0xA0 + k)) for n in range(1, 16) for k in range(1, 32)), b"", "",
     "is MessagePack, as Flax writes weights", f"arrays from flax.serialization.msgpack_restore, then {_SAVE}"),
    ((b"",), b"TFL3", "", "is a TensorFlow Lite model", f"its arrays, then {_SAVE}"),
    ((b"",), b"ustar", "", "is a tar archive", "tar -xf first"),
)  # fmt: skip


def kind_of(path: str | os.PathLike[str]) -> str:
    """Return the reader of a file: `torch`, `npz`, `npy`, `gguf`, `index`, or `safetensors` for everything else.

    Raises:
        FormatError: the file does not exist or cannot be read.
    """
    if os.fspath(path).endswith(".json"):
        return "index"
    with opened(path, "safetensors") as (file, size):
        head = file.read(_HEAD_BYTES)
    is_header = head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= size
    return "safetensors" if is_header else _kind_row(head)[0] or "safetensors"


def other_kind(data: memoryview | bytes) -> str:
    """Return a sentence about a file of another format, to be put after its path; empty where the bytes say nothing."""
    _, what, remedy = _kind_row(bytes(data[:_HEAD_BYTES]))
    return f"{what}. Use {remedy}." if what else ""


def _kind_row(head: bytes) -> tuple[str, str, str]:
    """The reader, the description and the remedy for these first bytes; empty for unknown ones."""
    for magic, inside, reader, what, remedy in _KINDS:
        if head.startswith(magic) and inside in head:
            return reader, what, remedy
    return "", "", ""
