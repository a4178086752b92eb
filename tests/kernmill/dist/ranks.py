"""Ranks that are threads, for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kernmill import Tensor, dist
from kernmill.dist import Communicator, run_threads


def given(rank: int, dtype: str = "float32") -> Tensor:
    """The tensor of a rank. Shape: (6, 4)."""
    values = np.random.default_rng(rank).integers(0, 9, (6, 4))
    return Tensor(values.astype(np.float64)).cast(dtype).realize()


def everywhere(size: int, function: Callable[[int], Any], limit_s: float = 30) -> list[Any]:
    """What `function(rank)` returns on each rank."""

    def work(ranks: Communicator) -> Any:
        with dist.use(ranks):
            return function(ranks.rank)

    return run_threads(size, work, limit_s)
