"""The ranks other than 0 wait for what rank 0 announces, and end with it."""

from __future__ import annotations

import pytest

from kernmill import dist
from kernmill.dist import DistError
from kernmill.llm.follow import follow
from tests.kernmill.dist.ranks import everywhere


def test_followers_end_with_rank_0() -> None:
    def work(rank: int) -> str:
        if rank:
            follow()
            return "followed"
        dist.communicator().announce(("end",))
        return "led"

    assert everywhere(3, work) == ["led", "followed", "followed"]


def test_there_is_nobody_to_follow_without_ranks() -> None:
    with pytest.raises(DistError, match="mpirun -n 2"):
        follow()
