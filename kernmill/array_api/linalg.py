"""The extension of linear algebra: kernmill.linalg with the standard's arguments; products of complex arrays too.

Solutions of complex systems are those of real systems of twice the size. Factorizations of complex matrices are not
supported (docs/how-to/array-api.md).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kernmill.ir import DType, DTypeError, ShapeError, show_shape

from .. import linalg as _linalg
from ..complex_tensor import ComplexTensor
from ..methods.movement import cat
from ..tensor import Tensor
from .dtypes import Array
from .reductions import sum as _sum

__all__ = [
    "cholesky", "cross", "det", "diagonal", "eigh", "eigvalsh", "inv", "matmul", "matrix_norm", "matrix_power",
    "matrix_rank", "matrix_transpose", "outer", "pinv", "qr", "slogdet", "solve", "svd", "svdvals", "tensordot",
    "trace", "vecdot", "vector_norm",
]  # fmt: skip


class QRResult(NamedTuple):
    """The result of `qr`."""

    Q: Any
    R: Any


class SlogdetResult(NamedTuple):
    """The result of `slogdet`."""

    sign: Any
    logabsdet: Any


def _real(x: Any, call: str) -> Any:
    if isinstance(x, ComplexTensor):
        raise DTypeError(f"{call}: a {x.dtype.name} matrix: must be real. Use NumPy: np.linalg.{call}(x.numpy()).")
    return x


def _bilinear(product: Callable[[Any, Any], Any], x: Any, y: Any) -> Any:
    """A product of arrays, of which some are complex, from products of real ones."""
    if not isinstance(x, ComplexTensor) and not isinstance(y, ComplexTensor):
        return product(x, y)
    if not isinstance(y, ComplexTensor):
        return ComplexTensor(product(x.real, y), product(x.imag, y))
    if not isinstance(x, ComplexTensor):
        return ComplexTensor(product(x, y.real), product(x, y.imag))
    return ComplexTensor(
        product(x.real, y.real) - product(x.imag, y.imag), product(x.real, y.imag) + product(x.imag, y.real)
    )


def _embedded(x: ComplexTensor) -> Tensor:
    """A complex matrix as a real one of twice the size."""
    rows = [cat([x.real, x.imag.neg()], -1), cat([x.imag, x.real], -1)]
    return cat(rows, -2)


# --- products --------------------------------------------------------------------------------------------------------
def matmul(x1: Array, x2: Array, /) -> Array:
    """Matrix products."""
    return _bilinear(lambda a, b: a.matmul(b), x1, x2)  # type: ignore[no-any-return]


def matrix_transpose(x: Array, /) -> Array:
    """The last two axes exchanged."""
    if x.ndim < 2:
        raise ShapeError(f"matrix_transpose: shape {show_shape(x.shape)}: needs two axes.")
    return x.mT


def tensordot(x1: Array, x2: Array, /, *, axes: int | Sequence[Sequence[int]] = 2) -> Array:
    """Products summed over pairs of axes."""
    return _bilinear(lambda a, b: a.tensordot(b, axes), x1, x2)  # type: ignore[no-any-return]


def vecdot(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """Dot products of vectors along an axis, the first conjugated."""
    left = x1.conj() if isinstance(x1, ComplexTensor) else x1
    product: Any = left.movedim(axis, -1) * x2.movedim(axis, -1)
    own = product.dtype
    result = product.sum(-1)
    return result if isinstance(result, ComplexTensor) else result.cast(own)


def outer(x1: Array, x2: Array, /) -> Array:
    """Products of each entry of a vector with each of another."""
    return _bilinear(lambda a, b: a.outer(b), x1, x2)  # type: ignore[no-any-return]


def cross(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """Cross products of vectors of three entries along an axis."""
    return _bilinear(lambda a, b: a.cross(b, axis), x1, x2)  # type: ignore[no-any-return]


def diagonal(x: Array, /, *, offset: int = 0) -> Array:
    """Diagonals of the last two axes."""
    return x.diagonal(offset, -2, -1)


def trace(x: Array, /, *, offset: int = 0, dtype: DType | None = None) -> Array:
    """Sums of diagonals of the last two axes."""
    return _sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)


def matrix_power(x: Array, n: int, /) -> Array:
    """A matrix multiplied n times with itself."""
    if not isinstance(x, ComplexTensor):
        return x.matrix_power(n)
    base = inv(x) if n < 0 else x
    result: Any = ComplexTensor((x.real * 0) + Tensor.eye(x.shape[-1], dtype=x.real.dtype))
    for _ in range(abs(n)):
        result = matmul(result, base)
    return result  # type: ignore[no-any-return]


# --- systems ---------------------------------------------------------------------------------------------------------
def solve(x1: Any, x2: Any, /) -> Array:
    """Solutions of linear systems, of matrices or one vector."""
    if not isinstance(x1, ComplexTensor) and not isinstance(x2, ComplexTensor):
        return x1.solve(x2)  # type: ignore[no-any-return]
    if not isinstance(x1, ComplexTensor):
        return ComplexTensor(x1.solve(x2.real), x1.solve(x2.imag))
    is_vector = x2.ndim == 1
    right = ComplexTensor(x2)[:, None] if is_vector else ComplexTensor(x2)
    found = _embedded(x1).solve(cat([right.real, right.imag], -2))
    n = x1.shape[-1]
    result = ComplexTensor(found[..., :n, :], found[..., n:, :])
    return result[..., 0] if is_vector else result


def inv(x: Any, /) -> Array:
    """Inverses."""
    if not isinstance(x, ComplexTensor):
        return x.inv()  # type: ignore[no-any-return]
    n, found = x.shape[-1], _embedded(x).inv()
    return ComplexTensor(found[..., :n, :n], found[..., n:, :n])


def det(x: Any, /) -> Array:
    """Determinants."""
    return _real(x, "det").det()  # type: ignore[no-any-return]


def slogdet(x: Any, /) -> SlogdetResult:
    """Signs of determinants, and logarithms of their sizes."""
    return SlogdetResult(*_real(x, "slogdet").slogdet())


# --- factorizations --------------------------------------------------------------------------------------------------
def cholesky(x: Any, /, *, upper: bool = False) -> Array:
    """Triangular factors of positive definite matrices."""
    return _real(x, "cholesky").cholesky(upper)  # type: ignore[no-any-return]


def qr(x: Any, /, *, mode: str = "reduced") -> QRResult:
    """Orthonormal and triangular factors."""
    return QRResult(*_real(x, "qr").qr(mode))


def svd(x: Any, /, *, full_matrices: bool = True) -> Any:
    """Singular values and vectors."""
    return _real(x, "svd").svd(full_matrices)


def svdvals(x: Any, /) -> Array:
    """Singular values."""
    return _real(x, "svdvals").svdvals()  # type: ignore[no-any-return]


def eigh(x: Any, /) -> Any:
    """Eigenvalues and vectors of symmetric matrices."""
    return _real(x, "eigh").eigh()


def eigvalsh(x: Any, /) -> Array:
    """Eigenvalues of symmetric matrices."""
    return _real(x, "eigvalsh").eigvalsh()  # type: ignore[no-any-return]


def _threshold(x: Any, values: Any, rtol: Any) -> Any:
    """The size up to which singular values count as 0."""
    most = values.max(-1, keepdim=True)
    if rtol is None:
        return most * (max(x.shape[-2:]) * values.dtype.epsilon)
    return most * (rtol if isinstance(rtol, (int, float)) else rtol.unsqueeze(-1))


def pinv(x: Any, /, *, rtol: Any = None) -> Array:
    """Pseudo-inverses; singular values up to rtol times the largest count as 0."""
    u, s, vh = svd(x, full_matrices=False)
    if not min(x.shape[-2:]):
        return x.mT  # type: ignore[no-any-return]
    is_small = s <= _threshold(x, s, rtol)
    inverse = (~is_small).cast(s.dtype) / (s + is_small.cast(s.dtype))
    return vh.mT @ (u.mT * inverse.unsqueeze(-1))  # type: ignore[no-any-return]


def matrix_rank(x: Any, /, *, rtol: Any = None) -> Array:
    """How many singular values are above rtol times the largest."""
    s = svdvals(x)
    return (s > _threshold(x, s, rtol)).sum(-1) if s.shape[-1] else s.sum(-1).cast("int64")


# --- norms -----------------------------------------------------------------------------------------------------------
def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: float = 2) -> Array:
    """Norms of vectors along axes, by default of all elements."""
    return _linalg.vector_norm(x.abs() if isinstance(x, ComplexTensor) else x, ord, axis, keepdims)


def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Array:
    """Norms of matrices in the last two axes."""
    own = x if ord in (2, -2, "nuc") or not isinstance(x, ComplexTensor) else x.abs()
    return _linalg.matrix_norm(_real(own, "matrix_norm"), ord, (-2, -1), keepdims)
