"""GGUF files, whole and damaged: always what they say or a FormatError, and never more memory than they fill."""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernmill import FormatError
from kernmill.formats import gguf
from kernmill.formats.gguf import parse
from kernmill.formats.gguf_types import TYPES, ValueType
from kernmill.formats.gguf_write import NewTensor, Typed, write


@pytest.fixture(autouse=True)
def on_device() -> None:
    """No tensors here."""


def text(value: str | bytes, length: int | None = None) -> bytes:
    raw = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw


def pair(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def tensor(
    name: str | bytes = "a", sizes: tuple[int, ...] = (2,), kind: int = 0, offset: int = 0, axes: int = -1
) -> bytes:
    count = len(sizes) if axes < 0 else axes
    return text(name) + struct.pack(f"<I{len(sizes)}qIQ", count, *sizes, kind, offset)


def file(
    pairs: tuple[bytes, ...] = (), tensors: tuple[bytes, ...] = (), data: bytes = b"",
    counts: tuple[int, int] | None = None, start: bytes = b"GGUF\3\0\0\0", align: int = 32,
) -> memoryview:  # fmt: skip
    """A file by hand: nothing is checked."""
    head = start + struct.pack("<qq", *(counts or (len(tensors), len(pairs)))) + b"".join(pairs + tensors)
    return memoryview(head + bytes(-len(head) % align) + data)


U32, U64 = struct.Struct("<I").pack, struct.Struct("<Q").pack
ALIGN = "general.alignment"

REFUSED: dict[str, tuple[memoryview, str]] = {
    "empty": (memoryview(b""), "at byte 0: first bytes: they are b'', not b'GGUF'"),
    "magic": (memoryview(b"GGML" + bytes(40)), "first bytes: they are b'GGML'"),
    "safetensors": (memoryview(b"8" + bytes(7) + b'{"a":{}}'), "That is a safetensors file. Give the folder"),
    "git lfs": (memoryview(b"version https://git-lfs.github.com/spec/v1\n"), "Fetch it with: git lfs pull."),
    "web page": (memoryview(b"<!DOCTYPE html>"), "That is a web page. Fetch the file that it links to."),
    "before gguf": (memoryview(b"tjgg" + bytes(40)), "That is older than GGUF. Fetch a newer file of the model."),
    "no version": (memoryview(b"GGUF\3"), "at byte 4: version: it takes 4 bytes, the file has 1 more"),
    "version 0": (file(start=b"GGUF" + U32(0)), "version: 0 is not supported: must be 2 or 3"),
    "version 1": (file(start=b"GGUF" + U32(1)), "version: 1 is not supported"),
    "version 4": (file(start=b"GGUF" + U32(4)), "version: 4 is not supported"),
    "big-endian": (file(start=b"GGUF\0\0\0\3"), "version: the file is big-endian"),
    "no counts": (memoryview(b"GGUF\3\0\0\0\0"), "at byte 8: number of tensors: it takes 8 bytes"),
    "negative tensors": (file(counts=(-1, 0)), "at byte 8: number of tensors: -1 is not in 0 to 65536"),
    "many tensors": (file(counts=(1 << 60, 0)), "number of tensors: 1152921504606846976 is not in"),
    "tensors beyond the file": (file(counts=(100, 0)), "number of tensors: 100 do not fit the"),
    "negative values": (file(counts=(0, -1)), "at byte 16: number of metadata values: -1 is not in"),
    "many values": (file(counts=(0, 1 << 40)), "number of metadata values: 1099511627776 is not in"),
    "values beyond the file": (file(counts=(0, 60)), "number of metadata values: 60 do not fit the 8 bytes"),
    "long key": (file((text("k", 1 << 63) + U32(4) + U32(1),)), "at byte 24: length of key of metadata value 0: 92233"),
    "key over the end": (file((text("k", 99) + U32(4) + U32(1),)), "length of key of metadata value 0: 99 does not"),
    "empty key": (file((pair("", 4, U32(1)),)), "key of metadata value 0: it is empty"),
    "key no text": (file((pair(b"\xff", 4, U32(1)),)), "key of metadata value 0: it is not UTF-8"),
    "key twice": (file((pair("k", 4, U32(1)), pair("k", 0, b"1"))), "key of metadata value 1: 'k' occurs twice"),
    "value type": (file((pair("k", 13, U32(1)),)), "at byte 33: type of metadata 'k': 13 is not in 0 to 12"),
    "array of arrays": (file((pair("k", 9, U32(9) + U64(0)),)), "metadata 'k': arrays of arrays are not valid GGUF"),
    "element type": (file((pair("k", 9, U32(99) + U64(0)),)), "type of the elements of metadata 'k': 99 is not in"),
    "long array": (file((pair("k", 9, U32(0) + U64(1 << 62)),)), "length of metadata 'k': 46116860184"),
    "wrapping array": (file((pair("k", 9, U32(10) + U64((1 << 61) + 1)),)), "length of metadata 'k': 23058"),
    "long strings": (file((pair("k", 9, U32(8) + U64(50)),)), "length of metadata 'k': 50 does not fit"),
    "string in array": (file((pair("k", 9, U32(8) + U64(2) + text("a") + text("b", 1 << 62)),)), "'k'[1]: the string"),
    "strings end": (file((pair("k", 9, U32(8) + U64(3) + text("abcdefghijkl") + text("")),), align=1), "'k'[2]: the"),
    "long string": (file((pair("k", 8, text("a", 1 << 40)),)), "metadata 'k'[0]: the string extends beyond"),
    "value cut": (file((pair("k", 12, b"1234"),), align=1), "metadata 'k': it takes 8 bytes, the file has 4 more"),
    "alignment type": (file((pair(ALIGN, 10, U64(32)),)), "metadata 'general.alignment': it is not of type UINT32"),
    "alignment 0": (file((pair(ALIGN, 4, U32(0)),)), "'general.alignment': 0 is not a power of two up to 2097152"),
    "alignment 24": (file((pair(ALIGN, 4, U32(24)),)), "metadata 'general.alignment': 24 is not a power of two"),
    "alignment 1 GiB": (file((pair(ALIGN, 4, U32(1 << 30)),)), "1073741824 is not a power of two up to 2097152"),
    "long name": (file((), (tensor("n" * 64),), bytes(8)), "name of tensor 0: it has 64 bytes, 63 at most"),
    "name no text": (file((), (tensor(b"\xc0"),), bytes(8)), "name of tensor 0: it is not UTF-8"),
    "name twice": (file((), (tensor(), tensor(offset=32)), bytes(64)), "name of a tensor: 'a' occurs twice"),
    "axes": (file((), (tensor(sizes=(1,) * 5),), bytes(8)), "number of axes of tensor 'a': it is 5, 4 at most"),
    "many axes": (file((), (tensor(axes=0xFFFFFFFF),), bytes(8)), "number of axes of tensor 'a': it is 4294967295"),
    "negative size": (file((), (tensor(sizes=(-2,)),), bytes(8)), "shape of tensor 'a': [-2] has a negative size"),
    "product": (file((), (tensor(sizes=(1 << 32, 1 << 32)),), bytes(8)), "has more than 2**63 - 1 values"),
    "product with 0": (file((), (tensor(sizes=(0, 1 << 62, 4)),), bytes(8)), "has more than 2**63 - 1 values"),
    "retired": (file((), (tensor(kind=4),), bytes(8)), "type of tensor 'a': 4 is retired"),
    "type": (file((), (tensor(kind=77),), bytes(8)), "type of tensor 'a': 77 is unknown"),
    "block": (file((), (tensor(sizes=(33,), kind=2),), bytes(99)), "rows of 33 values are not a multiple of"),
    "scalar block": (file((), (tensor(sizes=(), kind=2),), bytes(99)), "rows of 1 values are not a multiple of"),
    "gap": (file((), (tensor(offset=32),), bytes(99)), "offset of tensor 'a': 32 leaves a gap to the tensor before"),
    "overlap": (file((), (tensor(), tensor("b")), bytes(99)), "offset of tensor 'b': 0 overlaps the tensor before"),
    "unaligned": (file((), (tensor(), tensor("b", offset=8)), bytes(99)), "offset of tensor 'b': 8 overlaps"),
    "large": (file((), (tensor(sizes=(1 << 60,)),), bytes(99)), "tensor 'a': it takes 4611686018427387904 bytes"),
    "data cut": (file((), (tensor(),), bytes(4)), "tensor 'a': it ends at byte 72 of a file of 68"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    data, message = REFUSED[name]
    with pytest.raises(FormatError) as caught:
        parse(data, "f")
    assert message in str(caught.value)
    assert str(caught.value).startswith("f: at byte ")


def test_allowed() -> None:
    found = parse(
        file((), (tensor("", ()), tensor("e", (0, 3), offset=32), tensor("b", (3, 2), 24, 32)), bytes(38) + b"?")
    )
    assert [(e.name, e.shape, e.stop - e.start) for e in found.entries.values()] == [
        ("", (), 4), ("e", (3, 0), 0), ("b", (2, 3), 6),
    ]  # fmt: skip
    assert parse(file(start=b"GGUF\2\0\0\0")).version == 2
    wide = parse(file((pair(ALIGN, 4, U32(4096)),), (tensor(),), bytes(8), align=4096))
    assert (wide.alignment, wide.entries["a"].start) == (4096, 4096)


def test_every_value_type() -> None:
    values = {
        ValueType.UINT8: 200, ValueType.INT8: -100, ValueType.UINT16: 60000, ValueType.INT16: -30000,
        ValueType.UINT32: 4_000_000_000, ValueType.INT32: -2_000_000_000, ValueType.FLOAT32: 0.5, ValueType.BOOL: True,
        ValueType.UINT64: 1 << 63, ValueType.INT64: -(1 << 62), ValueType.FLOAT64: 0.1,
    }  # fmt: skip
    packed = {kind: struct.pack(f"<{kind.code}", value) for kind, value in values.items()}
    packed[ValueType.STRING] = text("é")
    want = {kind.name: value for kind, value in values.items()} | {"STRING": "é"}
    pairs = [pair(kind.name, kind, raw) for kind, raw in packed.items()]
    pairs += [pair(f"{kind.name}[]", 9, U32(kind) + U64(2) + raw * 2) for kind, raw in packed.items()]
    pairs += [pair(f"{kind.name}[0]", 9, U32(kind) + U64(0)) for kind in packed]
    found = parse(file(tuple(pairs))).metadata
    assert len(found) == 36
    for name, value in want.items():
        assert found[name] == value
        assert type(found[name]) is type(value)
        assert (tuple(found[f"{name}[]"]), tuple(found[f"{name}[0]"])) == ((value, value), ())
        assert set(map(type, found[f"{name}[]"])) == {type(value)}
        assert found.read(f"{name}[]", tuple) == (value, value)
        assert found.type_of(f"{name}[]") == (ValueType.ARRAY, ValueType[name])
        assert found.type_of(name) == (ValueType[name], None)


def test_values_are_decoded_when_asked_for() -> None:
    found = parse(file((pair("bad", 8, text(b"ab\xff")), pair("flag", 7, b"\2"), pair("good", 8, text("x")),
                        pair("list", 9, U32(8) + U64(2) + text("fine") + text(b"\xff"))))).metadata  # fmt: skip
    assert found["good"] == "x"
    for key, message in {
        "bad": "metadata 'bad': is not UTF-8",
        "list": r"metadata 'list'\[1\]: is not UTF-8",
        "flag": "metadata 'flag': a bool is neither 0 nor 1",
    }.items():
        with pytest.raises(FormatError, match=message):
            found[key]
    assert "bad" in found
    with pytest.raises(KeyError):
        found["none"]


LETTERS = st.text(max_size=12).map(str.encode)
LONG = [b"x" * 255, b"x" * 256, b"y" * 70000, b"x" * 299 + b"\0", bytes(1) + b"y" * 70000 + bytes(1)]
ODD = st.sampled_from([b"", b"\0", bytes(9), b"a" + bytes(7), bytes(7) + b"a", *LONG])


@given(st.lists(LETTERS | ODD, max_size=30), st.integers(0, 3), st.integers(1, 3000))
def test_many_texts(some: list[bytes], odd: int, times: int) -> None:
    """What is found together is what is found one by one: zeros, long ones and ends of windows included."""
    short = [f"{n} \N{PILE OF POO}".encode() for n in range(times)]
    texts = [*short, *some, *short[: 1500 * odd], *some[:odd]]
    raw = file((pair("t", 9, U32(8) + U64(len(texts)) + b"".join(map(text, texts))), pair("after", 4, U32(7))))
    found = parse(raw).metadata
    assert found["t"] == tuple(some.decode() for some in texts)
    assert found["after"] == 7


@pytest.mark.parametrize("size", [255, 256, 300, 65535, 65536, 70000])
@pytest.mark.parametrize("zeros", [0, 1, 2, 3])
def test_long_texts_that_hold_zeros(size: int, zeros: int) -> None:
    """As many zeros in a text as the upper bytes of its length have others: one text, in a list, and alone."""
    one = b"x" * (size - zeros) + bytes(zeros)
    listed = U32(8) + U64(4) + text(one) + 3 * text("ab")
    found = parse(file((pair("alone", 8, text(one)), pair("listed", 9, listed)))).metadata
    assert found["alone"] == one.decode()
    assert found["listed"] == (one.decode(), "ab", "ab", "ab")


def test_few_short_texts_between_long_ones() -> None:
    """What is gone over one by one grows while nothing is found together, and ends with the list."""
    runs = (1023, 1, 2047, 5000, 0, 3)
    texts = [one for run in runs for one in (*(b"%d" % n for n in range(run)), b"l" * 300)]
    found = parse(file((pair("t", 9, U32(8) + U64(len(texts)) + b"".join(map(text, texts))),))).metadata
    assert found["t"] == tuple(one.decode() for one in texts)


@pytest.mark.parametrize("count", [1, 1100, 3000, 9000])
@pytest.mark.parametrize("place", [0, 0.3, 0.999])
def test_one_of_many_texts_is_damaged(count: int, place: float) -> None:
    number = int(place * count)
    texts = [text(f"{n:05}") for n in range(count)]
    begin = 24 + len(text("t")) + 4 + 12 + 13 * number
    broken = [*texts[:number], text(b"abc\xff "), *texts[number + 1 :]]
    found = parse(file((pair("t", 9, U32(8) + U64(count) + b"".join(broken)),))).metadata
    with pytest.raises(FormatError) as caught:
        found["t"]
    assert f"at byte {begin + 8}: metadata 't'[{number}]: is not UTF-8" in str(caught.value)
    for length in (1 << 20, 1 << 63):
        broken = [*texts[:number], text("00000", length), *texts[number + 1 :]]
        with pytest.raises(FormatError) as caught:
            parse(file((pair("t", 9, U32(8) + U64(count) + b"".join(broken)),)))
        assert f"at byte {begin}: metadata 't'[{number}]: the string extends beyond the end" in str(caught.value)


def test_read_asks_for_a_kind() -> None:
    found = parse(file((pair("n", 4, U32(7)), pair("s", 8, text("x" * 99)), pair("b", 7, b"\1")))).metadata
    assert (found.read("n", int), found.read("n", float), found.read("none", int, 3), found.read("b", bool)) == (
        7,
        7.0,
        3,
        True,
    )
    assert type(found.read("n", float)) is float
    with pytest.raises(FormatError, match="metadata 'none' is missing"):
        found.read("none", str)
    with pytest.raises(FormatError, match=r"metadata 's' is the str 'x{3,60}\.\.x{3,60}', where an int belongs"):
        found.read("s", int)
    with pytest.raises(FormatError, match="metadata 'b' is the bool True, where an int belongs"):
        found.read("b", int)


def test_what_a_file_says_is_escaped_and_cut_in_a_sentence() -> None:
    found = parse(file((pair("\x1b[2Jevil" + "k" * 10**6, 8, text("\x1b" * 10**6)),))).metadata
    with pytest.raises(FormatError) as caught:
        found.read(next(iter(found)), int)
    assert str(caught.value).isprintable()
    assert "metadata '\\x1b[2Jevilkkk" in str(caught.value)
    assert len(str(caught.value)) < 300
    with pytest.raises(FormatError, match=r"tensor '\\x1b\[2Jevil': it is 7, 4 at most"):
        parse(file((), (tensor("\x1b[2Jevil", axes=7),)))


# --- damage ----------------------------------------------------------------------------------------------------------
GOOD = bytes(
    file(
        (pair("general.architecture", 8, text("llama")), pair(ALIGN, 4, U32(32)), pair("n", 10, U64(5)),
         pair("tokens", 9, U32(8) + U64(3) + text("<s>") + text("") + text("abc")),
         pair("scores", 9, U32(6) + U64(3) + bytes(12)), pair("flag", 7, b"\1")),
        (tensor("tok", (4, 3)), tensor("q", (64, 2), 8, 64), tensor("h", (2, 2, 2), 1, 224)),
        bytes(range(240)),
    )
)  # fmt: skip


def read_all(data: bytes) -> None:
    """Everything there is to see, or a FormatError."""
    try:
        found = parse(memoryview(data))
        for key in found.metadata:
            assert found.metadata[key] is not None
        for name, entry in found.entries.items():
            assert found.values(name).nbytes == entry.stop - entry.start == entry.type.nbytes(entry.shape)
        assert sum(entry.stop - entry.start for entry in found.entries.values()) <= len(data)
    except FormatError:
        return


def test_the_undamaged_file_is_read() -> None:
    found = parse(memoryview(GOOD))
    assert (list(found.entries), found.metadata["tokens"]) == (["tok", "q", "h"], ("<s>", "", "abc"))
    assert bytes(found.values("h")) == bytes(range(224, 240))


def test_every_truncation() -> None:
    end = len(GOOD)
    for length in range(end):
        with pytest.raises(FormatError):
            parse(memoryview(GOOD[:length]))


def test_every_byte_mutated() -> None:
    end = parse(memoryview(GOOD)).entries["tok"].start
    for place in range(end):
        for value in (0, 1, 0x7F, 0x80, 0xFF, GOOD[place] ^ 1, GOOD[place] ^ 0x20):
            read_all(GOOD[:place] + bytes([value]) + GOOD[place + 1 :])


def test_random_mutations() -> None:
    rng = random.Random(5)
    wide = [struct.pack("<Q", value) for value in (0, 1, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)]
    for _ in range(4000):
        bad = bytearray(GOOD)
        for _ in range(rng.randint(1, 4)):
            place = rng.randrange(len(bad))
            match rng.randrange(4):
                case 0:
                    bad[place] = rng.randrange(256)
                case 1:
                    bad[place : place + 8] = rng.choice(wide)
                case 2:
                    del bad[place : place + rng.randrange(16)]
                case _:
                    bad[place:place] = rng.randbytes(rng.randrange(16))
        read_all(bytes(bad))


@given(st.binary(max_size=200))
def test_noise(data: bytes) -> None:
    read_all(data)
    read_all(b"GGUF\3\0\0\0" + data)


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_file_takes_no_memory(name: str) -> None:
    data, _ = REFUSED[name]
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            parse(data)
        assert tracemalloc.get_traced_memory()[1] < 200_000
    finally:
        tracemalloc.stop()


def test_memory_is_proportional_to_the_file() -> None:
    """The worst that a file can do per byte: tensors without axes, metadata of one byte, arrays of short texts."""
    names = [f"{number:x}" for number in range(5_000)]
    worst = {
        "tensors": file((), tuple(tensor(n, (0,)) for n in names)),
        "values": file(tuple(pair(n, 0, b"1") for n in names)),
        "texts": file((pair("k", 9, U32(8) + U64(10_000) + text("ab") * 10_000),)),
        "ints": file((pair("k", 9, U32(5) + U64(10_000) + U32(70_000) * 10_000),)),
        "halves": file((pair("k", 9, U32(2) + U64(10_000) + bytes(range(200)) * 100),)),
        "bytes": file((pair("k", 9, U32(1) + U64(20_000) + bytes(range(200)) * 100),)),
    }
    for data in worst.values():
        tracemalloc.start()
        try:
            found = parse(data)
            assert sum(1 for key in found.metadata if found.metadata[key] is not None) == len(found.metadata)
            assert tracemalloc.get_traced_memory()[1] < 32 * len(data)
        finally:
            tracemalloc.stop()


# --- on disk ---------------------------------------------------------------------------------------------------------
F32 = TYPES[0]


def write_part(folder: Path, number: int, count: int, names: str, **changed: object) -> Path:
    path = folder / f"m-{number + 1:05}-of-{count:05}.gguf"
    pairs = {
        "split.no": Typed(ValueType.UINT16, number), "split.count": Typed(ValueType.UINT16, count),
        "split.tensors.count": Typed(ValueType.INT32, 4),
        **{key.replace("_", "."): value for key, value in changed.items()},
    }  # fmt: skip
    write(path, pairs, {n: NewTensor(F32, (1,), memoryview(n.encode() * 4)) for n in names})
    return path


def test_split_files(tmp_path: Path) -> None:
    first = write_part(tmp_path, 0, 3, "a", general_name="whole")
    write_part(tmp_path, 1, 3, "bc")
    third = write_part(tmp_path, 2, 3, "d")
    found = gguf.read(first)
    assert {n: bytes(found.values(n)) for n in found.entries} == {n: n.encode() * 4 for n in "abcd"}
    assert found.metadata["general.name"] == "whole"
    with pytest.raises(FormatError, match=r"it is part 3 of 3 of a split .* Open the first part, .*-00001-of-00003"):
        gguf.read(third)
    first.rename(tmp_path / "other.gguf")
    with pytest.raises(FormatError, match="it is part 1 of 3 of a split GGUF file"):
        gguf.read(tmp_path / "other.gguf")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda folder: (folder / "m-00002-of-00002.gguf").unlink(),
            "m-00002-of-00002.gguf: cannot be read: there is no such file, and it is part 2 of 2 of a split GGUF "
            "file. Fetch it into the folder of the first.",
        ),
        (lambda folder: write_part(folder, 1, 2, "ab"), "tensor 'a' is in an earlier part too"),
        (
            lambda folder: write_part(folder, 1, 2, "b"),
            "its parts have 3 tensors, metadata .* says 4",
        ),
        (lambda folder: write_part(folder, 1, 2, "b", split_no=0), "it is part 1 of 2, not 2 of 2"),
        (lambda folder: write_part(folder, 1, 2, "b", split_count=9), "it is part 2 of 9, not 2 of 2"),
        (
            lambda folder: write_part(folder, 1, 2, "bd", general_architecture="qwen2"),
            r"m-00002-of-00002.gguf: metadata 'general.architecture' differs from that of the first part\. Fetch the",
        ),
        (
            lambda folder: write_part(folder, 0, 2, "ac", split_count=Typed(ValueType.INT32, -3)),
            r"metadata 'split.count' is -3, which is not a number of files\. Convert the file again\.$",
        ),
    ],
)
def test_split_files_that_do_not_fit(tmp_path: Path, damage: Callable[[Path], object], message: str) -> None:
    first = write_part(tmp_path, 0, 2, "ac", general_architecture="llama")
    write_part(tmp_path, 1, 2, "bd", general_architecture="llama")
    assert len(gguf.read(first).entries) == 4
    damage(tmp_path)
    with pytest.raises(FormatError, match=message):
        gguf.read(first)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"cannot be read: No such file .*Give the path of a GGUF file"):
        gguf.read(tmp_path / "none")
    with pytest.raises(FormatError, match="cannot be read"):
        gguf.read(tmp_path)
    (tmp_path / "empty").touch()
    with pytest.raises(FormatError, match="first bytes"):
        gguf.read(tmp_path / "empty")


def test_we_read_what_the_package_writes(tmp_path: Path) -> None:
    package = pytest.importorskip("gguf")
    path = tmp_path / "x.gguf"
    writer = package.GGUFWriter(path, "llama")
    writer.add_uint32("llama.block_count", 3)
    writer.add_array("tokenizer.ggml.tokens", ["a", "", "ü"])
    writer.add_array("scores", [0.5, 1.5])
    writer.add_bool("flag", True)
    arrays: dict[str, Any] = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "h": np.ones((5, 1, 2), np.float16)}
    for name, array in arrays.items():
        writer.add_tensor(name, array)
    blocks = np.random.default_rng(1).standard_normal((3, 64)).astype(np.float32)
    packed = package.quants.quantize(blocks, package.GGMLQuantizationType.Q8_0)
    writer.add_tensor("q", packed, raw_dtype=package.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = gguf.read(path)
    assert dict(found.metadata) == {
        "general.architecture": "llama", "llama.block_count": 3, "tokenizer.ggml.tokens": ("a", "", "ü"),
        "scores": (0.5, 1.5), "flag": True,
    }  # fmt: skip
    for name, array in arrays.items():
        assert found.entries[name].shape == array.shape
        assert bytes(found.values(name)) == array.tobytes()
    assert (found.entries["q"].type.name, found.entries["q"].shape) == ("Q8_0", (3, 64))
    assert bytes(found.values("q")) == packed.tobytes()


def test_the_types_are_those_of_the_package() -> None:
    package = pytest.importorskip("gguf")
    theirs = {kind.value: (kind.name, *package.GGML_QUANT_SIZES[kind]) for kind in package.GGMLQuantizationType}
    del theirs[9]  # Q8_1 is 40 bytes there, a layout of old
    ours = {number: (row.name, row.values, row.size_bytes) for number, row in TYPES.items()}
    assert {number: ours.get(number) for number in theirs} == theirs


def test_real_vocabularies(shared_data: Callable[[str], Path]) -> None:
    sizes = {"qwen2": 151_646, "gpt-2": 50_257, "llama-spm": 32_000}
    for name, size in sizes.items():
        found = gguf.read(shared_data("llama_vocab") / f"ggml-vocab-{name}.gguf")
        assert len(found.metadata["tokenizer.ggml.tokens"]) == size
        assert found.metadata.read("tokenizer.ggml.token_type", tuple)[0] in (1, 2)


def test_texts_in_one_piece(tmp_path: Path) -> None:
    texts = ["", "a", "\u00e9" * 200, *map(str, range(3000))]
    data = {"texts": texts, "zero": ["a\0b"] * 9, "one": "text", "numbers": [1, 2]}
    write(tmp_path / "a.gguf", data, {})
    metadata = gguf.read(tmp_path / "a.gguf").metadata
    assert metadata.joined("texts") == "".join("\0" + text for text in texts).encode()
    assert [metadata.joined(key) for key in ("zero", "one", "numbers", "none")] == [None] * 4
