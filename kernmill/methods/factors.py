"""Tensor methods: factorizations of matrices into triangular and orthogonal ones, and what is solved with these.

Each is one ROUTINE node: a loop program that the compiler writes for the device (compiler/routines). A batch of many
small matrices is interleaved before, so that a vector computes as many matrices. Gradients are formulas with the
results, registered for the result's node; a rule calls the method again on its source's node, which gives the same
routine. Sources: Giles, Collected matrix derivative results (2008); Murray, Differentiation of the Cholesky
decomposition (2016); Seeger and others, Auto-differentiating linear algebra (2017).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple, Self, TypeVar

from kernmill.ir import DTypeError, Ops, ShapeError, UOp, apart, const, dtypes, show_shape

from ..lazy import KNOWN, Lazy
from .random import Random

__all__ = ["SMALL", "Factors", "Part", "linked"]

_MANY = 8  # matrices of a batch, as many as a vector has lanes at most of float64: from here on they are interleaved
SMALL = 32  # rows and columns of these; larger ones fill vectors with their rows
_PANEL = 32  # as compiler/routines/orthogonal.py: reflectors that are applied together

M = TypeVar("M", bound=Lazy)


class Part(NamedTuple):
    """A matrix in the values that a routine writes for each matrix of its batch."""

    offset: int
    rows: int
    columns: int


def linked(result: M, sources: Sequence[Lazy], rule: Callable[..., Sequence[Any]]) -> M:
    """The result in a node whose gradient is rule(sources, gradient): a tensor or None for each source."""
    node = apart(result.uop, is_constant=False)
    make = type(result)._make

    def backward(_: UOp, below: tuple[UOp, ...], grad: UOp) -> list[UOp | None]:
        return [None if g is None else g.uop for g in rule(tuple(map(make, below)), make(grad))]

    KNOWN[node] = tuple(s.uop for s in sources), backward
    return result._result(node, *sources)


class Factors(Random):
    """Cholesky, LU, QR and their relatives."""

    # --- tools
    def _square(self, call: str) -> int:
        """The size of a square matrix, or of a batch of them."""
        n = self._matrix_sizes(call)
        if n[0] != n[1]:
            raise ShapeError(f"{call}: shape {show_shape(self.uop.shape)}: must be square in its last two axes.")
        return n[0]

    def _matrix_sizes(self, call: str) -> tuple[int, int]:
        if self.ndim < 2:
            raise ShapeError(f"{call}: shape {show_shape(self.uop.shape)}: needs a matrix, of two axes or more.")
        if not all(isinstance(size, int) for size in self.node_shape):
            raise ShapeError(
                f"{call}: shape {show_shape(self.uop.shape)}: needs sizes that are known when it is called."
            )
        return self.node_shape[-2], self.node_shape[-1]

    def _wide_float(self, call: str) -> Self:
        """In float32 or float64: ints and half types in float32."""
        if not isinstance(self, Lazy):
            raise DTypeError(f"{call}: {type(self).__name__} is not a tensor.")
        x = self._floating()
        return x if x.dtype in (dtypes.float32, dtypes.float64) else x._as(dtypes.float32)

    def _anchored(self) -> Self:
        """This tensor in a node that no movement looks through: a gradient that is registered for it is found."""
        return self if self.uop.own else self._result(apart(self.uop, is_constant=False))

    def _routine(self, name: str, count: int, sizes: Sequence[int], parts: Sequence[Part], *others: Self) -> list[Self]:
        """Matrices that a routine writes. It computes `count` values for each matrix of the batch of all operands."""
        lead, operands = self.node_shape[:-2], [self, *others]
        batch = prod(lead)
        if not batch or not count:
            return [self._empty((*lead, part.rows, part.columns)) for part in parts]
        is_interleaved = batch >= _MANY and all(max(t.node_shape[-2:]) <= SMALL for t in operands)
        flat = [t.reshape((batch, *t.node_shape[-2:])) for t in operands]
        if is_interleaved:
            flat = [t.permute((1, 2, 0)) for t in flat]
        arg = (name, batch * count, batch, is_interleaved, *map(int, sizes))
        node = UOp(Ops.ROUTINE, self.dtype, tuple(t.reshape((-1,)).uop for t in flat), arg)
        made = self._result(node, *others).reshape((count, batch) if is_interleaved else (batch, count))
        return [made._part(part, is_interleaved, lead) for part in parts]

    def _empty(self, shape: Sequence[int]) -> Self:
        return self._make(const(self.dtype, 0), self._device).expand(tuple(shape))

    def _part(self, part: Part, is_interleaved: bool, lead: Sequence[int]) -> Self:
        bounds = (part.offset, part.offset + part.rows * part.columns)
        if is_interleaved:
            piece = self.shrink([bounds, None]).reshape((part.rows, part.columns, -1)).permute((2, 0, 1))
        else:
            piece = self.shrink([None, bounds])
        return piece.reshape((*lead, part.rows, part.columns))

    def _unless(self, bad: Self, message: str) -> Self:
        """This tensor; LinAlgError when it is computed, if an entry of `bad` is True."""
        return (
            self if not prod(self.node_shape) or not prod(bad.node_shape) else self._checked(bad, f"linalg: {message}")
        )

    def _identity_like(self) -> Self:
        """The identity in the shape of a batch of square matrices."""
        return self._make(self.eye(self.node_shape[-1], dtype=self.dtype).uop).expand(self.node_shape)

    def _half(self, lower: bool = True) -> Self:
        """One triangle of a matrix, with half of its diagonal."""
        strict = self.tril(-1) if lower else self.triu(1)
        return strict.add(self.mul(self._identity_like()).mul(0.5))

    def _broadcast_batch(self, other: Self, call: str) -> tuple[Self, Self]:
        """Two batches of matrices with one leading shape."""
        if not isinstance(other, Lazy):
            raise DTypeError(f"{call}: {type(other).__name__} is not a tensor.")
        x, y = self._wide_float(call)._join(other._wide_float(call))
        for t in (x, y):
            t._matrix_sizes(call)
        if x.node_shape[:-2] == y.node_shape[:-2]:
            return x, y
        from_shapes = [t.node_shape[:-2] for t in (x, y)]
        try:
            lead = self._common(from_shapes)
        except ValueError:
            raise ShapeError(
                f"{call}: shapes {show_shape(x.uop.shape)} and {show_shape(y.uop.shape)}: leading axes must be equal "
                "or 1."
            ) from None
        return x.expand((*lead, *x.node_shape[-2:])), y.expand((*lead, *y.node_shape[-2:]))

    @staticmethod
    def _common(shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
        rank = max(map(len, shapes))
        wide = [(1,) * (rank - len(s)) + tuple(s) for s in shapes]
        sizes = []
        for column in zip(*wide, strict=True):
            others = {size for size in column if size != 1}
            if len(others) > 1:
                raise ValueError
            sizes.append(others.pop() if others else 1)
        return tuple(sizes)

    # --- methods
    def cholesky(self, upper: bool = False) -> Self:
        """The lower triangular L with L L.T = self, of which the lower triangle is read; `upper`: its transpose.

        Shapes: (.., n, n) -> (.., n, n). Dtypes: float32 and float64; others in float32.

        Raises:
            LinAlgError: not positive definite, when it is computed.
            ShapeError: not square.
        """
        n = self._square("cholesky")
        lower = self._wide_float("cholesky")._cholesky(n)
        return lower.mT if upper else lower

    def _cholesky(self, n: int) -> Self:
        self = self._anchored()
        (u,) = self._routine("cholesky", n * n, (n,), [Part(0, n, n)])
        pivots = u.diagonal(0, -2, -1)
        u = u._unless(pivots.gt(0)._apply_not(), "cholesky: the matrix is not positive definite.")
        return linked(u.mT, [self], _cholesky_rule)

    def _apply_not(self) -> Self:
        return self.eq(False)

    def solve_triangular(
        self, other: Self, *, upper: bool = False, unitriangular: bool = False, transposed: bool = False
    ) -> Self:
        """X with self @ X = other; of self one triangle is read. `transposed`: X with self.T @ X = other.

        Shapes: (.., n, n), (.., n, k) -> (.., n, k).

        Raises:
            ShapeError: not square, or rows that differ.
        """
        a, b = self._broadcast_batch(other, "solve_triangular")
        n = a._square("solve_triangular")
        if b.node_shape[-2] != n:
            raise ShapeError(
                f"solve_triangular: shapes {show_shape(self.uop.shape)} and {show_shape(other.uop.shape)}: the second "
                f"needs {n} rows."
            )
        return a._solve_triangular(b, bool(upper), bool(unitriangular), bool(transposed))

    def _solve_triangular(self, b: Self, upper: bool, unit: bool, transposed: bool) -> Self:
        (n, m), self, b = b.node_shape[-2:], self._anchored(), b._anchored()
        kind = (n, m, not upper, unit, transposed)
        (x,) = self._routine("triangular", n * m, kind, [Part(0, n, m)], b)

        def rule(sources: tuple[Any, Any], grad: Any) -> tuple[Any, Any]:
            t, right = sources
            solution = t._solve_triangular(right, upper, unit, transposed)
            of_right = t._solve_triangular(grad, upper, unit, not transposed)
            product = solution.matmul(of_right.mT) if transposed else of_right.matmul(solution.mT)
            below = -1 if unit else 0
            return (product.triu(-below) if upper else product.tril(below)).neg(), of_right

        return linked(x, [self, b], rule)

    def solve(self, other: Self) -> Self:
        """X with self @ X = other, by elimination with exchanged rows. A vector, or a batch of them, is one column.

        Shapes: (.., n, n), (.., n, k) -> (.., n, k); (.., n, n), (n,) -> (.., n).

        Raises:
            LinAlgError: a singular matrix, when it is computed.
            ShapeError: not square, or rows that differ.
        """
        if isinstance(other, Lazy) and other.ndim == 1:
            return self.solve(other.unsqueeze(-1)).squeeze(-1)
        a, b = self._broadcast_batch(other, "solve")
        n = a._square("solve")
        if b.node_shape[-2] != n:
            raise ShapeError(
                f"solve: shapes {show_shape(self.uop.shape)} and {show_shape(other.uop.shape)}: the second needs {n} "
                "rows."
            )
        return a._solve(b)

    def _solve(self, b: Self) -> Self:
        (n, m), self, b = b.node_shape[-2:], self._anchored(), b._anchored()
        x, lu = self._routine("solve", n * m + n * n + n, (n, m), [Part(0, n, m), Part(n * m, n, n)], b)
        x = x._unless(lu.diagonal(0, -2, -1).eq(0), "solve: the matrix is singular.")
        return linked(x, [self, b], _solve_rule)

    def inv(self) -> Self:
        """The inverse of a square matrix, or of a batch of them.

        Raises:
            LinAlgError: a singular matrix, when it is computed.
            ShapeError: not square.
        """
        self._square("inv")
        x = self._wide_float("inv")
        return x._solve(x._identity_like())

    inverse = inv

    def matrix_power(self, n: int) -> Self:
        """A square matrix, or a batch of them, multiplied n times with itself; 0 gives the identity, a negative n a
        power of the inverse.

        Raises:
            ShapeError: a matrix that is not square.
            LinAlgError: a negative power of a singular matrix, when it is computed.
        """
        n = operator.index(n)
        return super().matrix_power(n) if n >= 0 else self.inv().matrix_power(-n)

    def _lu(self) -> tuple[Self, Self, Self]:
        """L and U in one matrix; the sign of the exchanges; the row of self that is each row of the product."""
        n = self.node_shape[-1]
        parts = [Part(0, n, n), Part(n * n, 1, n), Part(n * n + n, 1, n)]
        lu, pivots, order = self._routine("lu", n * n + 2 * n, (n,), parts)
        moved = pivots.squeeze(-2).ne(self._tensor(0).add(self.arange(n, dtype=self.dtype)))
        odd = moved.cast(dtypes.int32).sum(-1).remainder(2)
        return lu, self._make(odd.uop, odd._device).mul(-2).add(1).cast(self.dtype), order.squeeze(-2)

    def lu(self) -> tuple[Self, Self, Self]:
        """P, L and U of square matrices with self = P @ L @ U, as scipy.linalg.lu; without gradients.

        Raises:
            ShapeError: not square.
        """
        self._square("lu")
        x = self._wide_float("lu").detach()
        packed, _, order = x._lu()
        rows = x._make(x.arange(x.node_shape[-1], dtype=x.dtype).uop)
        p = order.unsqueeze(-2).eq(rows.unsqueeze(-1)).cast(x.dtype)
        return p, packed.tril(-1).add(x._identity_like()), packed.triu()

    def slogdet(self) -> tuple[Self, Self]:
        """The sign of the determinant and the logarithm of its size; 0 and -inf of a singular matrix.

        Shapes: (.., n, n) -> (..), (..).

        Raises:
            ShapeError: not square.
        """
        self._square("slogdet")
        x = self._wide_float("slogdet")._anchored()
        lu, sign, _ = x._lu()
        pivots = lu.diagonal(0, -2, -1)
        sign = sign.mul(pivots.sign().prod(-1)).detach()
        return sign, linked(pivots.abs().log().sum(-1), [x], _log_det_rule)

    def det(self) -> Self:
        """The determinant of a square matrix, or of a batch of them; its gradient needs one that is not 0.

        Shapes: (.., n, n) -> (..).

        Raises:
            ShapeError: not square.
        """
        self._square("det")
        x = self._wide_float("det")._anchored()
        lu, sign, _ = x._lu()
        return linked(sign.mul(lu.diagonal(0, -2, -1).prod(-1)), [x], _det_rule)

    def qr(self, mode: str = "reduced") -> tuple[Self, Self]:
        """Q with orthonormal columns and R, upper triangular, with Q @ R = self. `mode`: "reduced" has as many columns
        of Q as the smaller side, "complete" as many as rows; "r" gives an empty Q.

        Shapes: (.., m, n) -> (.., m, k), (.., k, n).

        Raises:
            ShapeError: fewer than two axes, or another mode.
        """
        m, n = self._matrix_sizes("qr")
        if mode not in ("reduced", "complete", "r"):
            raise ShapeError(f"qr: mode {mode!r}: must be 'reduced', 'complete' or 'r'.")
        x = self._wide_float("qr")
        q, r = x._qr(m if mode == "complete" else min(m, n))
        return (q.shrink([*[None] * (q.ndim - 2), (0, 0), (0, 0)]), r) if mode == "r" else (q, r)

    def _qr(self, k: int) -> tuple[Self, Self]:
        (m, n), least, self = self.node_shape[-2:], min(self.node_shape[-2:]), self._anchored()
        if not m or not n:  # any basis
            lead = self.node_shape[:-2]
            basis = self._make(self.eye(m, dtype=self.dtype).uop, self._device).shrink([None, (0, k)])
            return basis.expand((*lead, m, k)), self._empty((*lead, k, n))
        count = m * n + m * k + least + _PANEL * (m + 2 * max(n, k) + 2 * _PANEL)
        r, q = self._routine("qr", count, (m, n, k), [Part(0, m, n), Part(m * n, m, k)])
        r = r.shrink([*[None] * (r.ndim - 2), (0, k), None]).triu()
        if k > least:  # the other columns of Q are any: no gradient leads through them
            return q.detach(), r.detach()

        def of(number: int) -> Callable[..., Any]:
            return lambda sources, grad: [_qr_rule(sources[0], *((grad, None), (None, grad))[number])]

        return linked(q, [self], of(0)), linked(r, [self], of(1))


# --- gradients -------------------------------------------------------------------------------------------------------
def _cholesky_rule(sources: tuple[Any], grad: Any) -> list[Any]:
    (a,) = sources
    lower = a._cholesky(a.node_shape[-1])
    inner = lower.mT.matmul(grad)._half()
    part = lower._solve_triangular(inner, False, False, True)  # L^-T inner
    whole = lower._solve_triangular(part.mT, False, False, True).mT
    return [whole.add(whole.mT).mul(0.5)]


def _solve_rule(sources: tuple[Any, Any], grad: Any) -> tuple[Any, Any]:
    a, b = sources
    of_right = a.mT._solve(grad)
    return of_right.matmul(a._solve(b).mT).neg(), of_right


def _log_det_rule(sources: tuple[Any], grad: Any) -> list[Any]:
    (a,) = sources
    return [a._solve(a._identity_like()).mT.mul(grad.unsqueeze(-1).unsqueeze(-1))]


def _det_rule(sources: tuple[Any], grad: Any) -> list[Any]:
    return _log_det_rule(sources, grad.mul(sources[0].det()))


def _qr_rule(a: Any, of_q: Any, of_r: Any) -> Any:
    m, n = a.node_shape[-2:]
    q, r = a._qr(min(m, n))
    of_q = q.mul(0) if of_q is None else of_q
    of_r = r.mul(0) if of_r is None else of_r
    if m >= n:
        return _tall_rule(q, r, of_q, of_r)
    keep = [*[None] * (a.ndim - 2), None]
    right = a.shrink([*keep, (m, n)])
    of_u, of_v = of_r.shrink([*keep, (0, m)]), of_r.shrink([*keep, (m, n)])
    u = r.shrink([*keep, (0, m)])
    of_left = _tall_rule(q, u, of_q.add(right.matmul(of_v.mT)), of_u)
    return of_left.cat(q.matmul(of_v), axis=-1)


def _tall_rule(q: Any, r: Any, of_q: Any, of_r: Any) -> Any:
    inner = r.matmul(of_r.mT).sub(of_q.mT.matmul(q))
    lower = inner.tril(-1)
    symmetric = inner.tril().add(lower.mT)
    right = of_q.add(q.matmul(symmetric))
    return r._solve_triangular(right.mT, True, False, False).mT
