"""GGUF files written: they come back, by our reader and by the package; a failure leaves what was there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernmill import DTypeError, FormatError
from kernmill.formats import gguf
from kernmill.formats.gguf_types import ValueType, tensor_type
from kernmill.formats.gguf_write import NewTensor, Typed, write

F32, I8, Q4_0 = tensor_type("F32"), tensor_type("I8"), tensor_type("q4_0")
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def on_device() -> None:
    """No tensors here."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("gguf") / "x.gguf"


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
keys = texts.filter(
    lambda key: key and not key.startswith("split.") and key != "general.alignment"
)  # read by the reader
single = st.one_of(st.booleans(), st.integers(-(1 << 63), (1 << 64) - 1), st.floats(width=32, allow_nan=False), texts)
several = st.one_of(
    *(st.lists(kind, max_size=5).map(tuple) for kind in (st.booleans(), st.integers(0, 1 << 40), texts))
)


@given(
    pairs=st.dictionaries(keys, st.one_of(single, several.filter(bool)), max_size=6),
    shapes=st.dictionaries(
        st.text("abc.é", min_size=1, max_size=20), st.lists(st.integers(0, 5), max_size=4), max_size=5
    ),
    alignment=st.sampled_from([1, 8, 32, 64, 4096]),
)
def test_round_trip(place: Path, pairs: dict[str, Any], shapes: dict[str, list[int]], alignment: int) -> None:
    rng = np.random.default_rng(len(pairs))
    data = {name: rng.bytes(int(np.prod(shape, dtype=int)) * 4) for name, shape in shapes.items()}
    write(place, pairs, {n: NewTensor(F32, shapes[n], memoryview(data[n])) for n in shapes}, alignment=alignment)
    found = gguf.read(place)
    extra = {} if alignment == 32 else {"general.alignment": alignment}
    assert dict(found.metadata) == pairs | extra
    assert {n: e.shape for n, e in found.entries.items()} == {n: tuple(s) for n, s in shapes.items()}
    assert {n: bytes(found.values(n)) for n in found.entries} == data
    assert all(entry.start % alignment == 0 for entry in found.entries.values())


def test_types_chosen_and_given(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write(path, {"small": 1, "minus": -1, "large": 1 << 40, "low": -(1 << 40), "real": 1.0, "mixed": [1, 0.5],
                 "ints": [1, 2], "wide": [1, 1 << 31], "none": [], "byte": Typed(ValueType.UINT8, 7),
                 "bytes": Typed(ValueType.INT16, [1, -2])}, {})  # fmt: skip
    found = gguf.read(path).metadata
    types = {key: next(t for t in reversed(found.type_of(key)) if t is not None).name for key in found}
    assert types == {
        "small": "UINT32", "minus": "INT32", "large": "UINT64", "low": "INT64", "real": "FLOAT32", "mixed": "FLOAT32",
        "ints": "INT32", "wide": "UINT32", "none": "STRING", "byte": "UINT8", "bytes": "INT16",
    }  # fmt: skip
    again = tmp_path / "again"
    write(again, {key: found.raw(key) for key in found}, {})
    assert again.read_bytes() == path.read_bytes()


def test_the_package_reads_what_we_write(tmp_path: Path) -> None:
    package = pytest.importorskip("gguf")
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    pairs = {"general.architecture": "llama", "n": 3, "list": ["a", "bc"], "scores": [0.5, -1.0], "flag": False}
    tensors = {"w": NewTensor(F32, (3, 4), memoryview(array.tobytes())),
               "q": NewTensor(Q4_0, (2, 32), memoryview(bytes(range(36))))}  # fmt: skip
    write(tmp_path / "x.gguf", pairs, tensors, alignment=64)
    found = package.GGUFReader(tmp_path / "x.gguf")
    assert {key: found.fields[key].contents() for key in pairs} == pairs
    assert [(t.name, tuple(int(n) for n in t.shape)) for t in found.tensors] == [("w", (4, 3)), ("q", (32, 2))]
    np.testing.assert_array_equal(found.tensors[0].data, array)
    assert found.tensors[1].data.tobytes() == bytes(range(36))


REFUSED: dict[str, tuple[dict[Any, Any], dict[str, Any], str]] = {
    "key": ({"": 1}, {}, "a metadata key is empty"),
    "value": ({"k": {"a": 1}}, {}, "metadata 'k': GGUF cannot store a dict"),
    "mixed": ({"k": [1, "a"]}, {}, "metadata 'k': GGUF has no array of int, str"),
    "nested": ({"k": [[1]]}, {}, "metadata 'k': GGUF has no array of list"),
    "wide": ({"k": 1 << 64}, {}, "metadata 'k': an int beyond 64 bits"),
    "range": ({"k": Typed(ValueType.UINT8, 300)}, {}, "metadata 'k': a value is not a UINT8"),
    "float": ({"k": 1e300}, {}, "metadata 'k': a value is not a FLOAT32"),
    "kind": ({"k": Typed(ValueType.STRING, [1])}, {}, "metadata 'k': a value is not a STRING"),
    "surrogate": ({"k": "\ud800"}, {}, "metadata 'k': a string is not valid Unicode"),
    "bytes as a value": ({"k": b"x"}, {}, "metadata 'k': GGUF cannot store a bytes. Give bools, numbers, strings"),
    "number as key": ({1: 2}, {}, "a metadata key is 1, of type int. Give a string."),
    "surrogate as key": ({"\ud800": 2}, {}, r"a metadata key is '\ud800', which is not valid Unicode. Give"),
    "empty key": ({"": 2}, {}, "a metadata key is empty. Name it."),
    "surrogate as name": ({}, {"\ud800": NewTensor(I8, (1,), memoryview(b"1"))},
                          r"a tensor's name is '\ud800', which is not valid Unicode. Give a valid string."),
    "empty name": ({}, {"": NewTensor(I8, (1,), memoryview(b"1"))}, "a tensor's name is empty. Name it."),
    "array": ({}, {"a": np.zeros(1)}, "tensor 'a' is of type ndarray. Give NewTensor(type, shape, values)."),
    "name": ({}, {"n" * 64: NewTensor(I8, (1,), memoryview(b"1"))}, "its name has more than 63 bytes"),
    "axes": ({}, {"a": NewTensor(I8, (1,) * 5, memoryview(b"1"))}, "it has 5 axes, GGUF has 4 at most"),
    "block": ({}, {"a": NewTensor(Q4_0, (2, 16), memoryview(bytes(18)))}, "rows of 16 values are not a multiple"),
    "bytes": ({}, {"a": NewTensor(F32, (2,), memoryview(b"1"))}, "1 bytes for F32 of shape (2,), which needs 8"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(tmp_path: Path, name: str) -> None:
    pairs, tensors, message = REFUSED[name]
    with pytest.raises(FormatError) as caught:
        write(tmp_path / "x", pairs, tensors)
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_path() -> None:
    nothing: Any = None
    for name, call in (("write", lambda: write(nothing, {}, {})), ("read", lambda: gguf.read(nothing))):
        with pytest.raises(DTypeError) as caught:
            call()
        assert str(caught.value) == f"{name}: path is None, of type NoneType. Give a string or a path."


def test_alignment_refused(tmp_path: Path) -> None:
    for alignment in (0, 24, 1 << 30):
        with pytest.raises(FormatError, match="is not a power of two up to 2097152"):
            write(tmp_path / "x", {}, {}, alignment=alignment)


def test_values_in_pieces_and_a_failure_in_between(tmp_path: Path) -> None:
    path = tmp_path / "x"

    def pieces() -> Iterator[memoryview]:
        yield memoryview(b"abc")
        yield memoryview(b"defgh")

    def failing() -> Iterator[memoryview]:
        yield memoryview(b"abc")
        raise KeyboardInterrupt

    write(path, {}, {"a": NewTensor(F32, (2,), pieces)})
    before = path.read_bytes()
    assert bytes(gguf.read(path).values("a")) == b"abcdefgh"
    with pytest.raises(KeyboardInterrupt):
        write(path, {}, {"a": NewTensor(F32, (2,), failing)})
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on the size of files there")
def test_a_full_disk(tmp_path: Path) -> None:
    """A limit on the size of files fails as a full disk does: in the middle of a write."""
    code = """
import resource, sys
from kernmill.formats.gguf_types import tensor_type
from kernmill.formats.gguf_write import NewTensor, write
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
write(sys.argv[1], {}, {"a": NewTensor(tensor_type("I8"), (1 << 20,), memoryview(bytes(1 << 20)))})
"""
    path = tmp_path / "x"
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert f"FormatError: {path}: cannot be written: File too large. Choose a different path." in done.stderr
    assert list(tmp_path.iterdir()) == []
