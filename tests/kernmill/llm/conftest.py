"""GGUF files of the shared data for these tests: metadata and plain tensors, without a check."""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

_PLAIN = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9


@pytest.fixture(autouse=True)
def on_device() -> str:
    """Instead of the front's fixture: most tests here compute nothing, and a model takes long on PYTHON."""
    return "the default device"


class Gguf(NamedTuple):
    metadata: dict[str, Any]
    tensors: dict[str, np.ndarray[Any, Any]]  # F32 and F16 only


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def plain(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self.data, self.at)
        self.at += struct.calcsize(code)
        return value

    def string(self) -> str:
        size = self.plain("Q")
        self.at += size
        return self.data[self.at - size : self.at].decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.plain(_PLAIN[kind])
        kind, count = self.plain("I"), self.plain("Q")
        if kind == _STRING:
            return [self.string() for _ in range(count)]
        array = np.frombuffer(self.data, "<" + _PLAIN[kind].replace("?", "b"), count, self.at)
        self.at += array.nbytes
        return array.tolist()


@cache
def _read(path: Path) -> Gguf:
    cursor = _Cursor(path.read_bytes())
    assert cursor.data[:4] == b"GGUF"
    cursor.at = 8
    tensor_count, key_count = cursor.plain("Q"), cursor.plain("Q")
    metadata: dict[str, Any] = {}
    for _ in range(key_count):
        name = cursor.string()
        metadata[name] = cursor.value(cursor.plain("I"))
    rows = []
    for _ in range(tensor_count):
        name, axes = cursor.string(), cursor.plain("I")
        sizes = [cursor.plain("Q") for _ in range(axes)]
        rows.append((name, sizes[::-1], cursor.plain("I"), cursor.plain("Q")))
    start = -(-cursor.at // 32) * 32
    tensors = {
        name: np.frombuffer(cursor.data, ("<f4", "<f2")[kind], int(np.prod(shape)), start + offset).reshape(shape)
        for name, shape, kind, offset in rows
        if kind in (0, 1)
    }
    return Gguf(metadata, tensors)


@pytest.fixture(scope="session")
def gguf(shared_data: Callable[[str], Path]) -> Callable[[str], Gguf]:
    """`gguf("stories260K/stories260Ktok512.gguf")`; the test is skipped where the file is absent."""
    return lambda name: _read(shared_data(name.split("/")[0]) / name.split("/", 1)[1])
