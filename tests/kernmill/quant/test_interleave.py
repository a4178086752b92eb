"""Pieces of a matrix whose rows are laid side by side: every group once or twice, the short one by itself."""

from __future__ import annotations

from typing import Any

import pytest

from kernmill.quant import interleave


@pytest.mark.parametrize("rows", [0, 1, 15, 16, 17, 48, 95, 96, 100])
@pytest.mark.parametrize("most", [1, 2, 4, 100])
def test_all_groups_are_laid(rows: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interleave, "_PIECE", 16 * 24 * most)
    laid: set[int] = set()
    counts: list[int] = []

    def lay(groups: int, first: Any) -> None:
        at = first if isinstance(first, int) else int(first)
        assert not laid >= set(range(at, at + groups))
        laid.update(range(at, at + groups))
        counts.append(groups)

    interleave.lay_in_pieces(rows, 24, 16, lay)
    assert laid == set(range(-(-rows // 16)))
    assert all(count <= most for count in counts)
    assert rows % 16 == 0 or counts[-1] == 1
