"""Tensor methods: functions of matrices that are products and diagonals, and axes rearranged by a pattern."""

from __future__ import annotations

import operator
import re
from math import prod
from typing import Self

from kernmill.ir import ShapeError, numel, show_shape

from .contraction import Contraction

__all__ = ["Matrices"]


class Matrices(Contraction):
    """Functions of matrices."""

    def trace(self, offset: int = 0) -> Self:
        """The sum of a diagonal of the first two axes; ints in int64."""
        return self.diagonal(offset).sum(-1)

    def kron(self, other: Self) -> Self:
        """The Kronecker product: every entry of self times all of `other`. The one of lower rank gets axes in front."""
        rank = max(self.ndim, other.ndim)
        own, theirs = ((1,) * (rank - t.ndim) + t.node_shape for t in (self, other))
        left = self.reshape([size for s in own for size in (s, 1)])
        right = other.reshape([size for s in theirs for size in (1, s)])
        return left.mul(right).reshape([a * b for a, b in zip(own, theirs, strict=True)])

    def cross(self, other: Self, axis: int = -1) -> Self:
        """The cross product of vectors of three entries along an axis.

        Raises:
            ShapeError: an axis of another size.
        """
        x, y = self.broadcast_tensors(other)
        axis = x._there(axis, "cross")
        if x.node_shape[axis] != 3:
            raise ShapeError(
                f"cross: shapes {show_shape(self.uop.shape)} and {show_shape(other.uop.shape)}: axis {axis} must have "
                "the size 3. Pad vectors of two entries with a zero."
            )
        left, right = (x.roll(-1, axis).mul(y.roll(1, axis)), x.roll(1, axis).mul(y.roll(-1, axis)))
        return left.sub(right)

    def matrix_power(self, n: int) -> Self:
        """A square matrix, or a batch of them, multiplied n times with itself; 0 gives the identity.

        Raises:
            ShapeError: a matrix that is not square.
        """
        n = operator.index(n)
        if self.ndim < 2 or self.node_shape[-1] != self.node_shape[-2]:
            raise ShapeError(f"matrix_power: shape {show_shape(self.uop.shape)}: must be square in its last two axes.")
        assert n >= 0, "a subclass has inverses"
        if n == 0:
            return self.mul(0).add(self.eye(self.node_shape[-1], dtype=self.dtype))
        result, power = None, self
        while True:
            if n & 1:
                result = power if result is None else result.matmul(power)
            n >>= 1
            if not n:
                assert result is not None
                return result._own_box()
            power = power.matmul(power)

    def rearrange(self, pattern: str, **sizes: int) -> Self:
        """Axes split, reordered and merged by a pattern of einops: `x.rearrange("b (h w) c -> b c h w", h=4)`.

        A name is an axis, a group in brackets is several axes merged into one, `...` is any others.

        Raises:
            ShapeError: a pattern that does not fit the shape.
        """
        shown = f"rearrange: {pattern!r} for shape {show_shape(self.uop.shape)}"
        left, arrow, right = pattern.partition("->")
        groups, wanted = _groups(left), _groups(right)
        others = [f"{n}." for n in range(self.ndim - len(groups) + 1)] if ["..."] in groups else []
        groups, wanted = _spread(groups, others), _spread(wanted, others)
        names, new = [n for group in groups for n in group], [n for group in wanted for n in group]
        if not arrow or len(groups) != self.ndim or sorted(names) != sorted(new) or len(set(names)) != len(names):
            raise ShapeError(f"{shown}: name each axis once on both sides of ->, and group merged axes in brackets.")
        known: dict[str, int] = {}
        for group, size in zip(groups, self.node_shape, strict=True):
            open_ones = [name for name in group if name not in sizes]
            given = prod(sizes[name] for name in group if name in sizes)
            if (
                len(open_ones) > 1
                or given < 1
                or (isinstance(size, int) and (size % given or (not open_ones and size != given)))
            ):
                raise ShapeError(
                    f"{shown}: axis ({' '.join(group)}) of size {size} needs the sizes of all names but one."
                )
            known |= {name: sizes.get(name, size // given) for name in group}
        split = self.reshape([known[name] for name in names])
        merged = [numel(tuple(known[name] for name in group)) for group in wanted]
        return split.permute([names.index(name) for name in new]).reshape(merged)  # type: ignore[arg-type]


def _groups(side: str) -> list[list[str]]:
    """The names of each axis of one side of a pattern; an axis of size 1 has none."""
    found = re.findall(r"\(([^()]*)\)|(\.\.\.|\w+)", side)
    return [[name for name in (group or single).split() if name != "1"] for group, single in found]


def _spread(groups: list[list[str]], others: list[str]) -> list[list[str]]:
    """Groups with the axes of `...` in its position, or in its group."""
    result: list[list[str]] = []
    for group in groups:
        if group == ["..."]:
            result += [[name] for name in others]
        else:
            result.append([n for name in group for n in (others if name == "..." else [name])])
    return result
