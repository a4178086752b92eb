"""Eigenvalues of symmetric matrices, and singular values.

Rotations (Jacobi) for small matrices and singular values: each makes two rows orthogonal, until all are. Large
symmetric matrices become tridiagonal by reflectors first, then implicit QL steps diagonalize them. Sources: Demmel,
Veselic, Jacobi's method is more accurate than QR (1992); Golub, Van Loan, Matrix Computations, 8.3 and 8.5.
"""

from __future__ import annotations

from kernmill.ir import dtypes

from .builder import Entries, Number, Routine
from .orthogonal import reflector

Pair = tuple[Number, Number]
Three = tuple[Entries, Entries, Entries]

__all__ = ["eigh", "eigh_count", "eigh_large", "svd", "svd_count", "tridiagonal_count"]

_SWEEPS = 40  # far more than any matrix needs; sweeps end when nothing is rotated any more
_STEPS = 60  # of QL for one eigenvalue; two are usual


def _epsilon(k: Routine) -> float:
    return 2.0**-52 if k.dtype is dtypes.float64 else 2.0**-23


def svd_count(n: int, m: int) -> int:
    """Values that the routine writes for an n x m matrix."""
    return n * m + n * n + n


def svd(k: Routine, n: int, m: int) -> None:
    """Write W = J A, whose n rows are orthogonal, then J, orthogonal, then the lengths of the rows."""
    a, w, j = k.matrix(1, m), k.matrix(0, m), k.matrix(0, n, n * m)
    lengths = k.matrix(0, n, n * m + n * n)
    for r in k.between(0, n):
        for c in k.spans(0, m):
            w[r, c] = a[r, c]
    _identity(k, j, n)
    state = k.array(2)  # rotations of the last sweep, and of this one
    state[0, 0] = 1.0
    epsilon = _epsilon(k) * max(1.0, m**0.5 / 2)  # as LAPACK's gesvj: below that, a product of rows is its rounding
    for _ in k.between(0, _SWEEPS):
        is_on = k.any_lane(state[0, 0] > 0.0)
        for _ in k.between(0, is_on):
            state[0, 1] = 0.0
            for r in k.between(0, n):
                (square,) = k.total(0, m, lambda c, r=r: [(w[r, c], w[r, c])])  # type: ignore[misc]
                lengths[0, r] = square
            for p in k.between(0, n - 1):
                for q in k.between(p + 1, n):
                    _orthogonalize(k, (w, j, lengths), (p, q), (n, m), state, epsilon)
            state[0, 0] = state[0, 1]
    for r in k.between(0, n):
        (most,) = k.accumulated(
            m,
            [k.constant(0.0)],
            lambda c, now, r=r: [(now[0] < abs(w[r, c])).where(abs(w[r, c]), now[0])],  # type: ignore[misc]
        )
        scale = most.same(0.0).where(k.constant(1.0), most)
        (total,) = k.total(0, m, lambda c, r=r, s=scale: [(w[r, c] / s, w[r, c] / s)])  # type: ignore[misc]
        lengths[0, r] = total.sqrt() * scale


def _identity(k: Routine, j: Entries, n: int) -> None:
    for r in k.between(0, n):
        for c in k.spans(0, n):
            j[r, c] = 0.0
        j[r, r] = 1.0


def _orthogonalize(k: Routine, of: Three, rows: Pair, sizes: tuple[int, int], state: Entries, epsilon: float) -> None:
    """Rotate two rows of w so that they are orthogonal, and those of j; `squares` has the squared lengths of w's."""
    (w, j, squares), (p, q), (n, m) = of, rows, sizes
    (gamma,) = k.total(0, m, lambda c: [(w[p, c], w[q, c])])
    is_turned = (squares[0, p].sqrt() * squares[0, q].sqrt() * epsilon) < abs(gamma)
    for _ in k.between(0, k.any_lane(is_turned)):
        alpha, beta = k.total(0, m, lambda c: [(w[p, c], w[p, c]), (w[q, c], w[q, c])], 2)
        cosine, sine = _angle(k, beta - alpha, gamma * 2.0, is_turned)
        state[0, 1] = is_turned.where(k.constant(1.0), state[0, 1])
        for matrix, width in ((w, m), (j, n)):
            _rotate(k, matrix, (p, q), width, cosine, sine)
        change = sine / cosine * gamma
        squares[0, p] = alpha - change
        squares[0, q] = beta + change


def _angle(k: Routine, difference: Number, double: Number, is_turned: Number) -> Pair:
    """Cosine and sine of the rotation with cot(2 angle) = difference / double; 1 and 0 where nothing is turned."""
    one = k.constant(1.0)
    zeta = difference / is_turned.where(double, one)
    tangent = one / (abs(zeta) + k.fma(zeta, zeta, one).sqrt())
    tangent = (zeta < 0.0).where(-tangent, tangent)
    cosine = one / k.fma(tangent, tangent, one).sqrt()
    return is_turned.where(cosine, one), is_turned.where(cosine * tangent, k.constant(0.0))


def _rotate(k: Routine, matrix: Entries, rows: Pair, width: int, cosine: Number, sine: Number) -> None:
    p, q = rows
    for c in k.spans(0, width):
        x, y = matrix[p, c], matrix[q, c]
        matrix[p, c] = k.fma(cosine, x, -(sine * y))
        matrix[q, c] = k.fma(sine, x, cosine * y)


def eigh_count(n: int) -> int:
    """Values that the routine writes for an n x n matrix."""
    return 2 * n * n


def eigh(k: Routine, n: int) -> None:
    """Write a matrix with the eigenvalues of a symmetric one on its diagonal, then a row for each eigenvector."""
    source, a, v = k.matrix(1, n), k.matrix(0, n), k.matrix(0, n, n * n)
    for r in k.between(0, n):
        for c in k.between(0, r + 1):
            a[r, c] = source[r, c]
            a[c, r] = source[r, c]
    _identity(k, v, n)
    state = k.array(2)
    state[0, 0] = 1.0
    for _ in k.between(0, _SWEEPS):
        is_on = k.any_lane(state[0, 0] > 0.0)
        for _ in k.between(0, is_on):
            state[0, 1] = 0.0
            for p in k.between(0, n - 1):
                for q in k.between(p + 1, n):
                    _diagonalize(k, (a, v), (p, q), n, state)
            state[0, 0] = state[0, 1]


def _diagonalize(k: Routine, of: tuple[Entries, Entries], at: Pair, n: int, state: Entries) -> None:
    """Rotate two rows and columns of a symmetric matrix so that their common entry is 0, and the rows of v."""
    (a, v), (p, q) = of, at
    off, low, high = a[p, q], a[p, p], a[q, q]
    is_turned = (abs(low) + abs(high)) * (_epsilon(k) * 0.25) < abs(off)
    cosine, sine = _angle(k, high - low, off * 2.0, is_turned)
    for _ in k.between(0, k.any_lane(is_turned)):
        state[0, 1] = is_turned.where(k.constant(1.0), state[0, 1])
        _rotate(k, a, (p, q), n, cosine, sine)
        for r in k.between(0, n):
            x, y = a[r, p], a[r, q]
            a[r, p] = k.fma(cosine, x, -(sine * y))
            a[r, q] = k.fma(sine, x, cosine * y)
        _rotate(k, v, (p, q), n, cosine, sine)


def tridiagonal_count(n: int) -> int:
    """Values that `eigh_large` writes for an n x n matrix."""
    return 3 * n * n + 4 * n


def eigh_large(k: Routine, n: int) -> None:
    """Write as `eigh` does, but the eigenvalues after the eigenvectors; working memory comes last."""
    z, d = k.matrix(0, n), k.matrix(0, n, n * n)
    e, w = k.matrix(0, n, n * n + n), k.matrix(0, n, n * n + 2 * n)
    tau, a, q = k.matrix(0, n, n * n + 3 * n), k.matrix(0, n, n * n + 4 * n), k.matrix(0, n, 2 * n * n + 4 * n)
    source = k.matrix(1, n)
    for r in k.between(0, n):
        for c in k.between(0, r + 1):
            a[r, c] = source[r, c]
            a[c, r] = source[r, c]
    for p in k.between(0, n - 2):  # row p becomes (.., d, e, 0, ..); its reflector stays in the row, from p + 1 on
        factor = reflector(k, lambda i, p=p: (p, i), a, p + 1, n)  # type: ignore[misc]
        e[0, p] = a[p, p + 1]
        tau[0, p] = factor
        a[p, p + 1] = 1.0
        for i in k.between(p + 1, n):
            (dot,) = k.total(p + 1, n, lambda c, i=i, p=p: [(a[i, c], a[p, c])])  # type: ignore[misc]
            w[0, i] = dot * factor
        (mean,) = k.total(p + 1, n, lambda c, p=p: [(w[0, c], a[p, c])])  # type: ignore[misc]
        half = mean * factor * -0.5
        for c in k.spans(p + 1, n):
            w[0, c] = k.fma(half, a[p, c], w[0, c])
        for i in k.between(p + 1, n):
            x, y = -a[p, i], -w[0, i]
            for c in k.spans(p + 1, n):
                a[i, c] = k.fma(x, w[0, c], k.fma(y, a[p, c], a[i, c]))
    if n > 1:
        e[0, n - 2] = a[n - 2, n - 1]
    for i in k.between(0, n):
        d[0, i] = a[i, i]
    e[0, n - 1] = 0.0
    _identity(k, q, n)
    for p in k.downwards(n - 2, 0):
        factor = -tau[0, p]
        for c in k.spans(p + 1, n):
            w[0, c] = 0.0
        for i in k.between(p + 1, n):
            x = a[p, i]
            for c in k.spans(p + 1, n):
                w[0, c] = k.fma(x, q[i, c], w[0, c])
        for i in k.between(p + 1, n):
            x = a[p, i] * factor
            for c in k.spans(p + 1, n):
                q[i, c] = k.fma(x, w[0, c], q[i, c])
    for i in k.between(0, n):
        for c in k.between(0, n):
            z[i, c] = q[c, i]
    _ql(k, n, d, e, z)


def _ql(k: Routine, n: int, d: Entries, e: Entries, z: Entries) -> None:
    """Implicit QL with Wilkinson's shift; rows of z become the eigenvectors."""
    epsilon = _epsilon(k)
    one, zero = k.constant(1.0), k.constant(0.0)
    state = k.array(6)  # is on, end of the block, cosine, sine, p, g
    for low in k.between(0, n):
        state[0, 0] = 1.0
        for _ in k.between(0, _STEPS):
            for _ in k.between(0, k.any_lane(state[0, 0] > 0.0)):

                def first_small(i: Number, now: list[Number], low: Number = low) -> list[Number]:
                    at = low + i
                    is_small = abs(e[0, at]) <= (abs(d[0, at]) + abs(d[0, at + 1])) * epsilon
                    return [(is_small & now[0].same(float(n))).where(k.floated(at), now[0])]

                (end,) = k.accumulated(k.as_index(n - 1) - low, [k.constant(float(n))], first_small)
                end = end.same(float(n)).where(k.constant(float(n - 1)), end)
                is_done = end.same(k.floated(low))
                state[0, 0] = is_done.where(zero, one)
                for _ in k.between(0, k.any_lane(end > k.floated(low))):
                    _ql_step(k, (low, k.indexed(end)), n, (d, e, z), state)


def _ql_step(k: Routine, block: Pair, n: int, of: Three, state: Entries) -> None:
    (low, end), (d, e, z) = block, of
    one, zero = k.constant(1.0), k.constant(0.0)
    g = (d[0, low + 1] - d[0, low]) / (e[0, low] * 2.0)
    r = k.fma(g, g, one).sqrt()
    g = d[0, end] - d[0, low] + e[0, low] / (g + (g < 0.0).where(-r, r))
    state[0, 2] = 1.0
    state[0, 3] = 1.0
    state[0, 4] = 0.0
    state[0, 5] = g
    for i in k.downwards(end, low):
        cosine, sine, p, g = (state[0, x] for x in range(2, 6))
        f, b = sine * e[0, i], cosine * e[0, i]
        most = (abs(f) < abs(g)).where(abs(g), abs(f))
        is_zero = most.same(0.0)
        safe = is_zero.where(one, most)
        x, y = f / safe, g / safe
        r = k.fma(x, x, y * y).sqrt() * most
        whole = is_zero.where(one, r)
        sine, cosine = is_zero.where(zero, f / whole), is_zero.where(one, g / whole)
        e[0, i + 1] = r
        g = d[0, i + 1] - p
        r = (d[0, i] - g) * sine + cosine * b * 2.0
        p = sine * r
        d[0, i + 1] = g + p
        state[0, 2] = cosine
        state[0, 3] = sine
        state[0, 4] = p
        state[0, 5] = cosine * r - b
        for c in k.spans(0, n):
            x, y = z[i + 1, c], z[i, c]
            z[i + 1, c] = k.fma(sine, y, cosine * x)
            z[i, c] = k.fma(cosine, y, -(sine * x))
    d[0, low] = d[0, low] - state[0, 4]
    e[0, low] = state[0, 5]
    e[0, end] = 0.0
