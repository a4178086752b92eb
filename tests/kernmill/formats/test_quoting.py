"""What files say, in sentences: escaped, and short."""

from __future__ import annotations

import time
from array import array
from typing import Any

import pytest

from kernmill.formats.quoting import LONGEST, escaped, quoted


@pytest.fixture(autouse=True)
def on_device() -> None:
    """No tensors here."""


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("llama", "'llama'"),
        ("\x1b[2Jevil\n", "'\\x1b[2Jevil\\n'"),
        ("\u202eevil\udcff", "'\\u202eevil\\udcff'"),
        ("模型", "'模型'"),
        (b"GG\0F", "b'GG\\x00F'"),
        (5, "5"),
        ((1, 2), "(1, 2)"),
        (["a", "b"], "['a', 'b']"),
    ],
)
def test_short_values_are_as_python_writes_them(value: Any, expected: str) -> None:
    assert quoted(value) == expected


def test_long_values_are_cut() -> None:
    long = "9" * 10_000_000
    values = (
        long,
        long.encode(),
        (1,) * 10**6,
        [long] * 9,
        {"a": long},
        array("B", bytes(10**7)),
        10**4000,
        "\x1b" * 999,
    )
    start = time.perf_counter()
    for value in values:
        text = quoted(value)
        assert len(text) <= LONGEST
        assert ".." in text
        assert text.isprintable()
    assert time.perf_counter() - start < 1


def test_sentences_have_no_quotes() -> None:
    assert escaped("\x1b[31mroles must alternate") == "\\x1b[31mroles must alternate"
    assert len(escaped("a" * 1000)) < LONGEST
