"""The minimum cut between two nodes of a network: Dinic's algorithm.

Source: E. A. Dinic, "Algorithm for solution of a problem of maximum flow in networks with power estimation", 1970.
Tests: tests/compiler/graph/test_min_cut.py.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Network"]

_NOTHING = 1e-9  # ns: a smaller capacity is a rounding error


class Network:
    """Nodes by number; node 0 is the source, node 1 the sink."""

    def __init__(self, nodes: int) -> None:
        self.leaving: list[list[int]] = [[] for _ in range(nodes)]  # numbers of the edges that leave a node
        self.targets: list[int] = []
        self.capacity: list[float] = []  # remaining; edge n ^ 1 is the reverse of edge n

    def add_node(self) -> int:
        """Add a node and return its number."""
        self.leaving.append([])
        return len(self.leaving) - 1

    def add_edge(self, start: int, end: int, capacity: float, back: float = 0.0) -> None:
        """Add an edge, with a capacity in each direction."""
        number = len(self.targets)
        self.leaving[start].append(number)
        self.leaving[end].append(number + 1)
        self.targets += end, start
        self.capacity += capacity, back

    def source_side(self) -> set[int]:
        """The nodes on the source's side of a minimum cut."""
        while True:
            levels = self._levels()
            if levels[1] < 0:
                return {node for node, level in enumerate(levels) if level >= 0}
            self._send(levels)

    def _levels(self) -> list[int]:
        """Distances from the source over edges with room, as far as the sink's; -1 where no path leads."""
        leaving, targets, capacity = self.leaving, self.targets, self.capacity
        levels = [-1] * len(leaving)
        levels[0] = 0
        reached = [0]
        for node in reached:
            next_level = levels[node] + 1
            for edge in leaving[node]:
                if capacity[edge] > _NOTHING and levels[target := targets[edge]] < 0:
                    levels[target] = next_level
                    if target == 1:
                        return levels
                    reached.append(target)
        return levels

    def _send(self, levels: Sequence[int]) -> None:
        """Send flow along shortest paths until none is left. After each, go on where its first edge became full."""
        leaving, targets, capacity = self.leaving, self.targets, self.capacity
        tried = [0] * len(leaving)  # by node: edges that lead to the sink no more
        path: list[int] = []
        node = 0
        while True:
            if node == 1:
                node = targets[self._fill(path) ^ 1]
            edges, next_level = leaving[node], levels[node] + 1
            for place in range(tried[node], len(edges)):
                edge = edges[place]
                if capacity[edge] > _NOTHING and levels[targets[edge]] == next_level:
                    tried[node] = place
                    path.append(edge)
                    node = targets[edge]
                    break
            else:
                if not path:
                    return
                tried[node] = len(edges)
                node = targets[path.pop() ^ 1]
                tried[node] += 1

    def _fill(self, path: list[int]) -> int:
        """Fill a path with flow. Return its first edge that is full; the path ends there."""
        capacity = self.capacity
        flow = min([capacity[edge] for edge in path])
        for edge in path:
            capacity[edge] -= flow
            capacity[edge ^ 1] += flow
        first = next(n for n, edge in enumerate(path) if capacity[edge] <= _NOTHING)
        full = path[first]
        del path[first:]
        return full
