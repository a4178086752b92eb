"""Linear algebra under the names of numpy.linalg and torch.linalg: functions of tensors.

The factorizations are kernels that the compiler generates for the device, for batches too, with gradients. Only `eig`
and `eigvals`, of matrices that need not be symmetric, call LAPACK. Singular matrices raise LinAlgError when they are
computed.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from kernmill.ir import DTypeError, GradientError, SettingError, ShapeError, dtypes, show_shape
from kernmill.ir import LinAlgError as LinAlgError
from kernmill.runtime import check_failed

from .complex_tensor import ComplexTensor
from .methods.other_names import LINALG, named_in, not_in
from .methods.spectral import Eigh, Svd
from .tensor import Tensor

__all__ = [
    "cholesky", "cond", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "inv", "lstsq", "lu",
    "matmul", "matrix_exp", "matrix_norm", "matrix_power", "matrix_rank", "matrix_transpose", "multi_dot", "norm",
    "outer", "pinv", "qr", "slogdet", "solve", "solve_triangular", "svd", "svdvals", "tensordot", "trace", "vecdot",
    "vector_norm",
]  # fmt: skip

Axis = int | Sequence[int] | None
Function = TypeVar("Function", bound=Callable[..., Any])


def _of_tensors(function: Function) -> Function:
    """Wrap a function: a first argument of another type raises DTypeError."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if args and not isinstance(args[0], Tensor):
            raise DTypeError(f"linalg.{function.__name__}: {type(args[0]).__name__} is not a tensor. Give Tensor(..).")
        return function(*args, **kwargs)

    return call  # type: ignore[return-value]


@_of_tensors
def cholesky(x: Tensor, *, upper: bool = False) -> Tensor:
    """`Tensor.cholesky`."""
    return x.cholesky(upper)


@_of_tensors
def qr(x: Tensor, mode: str = "reduced") -> tuple[Tensor, Tensor]:
    """`Tensor.qr`."""
    return x.qr(mode)


@_of_tensors
def lu(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """`Tensor.lu`."""
    return x.lu()


@_of_tensors
def svd(x: Tensor, full_matrices: bool = True) -> Svd:
    """`Tensor.svd`."""
    return x.svd(full_matrices)


@_of_tensors
def svdvals(x: Tensor) -> Tensor:
    """`Tensor.svdvals`."""
    return x.svdvals()


@_of_tensors
def eigh(x: Tensor, UPLO: str = "L") -> Eigh:
    """`Tensor.eigh`."""
    return x.eigh(UPLO)


@_of_tensors
def eigvalsh(x: Tensor, UPLO: str = "L") -> Tensor:
    """`Tensor.eigvalsh`."""
    return x.eigvalsh(UPLO)


class Eig(NamedTuple):
    """The result of `eig`."""

    eigenvalues: ComplexTensor
    eigenvectors: ComplexTensor


@_of_tensors
def eig(x: Tensor) -> Eig:
    """The eigenvalues of square matrices, in no order, and their eigenvectors of norm 1 as columns. NumPy's LAPACK
    computes them on the host at once: they have no gradients, and a captured function cannot call this.

    Shapes: (.., n, n) -> (.., n), (.., n, n).

    Raises:
        ShapeError: not square.
        GradientError: x wants gradients.
        LinAlgError: nan or infinite numbers, or no convergence.
    """
    values, vectors = _eigenpairs("eig", x)
    return Eig(ComplexTensor(values, device=x.device), ComplexTensor(vectors, device=x.device))


@_of_tensors
def eigvals(x: Tensor) -> ComplexTensor:
    """The eigenvalues of square matrices, in no order: those of `eig`."""
    return ComplexTensor(_eigenpairs("eigvals", x)[0], device=x.device)


def _eigenpairs(name: str, x: Tensor) -> tuple[Any, Any]:
    """Eigenvalues and eigenvectors as complex arrays, by NumPy."""
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"linalg.{name}: {show_shape(x.shape)} is not a square matrix, nor a batch of them.")
    if x.requires_grad:
        raise GradientError(f"linalg.{name}: it has no gradient. Give x.detach(), or use eigh of a symmetric matrix.")
    array = (x if x.dtype in (dtypes.float32, dtypes.float64) else x.float()).numpy()
    try:
        values, vectors = np.linalg.eig(array)
    except np.linalg.LinAlgError as error:
        raise check_failed(f"linalg: linalg.{name}: {error}.") from None
    kind = np.complex128 if array.dtype == np.float64 else np.complex64
    return values.astype(kind), vectors.astype(kind)


@_of_tensors
def inv(x: Tensor) -> Tensor:
    """`Tensor.inv`."""
    return x.inv()


@_of_tensors
def pinv(x: Tensor, rcond: float | None = None) -> Tensor:
    """`Tensor.pinv`."""
    return x.pinv(rcond)


@_of_tensors
def solve(a: Tensor, b: Tensor) -> Tensor:
    """`Tensor.solve`."""
    return a.solve(b)


@_of_tensors
def solve_triangular(a: Tensor, b: Tensor, *, upper: bool = False, unitriangular: bool = False) -> Tensor:
    """`Tensor.solve_triangular`."""
    return a.solve_triangular(b, upper=upper, unitriangular=unitriangular)


@_of_tensors
def lstsq(a: Tensor, b: Tensor, rcond: float | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The solution of `Tensor.lstsq`, the sums of squares of what is left, the rank, and the singular values.

    The second is empty unless there are more rows than columns. NumPy's is also empty for deficient ranks; here the
    shape must be known before the values.
    """
    x = a.lstsq(b, rcond)
    m, n = a.shape[-2:]
    rest = (a @ x - b).square().sum(-2 if b.ndim > 1 else -1, keepdim=b.ndim == 1)
    return x, rest if m > n else rest[..., :0], a.matrix_rank(), a.svdvals()


@_of_tensors
def det(x: Tensor) -> Tensor:
    """`Tensor.det`."""
    return x.det()


@_of_tensors
def slogdet(x: Tensor) -> tuple[Tensor, Tensor]:
    """`Tensor.slogdet`."""
    return x.slogdet()


@_of_tensors
def matrix_rank(x: Tensor, tol: float | None = None) -> Tensor:
    """`Tensor.matrix_rank`."""
    return x.matrix_rank(tol)


@_of_tensors
def matrix_power(x: Tensor, n: int) -> Tensor:
    """`Tensor.matrix_power`."""
    return x.matrix_power(n)


@_of_tensors
def matrix_exp(x: Tensor) -> Tensor:
    """`Tensor.matrix_exp`."""
    return x.matrix_exp()


@_of_tensors
def matmul(x: Tensor, y: Tensor) -> Tensor:
    """`Tensor.matmul`."""
    return x.matmul(y)


@_of_tensors
def outer(x: Tensor, y: Tensor) -> Tensor:
    """`Tensor.outer`."""
    return x.outer(y)


@_of_tensors
def cross(x: Tensor, y: Tensor, axis: int = -1) -> Tensor:
    """`Tensor.cross`."""
    return x.cross(y, axis)


@_of_tensors
def tensordot(x: Tensor, y: Tensor, axes: int | Sequence[Sequence[int]] = 2) -> Tensor:
    """`Tensor.tensordot`."""
    return x.tensordot(y, axes)


@_of_tensors
def vecdot(x: Tensor, y: Tensor, axis: int = -1) -> Tensor:
    """The dot products of vectors along an axis."""
    return (x * y).sum(axis)


@_of_tensors
def matrix_transpose(x: Tensor) -> Tensor:
    """The last two axes exchanged."""
    return x.mT


@_of_tensors
def diagonal(x: Tensor, offset: int = 0) -> Tensor:
    """Diagonals of the last two axes, as a new last one."""
    return x.diagonal(offset, -2, -1)


@_of_tensors
def trace(x: Tensor, offset: int = 0) -> Tensor:
    """Sums of `diagonal`."""
    return diagonal(x, offset).sum(-1)


def multi_dot(tensors: Sequence[Tensor]) -> Tensor:
    """The product of two or more matrices, in the order that takes the fewest multiplications. The first and last may
    be vectors."""
    chain = list(tensors)
    if len(chain) < 2:
        raise ShapeError(f"multi_dot: {len(chain)} tensors. Give two or more.")
    sizes = [chain[0].shape[0] if chain[0].ndim == 2 else 1, *(t.shape[0] for t in chain[1:]), chain[-1].shape[-1]]
    count = len(chain)
    cost = [[0.0] * count for _ in chain]
    cut = [[0] * count for _ in chain]
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            options = [(cost[i][k] + cost[k + 1][j] + sizes[i] * sizes[k + 1] * sizes[j + 1], k) for k in range(i, j)]
            cost[i][j], cut[i][j] = min(options)

    def product(i: int, j: int) -> Tensor:
        return chain[i] if i == j else product(i, cut[i][j]) @ product(cut[i][j] + 1, j)

    return product(0, count - 1)


@_of_tensors
def vector_norm(x: Tensor, ord: float = 2.0, axis: Axis = None, keepdim: bool = False) -> Tensor:
    """The norm of vectors along axes (None: all): of any order, 0 counts the entries that are not 0, inf and -inf are
    the largest and the smallest size."""
    return x.norm(ord, axis, keepdim)


@_of_tensors
def matrix_norm(x: Tensor, ord: float | str = "fro", axis: tuple[int, int] = (-2, -1), keepdim: bool = False) -> Tensor:
    """The norm of matrices in two axes: "fro", or a function of singular values: "nuc" is their sum, 2 and -2 are the
    largest and smallest. 1 and -1 are the largest and smallest sum of a column, inf and -inf of a row.

    Raises:
        ShapeError: not two axes.
        SettingError: another order.
    """
    if x.ndim < 2 or len(axis) != 2:
        raise ShapeError(f"matrix_norm: shape {show_shape(x.shape)}, axes {axis}: needs two axes of a matrix.")
    m = x.movedim(axis[0] % x.ndim, -2) if axis[1] % x.ndim == x.ndim - 1 else x.movedim(
        (axis[0] % x.ndim, axis[1] % x.ndim), (-2, -1)
    )  # fmt: skip
    if ord == "fro":
        result = m.square().sum((-2, -1)).sqrt() if not m.dtype.is_float else m.norm(2.0, (-2, -1))
    elif ord in ("nuc", 2, -2):
        values = m.svdvals()
        result = values.sum(-1) if ord == "nuc" else values.max(-1) if ord == 2 else values.min(-1)
    elif ord in (1, -1, math.inf, -math.inf):
        sums = m.abs().sum(-2 if ord in (1, -1) else -1)
        result = sums.max(-1) if float(ord) > 0 else sums.min(-1)
    else:
        raise SettingError(f"matrix_norm: ord={ord!r}: must be 'fro', 'nuc', 1, -1, 2, -2, inf or -inf.")
    if not keepdim:
        return result
    for at in sorted(a % x.ndim for a in axis):
        result = result.unsqueeze(at)
    return result


@_of_tensors
def norm(x: Tensor, ord: Any = None, axis: Axis = None, keepdim: bool = False) -> Tensor:
    """`vector_norm` of one axis, or of all without `ord`; else `matrix_norm` of two axes, as numpy.linalg.norm."""
    if axis is None and ord is not None and x.ndim == 2:
        return matrix_norm(x, ord, (0, 1), keepdim)
    if isinstance(axis, Sequence) and len(axis) == 2:
        return matrix_norm(x, "fro" if ord is None else ord, (axis[0], axis[1]), keepdim)
    if ord is not None and axis is None and x.ndim != 1:
        raise ShapeError(f"norm: ord={ord!r} of shape {show_shape(x.shape)}. Give one axis or two.")
    return vector_norm(x, 2.0 if ord is None else ord, axis, keepdim)


@_of_tensors
def cond(x: Tensor, p: float | str | None = None) -> Tensor:
    """The condition number: the largest by the smallest singular value, or for other norms that of x times that of its
    inverse."""
    if p is None or p in (2, -2):
        values = x.svdvals()
        high, low = values.max(-1), values.min(-1)
        return low / high if p == -2 else high / low
    return matrix_norm(x, p) * matrix_norm(x.inv(), p)


if not TYPE_CHECKING:  # to a checker it would be every name that there could be

    def __getattr__(name: str) -> object:
        """Raise the error for an unknown function, with what is written here."""
        raise not_in(__name__, name, named_in(LINALG, name))
