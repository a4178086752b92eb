"""Origins are one text, which is taken apart again."""

from __future__ import annotations

import pytest

from kernmill.ir import Origin, OriginParts, distinct, in_run, join_origin, split_origin

PARTS = [
    ("a/train.py:41", "", ""),
    ("a/train.py:41", "Net.blocks.3.q", ""),
    ("a/train.py:41", "Net.blocks.3.q", "backward"),
    ("a/train.py:41", "", "backward"),
    ("C:\\work\\a, b in c:1\\train.py:41", "Net.q", "update of q: weight"),
    ("/tmp/in 4:2/x.py:7", "", ""),
    ("<string>:1", "", ""),
]


@pytest.mark.parametrize("parts", PARTS)
def test_the_parts_of_an_origin(parts: tuple[str, str, str]) -> None:
    assert split_origin(join_origin(*parts)) == OriginParts(*parts)


def test_no_origin() -> None:
    assert split_origin(None) == split_origin("") == OriginParts("")


def test_a_run_has_its_own_lines() -> None:
    first, second = Origin.of("a.py:1", 0), Origin.of("a.py:1", 1)
    assert distinct([first, second, first, "b.py:2", "b.py:2"]) == (first, second, "b.py:2")
    assert [in_run(o, ("a.py:8", None)) for o in (first, second, "b.py:2")] == ["a.py:8", "a.py:1", "b.py:2"]
    assert in_run(first, None) == "a.py:1"
