"""The minimum cut between two nodes of a network: Dinic's algorithm.

Source: E. A. Dinic, "Algorithm for solution of a problem of maximum flow in networks with power estimation", 1970.
Tests: tests/compiler/graph/test_min_cut.py.
"""

from __future__ import annotations

from collections import deque

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
        for tail, head, room in ((start, end, capacity), (end, start, back)):
            self.leaving[tail].append(len(self.targets))
            self.targets.append(head)
            self.capacity.append(room)

    def source_side(self) -> set[int]:
        """The nodes on the source's side of a minimum cut."""
        while True:
            levels = self._levels()
            if levels[1] < 0:
                return {node for node, level in enumerate(levels) if level >= 0}
            positions = [0] * len(self.leaving)
            while self._augment(levels, positions):
                pass

    def _levels(self) -> list[int]:
        """Distances from the source over edges with room; -1 where no path leads."""
        levels = [-1] * len(self.leaving)
        levels[0] = 0
        waiting = deque([0])
        while waiting:
            node = waiting.popleft()
            for edge in self.leaving[node]:
                target = self.targets[edge]
                if levels[target] < 0 and self.capacity[edge] > _NOTHING:
                    levels[target] = levels[node] + 1
                    waiting.append(target)
        return levels

    def _augment(self, levels: list[int], positions: list[int]) -> bool:
        """Send flow along one shortest path; False if there is none left. `positions`: used-up edges by node."""
        path: list[int] = []
        node = 0
        while node != 1:
            edges = self.leaving[node]
            while positions[node] < len(edges):
                edge = edges[positions[node]]
                if self.capacity[edge] > _NOTHING and levels[self.targets[edge]] == levels[node] + 1:
                    break
                positions[node] += 1
            else:
                if not path:
                    return False
                node = self.targets[path.pop() ^ 1]
                positions[node] += 1
                continue
            path.append(edge)
            node = self.targets[edge]
        flow = min(self.capacity[edge] for edge in path)
        for edge in path:
            self.capacity[edge] -= flow
            self.capacity[edge ^ 1] += flow
        return True
