"""Pickles as data: plain values come back, and nothing in a hostile pickle runs, hangs or takes memory."""

from __future__ import annotations

import collections
import contextlib
import io
import os
import pickle
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kernmill import FormatError, Tensor, nn
from kernmill.formats.pickles import decode

VALUE: dict[Any, Any] = {
    "none": None, "yes": True, "no": False, "int": -7, "long": 1 << 80, "float": 0.1, "text": "äö", "bytes": b"\0\xff",
    "list": [1, [2, (3,)], ()], "tuple": (1, 2, 3, 4), "set": {1, 2}, "frozen": frozenset({"a"}), 3: {4.5: []},
    "ordered": collections.OrderedDict(a=1),
}  # fmt: skip


@pytest.mark.parametrize("protocol", range(6))
def test_plain_values_come_back(protocol: int, tmp_path: Path) -> None:
    found = decode(io.BytesIO(pickle.dumps(VALUE, protocol)), "p")
    assert found == VALUE
    if protocol >= 2:
        (tmp_path / "p").write_bytes(pickle.dumps(VALUE, protocol))
        assert nn.state.load(tmp_path / "p") == VALUE


@pytest.mark.parametrize("protocol", range(2, 6))
def test_arrays_of_numpy(protocol: int, tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "fortran": np.asfortranarray(np.arange(6, dtype=np.int64).reshape(2, 3)),
        "empty": np.zeros((0, 3), np.uint8),
        "one": np.float64(1.5),
        "bool": np.array([True, False]),
    }
    (tmp_path / "p").write_bytes(pickle.dumps(arrays, protocol))
    found = nn.state.load(tmp_path / "p")
    for name, array in arrays.items():
        got = found[name].numpy() if isinstance(found[name], Tensor) else found[name]
        np.testing.assert_array_equal(got, array)


class Runs:
    """An object whose pickle calls a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.what = function, arguments

    def __reduce__(self) -> Any:
        return self.what


@pytest.mark.parametrize("protocol", range(2, 6))
def test_no_code_of_a_file_runs(protocol: int, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    wicked = [Runs(os.mkdir, str(mark)), Runs(eval, f"open({str(mark)!r}, 'w')"), Runs(print, "x")]
    (tmp_path / "p").write_bytes(pickle.dumps(wicked, protocol))
    with pytest.raises(FormatError) as caught:
        nn.state.load(tmp_path / "p")
    module = "__builtin__" if protocol == 2 else "builtins"
    assert str(caught.value) == (
        f"{tmp_path / 'p'}: it holds objects of {module}.eval, {module}.print, {os.mkdir.__module__}.mkdir, and "
        "kernmill runs no code of a file. Save tensors in plain containers: torch.save(model.state_dict(), path)."
    )
    assert not mark.exists()


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"\x80\x02.", "is damaged"),
    "no end": (b"\x80\x02}", "is damaged"),
    "nothing to pop": (b"\x80\x020.", "is damaged"),
    "a memo that is empty": (b"\x80\x02h\x05.", "is damaged"),
    "a huge length": (b"\x80\x02\x8d" + b"\xff" * 7 + b"\x7fabc.", "is damaged"),
    "a huge memo": (b"\x80\x02}r\xff\xff\xff\xff0N.", ""),
    "an unhashable key": (b"\x80\x02}]Ns.", "a key is of type list"),
    "a key that is too large": (b"\x80\x02}\x8a\x08" + b"\xff" * 7 + b"\x7fNs.", "a key is of type int"),
    "an odd number of items": (b"\x80\x02}(Nu.", "is damaged"),
    "a tuple of too few": (b"\x80\x02N\x87.", "an empty stack"),
    "a call of a number": (b"\x80\x02K\x05)R.", "it calls int"),
    "a call with a list": (b"\x80\x02ccollections\nOrderedDict\n]R.", "list instead of tuple"),
    "an extension": (b"\x80\x02\x82\x01.", "EXT1 is not supported"),
    "a buffer": (b"\x80\x05\x97.", "NEXT_BUFFER is not supported"),
    "a storage without a file": (b"\x80\x02NQ.", "refers to storages"),
    "a wrong opcode": (b"\x80\x02\xfe.", "is damaged"),
    "a class as a value": (b"\x80\x02cos\nsystem\n.", "is os.system, not a tensor"),
    "a cycle": (b"\x80\x02]q\x00h\x00a.", "nested deeper than 200, or in a cycle"),
    "nested deeply": (b"\x80\x02" + b"]" * 5000 + b"a" * 4999 + b".", "nested deeper than 200, or in a cycle"),
    "copies of one string": (
        b"\x80\x02X\x00\x00\x01\x00" + b"a" * 65536 + b"q\x000c_codecs\nencode\nq\x010"
        + b"h\x01h\x00X\x06\x00\x00\x00latin1\x86R0" * 100 + b"N.", "copy the same elements again"),
    "an array of objects": (b"\x80\x02cnumpy\ndtype\nX\x02\x00\x00\x00O8\x89\x88\x87R.", "NumPy's type 'O8'"),
    "a tensor over no storage": (
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(NK\x00))\x89NtR.", "NoneType instead of Storage"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_pickle_is_refused(name: str, tmp_path: Path) -> None:
    data, text = HOSTILE[name]
    (tmp_path / "p").write_bytes(data)
    if not text:
        nn.state.load(tmp_path / "p")
        return
    with pytest.raises(FormatError, match=text):
        nn.state.load(tmp_path / "p")


def test_shared_lists_take_no_more_memory(tmp_path: Path) -> None:
    """Each of 60 lists has the one before twice: written out they would be 2^60."""
    value: Any = [1]
    for _ in range(60):
        value = [value, value]
    (tmp_path / "p").write_bytes(pickle.dumps(value))
    found = nn.state.load(tmp_path / "p")
    assert found[0] is found[1]


def test_changed_bytes_are_refused_or_read(tmp_path: Path) -> None:
    draw = random.Random(36)
    data = pickle.dumps({**VALUE, "array": np.arange(5)}, 4)
    for _ in range(600):
        changed = bytearray(data)
        for _ in range(draw.choice((1, 1, 2, 5))):
            changed[draw.randrange(2, len(data))] = draw.randrange(256)
        cut = bytes(changed[: draw.randrange(len(data))] if draw.random() < 0.2 else changed)
        (tmp_path / "p").write_bytes(cut)
        with contextlib.suppress(FormatError):
            nn.state.load(tmp_path / "p")
