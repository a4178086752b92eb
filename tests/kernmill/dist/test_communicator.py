"""Ranks that are threads, and their errors."""

from __future__ import annotations

import time

import pytest

from kernmill import dist
from kernmill.dist import DistError
from tests.kernmill.dist.ranks import everywhere


def test_a_silent_rank_is_named() -> None:
    def work(rank: int) -> None:
        if rank == 1:
            time.sleep(1.5)
        dist.barrier()

    with pytest.raises(DistError, match=r"barrier: rank 1 has not answered for 0.3 s"):
        everywhere(3, work, limit_s=0.3)
