"""Tensor methods: eigenvalues, singular values, and what is computed from them.

Small matrices are rotated until they are diagonal (Jacobi); large symmetric ones become tridiagonal first
(compiler/routines/eigen.py). Eigenvectors and singular vectors have any sign. Gradients as in `factors.py`. Those of
vectors are inf or nan where values are equal, as in PyTorch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Self

from kernmill.ir import DTypeError, SettingError, ShapeError, dtypes

from ..lazy import Lazy
from .elementwise import choose
from .factors import SMALL, Factors, Part, linked

__all__ = ["Spectral", "Svd"]

_DEGREE = 18  # of the polynomial of matrix_exp: its remainder is below 2**-53 for norms up to 1
_SQUARINGS = 16  # of matrix_exp: norms up to 2**16


class Svd(NamedTuple):
    """The result of `svd`, as in NumPy and PyTorch."""

    U: Any
    S: Any
    Vh: Any


class Eigh(NamedTuple):
    """The result of `eigh`, as in NumPy."""

    eigenvalues: Any
    eigenvectors: Any


class Spectral(Factors):
    """Eigenvalues, singular values, pseudo-inverses and functions of matrices."""

    def _epsilon(self) -> float:
        return 2.0**-52 if self.dtype is dtypes.float64 else 2.0**-23

    def _columns(self, order: Self) -> Self:
        """The columns of matrices in an order."""
        index = order.unsqueeze(-2).expand((*self.node_shape[:-1], order.node_shape[-1]))
        return self.gather(-1, index)

    # --- symmetric eigenvalues
    def eigh(self, UPLO: str = "L") -> Eigh:
        """The eigenvalues of symmetric matrices, in ascending order, and their eigenvectors as columns. One triangle
        is read, the lower one by default.

        Shapes: (.., n, n) -> (.., n), (.., n, n). Of a matrix that has nan or inf, all are nan.

        Raises:
            ShapeError: not square.
            SettingError: UPLO is neither "L" nor "U".
        """
        n = self._square("eigh")
        if UPLO not in ("L", "U"):
            raise SettingError(f"eigh: UPLO={UPLO!r}: must be 'L' or 'U'.")
        x = self._wide_float("eigh")
        triangle = x if UPLO == "L" else x.mT
        return Eigh(*triangle._eigh(n))

    def _eigh(self, n: int) -> tuple[Self, Self]:
        self, batch = self._anchored(), math.prod(self.node_shape[:-2])
        if n <= SMALL:
            a, rows = self._routine("eigh", 2 * n * n, (n,), [Part(0, n, n), Part(n * n, n, n)])
            values = a.diagonal(0, -2, -1)
        else:
            rows, values = self._routine("eigh_large", 3 * n * n + 4 * n, (n,), [Part(0, n, n), Part(n * n, 1, n)])
            values = values.squeeze(-2)
        if not n or not batch:
            return values, rows
        order = values.argsort(-1)
        unusable = self.detach().tril().mul(0.0).sum((-2, -1)).unsqueeze(-1)  # 0, or nan where it is not finite
        values = values.gather(-1, order).add(unusable)
        columns = rows.mT._columns(order).add(unusable.unsqueeze(-1))

        def of(number: int) -> Callable[..., Any]:
            return lambda sources, grad: [_eigh_rule(sources[0], *((grad, None), (None, grad))[number])]

        return linked(values, [self], of(0)), linked(columns, [self], of(1))

    def eigvalsh(self, UPLO: str = "L") -> Self:
        """The eigenvalues of symmetric matrices, in ascending order."""
        return self.eigh(UPLO).eigenvalues  # type: ignore[no-any-return]

    # --- singular values
    def svd(self, full_matrices: bool = True) -> Svd:
        """U, S and Vh with U @ diag(S) @ Vh = self; S is in descending order. Without `full_matrices` U and Vh have
        only as many columns and rows as S. Gradients need full_matrices=False where the matrices are not square.

        Shapes: (.., m, n) -> (.., m, m), (.., k), (.., n, n).

        Raises:
            ShapeError: fewer than two axes.
        """
        m, n = self._matrix_sizes("svd")
        x = self._wide_float("svd")
        if m < n:
            v, s, u = x.mT.svd(full_matrices)
            return Svd(u.mT, s, v.mT)
        u, s, vh = x._svd()
        if full_matrices and m > n:
            u = u.detach()._completed(m)
        return Svd(u, s, vh)

    def _svd(self) -> tuple[Self, Self, Self]:
        """The thin decomposition of matrices that have no fewer rows than columns."""
        (m, n), self = self.node_shape[-2:], self._anchored()
        if m > n:
            q, r = self._qr(n)
            inner, s, vh = r._svd_square()
            u = q.matmul(inner)
        else:
            u, s, vh = self._svd_square()

        def of(number: int) -> Callable[..., Any]:
            return lambda sources, grad: [_svd_rule(sources[0], *[grad if i == number else None for i in range(3)])]

        u, s, vh = (linked(part, [self], of(number)) for number, part in enumerate((u, s, vh)))
        return u, s, vh

    def _svd_square(self) -> tuple[Self, Self, Self]:
        n = self.node_shape[-1]
        if not math.prod(self.node_shape):
            return self._svd_by_rotations(n)
        most = self.abs().max((-2, -1), keepdim=True)
        most = choose(most.eq(0), most._filled(1), most)
        x = self.div(most)  # its squares neither overflow nor vanish
        if n <= SMALL:
            u, s, vh = x._svd_by_rotations(n)
            return u, s.mul(most.squeeze(-1)), vh
        turn = x.mT.matmul(x)._eigh(n)[1].flip(-1)  # columns of x @ turn are nearly orthogonal: few rotations are left
        turn = turn.mul(1.5).sub(turn.matmul(turn.mT.matmul(turn)).mul(0.5))  # a Newton step: orthogonal to rounding
        u, s, vh = x.matmul(turn)._svd_by_rotations(n)
        return u, s.mul(most.squeeze(-1)), vh.matmul(turn.mT)

    def _svd_by_rotations(self, n: int) -> tuple[Self, Self, Self]:
        """One-sided Jacobi."""
        parts = [Part(0, n, n), Part(n * n, n, n), Part(2 * n * n, 1, n)]
        w, j, lengths = self.mT._routine("svd", 2 * n * n + n, (n, n), parts)
        lengths = lengths.squeeze(-2)
        if not math.prod(lengths.node_shape):
            return w, lengths, j
        order = lengths.argsort(-1, descending=True)
        s = lengths.gather(-1, order)
        safe = choose(s.eq(0), s._filled(1), s)
        u = w.mT._columns(order).div(safe.unsqueeze(-2))
        return u._completed(n), s, j.mT._columns(order).mT

    def _completed(self, k: int) -> Self:
        """Orthonormal columns, of which the last may be 0, with k columns of a whole basis."""
        q, r = self._qr(k)
        signs = r.diagonal(0, -2, -1).lt(0).cast(self.dtype).mul(-2).add(1)
        missing = k - signs.node_shape[-1]
        if missing > 0:
            signs = signs.pad([*[(0, 0)] * (signs.ndim - 1), (0, missing)], value=1)
        return q.mul(signs.unsqueeze(-2))

    def svdvals(self) -> Self:
        """The singular values, in descending order."""
        return self.svd(full_matrices=False).S  # type: ignore[no-any-return]

    # --- computed from these
    def pinv(self, rcond: float | None = None) -> Self:
        """The pseudo-inverse. Singular values up to rcond times the largest one count as 0; by default rcond is the
        larger side times the dtype's epsilon.

        Shapes: (.., m, n) -> (.., n, m).
        """
        u, s, vh = self.svd(full_matrices=False)
        inverse = s._inverted(rcond, max(self._matrix_sizes("pinv")))
        return vh.mT.matmul(u.mT.mul(inverse.unsqueeze(-1)))  # type: ignore[no-any-return]

    def _inverted(self, rcond: float | None, size: int) -> Self:
        """1 / s, 0 for small s."""
        if not math.prod(self.node_shape):
            return self
        most = self.max(-1, keepdim=True)
        is_small = self.le(most.mul(self._tolerance(rcond, size)))
        return choose(is_small, self._filled(0), choose(is_small, self._filled(1), self).reciprocal())

    def _tolerance(self, rcond: float | None, size: int) -> float:
        if rcond is None:
            return size * self._epsilon()
        if isinstance(rcond, bool) or not isinstance(rcond, (int, float)):
            raise DTypeError(f"rcond is a {type(rcond).__name__}: must be a number or None.")
        return float(rcond)

    def matrix_rank(self, tol: float | None = None) -> Self:
        """The number of singular values above `tol`; by default above the larger side times epsilon times the largest
        singular value. Int64.
        """
        s = self.svdvals()
        if not math.prod(s.node_shape):
            return s.sum(-1).cast(dtypes.int64)
        if tol is None:
            limit = s.max(-1, keepdim=True).mul(s._tolerance(None, max(self._matrix_sizes("matrix_rank"))))
        else:
            limit = s._make(s.uop).mul(0).add(s._tolerance(tol, 0))
        return s.gt(limit).cast(dtypes.int64).sum(-1)

    def lstsq(self, other: Self, rcond: float | None = None) -> Self:
        """The x of least norm that minimizes |self @ x - other|; singular values as in `pinv`.

        Shapes: (.., m, n), (.., m, k) or (m,) -> (.., n, k) or (n,).

        Raises:
            ShapeError: rows that differ.
        """
        if not isinstance(other, Lazy):
            raise DTypeError(f"lstsq: {type(other).__name__} is not a tensor.")
        if other.ndim == 1:
            return self.lstsq(other.unsqueeze(-1), rcond).squeeze(-1)
        m, n = self._matrix_sizes("lstsq")
        if other.ndim < 2 or other.node_shape[-2] != m:
            raise ShapeError(f"lstsq: shapes {self.shape} and {other.shape}: the second needs {m} rows.")
        x, y = self._broadcast_batch(other, "lstsq")
        u, s, vh = x.svd(full_matrices=False)
        inner = u.mT.matmul(y).mul(s._inverted(rcond, max(m, n)).unsqueeze(-1))
        return vh.mT.matmul(inner)  # type: ignore[no-any-return]

    def matrix_exp(self) -> Self:
        """The matrix exponential, by a polynomial and squarings; for norms up to 2**16.

        Shapes: (.., n, n) -> (.., n, n).

        Raises:
            ShapeError: not square.
        """
        n = self._square("matrix_exp")
        x = self._wide_float("matrix_exp")
        if not n:
            return x._own_box()
        norm = x.detach().abs().sum(-2).max(-1).unsqueeze(-1).unsqueeze(-1)
        times = norm.log2().ceil().maximum(0).minimum(_SQUARINGS)  # squarings
        small = x.mul(times.neg().exp2())
        result = identity = x._identity_like()
        for degree in range(_DEGREE, 0, -1):
            result = identity.add(small.matmul(result).mul(1 / degree))
        for number in range(_SQUARINGS):
            result = choose(times.gt(number), result.matmul(result), result)
        return result


# --- gradients -------------------------------------------------------------------------------------------------------
def _differences(values: Any) -> Any:
    """1 / (v_j - v_i), 0 on the diagonal."""
    apart = values.unsqueeze(-2).sub(values.unsqueeze(-1))
    diagonal = values._make(values.eye(values.node_shape[-1], dtype=values.dtype).uop)
    return apart.add(diagonal).reciprocal().sub(diagonal)


def _eigh_rule(a: Any, of_values: Any, of_vectors: Any) -> Any:
    values, vectors = a._eigh(a.node_shape[-1])
    if of_vectors is None:
        inner = vectors.mul(of_values.unsqueeze(-2)).matmul(vectors.mT)
    else:
        inner = vectors.matmul(vectors.mT.matmul(of_vectors).mul(_differences(values))).matmul(vectors.mT)
    whole = inner.add(inner.mT)  # only the lower triangle is read
    return whole.tril(-1).add(inner.mul(inner._identity_like()))


def _svd_rule(a: Any, of_u: Any, of_s: Any, of_vh: Any) -> Any:
    m, n = a.node_shape[-2:]
    u, s, vh = a._svd()
    if of_s is not None:
        return u.mul(of_s.unsqueeze(-2)).matmul(vh)
    squares = _differences(s.square())
    if of_u is not None:
        inner = u.mT.matmul(of_u)
        result = u.matmul(inner.sub(inner.mT).mul(squares).mul(s.unsqueeze(-2)))
        if m > n:
            rest = of_u.sub(u.matmul(inner)).div(s.unsqueeze(-2))
            result = result.add(rest)
        return result.matmul(vh)
    of_v, v = of_vh.mT, vh.mT
    inner = v.mT.matmul(of_v)
    return u.matmul(inner.sub(inner.mT).mul(squares).mul(s.unsqueeze(-1)).matmul(vh))
