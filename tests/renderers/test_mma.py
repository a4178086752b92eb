"""NVIDIA's matrix unit: who holds what, as the PTX ISA says it, and the text of its instruction."""

from __future__ import annotations

import pytest

from kernmill.ir import Ops, Unit, UOp, const
from kernmill.renderers import AMD_UNITS, HELD, MMA_BYTE_UNITS, MMA_ITEMS, MMA_UNITS, Share, held_amd, mma_function
from tests.conftest import Golden


def places(number: int) -> list[list[int]]:
    """Of each item: the numbers that it holds, of a block's words or results in their order."""
    return [[HELD[number].first(item) + n for n in HELD[number].others] for item in range(MMA_ITEMS)]


def test_items_hold_what_the_isa_says() -> None:
    """There: groupID = item / 4, threadID_in_group = item % 4; a word is two values."""
    for item in range(MMA_ITEMS):
        group, inside = item // 4, item % 4
        rows, words = [group, group + 8, group, group + 8], [inside, inside, inside + 4, inside + 4]
        assert places(0)[item] == [row * 8 + word for row, word in zip(rows, words, strict=True)]
        assert places(1)[item] == [word * 8 + group for word in (inside, inside + 4)]
        assert places(2)[item] == [row * 8 + inside * 2 + n for row in (group, group + 8) for n in (0, 1)]


def test_every_word_and_result_is_held_once() -> None:
    for number, count in enumerate((128, 64, 128)):
        assert sorted(n for held in places(number) for n in held) == list(range(count))


def test_units_say_how_results_are_dealt_out() -> None:
    for unit in (*MMA_UNITS, *MMA_BYTE_UNITS):
        (rows, down), (columns, across) = unit.items
        for item, held in enumerate(places(2)):
            assert held[0] == item // columns * down + item % columns * across
        assert rows * columns == MMA_ITEMS
        assert unit.k * unit.a.size_bytes == 32


@pytest.mark.parametrize("share", [HELD[2], held_amd(8)[2]], ids=["nvidia", "amd"])
def test_results_follow_each_other_in_an_items_own_memory(share: Share) -> None:
    far, near = share.run
    for item in range(MMA_ITEMS):
        own = [share.first(item) + n for n in share.others]
        assert [n // far * near + n % near for n in own] == list(range(len(own)))


@pytest.mark.parametrize("unit", AMD_UNITS, ids=str)
def test_items_of_rdna3_hold_what_its_manual_says(unit: Unit) -> None:
    """Lanes 0 to 15 have a row of a and a column of b each, as have lanes 16 to 31. Result n of a lane is in its
    column; its row is 2 n, in the second half 2 n + 1.
    """
    words = unit.k // unit.group
    a, b, c = held_amd(words)
    (rows, down), (columns, across) = unit.items
    for item in range(MMA_ITEMS):
        assert [a.first(item) + n for n in a.others] == [item % 16 * words + word for word in range(words)]
        assert [b.first(item) + n for n in b.others] == [word * 16 + item % 16 for word in range(words)]
        assert [c.first(item) + n for n in c.others] == [(2 * n + item // 16) * 16 + item % 16 for n in range(8)]
        assert c.first(item) == item // columns * down + item % columns * across
    assert rows * columns == MMA_ITEMS


def test_the_instruction(golden: Golden) -> None:
    """ptxas 12.9 takes kernels with it for sm_80 and sm_90: docs/topics/matrix-units.md."""
    texts: list[str] = []
    for unit in MMA_UNITS:
        sizes = (unit.m * unit.k, unit.k * unit.n, unit.m * unit.n)
        src = tuple(const(dtype.vec(n), 0) for dtype, n in zip((unit.a, unit.b, unit.c), sizes, strict=True))
        texts += mma_function(UOp(Ops.MMA, src[2].dtype, src, (unit.m, unit.n, unit.k, unit.group)))
    golden("\n".join(texts))
