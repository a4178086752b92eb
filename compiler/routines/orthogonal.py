"""Householder's QR: reflectors of a panel, and blocks of them applied as products (I - V T V').

Source: Schreiber, van Loan, A storage-efficient WY representation for products of Householder transformations (1989).
"""

from __future__ import annotations

from collections.abc import Callable

from .builder import Entries, Number, Routine
from .products import multiply

Pair = tuple[Number, Number]

__all__ = ["qr", "qr_count", "reflector"]

_BLOCK = 32  # reflectors that are applied together


def qr_count(m: int, n: int, q: int) -> int:
    """Values that the routine writes for an m x n matrix: R, Q of q columns, and its working memory."""
    least = min(m, n)
    return m * n + m * q + least + _BLOCK * (m + 2 * max(n, q) + 2 * _BLOCK)


def qr(k: Routine, m: int, n: int, q: int) -> None:
    """Write an m x n matrix with R in its upper triangle, then Q of m x q."""
    least = min(m, n)
    source, a = k.matrix(1, n), k.matrix(0, n)
    out = k.matrix(0, q, m * n)
    work = _Work(k, m, n, q)
    tau = work.tau
    for i in k.between(0, m):
        for j in k.spans(0, n):
            a[i, j] = source[i, j]
    block = least if k.is_interleaved else min(least, _BLOCK)
    blocks = -(-least // block)
    for number in k.between(0, blocks):
        begin = number * block
        end = _end(k, begin, block, least)
        for p in k.between(begin, end):
            tau[p, 0] = reflector(k, lambda i, p=p: (i, p), a, p, m)  # type: ignore[misc]
            _reflect(k, a, a, tau[p, 0], p, (p + 1, end if block != least else k.as_index(n)), m)
        if block != least:
            _apply(k, work, a, a, (begin, end), (end, n), is_transposed=True)
    for i in k.between(0, m):
        for j in k.spans(0, q):
            out[i, j] = 0.0
    for i in k.between(0, min(m, q)):
        out[i, i] = 1.0
    for number in k.downwards(blocks, 0):
        begin = number * block
        end = _end(k, begin, block, least)
        if block != least:
            _apply(k, work, a, out, (begin, end), (begin, q), is_transposed=False)
        else:
            for p in k.downwards(end, begin):
                _reflect(k, a, out, tau[p, 0], p, (p, k.as_index(q)), m)


def _end(k: Routine, begin: Number, block: int, most: int) -> Number:
    end = begin + block
    return (end < most).where(end, k.as_index(most))


def reflector(k: Routine, at: Callable[[Number], Pair], a: Entries, p: Number, m: int) -> Number:
    """Replace the vector of entries a[at(i)], from p on, by its length and, below, the reflector's vector.

    Return the factor of the reflector, 0 if there is nothing to reflect. The first entry of its vector is 1."""
    most = k.accumulated(
        k.as_index(m) - p - 1,
        [k.constant(0.0)],
        lambda i, now: [(now[0] < abs(a[at(i + p + 1)])).where(abs(a[at(i + p + 1)]), now[0])],
    )[0]
    first = a[at(p)]
    is_zero = most.same(0.0)
    most = (most < abs(first)).where(abs(first), most)
    scale = k.constant(1.0) / most.same(0.0).where(k.constant(1.0), most)

    def squares(i: Number, now: list[Number]) -> list[Number]:
        x = a[at(i + p + 1)] * scale
        return [k.fma(x, x, now[0])]

    (total,) = k.accumulated(k.as_index(m) - p - 1, [k.constant(0.0)], squares)
    top = first * scale
    length = k.fma(top, top, total).sqrt() * most
    beta = (first < 0.0).where(length, -length)
    tau = is_zero.where(k.constant(0.0), (beta - first) / is_zero.where(k.constant(1.0), beta))
    factor = is_zero.where(k.constant(0.0), k.constant(1.0) / is_zero.where(k.constant(1.0), first - beta))
    for i in k.between(p + 1, m):
        a[at(i)] = a[at(i)] * factor
    a[at(p)] = is_zero.where(first, beta)
    return tau


def _reflect(k: Routine, v: Entries, c: Entries, tau: Number, p: Number, columns: Pair, m: int) -> None:
    """Apply the reflector in column p of `v`, from row p on, to some columns of `c`."""
    for j in k.spans(*columns):
        (sums,) = k.accumulated(
            k.as_index(m) - p - 1,
            [c[p, j]],
            lambda i, now, j=j: [k.fma(v[i + p + 1, p], c[i + p + 1, j], now[0])],  # type: ignore[misc]
        )
        sums = -(tau * sums)
        c[p, j] = c[p, j] + sums
        for i in k.between(p + 1, m):
            c[i, j] = k.fma(v[i, p], sums, c[i, j])


class _Work:
    """Working memory: tau, the vectors of a panel, T, V'V, and two results of products."""

    def __init__(self, k: Routine, m: int, n: int, q: int) -> None:
        memory, start, wide = k.params[0], m * n + m * q, max(n, q)
        after = start + min(m, n)
        self.m = m
        self.tau = Entries(k, memory, 1, start)
        self.v = Entries(k, memory, _BLOCK, after)
        self.t = Entries(k, memory, _BLOCK, after + _BLOCK * m)
        self.gram = Entries(k, memory, _BLOCK, after + _BLOCK * (m + _BLOCK))
        self.w = Entries(k, memory, wide, after + _BLOCK * (m + 2 * _BLOCK))
        self.w2 = Entries(k, memory, wide, after + _BLOCK * (m + 2 * _BLOCK + wide))


def _apply(k: Routine, work: _Work, a: Entries, c: Entries, panel: Pair, columns: tuple[Number, int], *,
           is_transposed: bool) -> None:  # fmt: skip
    """Apply the reflectors in columns begin to end of `a` to some columns of `c`, as one product of blocks."""
    begin, end = panel
    first, last = columns
    count, rows = end - begin, k.as_index(work.m) - begin
    v, t, gram, w, w2, tau = work.v, work.t, work.gram, work.w, work.w2, work.tau
    for i in k.between(0, rows):
        for j in k.between(0, count):
            v[i, j] = (i < j).where(k.constant(0.0), i.same(j).where(k.constant(1.0), a[begin + i, begin + j]))

    def writer(into: Entries) -> Callable[[Number, Number, Number], None]:
        def write(i: Number, j: Number, value: Number) -> None:
            into[i, j] = value

        return write

    multiply(k, (count, count, rows), lambda i, s: v[s, i], lambda s, j: v[s, j], writer(gram))
    for j in k.between(0, count):
        factor = tau[begin + j, 0]
        for i in k.between(0, j):
            (total,) = k.accumulated(
                j - i,
                [k.constant(0.0)],
                lambda s, now, i=i, j=j: [k.fma(t[i, i + s], gram[i + s, j], now[0])],  # type: ignore[misc]
            )
            t[i, j] = -(factor * total)
        t[j, j] = factor
        for i in k.between(j + 1, count):
            t[i, j] = 0.0
    wanted = k.as_index(last) - first
    multiply(k, (count, wanted, rows), lambda i, s: v[s, i], lambda s, j: c[begin + s, j + first], writer(w))
    t_entry = (lambda i, s: t[s, i]) if is_transposed else (lambda i, s: t[i, s])
    multiply(k, (count, wanted, count), t_entry, lambda s, j: w[s, j], writer(w2))

    def subtract(i: Number, j: Number, value: Number) -> None:
        c[begin + i, j + first] = c[begin + i, j + first] - value

    multiply(k, (rows, wanted, count), lambda i, s: v[i, s], lambda s, j: w2[s, j], subtract)
