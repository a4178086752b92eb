"""Links between ranks, and the size of messages."""

from __future__ import annotations

import pytest

from kernmill import dist
from kernmill.dist.links import bucket_bytes, slowest_link
from kernmill.ir import Link
from tests.kernmill.dist.ranks import everywhere


@pytest.mark.parametrize("whole", [1 << 10, 1 << 20, 1 << 30])
def test_no_other_size_of_a_bucket_costs_less(whole: int) -> None:
    """The last bucket is exchanged after the computation, and each one takes a latency."""
    link = Link(5_000.0, 1.25)

    def cost(size: float) -> float:
        return size / link.bytes_per_ns + whole / size * link.latency_ns

    best = bucket_bytes(whole, link)
    assert all(cost(best) <= cost(best * factor) for factor in (0.5, 0.9, 1.1, 2.0))


def test_the_link_is_the_same_on_all_ranks() -> None:
    first, second = everywhere(2, lambda rank: (slowest_link(), dist.link_to_next()))
    assert first[0] == second[0]
    assert min(first[0].latency_ns, first[0].bytes_per_ns) > 0
