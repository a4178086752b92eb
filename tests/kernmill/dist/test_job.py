"""The ranks of a program, with and without a launcher."""

from __future__ import annotations

import numpy as np
import pytest

from kernmill import Tensor, dist
from kernmill.dist import DistError
from tests.kernmill.dist.ranks import everywhere


def test_one_rank_alone_needs_no_mpi() -> None:
    assert (dist.rank(), dist.size()) == (0, 1)
    assert dist.all_reduce(Tensor([2.0])).tolist() == [2.0]
    with pytest.raises(DistError, match="mpirun -n 2"):
        dist.communicator().send(np.ones(1), 1)


def test_values_that_must_be_equal() -> None:
    everywhere(2, lambda rank: dist.agree("the model", "a"))
    with pytest.raises(DistError, match="the ranks differ in the model: rank 0 has 0, rank 1 has 1"):
        everywhere(2, lambda rank: dist.agree("the model", rank))
