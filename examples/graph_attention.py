"""Classify the nodes of a graph by attention to their neighbours: `python examples/graph_attention.py [--nodes N]`.

Nodes of a class are mostly linked to each other, and their own features say little. Messages go along edges: a softmax
over the edges into each node is a segment maximum and two segment sums.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from kernmill import Tensor, jit, nn


class GraphAttention(nn.Module):
    """Each node takes the mean of its neighbours, weighted by what both have."""

    def __init__(self, width: int, out: int, heads: int) -> None:
        self.project = nn.Linear(width, out * heads, bias=False)
        self.sending = Tensor.glorot_uniform((heads, out), requires_grad=True)
        self.receiving = Tensor.glorot_uniform((heads, out), requires_grad=True)
        self.heads, self.out = heads, out

    def forward(self, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        """Shapes: (nodes, width), (edges,), (edges,) -> (nodes, heads * out)."""
        nodes = x.shape[0]
        h = self.project(x).reshape(nodes, self.heads, self.out)
        score = ((h * self.sending).sum(-1)[source] + (h * self.receiving).sum(-1)[target]).leaky_relu(0.2)
        weight = (score - score.detach().max()).exp()
        total = weight.segment_sum(target, nodes)
        sums = (h[source] * weight.unsqueeze(-1)).segment_sum(target, nodes)
        result: Tensor = (sums / (total.unsqueeze(-1) + 1e-9)).flatten(1)
        return result


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=600)
    parser.add_argument("--classes", type=int, default=4)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args(given)
    random = np.random.default_rng(0)
    nodes, classes = options.nodes, options.classes
    labels = random.integers(0, classes, nodes)
    features = np.eye(classes)[labels] + random.normal(0, 1.5, (nodes, classes))
    source, target = random.integers(0, nodes, (2, nodes * 20))
    kept = (labels[source] == labels[target]) | (random.random(nodes * 20) < 0.1)
    source, target = (np.concatenate([ends[kept], np.arange(nodes)]) for ends in (source, target))
    x, y = Tensor(features.astype(np.float32)), Tensor(labels)
    edges = Tensor(source), Tensor(target)
    is_known = Tensor((random.random(nodes) < 0.2).astype(np.float32))  # one label in five

    first, second = GraphAttention(classes, 8, 4), GraphAttention(32, classes, 1)
    optimizer = nn.optim.Adam([*first.parameters(), *second.parameters()], lr=0.01, weight_decay=5e-4)

    def predict() -> Tensor:
        scores: Tensor = second(first(x, *edges).elu(), *edges)
        return scores

    @jit
    def step() -> Tensor:
        optimizer.zero_grad()
        loss = (predict().cross_entropy(y, reduction="none") * is_known).sum() / is_known.sum()
        loss.backward()
        optimizer.step()
        return loss

    for i in range(options.steps):
        loss = step()
        if i % 25 == 0:
            print(f"step {i}: loss {loss.item():.3f}")
    hits = (predict().argmax(1) == y).float().detach()
    alone = (x.argmax(1) == y).float().mean().item()
    unseen = ((hits * (1 - is_known)).sum() / (1 - is_known).sum()).item()
    print(f"{nodes} nodes, {len(source)} edges: {unseen:.1%} of the unseen labels, {alone:.1%} from the features alone")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
