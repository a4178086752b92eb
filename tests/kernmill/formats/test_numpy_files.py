"""NumPy's files: arrays come back, and what is not numbers is refused."""

from __future__ import annotations

import contextlib
import random
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import FormatError, nn

ARRAYS: dict[str, Any] = {
    "f": np.arange(6, dtype=np.float32).reshape(2, 3), "d": np.ones((), np.float64), "h": np.ones(3, np.float16),
    "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)), "big": np.arange(3, dtype=">i4"),
    "bool": np.array([True, False]), "empty": np.zeros((0, 2), np.uint16),
}  # fmt: skip


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_arrays_come_back(save: Any, tmp_path: Path) -> None:
    save(tmp_path / "a.npz", **ARRAYS)
    found = nn.state.load(tmp_path / "a.npz")
    assert list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found[name].numpy(), array)
        assert found[name].dtype.name == array.dtype.name
        np.save(tmp_path / "a.npy", array)
        np.testing.assert_array_equal(nn.state.load(tmp_path / "a.npy").numpy(), array)


def test_an_empty_archive(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz")
    assert nn.state.load(tmp_path / "a.npz") == {}


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.array(["a"]), "array 'x': <U1 of shape \\(1,\\) is not supported: numbers and bools are"),
        (np.array([None]), "object of shape"),
        (np.ones(2, np.complex64), "complex64 of shape"),
        (np.zeros(2, [("a", "f4")]), "is not supported"),
        (np.ones(2, np.longdouble), "is not supported"),
    ],
)
def test_other_types_are_named(array: Any, text: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=array)
    with pytest.raises(FormatError, match=text):
        nn.state.load(tmp_path / "a.npz")


def test_a_header_that_lies(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, 3), np.float32))
    data = (tmp_path / "a.npy").read_bytes()
    for shape in (b"(2, 4)", b"(9, 9)", b"(-1,3)"):
        (tmp_path / "a.npy").write_bytes(data.replace(b"(2, 3)", shape))
        with pytest.raises(FormatError, match=r"does not fit 24 bytes|is not supported"):
            nn.state.load(tmp_path / "a.npy")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed, np.save])
def test_damaged_files_are_refused_or_read(save: Any, tmp_path: Path) -> None:
    path = tmp_path / ("a.npy" if save is np.save else "a.npz")
    save(path, np.arange(20.0).reshape(4, 5))
    data, draw = path.read_bytes(), random.Random(3)
    for _ in range(200):
        changed = bytearray(data)
        for _ in range(draw.choice((1, 2, 8))):
            changed[draw.randrange(len(data))] = draw.randrange(256)
        path.write_bytes(changed[: draw.randrange(len(data))] if draw.random() < 0.3 else changed)
        with contextlib.suppress(FormatError):
            nn.state.load(path)


@pytest.mark.parametrize("suffix", ["npy", "npz"])
def test_more_axes_than_numpy_has(suffix: str, tmp_path: Path) -> None:
    """The sentences spoke of a path that cannot be used, and of a damaged archive."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"1, " * 500 + b")}\n"
    data = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(4)
    path = tmp_path / f"x.{suffix}"
    if suffix == "npz":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a.npy", data)
    else:
        path.write_bytes(data)
    with pytest.raises(FormatError, match="500 axes are not supported: arrays have up to 64"):
        nn.state.load(path)
