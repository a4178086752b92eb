"""The cut that is found is the smallest of all cuts."""

from __future__ import annotations

import itertools
import random

import pytest

from kernmill.compiler import Network


def capacity_of(edges: list[tuple[int, int, float, float]], side: set[int]) -> float:
    """Capacity of the edges from one side to the other."""
    there = sum(room for start, end, room, _ in edges if start in side and end not in side)
    return there + sum(back for start, end, _, back in edges if end in side and start not in side)


@pytest.mark.parametrize("seed", range(40))
def test_no_other_cut_is_smaller(seed: int) -> None:
    draw = random.Random(seed)
    nodes = draw.randint(2, 8)
    pairs = [pair for pair in itertools.combinations(range(nodes), 2) if draw.random() < 0.6]
    edges = [(a, b, float(draw.randint(0, 9)), float(draw.choice([0, 0, draw.randint(0, 9)]))) for a, b in pairs]
    network = Network(nodes)
    for edge in edges:
        network.add_edge(*edge)
    side = network.source_side()
    assert 0 in side
    assert 1 not in side
    others = [set(chosen) | {0} for n in range(nodes - 1) for chosen in itertools.combinations(range(2, nodes), n)]
    assert capacity_of(edges, side) == min(capacity_of(edges, other) for other in others)


def test_a_network_without_a_path() -> None:
    network = Network(3)
    network.add_edge(0, 2, 5.0)
    assert network.source_side() == {0, 2}
    assert network.add_node() == 3
