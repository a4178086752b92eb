"""Batches of whole texts; tests/kernmill/llm/arch/test_bert.py compares their vectors."""

from __future__ import annotations

from kernmill.llm.embedding import TOGETHER, _batches, are_several


def test_batches_have_few_sizes_and_all_texts() -> None:
    lengths = [1, 500, 16, 17, 30, 24, 25, 3, *[5] * 70]
    batches = list(_batches(lengths, 300))
    assert sorted(n for members, _, _ in batches for n in members) == list(range(len(lengths)))
    for members, size, rows in batches:
        assert size == 300 or all(lengths[n] <= size for n in members)
        assert len(members) <= rows < 2 * len(members) + 1
        assert rows == 1 or rows * size <= TOGETHER
    assert {size for _, size, _ in batches} == {16, 24, 32, 300}


def test_one_text_or_several() -> None:
    assert not are_several("a")
    assert not are_several([1, 2])
    assert are_several(["a"])
    assert are_several([[1], [2, 3]])
