"""Rows: the first call of a transformer block in a fresh process, forward and with gradients, cold and warm."""

from __future__ import annotations

from functools import partial

from .block import BLOCKS
from .fresh_rows import FreshRuns
from .row import Goal, Prepared, Row, Setup

__all__ = ["BLOCK_ROWS"]


def prepare(is_gradient: bool, is_warm: bool, setup: Setup) -> Prepared:
    programs = {
        name: f"from bench.block import block_child; block_child({name!r}, {is_gradient}, {setup.tiny})"
        for name in setup.peers
        if name in BLOCKS
    }
    return BlockRuns(setup, programs, is_warm).prepared()


class BlockRuns(FreshRuns):
    """Measured is the call alone: imports are done, and the weights lie in memory."""

    def seconds(self, name: str) -> float:
        return float(self.run(name)["first_s"])


def row(is_gradient: bool, is_warm: bool, limit: float) -> Row:
    name = f"block_{'backward' if is_gradient else 'forward'}_{'warm' if is_warm else 'cold'}"
    what = "forward and backward" if is_gradient else "forward"
    how = "kernels in the cache" if is_warm else "cold"
    about = f"first {what} of a transformer block, width 1024, 256 tokens, {how}"
    return Row(name, about, partial(prepare, is_gradient, is_warm), goals=(Goal(limit=limit),), most_rounds=3)


BLOCK_ROWS = [row(False, False, 0.5), row(False, True, 0.1), row(True, False, 2.0), row(True, True, 0.2)]
