"""The kind of a weight file by its first bytes, and the remedy."""

from __future__ import annotations

__all__ = ["other_kind"]

_SAVE = "nn.state.save(path, {name: Tensor(array) for name, array in arrays.items()})"
_TORCH = f"arrays = torch.load(path, weights_only=True) where PyTorch is installed, then {_SAVE}"
# first bytes, content of the first 256, description, remedy
_KINDS: tuple[tuple[tuple[bytes, ...], bytes, str, str], ...] = (
    ((b"PK\x03\x04",), b".npy", "is a NumPy archive (.npz)", f"arrays = np.load(path), then {_SAVE}"),
    ((b"PK\x03\x04",), b"", "is a zip archive, as PyTorch writes checkpoints (.pt, .pth)",
     _TORCH),
    ((b"GGUF",), b"", "is a GGUF file", "kernmill.llm.Model.from_gguf(path)"),
    ((b"\x93NUMPY",), b"", "is a NumPy array (.npy)", "Tensor(np.load(path))"),
    ((b"\x89HDF\r\n\x1a\n",), b"", "is an HDF5 file, as Keras writes weights",
     f"arrays with the package h5py, then {_SAVE}"),
    (tuple(bytes((0x80, protocol)) for protocol in range(2, 6)), b"",
     "is a Python pickle, as an old PyTorch checkpoint", _TORCH),
    (tuple(bytes((8, version)) for version in range(1, 32)), b"", "is a protocol buffer, as an ONNX model",
     f"arrays with onnx.numpy_helper.to_array of each graph.initializer, then {_SAVE}"),
    ((b"\x1f\x8b",), b"", "is a gzip file", "gzip -d first"),
    ((b"version https://git-lfs",), b"", "is a Git LFS pointer instead of the file", "git lfs pull"),
    ((b"<",), b"", "is a web page or XML", "the address of the file itself"),
)  # fmt: skip


def other_kind(data: memoryview | bytes) -> str:
    """Return a sentence about a file of another format, to be put after its path; empty where the bytes say nothing."""
    start = bytes(data[:256])
    for magic, inside, what, remedy in _KINDS:
        if start.startswith(magic) and inside in start:
            return f"{what}. Use {remedy}."
    return ""
