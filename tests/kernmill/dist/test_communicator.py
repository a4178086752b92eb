"""Ranks that are threads, and their errors."""

from __future__ import annotations

import time

import pytest

from kernmill import Tensor, dist, jit
from kernmill.dist import DistError
from tests.kernmill.dist.ranks import everywhere


def test_a_silent_rank_is_named() -> None:
    def work(rank: int) -> None:
        if rank == 1:
            time.sleep(1.5)
        dist.barrier()

    with pytest.raises(DistError, match=r"barrier: rank 1 has not answered for 0.3 s"):
        everywhere(3, work, limit_s=0.3)


def test_ranks_that_are_threads_refuse_to_capture() -> None:
    """Threads capture one after the other: the first one waited in the collective for ever."""

    def work(rank: int) -> None:
        summed = jit(dist.all_reduce)
        for _ in range(3):
            summed(Tensor([1.0 + rank]))

    with pytest.raises(DistError, match=r"^jit: a captured function exchanges tensors with ranks that are threads"):
        everywhere(2, work)


def test_a_single_rank_captures() -> None:
    summed = jit(dist.all_reduce)
    assert [summed(Tensor([1.0 + n])).item() for n in range(4)] == [1, 2, 3, 4]
