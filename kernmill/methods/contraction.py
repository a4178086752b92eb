"""Tensor methods: products summed over shared axes: matmul, einsum, linear.

Half types are multiplied and added in float32.
"""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from functools import reduce
from numbers import Integral
from typing import TYPE_CHECKING, Self

from kernmill.ir import DTypeError, Ops, ShapeError, permute, promote, reshape, show_shape

from ..arguments import with_sentences
from ..lazy import Lazy, accumulator
from .indexing import Indexing

if TYPE_CHECKING:
    from ..lazy import Operand

__all__ = ["Contraction", "einsum"]


class Contraction(Indexing):
    """Matrix products."""

    def _contract(self, other: Self, axes: tuple[int, ...]) -> Self:
        """The product with `other`, broadcast, summed over axes; ints wrap in their own dtype."""
        dtype = promote(self.dtype, other.dtype)
        wide = accumulator(dtype)
        product = self._as(dtype)._as(wide)._apply(Ops.MUL, other._as(dtype)._as(wide))
        return product._reduce(Ops.ADD, axes, False, "matmul")._as(dtype)

    def matmul(self, other: Self) -> Self:
        """The matrix product over the last axis of self and the last but one of `other`; leading axes broadcast.

        Raises:
            ShapeError: a 0-d operand, or inner sizes that differ.
        """
        if not isinstance(other, Lazy):
            other = self._tensor(other)
        x, y, (left, right) = self.uop, other.uop, (self.uop.shape, other.uop.shape)
        if not left or not right:
            shown = f"matmul: {show_shape(left)} @ {show_shape(right)}"
            raise ShapeError(f"{shown}: a 0-d tensor has no axis to contract. Use * instead.")
        inner, own = left[-1], right[-2:][0]
        if inner is not own and inner != own:
            shown = f"matmul: {show_shape(left)} @ {show_shape(right)}"
            raise ShapeError(
                f"{shown}: inner sizes differ ({inner} and {own}). "
                f"Transpose one side, or reshape the left to (..., {own})."
            )
        rank = len(right)
        turned = permute(y, (*range(rank - 2), rank - 1, rank - 2)) if rank > 1 else y
        rows = reshape(x, (*left[:-1], 1, inner)) if len(left) > 1 else reshape(x, (1, 1, inner))
        columns = reshape(turned, (*right[:-2], 1, *turned.shape[-2:]) if rank > 1 else (1, 1, own))
        result = self._result(rows)._contract(other._result(columns), (-1,))
        if len(left) == 1:
            result = result.squeeze(-2)
        return result.squeeze(-1) if rank == 1 else result

    dot = mm = bmm = matmul

    def __matmul__(self, other: Self) -> Self:
        return self.matmul(other)

    def __rmatmul__(self, other: Operand) -> Self:
        return self._tensor(other).matmul(self)

    def linear(self, weight: Self, bias: Self | None = None) -> Self:
        """self @ weight.T + bias, weight of shape (out, in), as in PyTorch."""
        result = self.matmul(weight.mT if weight.ndim > 1 else weight)
        return result if bias is None else result.add(bias)

    def outer(self, other: Self) -> Self:
        """The product of each entry of one vector with each of another."""
        if self.ndim != 1 or other.ndim != 1:
            raise ShapeError(
                f"outer: shapes {show_shape(self.uop.shape)} and {show_shape(other.uop.shape)}: both must be "
                "vectors. Flatten them."
            )
        return self.unsqueeze(1).mul(other.unsqueeze(0))

    def tensordot(self, other: Self, axes: int | Sequence[Sequence[int]] = 2) -> Self:
        """Contract axes: the last `axes` ones with the first ones of the other tensor, or those of two lists, in
        pairs."""
        if isinstance(axes, (int, Integral)):
            if not 0 <= axes <= min(self.ndim, other.ndim):
                raise ShapeError(
                    f"tensordot: axes={reprlib.repr(axes)} of shapes {show_shape(self.uop.shape)} and "
                    f"{show_shape(other.uop.shape)}. Give a number of axes that both have, or two lists of axes."
                )
            axes = range(self.ndim - axes, self.ndim), range(axes)
        left, right = self._axes(axes[0], "tensordot"), other._axes(axes[1], "tensordot")
        sizes = [[t.node_shape[a] for a in own] for t, own in ((self, left), (other, right))]
        if sizes[0] != sizes[1]:
            raise ShapeError(
                f"tensordot: axes {left} of shape {show_shape(self.uop.shape)} and axes {right} of "
                f"{show_shape(other.uop.shape)} differ in size. Name axes of equal sizes, in pairs."
            )
        letters = [chr(0x391 + i) for i in range(self.ndim + other.ndim)]
        own, theirs = letters[: self.ndim], letters[self.ndim :]
        for a, b in zip(left, right, strict=True):
            theirs[b] = own[a]
        kept = [n for n in (*own, *theirs) if (n in own) != (n in theirs)]
        return self.einsum(other, formula=f"{''.join(own)},{''.join(theirs)}->{''.join(kept)}")

    def cosine_similarity(self, other: Self, axis: int = 1, eps: float = 1e-8) -> Self:
        """The cosine of the angle between vectors along an axis; norms below eps count as eps."""
        pair = (t._floating() for t in self.broadcast_tensors(other))
        a, b = (t.div(t.norm(axis=axis, keepdim=True).clamp(min=eps)) for t in pair)
        return a.mul(b).sum(axis)

    def cdist(self, other: Self, p: float = 2.0) -> Self:
        """The p-norm of the difference of every row of self and every row of `other`; leading axes broadcast.

        Shapes: (.., n, k), (.., m, k) -> (.., n, m).
        """
        if min(self.ndim, other.ndim) < 2:
            raise ShapeError(
                f"cdist: shapes {show_shape(self.uop.shape)} and {show_shape(other.uop.shape)}: rows are on the "
                "second to last axis. Unsqueeze the vectors."
            )
        return self.unsqueeze(-2).sub(other.unsqueeze(-3)).norm(p, axis=-1)

    def einsum(self, *others: Self, formula: str = "") -> Self:
        """Return Einstein's sum over this tensor and others; kernmill.einsum takes the formula first."""
        Contraction._are_tensors((self, *others), "einsum", 'einsum("ij,jk->ik", a, b)')
        if not formula:
            raise ShapeError('einsum: the formula is missing. Write kernmill.einsum("ij,jk->ik", a, b).')
        inputs, output = parse_formula(formula, [t.ndim for t in (self, *others)])
        dtype = reduce(promote, (t.dtype for t in (self, *others)))
        terms = [
            tensor.cast(dtype)._lettered(names, set(output).union(*inputs[:n], *inputs[n + 1 :]))
            for n, (tensor, names) in enumerate(zip((self, *others), inputs, strict=True))
        ]
        result, letters = terms[0]
        for n, (right, own) in enumerate(terms[1:]):
            result, letters = result._paired(letters, right, own, set(output).union(*inputs[n + 2 :]))
        return result.permute([letters.index(name) for name in output]) if output else result

    def _lettered(self, names: str, elsewhere: set[str]) -> tuple[Self, str]:
        """Give each letter one axis: an axis named twice becomes its diagonal; letters that occur nowhere else are
        summed."""
        result = self
        while len(set(names)) < len(names):
            name = next(n for n in names if names.count(n) > 1)
            first, second = names.index(name), names.index(name, names.index(name) + 1)
            if result.node_shape[first] != result.node_shape[second]:
                raise ShapeError(
                    f"einsum: {name!r} names axes of sizes {result.node_shape[first]} and {result.node_shape[second]}."
                )
            result = result.diagonal(0, first, second)
            names = names[:first] + names[first + 1 : second] + names[second + 1 :] + name
        gone = tuple(a for a, name in enumerate(names) if name not in elsewhere)
        if gone:
            result = result._contract(result._tensor(1).cast(result.dtype), gone)
        return result, "".join(name for name in names if name in elsewhere)

    def _paired(self, letters: str, right: Self, own: str, later: set[str]) -> tuple[Self, str]:
        """Return the product of two tensors, summed over the letters that are not used later."""
        both = letters + "".join(n for n in own if n not in letters)
        sizes = dict(zip(own, right.node_shape, strict=True))
        for name, size in zip(letters, self.node_shape, strict=True):
            if name in sizes and size not in (1, sizes[name]) and sizes[name] != 1:
                raise ShapeError(f"einsum: {name!r} has sizes {size} and {sizes[name]}. Each letter has one size.")
        left = self.reshape((*self.node_shape, *(1 for _ in both[len(letters) :])))
        order = [n for n in both if n in own]
        turned = right.permute([own.index(n) for n in order])
        turned = turned.reshape([sizes.get(n, 1) for n in both])
        gone = tuple(a for a, n in enumerate(both) if n not in later)
        if not gone:
            return left.mul(turned), both
        return left._contract(turned, gone), "".join(n for n in both if n in later)


def parse_formula(formula: str, ranks: list[int]) -> tuple[list[str], str]:
    """The letters of each input and of the output; `...` becomes capital Greek letters.

    Raises:
        ShapeError: the formula and the operands do not fit together.
    """
    text = formula.replace(" ", "")
    left, arrow, output = text.partition("->")
    inputs = left.split(",")
    if len(inputs) != len(ranks):
        raise ShapeError(f"einsum {formula!r}: {len(inputs)} terms for {len(ranks)} tensors. Give one term for each.")
    spread = [rank - len(names.replace("...", "")) for names, rank in zip(inputs, ranks, strict=True) if "..." in names]
    dots = "".join(chr(0x391 + i) for i in range(max(spread, default=0)))
    named = []
    for names, rank in zip(inputs, ranks, strict=True):
        extra = rank - len(names.replace("...", ""))
        full = names.replace("...", dots[len(dots) - extra :] if extra > 0 else "")
        if len(full) != rank:
            raise ShapeError(f"einsum {formula!r}: {names!r} names {len(full)} axes of a tensor with {rank}.")
        named.append(full)
    if not arrow:
        seen = "".join(named)
        output = dots + "".join(sorted(n for n in set(seen) if seen.count(n) == 1 and n not in dots))
    output = output.replace("...", dots)
    unknown = sorted(set(output) - set("".join(named)))
    if unknown or len(set(output)) < len(output):
        raise ShapeError(f"einsum {formula!r}: the output names each letter of the inputs at most once.")
    return named, output


@with_sentences
def einsum(formula: str, *tensors: Contraction) -> Contraction:
    """Return Einstein's sum, `einsum("ij,jk->ik", a, b)`.

    Raises:
        DTypeError: no tensors.
    """
    if not tensors:
        raise DTypeError("einsum: no tensors. Give one for each term of the formula.")
    return tensors[0].einsum(*tensors[1:], formula=formula)
