"""Group points by k-means: `python examples/kmeans.py [--points N] [--clusters K]`.

Distances, the nearest centre and sums per cluster are tensor operations; one round is captured.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np

from kernmill import Tensor, jit, where


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=20_000)
    parser.add_argument("--clusters", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args(given)
    k = options.clusters
    random = np.random.default_rng(0)
    truth = random.uniform(-10, 10, (k, 2))
    data = truth[random.integers(0, k, options.points)] + random.normal(0, 0.5, (options.points, 2))
    points = Tensor(data.astype(np.float32))
    centres = points[random.choice(options.points, k, replace=False).tolist()].clone().realize()

    @jit
    def improve() -> Tensor:
        distance = points.cdist(centres)
        nearest = distance.argmin(1)
        counts = Tensor.ones(options.points).segment_sum(nearest, k)
        sums = points.segment_sum(nearest, k)
        found = sums / counts.clamp(min=1).unsqueeze(1)
        centres.assign(where((counts > 0).unsqueeze(1), found, centres))
        return distance.amin(1).mean()

    for _ in range(options.rounds):
        mean = improve()
    print(f"{options.points} points, {k} clusters: mean distance to the nearest centre {mean.item():.3f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
