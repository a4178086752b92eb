"""What a matrix of weights is to an architecture: rows to look up, and a product; a Tensor, or what can do both."""

from __future__ import annotations

from typing import Protocol

from kernmill import Tensor

from ...quant import float_linear

__all__ = ["Matrix", "Weight", "linear", "nbytes", "rows"]


class Matrix(Protocol):
    """A matrix in a form of its own, such as blocks of few bits. Shapes: (out, in)."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the values."""
        ...

    @property
    def nbytes(self) -> int:
        """Of the form."""
        ...

    def rows(self, ids: Tensor, /) -> Tensor:
        """Shapes: (..) -> (.., in). Dtypes: ints to floats."""
        ...

    def linear(self, x: Tensor, /) -> Tensor:
        """x @ self.T. Shapes: (.., in) -> (.., out)."""
        ...


Weight = Tensor | Matrix


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


def nbytes(weight: Weight) -> int:
    """Bytes of a weight as it is kept."""
    return weight.numel() * weight.dtype.size_bytes if isinstance(weight, Tensor) else weight.nbytes
