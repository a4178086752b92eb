"""Operators whose shapes depend on values: they read their inputs, and run on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..table import operator
from ..values import Host


@operator("NonZero")
def non_zero(x: Host) -> Any:
    return np.array(np.nonzero(x), np.int64).reshape(max(x.ndim, 1), -1)


@operator("Compress")
def compress(x: Host, condition: Host, *, axis: int | None = None) -> Any:
    return np.compress(condition.astype(bool), x, axis)


@operator("Unique")
def unique(x: Host, *, axis: int | None = None, sorted: int = 1) -> tuple[Any, ...]:
    values, first, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not sorted:
        order = np.argsort(first)
        rank = np.argsort(order)
        values = np.take(values, order, axis=0 if axis is None else axis)
        first, counts, inverse = first[order], counts[order], rank[inverse]
    return values, *[t.astype(np.int64) for t in (first, inverse, counts)]


@operator("NonMaxSuppression")
def non_max_suppression(
    boxes: Host, scores: Host, most: Host = None, overlap: Host = None, least: Host = None, *, center_point_box: int = 0
) -> Any:
    """Of overlapping boxes the one with the best score, for each batch and class."""
    limit = int(most.item()) if most is not None else 0
    threshold = float(overlap.item()) if overlap is not None else 0.0
    chosen = list[tuple[int, int, int]]()
    if center_point_box:
        middle, size = boxes[..., :2], boxes[..., 2:]
        corners = np.concatenate([middle - size / 2, middle + size / 2], -1)
    else:
        corners = np.concatenate(
            [np.minimum(boxes[..., :2], boxes[..., 2:]), np.maximum(boxes[..., :2], boxes[..., 2:])], -1
        )
    for batch in range(scores.shape[0]):
        for kind in range(scores.shape[1]):
            row = scores[batch, kind]
            order = np.argsort(-row, kind="stable")
            if least is not None:
                order = order[row[order] > least.item()]
            kept = list[int]()
            for box in order.tolist():
                if len(kept) >= limit:
                    break
                if all(_overlap(corners[batch, box], corners[batch, other]) <= threshold for other in kept):
                    kept.append(box)
            chosen += [(batch, kind, box) for box in kept]
    return np.array(chosen, np.int64).reshape(-1, 3)


def _overlap(a: Any, b: Any) -> float:
    """The common area by the area of both."""
    sides = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2])
    common = float(np.prod(np.maximum(sides, 0)))
    both = float(np.prod(a[2:] - a[:2]) + np.prod(b[2:] - b[:2])) - common
    return common / both if both > 0 else 0.0
