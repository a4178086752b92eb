"""Factorizations into triangular matrices, and solutions with these.

Sources: Golub, Van Loan, Matrix Computations; blocks as in LAPACK's potrf, getrf and trtrs.
"""

from __future__ import annotations

from collections.abc import Sequence

from .builder import Entries, Number, Routine
from .products import multiply

__all__ = ["cholesky", "lu", "solve", "triangular"]

_BLOCK = 32  # rows that are eliminated before the trailing matrix is updated: 32 x 512 float64 fit L2, 32 x 32 L1


def _block(k: Routine, n: int) -> int:
    return n if k.is_interleaved else min(n, _BLOCK)


def _least(k: Routine, a: Number, b: Number | int) -> Number:
    return k.choose(a < b, a, b) if not isinstance(b, int) else k.choose(a < b, a, k.as_index(b))


def cholesky(k: Routine, n: int) -> None:
    """Write U, upper triangular, with U^T U = A, of which the lower triangle is read. A pivot that is not positive
    becomes nan, or 0."""
    a, u = k.matrix(1, n), k.matrix(0, n)
    for i in k.between(0, n):
        for j in k.between(i, n):
            u[i, j] = a[j, i]
    block = _block(k, n)
    for number in k.between(0, -(-n // block)):
        begin = number * block
        end = _least(k, begin + block, n)
        for p in k.between(begin, end):
            pivot = u[p, p].sqrt()
            inverse = k.constant(1.0) / pivot
            u[p, p] = pivot
            for j in k.spans(p + 1, n):
                u[p, j] = u[p, j] * inverse
            for i in k.between(p + 1, end):
                factor = -u[p, i]
                for j in k.spans(i, n):
                    u[i, j] = k.fma(factor, u[p, j], u[i, j])
        if block == n:
            continue

        def write(i: Number, j: Number, value: Number, end: Number = end) -> None:
            u[end + i, j + end] = u[end + i, j + end] - value

        multiply(
            k,
            (k.as_index(n) - end, k.as_index(n) - end, end - begin),
            lambda i, t, begin=begin, end=end: u[begin + t, end + i],  # type: ignore[misc]
            lambda t, j, begin=begin, end=end: u[begin + t, j + end],  # type: ignore[misc]
            write,
            lambda i: i,
        )
    for i in k.between(1, n):  # tiles wrote beyond the diagonal
        for j in k.spans(0, i):
            u[i, j] = 0.0


def lu(k: Routine, n: int) -> None:
    """Write L and U of PA = LU in one matrix. After it come, for each step, the number of the row that it was exchanged
    with, and for each row the row of A that it was."""
    out, order = k.matrix(0, n), k.matrix(0, 1, n * n + n)
    _copy(k, k.matrix(1, n), out, n, n)
    for i in k.between(0, n):
        order[i, 0] = k.floated(i)
    _eliminate(k, out, n, k.matrix(0, n, n * n), [(out, n), (order, 1)])


def solve(k: Routine, n: int, m: int) -> None:
    """Write X with AX = B, of n x m, then L and U of A, and the exchanged rows."""
    x, a = k.matrix(0, m), k.matrix(0, n, n * m)
    _copy(k, k.matrix(1, n), a, n, n)
    _copy(k, k.matrix(2, m), x, n, m)
    _eliminate(k, a, n, k.matrix(0, n, n * m + n * n), [(a, n), (x, m)])
    _substitute(k, a, x, (n, m), (True, True, False))
    _substitute(k, a, x, (n, m), (False, False, False))


def _copy(k: Routine, source: Entries, to: Entries, rows: int, columns: int) -> None:
    for i in k.between(0, rows):
        for j in k.spans(0, columns):
            to[i, j] = source[i, j]


def _eliminate(k: Routine, out: Entries, n: int, pivots: Entries, moved: Sequence[tuple[Entries, int]]) -> None:
    """Gaussian elimination of a matrix in place; rows of all that is `moved` are exchanged."""
    block = _block(k, n)
    for number in k.between(0, -(-n // block)):
        begin = number * block
        end = _least(k, begin + block, n)
        for p in k.between(begin, end):
            chosen = _exchange(k, out, p, n, moved)
            pivots[0, p] = chosen
            is_zero = out[p, p].same(0.0)  # then the entries below it are 0, or nan
            inverse = is_zero.where(k.constant(1.0), k.constant(1.0) / is_zero.where(k.constant(1.0), out[p, p]))
            for i in k.between(p + 1, n):
                factor = out[i, p] * inverse
                out[i, p] = factor
                for j in k.spans(p + 1, end):
                    out[i, j] = k.fma(-factor, out[p, j], out[i, j])
        if block == n:
            continue
        for i in k.between(begin + 1, end):
            for p in k.between(begin, i):
                factor = -out[i, p]
                for j in k.spans(end, n):
                    out[i, j] = k.fma(factor, out[p, j], out[i, j])

        def write(i: Number, j: Number, value: Number, end: Number = end) -> None:
            out[end + i, j + end] = out[end + i, j + end] - value

        rest = k.as_index(n) - end
        multiply(
            k,
            (rest, rest, end - begin),
            lambda i, t, begin=begin, end=end: out[end + i, begin + t],  # type: ignore[misc]
            lambda t, j, begin=begin, end=end: out[begin + t, j + end],  # type: ignore[misc]
            write,
        )


def _exchange(k: Routine, out: Entries, p: Number, n: int, moved: Sequence[tuple[Entries, int]]) -> Number:
    """Bring the largest entry of a column to the diagonal; return the number of its row, as a float."""

    def larger(i: Number, now: list[Number]) -> list[Number]:
        row = i + p + 1
        size = abs(out[row, p])
        is_more = now[0] < size
        return [is_more.where(size, now[0]), is_more.where(k.floated(row), now[1])]

    _, chosen = k.accumulated(k.as_index(n) - p - 1, [abs(out[p, p]), k.floated(p)], larger)
    for matrix, width in moved:
        if k.lanes == 1:
            row = k.indexed(chosen)
            for j in k.spans(0, width):
                here, there = matrix[p, j], matrix[row, j]
                matrix[p, j] = there
                matrix[row, j] = here
            continue
        for i in k.between(p + 1, n):
            is_chosen = chosen.same(k.floated(i))
            for j in k.between(0, width):
                here, there = matrix[p, j], matrix[i, j]
                matrix[p, j] = is_chosen.where(there, here)
                matrix[i, j] = is_chosen.where(here, there)
    return chosen


def triangular(k: Routine, n: int, m: int, is_lower: int, is_unit: int, is_transposed: int) -> None:
    """Write X with TX = B; T is n x n, of which one triangle is read, B is n x m."""
    x = k.matrix(0, m)
    _copy(k, k.matrix(2, m), x, n, m)
    _substitute(k, k.matrix(1, n), x, (n, m), (bool(is_lower), bool(is_unit), bool(is_transposed)))


def _substitute(k: Routine, t: Entries, x: Entries, sizes: tuple[int, int], kind: tuple[bool, bool, bool]) -> None:
    """Solve TX = B where X has B; `kind`: T is lower, has a diagonal of ones, is transposed."""
    (n, m), (is_lower, is_unit, is_transposed) = sizes, kind
    is_forward = is_lower != is_transposed

    def entry(i: Number, j: Number) -> Number:
        return t[j, i] if is_transposed else t[i, j]

    block = _block(k, n)
    blocks = -(-n // block)
    for number in k.between(0, blocks):
        position = number if is_forward else k.as_index(blocks - 1) - number
        begin = position * block
        end = _least(k, begin + block, n)
        if block != n:
            first = k.as_index(0) if is_forward else end

            def write(i: Number, j: Number, value: Number, begin: Number = begin) -> None:
                x[begin + i, j] = x[begin + i, j] - value

            multiply(
                k,
                (end - begin, m, begin if is_forward else k.as_index(n) - end),
                lambda i, s, begin=begin, first=first: entry(begin + i, first + s),  # type: ignore[misc]
                lambda s, j, first=first: x[first + s, j],  # type: ignore[misc]
                write,
            )
        for i in k.between(begin, end) if is_forward else k.downwards(end, begin):
            for s in k.between(begin, i) if is_forward else k.between(i + 1, end):
                factor = -entry(i, s)
                for j in k.spans(0, m):
                    x[i, j] = k.fma(factor, x[s, j], x[i, j])
            if not is_unit:
                pivot = entry(i, i)
                for j in k.spans(0, m):
                    x[i, j] = x[i, j] / pivot
