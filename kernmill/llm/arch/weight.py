"""Weight matrices of an architecture: row lookup and product, for a Tensor or a class with both."""

from __future__ import annotations

from collections.abc import MutableMapping, Sequence
from typing import Protocol, runtime_checkable

from kernmill import Tensor

from ...quant import QuantizedTensor, float_linear, joined

__all__ = ["Matrix", "Stack", "Watcher", "Weight", "chosen", "join", "layout", "linear", "nbytes", "parts_of", "rows"]


class Matrix(Protocol):
    """A matrix in a special layout, such as quantized. Shapes: (out, in)."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the values."""
        ...

    @property
    def nbytes(self) -> int:
        """The bytes of this layout."""
        ...

    @property
    def device(self) -> str:
        """The device of the bytes."""
        ...

    def rows(self, ids: Tensor, /) -> Tensor:
        """Shapes: (..) -> (.., in). Dtypes: ints to floats."""
        ...

    def linear(self, x: Tensor, /) -> Tensor:
        """x @ self.T. Shapes: (.., in) -> (.., out)."""
        ...


@runtime_checkable
class Stack(Protocol):
    """Matrices of one shape behind each other in a form of their own. Shapes: (matrices, out, in)."""

    def chosen(self, x: Tensor, ids: Tensor, counts: Tensor | None = None, /) -> Tensor:
        """Rows with the matrix of their tile: x[t] @ self[ids[t]].T for each t; only these matrices are read. Rows of a
        tile from its count on may be anything.

        Shapes: (tiles, rows, in), (tiles,), (tiles,) -> (tiles, rows, out).
        """
        ...


Weight = Tensor | Matrix


class Watcher(Protocol):
    """Replaces weights by ones that also report what they are multiplied with."""

    def watched(self, name: str, weight: Weight, /) -> Weight:
        """Return the weight to use for one of the file."""
        ...


def rows(weight: Weight, ids: Tensor) -> Tensor:
    """Rows by their numbers, float32. Shapes: (out, in), (..) -> (.., in)."""
    return (weight[ids] if isinstance(weight, Tensor) else weight.rows(ids)).float()


def linear(x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias. Shapes: (.., in), (out, in), (out,) -> (.., out)."""
    if isinstance(weight, Tensor):
        tiled = float_linear(x, weight)
        result = x.linear(weight) if tiled is None else tiled
    else:
        result = weight.linear(x)
    return result if bias is None else result + bias


def chosen(x: Tensor, weight: Weight, ids: Tensor, bias: Tensor | None = None, counts: Tensor | None = None) -> Tensor:
    """Rows with the matrix of their tile, and its bias. Rows of a tile from its count on may be anything.

    Shapes: (tiles, rows, in), (matrices, out, in), (tiles,), (matrices, out), (tiles,) -> (tiles, rows, out).
    """
    if isinstance(weight, Tensor):
        result = (x.unsqueeze(2) * weight[ids].unsqueeze(1).float()).sum(-1)
    else:
        assert isinstance(weight, Stack)
        result = weight.chosen(x, ids, counts)
    return result if bias is None else result + bias[ids].unsqueeze(1)


def join(matrices: MutableMapping[str, Weight], names: Sequence[str]) -> None:
    """Of these names, which matrices with the same x have: neighbours that can be one matrix become one, by the name of
    the first. Why: docs/topics/llm-inference.md."""
    for first in range(len(names)):
        for end in range(len(names), first + 1, -1):
            run = [matrices[name] for name in names[first:end] if name in matrices]
            whole = joined(run) if len(run) == end - first else None
            if whole is not None:
                matrices[names[first]] = whole
                for name in names[first + 1 : end]:
                    del matrices[name]


def parts_of(product: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Split the product by a merged matrix into as many parts as it has. It is computed as one: separate parts would
    be separate access streams. Shapes: (.., sum of the sizes) -> (.., size) each."""
    count = next(count for count in range(1, len(sizes) + 1) if sum(sizes[:count]) == product.shape[-1])
    return [product] if count == 1 else [*product.contiguous().split([*sizes[:count]], -1)]


def nbytes(weight: Weight) -> int:
    """Return the stored bytes of a weight."""
    return weight.numel() * weight.dtype.size_bytes if isinstance(weight, Tensor) else weight.nbytes


def layout(weight: Weight) -> str:
    """Return how the rows of a weight are stored: plain or interleaved."""
    is_plain = isinstance(weight, Tensor) or (isinstance(weight, QuantizedTensor) and weight.interleave == 1)
    return "plain" if is_plain else "interleaved"
