"""Interleaving: how many rows are interleaved, and how a matrix is repacked, some groups of rows at a time.

Tests: tests/kernmill/quant/test_interleave.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernmill.ir import dtypes
from kernmill.runtime import get_device

from ..variable import Variable

__all__ = ["SIDE", "lay_in_pieces", "side_of"]

SIDE = 16  # rows whose words are interleaved: a register of 32-bit sums, or several
_PIECE = 1 << 22  # values that are repacked at a time: intermediates fit the caches


def side_of(device: str) -> int:
    """How many rows have their words interleaved on the device: more than 16 where a register has more 32-bit sums."""
    return max(SIDE, get_device(device).target.lanes(dtypes.int32))


def lay_in_pieces(rows: int, n: int, together: int, lay: Callable[[int, Any], None]) -> None:
    """Call `lay(groups, first)` until all groups of rows of n values are interleaved, `together` rows each; the last
    group, which has fewer, separately. `first` is a variable if there are several pieces: they are one kernel."""
    whole, groups = rows // together, -(-rows // together)
    piece = min(whole, max(1, _PIECE // (together * max(1, n))))
    first = Variable("first", 0, whole - piece)
    for at in range(0, whole, max(1, piece)):  # the last two may share groups
        lay(piece, first.bind(min(at, whole - piece)) if piece < whole else 0)
    if whole < groups:
        lay(1, whole)
