"""Damaged files: always a FormatError, never anything else; and nothing is refused that the format allows."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest

from kernmill import FormatError, dtypes
from kernmill.formats import safetensors
from kernmill.formats.safetensors import parse


def file(header: Any, data: bytes = b"", length: int | None = None) -> memoryview:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return memoryview(struct.pack("<Q", len(raw) if length is None else length) + raw + data)


def row(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


REFUSED: dict[str, tuple[memoryview, str]] = {
    "short": (memoryview(b"abc"), "at byte 0: 3 bytes are too few for the length of the header"),
    "long header": (file(b"{}", length=1 << 40), "the header length 1099511627776 is over 100000000"),
    "header past the end": (file(b"{}", length=99), "the header length 99 does not fit a file of 10 bytes"),
    "no object": (file(b"[]"), "does not begin with '{'"),
    "no JSON": (file(b'{"a": 1,}'), "the header is not valid JSON"),
    "no text": (file(b'{"\xff": 1}'), "at byte 10: the header is not UTF-8"),
    "nan": (file(b'{"a": NaN}'), "NaN is not valid JSON"),
    "deep": (file(b'{"a":' + b"[" * 100_000), "the header is not valid JSON"),
    "large number": (file(b'{"a":' + b"9" * 5000 + b"}"), "the header is not valid JSON"),
    "twice": (file(b'{"a": 1, "a": 2}'), "the key 'a' occurs twice"),
    "metadata": (file({"__metadata__": {"a": 1}}), "__metadata__ is not an object of strings"),
    "entry": (file({"a": 1}), "tensor 'a': its entry has int, not dtype, shape and data_offsets"),
    "missing": (file({"a": {"dtype": "F32"}}), "tensor 'a': its entry has ['dtype'], not"),
    "dtype": (
        file({"a": row("F8_E5M2")}, bytes(8)),
        "tensor 'a': dtype 'F8_E5M2' is not supported. Supported: BOOL, I8",
    ),
    "odd dtype": (file({"a": row(["F32"])}, bytes(8)), "tensor 'a': dtype ['F32'] is not supported"),
    "shape": (file({"a": row(shape=[-1])}, bytes(8)), "tensor 'a': shape [-1] is not a list of integers >= 0"),
    "bool shape": (file({"a": row(shape=[True])}, bytes(8)), "tensor 'a': shape [True] is not"),
    "offsets": (file({"a": row(offsets=[8, 0])}, bytes(8)), "tensor 'a': data_offsets [8, 0] are not [start, stop]"),
    "bytes": (file({"a": row(shape=[3])}, bytes(8)), "data_offsets [0, 8] span 8 bytes, F32 of shape [3] needs 12"),
    "product": (file({"a": row(shape=[1 << 62, 1 << 62])}, bytes(8)), "tensor 'a': data_offsets [0, 8] span 8 bytes"),
    "past the end": (file({"a": row()}, bytes(4)), "tensor 'a': it ends at byte"),
    "gap": (file({"a": row(offsets=[4, 12])}, bytes(12)), "leaves a gap to the one before"),
    "overlap": (file({"a": row(), "b": row(offsets=[4, 12])}, bytes(12)), "tensor 'b': it starts at byte"),
    "rest": (file({"a": row()}, bytes(9)), "1 bytes after the last tensor belong to no tensor"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    data, text = REFUSED[name]
    with pytest.raises(FormatError) as caught:
        parse(data, "f")
    assert text in str(caught.value)
    assert str(caught.value).startswith("f: ")


def test_allowed() -> None:
    padded = parse(file(json.dumps({"a": row(), "e": row(shape=[0, 3], offsets=[8, 8])}).encode() + b"   ", bytes(8)))
    assert padded.entries["a"].shape == (2,)
    assert padded.entries["e"].dtype is dtypes.float32
    assert padded.values("e").nbytes == 0
    assert parse(file({})).entries == {}


def test_metadata_of_null_is_none() -> None:
    """Named regression: the reference reader takes it, and writers that have an optional field leave it so."""
    found = parse(file({"__metadata__": None, "a": row()}, bytes(8)))
    assert (found.metadata, list(found.entries)) == ({}, ["a"])


def test_mutated_files_are_read_or_refused() -> None:
    rng = random.Random(5)
    good = bytearray(file({"__metadata__": {"k": "v"}, "a": row(), "b": row("BF16", [2, 2], [8, 16])}, bytes(16)))
    for _ in range(3000):
        bad = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(bad))
            match rng.randrange(4):
                case 0:
                    bad[place] = rng.randrange(256)
                case 1:
                    bad[place] ^= 1 << rng.randrange(8)
                case 2:
                    del bad[place:]
                    bad += b"\0"
                case _:
                    bad[place:place] = rng.choice([b"[", b"}", b"9", b'"', b"-", b"\xff"])
        try:
            found = parse(memoryview(bytes(bad)))
        except FormatError:
            continue
        assert sum(found.values(name).nbytes for name in found.entries) <= len(bad)


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot be read: No such file"):
        safetensors.read(tmp_path / "none")
    with pytest.raises(FormatError, match="cannot be read"):
        safetensors.read(tmp_path)
    (tmp_path / "empty").touch()
    with pytest.raises(FormatError, match="0 bytes are too few"):
        safetensors.read(tmp_path / "empty")
    with pytest.raises(FormatError, match="cannot be written: No such file"):
        safetensors.write(tmp_path / "none" / "x", {})
    with pytest.raises(FormatError, match="a tensor cannot be named '__metadata__'"):
        safetensors.write(tmp_path / "x", {"__metadata__": (dtypes.int8, (1,), memoryview(b"1"))})
    assert not (tmp_path / "x").exists()
