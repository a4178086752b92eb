"""Split files: names, metadata and tensors of the parts, as our reader and the package gguf read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import FormatError, Tensor
from kernmill.commands.cli import main
from kernmill.formats import gguf, gguf_split, gguf_write
from kernmill.formats.gguf_types import TYPES
from kernmill.quant import save


@pytest.fixture(autouse=True)
def on_device() -> None:
    """Nothing is computed."""


def source(path: Path, count: int = 5) -> dict[str, np.ndarray[Any, Any]]:
    arrays = {f"{n}.weight": np.full((n + 1, 8), n, np.float32) for n in range(count)}
    metadata = {"general.architecture": "llama", "general.name": "m", "words": ["a", "b"]}
    save(path, {name: Tensor(array) for name, array in arrays.items()}, metadata)
    return arrays


def test_parts_are_filled_in_order() -> None:
    sizes = {"a": 32, "b": 32, "c": 128, "d": 32}
    assert gguf_split.divided(sizes, most_tensors=3) == [["a", "b", "c"], ["d"]]
    assert gguf_split.divided(sizes, most_bytes=64) == [["a", "b"], ["c"], ["d"]]
    assert gguf_split.divided(sizes, 64, 1) == [["a"], ["b"], ["c"], ["d"]]
    assert gguf_split.divided({}) == [[]]


def test_a_file_becomes_several_and_one_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays = source(tmp_path / "in.gguf")
    assert main(["split", str(tmp_path / "in.gguf"), str(tmp_path / "out"), "--split-max-tensors", "2"]) == 0
    paths = [tmp_path / f"out-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        f"{path}: {n} tensors, {size} bytes" for path, n, size in zip(paths, (2, 2, 1), (96, 224, 160), strict=True)
    ]
    found = gguf.read(paths[0])
    assert found.paths == tuple(map(str, paths))
    assert list(found.entries) == list(arrays)
    for name, array in arrays.items():
        assert bytes(found.values(name)) == array.tobytes()
    package = pytest.importorskip("gguf")
    for n, path in enumerate(paths):
        reader = package.GGUFReader(path)
        keys = ("split.no", "split.count", "split.tensors.count")
        fields = [reader.get_field(key) for key in keys]
        assert [field.contents() for field in fields] == [n, 3, 5]
        assert [field.types[0].name for field in fields] == ["UINT16", "UINT16", "INT32"]
        assert (reader.get_field("general.name") is None) == (n > 0)
        assert {t.name for t in reader.tensors} == {name for name, entry in found.entries.items() if entry.part == n}
    assert main(["split", str(paths[0]), str(tmp_path / "one.gguf"), "--merge"]) == 0
    assert (tmp_path / "one.gguf").read_bytes() == (tmp_path / "in.gguf").read_bytes()


def test_parts_of_a_size(tmp_path: Path) -> None:
    source(tmp_path / "in.gguf")
    words = ["split", str(tmp_path / "in.gguf"), str(tmp_path / "out.gguf"), "--split-max-size"]
    assert main([*words, "1K"]) == 0
    assert gguf.read(tmp_path / "out-00001-of-00001.gguf").entries
    assert main([*words, "200"]) == 0
    assert len(gguf.read(tmp_path / "out-00001-of-00003.gguf").parts) == 3


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source(tmp_path / "in.gguf")
    one, out = str(tmp_path / "in.gguf"), str(tmp_path / "m")
    assert main(["split", one, out, "--split-max-tensors", "2"]) == 0
    parts = [f"{out}-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    before = [Path(path).read_bytes() for path in parts]
    capsys.readouterr()
    for words, message in (
        ([one, ""], "split: the path is empty"),
        ([one, out, "--split-max-size", "2T"], "split: --split-max-size '2T': must be a number with K, M or G: 2G."),
        ([one, out, "--split-max-size", "0"], "split: --split-max-size '0'"),
        ([one, out, "--split-max-size", "2K", "--split-max-tensors", "2"], "split: give --split-max-size or"),
        ([one, out, "--merge", "--split-max-tensors", "2"], "split: --merge writes one file."),
        ([one, out, "--merge"], f"{one}: it is one file already."),
        ([parts[0], parts[1], "--merge"], f"{parts[1]}: is the input file. Write to a different path."),
        ([parts[0], out, "--split-max-tensors", "2"], f"{parts[0]}: is the input file."),
        ([parts[1], out, "--merge"], f"{parts[1]}: it is part 2 of 3 of a split GGUF file."),
        ([one, str(tmp_path / "none" / "m")], f"{tmp_path / 'none' / 'm'}-00001-of-00001.gguf: cannot be written"),
    ):
        assert main(["split", *words]) == 2
        assert capsys.readouterr().err.startswith(f"kernmill: {message}")
    assert [Path(path).read_bytes() for path in parts] == before


def test_a_failure_leaves_no_new_part(tmp_path: Path) -> None:
    def fails() -> list[memoryview]:
        raise KeyboardInterrupt

    plain = TYPES[0]
    good = gguf_write.NewTensor(plain, (2,), memoryview(bytes(8)))
    with pytest.raises(KeyboardInterrupt):
        gguf_split.write_parts(tmp_path / "m", {}, [{"a": good}, {"b": gguf_write.NewTensor(plain, (2,), fails)}])
    assert not list(tmp_path.iterdir())
    with pytest.raises(FormatError, match=r"m: 65536 parts, and a split file has up to 65535\."):
        gguf_split.write_parts(tmp_path / "m", {}, [{}] * 65536)
