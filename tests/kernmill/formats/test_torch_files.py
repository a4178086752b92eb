"""Checkpoints of PyTorch, both formats: values, nested containers, damaged and hostile files."""

from __future__ import annotations

import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import FormatError, Tensor, nn

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")


def checkpoint() -> dict[str, Any]:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3, "best": np.float64(1.5)}


def same(mine: Any, theirs: Any) -> None:
    if isinstance(theirs, torch.Tensor):
        assert mine.dtype.name == str(theirs.dtype).removeprefix("torch.")
        np.testing.assert_array_equal(mine.float().numpy(), theirs.detach().float().numpy())
    elif isinstance(theirs, dict):
        assert list(mine) == list(theirs)
        for key, value in theirs.items():
            same(mine[key], value)
    elif isinstance(theirs, (list, tuple)):
        assert len(mine) == len(theirs)
        for a, b in zip(mine, theirs, strict=True):
            same(a, b)
    else:
        assert mine == theirs


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("mmap", [True, False])
def test_nested_checkpoints(tmp_path: Path, is_new: bool, mmap: bool, device: str) -> None:
    state = checkpoint()
    torch.save(state, tmp_path / "c.pt", _use_new_zipfile_serialization=is_new)
    same(nn.state.load(tmp_path / "c.pt", device, mmap=mmap), state)


@pytest.mark.parametrize("is_new", [True, False])
def test_tensors_of_every_kind(tmp_path: Path, is_new: bool) -> None:
    base = torch.arange(24.0).reshape(2, 3, 4)
    state = {
        "transposed": base.transpose(0, 2), "slice": base[1, :, 1:3], "steps": torch.arange(10)[1:9:2],
        "scalar": torch.tensor(5), "empty": torch.zeros(0, 3), "parameter": torch.nn.Parameter(base[0]),
        **{name: torch.tensor([0, 1, 1]).to(getattr(torch, name)) for name in (
            "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")},
        **({name: torch.ones(2, dtype=getattr(torch, name)) for name in ("uint16", "uint32", "uint64")}),
    }  # fmt: skip
    torch.save(state, tmp_path / "c.pt", _use_new_zipfile_serialization=is_new)
    same(nn.state.load(tmp_path / "c.pt"), state)
    torch.save(base, tmp_path / "t.pt", _use_new_zipfile_serialization=is_new)
    same(nn.state.load(tmp_path / "t.pt"), base)


def test_a_tensor_with_two_names_is_one(tmp_path: Path) -> None:
    weight = torch.ones(3)
    torch.save({"a": weight, "b": weight}, tmp_path / "c.pt")
    found = nn.state.load(tmp_path / "c.pt")
    assert found["a"] is found["b"]


def test_a_model_takes_the_weights(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(3, 2).state_dict(), tmp_path / "pytorch_model.bin")
    nn.Linear(3, 2).load_state_dict(nn.state.load(tmp_path / "pytorch_model.bin"))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: torch.nn.Linear(2, 2), r"objects of torch\.nn\.modules\.linear\.Linear, and kernmill runs no code"),
        (lambda: {"a": torch.ones(2, dtype=torch.complex64)}, "tensor 'a': the dtype complex64 is not supported"),
        (lambda: torch.ones(1).expand(1000), "1000 elements are repeated from 1. Save it with"),
        (lambda: {"a": {"b": torch.nn.Linear}}, r"'a\.b' is torch\.nn\.modules\.linear\.Linear, not a tensor"),
        (lambda: torch.ones(3).to_sparse(), "_rebuild_sparse_tensor"),
    ],
)
@pytest.mark.parametrize("is_new", [True, False])
def test_other_objects_are_named(tmp_path: Path, make: Callable[[], Any], text: str, is_new: bool) -> None:
    torch.save(make(), tmp_path / "c.pt", _use_new_zipfile_serialization=is_new)
    with pytest.raises(FormatError, match=text):
        nn.state.load(tmp_path / "c.pt")


def test_a_program_of_torchscript(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "s.pt", "w") as archive:
        for name in ("s/data.pkl", "s/constants.pkl"):
            archive.writestr(name, b"\x80\x02N.")
    with pytest.raises(FormatError, match="is a program of TorchScript"):
        nn.state.load(tmp_path / "s.pt")


def rewritten(path: Path, change: Callable[[str, bytes], tuple[str, bytes]], **options: Any) -> None:
    with zipfile.ZipFile(path) as archive:
        parts = [(info.filename, archive.read(info)) for info in archive.infolist()]
    with zipfile.ZipFile(path, "w", **options) as archive:
        for name, data in parts:
            archive.writestr(*change(name, data))


CHANGES: dict[str, tuple[Callable[[str, bytes], tuple[str, bytes]], dict[str, Any], str]] = {
    "compressed": (lambda n, d: (n, d), {"compression": zipfile.ZIP_DEFLATED}, "it is compressed or encrypted"),
    "big-endian": (lambda n, d: (n, b"big") if n.endswith("byteorder") else (n, d), {}, "big-endian"),
    "a short storage": (lambda n, d: (n, d[:8]) if n.endswith("data/0") else (n, d), {}, "8 bytes instead of 24"),
    "no storage": (lambda n, d: (n.replace("data/0", "other"), d), {}, "the storage '0' is missing"),
    "no pickle": (lambda n, d: (n.replace("data.pkl", "x"), d), {}, r"without PyTorch's data\.pkl"),
    "a larger shape": (lambda n, d: (n, d.replace(b"K\x03", b"K\x09")) if n.endswith("pkl") else (n, d), {},
                       "does not fit the|bytes instead of"),
    "a huge shape": (lambda n, d: (n, d.replace(b"K\x02K\x03\x86", b"J\xff\xff\xff\x7fK\x00\x86")), {}, ""),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_file_that_contradicts_itself(tmp_path: Path, name: str) -> None:
    change, options, text = CHANGES[name]
    path = tmp_path / "c.pt"
    torch.save({"w": torch.ones(2, 3)}, path)
    rewritten(path, change, **options)
    if text:
        with pytest.raises(FormatError, match=text):
            nn.state.load(path)
    else:
        assert nn.state.load(path)["w"].numel() == 0


def test_tensors_that_overlap_take_no_memory(tmp_path: Path) -> None:
    base = torch.zeros(1 << 16)
    torch.save({i: base[i : i + (1 << 15)] for i in range(100)}, tmp_path / "c.pt")
    with pytest.raises(FormatError, match="overlap so much that they take more than eight times the file"):
        nn.state.load(tmp_path / "c.pt")


def test_a_changed_value_is_found(tmp_path: Path) -> None:
    path = tmp_path / "c.pt"
    torch.save({"w": torch.full((64,), 3.0)}, path)
    path.write_bytes(
        path.read_bytes().replace(b"\x00\x00\x40\x40" * 64, b"\x00\x00\x40\x40" * 63 + b"\x00\x00\x40\x41")
    )
    with pytest.raises(FormatError, match="its bytes do not have the checksum"):
        nn.state.load(path)
    assert nn.state.load(path, mmap=True)["w"].numpy()[-1] == 12


def test_files_without_checksums_open(tmp_path: Path) -> None:
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(False)
    try:
        torch.save({"w": torch.ones(3)}, tmp_path / "c.pt")
    finally:
        torch.serialization.set_crc32_options(before)
    assert nn.state.load(tmp_path / "c.pt")["w"].tolist() == [1, 1, 1]


@pytest.mark.parametrize("is_new", [True, False])
def test_damaged_files_are_refused_or_read(tmp_path: Path, is_new: bool) -> None:
    path = tmp_path / "c.pt"
    torch.save({"w": torch.ones(2, 3), "n": [1, "a"]}, path, _use_new_zipfile_serialization=is_new)
    data, draw = path.read_bytes(), random.Random(7)
    for _ in range(150):
        changed = bytearray(data)
        for _ in range(draw.choice((1, 2, 8))):
            changed[draw.randrange(len(data))] = draw.randrange(256)
        path.write_bytes(changed[: draw.randrange(len(data))] if draw.random() < 0.3 else changed)
        try:
            found = nn.state.load(path)
        except FormatError:
            continue
        assert not isinstance(found, dict) or all(not isinstance(t, Tensor) or t.numpy() is not None for t in found)
