"""class RankPart: what one rank computes of a model over the ranks of a job: some layers, or some of each layer.

    layers   rank 0 embeds, each rank computes its layers and sends x to the next, the last sends the logits to rank 0
    tensors  each rank computes some heads, rows of the feed-forward part and experts of all layers. Their products by
             columns are parts of a sum: two reductions a layer. The vocabulary is divided by rows.

Tests: tests/kernmill/llm/test_ranks.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from kernmill import Tensor, dist, where

from .weight import Weight, rows

__all__ = ["Absent", "RankPart", "Slices"]


class Absent:
    """A matrix that another rank has."""

    nbytes = 0

    def __init__(self, shape: tuple[int, ...], device: str) -> None:
        self.shape, self.device = shape, device

    def rows(self, ids: Tensor, /) -> Tensor:
        """Not here."""
        raise AssertionError("another rank has this matrix")

    linear = rows


class Slices(NamedTuple):
    """The part of a tensor: ranges of rows (of experts), or one of columns. Neither: all of it."""

    rows: tuple[tuple[int, int], ...] = ()
    columns: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class RankPart:
    """The part of rank `rank` of `size`. `first`, `stop`: its layers; `vocabulary`: tokens of the whole model."""

    rank: int
    size: int
    first: int
    stop: int
    vocabulary: int
    by_tensors: bool = False

    @property
    def is_first(self) -> bool:
        """True if this rank embeds tokens."""
        return self.by_tensors or self.rank == 0

    @property
    def is_last(self) -> bool:
        """True if this rank computes logits."""
        return self.by_tensors or self.rank == self.size - 1

    @property
    def rows_each(self) -> int:
        """Rows of the vocabulary on each rank; the last one may have fewer."""
        return -(-self.vocabulary // self.size) if self.by_tensors else self.vocabulary

    def embedded(self, table: Weight, ids: Tensor) -> Tensor:
        """The rows of tokens from a table of which each rank may have some. Shapes: (..) -> (.., width)."""
        if not self.by_tensors:
            return rows(table, ids)
        here = ids - self.rank * self.rows_each
        is_here = (here >= 0) & (here < table.shape[0])
        found = rows(table, where(is_here, here, 0).contiguous())
        return self.summed(where(is_here.unsqueeze(-1), found, 0.0))

    def received(self, shape: tuple[int, ...]) -> Tensor:
        """The x that the rank before sends."""
        return dist.recv(Tensor.zeros(*shape), self.rank - 1)

    def passed_on(self, x: Tensor) -> Tensor:
        """Send the x of the last layer here to the next rank."""
        if not self.is_last:
            dist.send(x, self.rank + 1)
        return x

    def summed(self, part: Tensor) -> Tensor:
        """The sum over all ranks of a part of a product."""
        result: Tensor = dist.all_reduce(part) if self.by_tensors else part
        return result

    def at_the_first(self, logits: Tensor) -> Tensor:
        """The logits of the whole vocabulary, where rank 0 samples. Shapes: (rows, here) -> (rows, vocabulary)."""
        if self.by_tensors:
            padded = logits.pad((0, self.rows_each - logits.shape[-1])).contiguous()
            every = dist.all_gather(padded).unflatten(0, (self.size, -1)).transpose(0, 1).flatten(1)
            return every[:, : self.vocabulary]
        if self.rank == 0:
            return dist.recv(logits, self.size - 1)
        if self.is_last:
            dist.send(logits, 0)
        return logits

    def chosen_here(self, ids: Tensor, weights: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Number the experts of each token that this rank has from 0 on; `count`: of all experts.

        The others become one that is chosen here, so that no more matrices are read, and count nothing.
        Shapes: (tokens, used) each.
        """
        if not self.by_tensors:
            return ids, weights
        here = ids - self.rank * (count // self.size)
        is_here = (here >= 0) & (here < count // self.size)
        one = where(is_here, here, 0).max(-1, keepdim=True)
        return where(is_here, here, one).contiguous(), where(is_here, weights, 0.0).contiguous()
