"""The discrete Fourier transform of rows: Stockham's passes, each by a radix whose butterfly is unrolled.

A pass of radix r reads entries with a stride of n / r and writes them in order, so no permutation is left at the end.
Lanes are the adjacent entries that earlier passes have produced; in the first pass lanes are butterflies.
Source: van Loan, Computational Frameworks for the Fast Fourier Transform (1992).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from .builder import Entries, Number, Routine

Pair = tuple[Number, Number]  # real and imaginary part

__all__ = ["fft"]


def fft(k: Routine, n: int, is_inverse: int, is_real: int, *radices: int) -> None:
    """Write the real and imaginary planes of the transform of n values. From two passes on, working memory of the same
    size follows in the result. The source is two planes, or one if `is_real`. Argument 2 has the twiddle factors of
    each pass: for each entry of a butterfly but the first, the real, then the imaginary parts. All rows share them."""
    k.shared.add(k.params[2])
    table = _plane(k, 2, 0)
    first: list[Entries | None] = [_plane(k, 1, 0), None if is_real else _plane(k, 1, n)]
    memory: list[list[Entries | None]] = [[_plane(k, 0, begin), _plane(k, 0, begin + n)] for begin in (0, 2 * n)]
    if is_inverse:  # the inverse is the transform with real and imaginary parts exchanged on both sides
        for planes in (first, *memory):
            planes.reverse()
    source, together, length, offset = first, 1, n, 0
    for number, radix in enumerate(radices):
        apart = length // radix
        to = memory[(len(radices) - 1 - number) % 2]
        _pass(k, source, to, (radix, apart, together), _twiddles(table, offset, apart))
        offset += 2 * (radix - 1) * apart
        source, together, length = to, together * radix, apart


def _plane(k: Routine, slot: int, offset: int) -> Entries:
    return k.matrix(slot, 1, offset)


def _twiddles(table: Entries, offset: int, apart: int) -> Callable[[int, Number], Pair]:
    def root(i: int, p: Number) -> Pair:
        entry = p + (offset + 2 * (i - 1) * apart)
        return table[entry, 0], table[entry + apart, 0]

    return root


def _pass(
    k: Routine,
    source: Sequence[Entries | None],
    to: Sequence[Entries | None],
    sizes: tuple[int, int, int],
    root: Callable[[int, Number], Pair],
) -> None:
    radix, apart, together = sizes

    def butterfly(p: Number, q: Number | int) -> list[Pair]:
        values = [_loaded(k, source, (p + apart * i) * together + q) for i in range(radix)]
        made = _transform(k, values)
        if apart == 1:
            return made
        return [made[0], *(_times(k, value, root(i, p)) for i, value in enumerate(made) if i)]

    if together == 1:
        for p in k.spans(0, apart):
            for i, pair in enumerate(butterfly(p, 0)):
                _write_apart(k, to, p, radix, i, pair)
        return
    for p in k.between(0, apart):
        for q in k.spans(0, together, 1 << (together.bit_length() - 1)):
            for i, pair in enumerate(butterfly(p, q)):
                _stored_at(to, (p * radix + i) * together + q, pair)


def _loaded(k: Routine, source: Sequence[Entries | None], entry: Number) -> Pair:
    parts = [None if plane is None else plane[entry, 0] for plane in source]
    zero = k.zero(entry.width)
    return tuple(zero if part is None else part for part in parts)  # type: ignore[return-value]


def _stored_at(to: Sequence[Entries | None], entry: Number, pair: Pair) -> None:
    for plane, part in zip(to, pair, strict=True):
        if plane is not None:
            plane[entry, 0] = part


def _write_apart(k: Routine, to: Sequence[Entries | None], p: Number, radix: int, i: int, pair: Pair) -> None:
    """Write the lanes of a value with a stride of the radix."""
    begin = Number(k, p.uop) * radix + i
    for plane, part in zip(to, pair, strict=True):
        if plane is None:
            continue
        if p.width == 1:
            plane[begin, 0] = part
            continue
        for lane in range(p.width):
            plane[begin + lane * radix, 0] = k.lane(part, lane)


# --- butterflies -----------------------------------------------------------------------------------------------------
def _times(k: Routine, a: Pair, b: Pair) -> Pair:
    return k.fma(a[0], b[0], -(a[1] * b[1])), k.fma(a[0], b[1], a[1] * b[0])


def _times_root(k: Routine, a: Pair, part: int, whole: int) -> Pair:
    """Multiply by the root of unity exp(-2 pi i part / whole)."""
    eighth = 8 * part % (8 * whole) / whole
    if eighth == 0:
        return a
    if eighth == 2:
        return a[1], -a[0]
    if eighth == 4:
        return -a[0], -a[1]
    if eighth == 6:
        return -a[1], a[0]
    angle = -2 * math.pi * part / whole
    cosine, sine = math.cos(angle), math.sin(angle)
    if eighth == 1:
        return (a[0] + a[1]) * cosine, (a[1] - a[0]) * cosine
    return _times_constant(k, a, cosine, sine)


def _times_constant(k: Routine, a: Pair, cosine: float, sine: float) -> Pair:
    real, imag = k.constant(cosine), k.constant(sine)
    return k.fma(a[0], real, -(a[1] * imag)), k.fma(a[0], imag, a[1] * real)


def _transform(k: Routine, x: Sequence[Pair]) -> list[Pair]:
    """Return the transform of values in registers, as one unrolled butterfly."""
    n = len(x)
    if n == 1:
        return list(x)
    if n == 2:
        return [_plus(x[0], x[1]), _minus(x[0], x[1])]
    if n == 4:
        a, b = _plus(x[0], x[2]), _minus(x[0], x[2])
        c, d = _plus(x[1], x[3]), _times_root(k, _minus(x[1], x[3]), 1, 4)
        return [_plus(a, c), _plus(b, d), _minus(a, c), _minus(b, d)]
    first = next((f for f in (4, 2, 3, 5, 7, 11, 13) if n % f == 0 and f < n), 0)
    if not first:
        return _prime(k, x)
    second = n // first
    inner = [_transform(k, x[i::second]) for i in range(second)]  # of entries with a stride of `second`
    rows = [[_times_root(k, inner[i][j], i * j, n) for i in range(second)] for j in range(first)]
    outer = [_transform(k, row) for row in rows]
    return [outer[j % first][j // first] for j in range(n)]


def _prime(k: Routine, x: Sequence[Pair]) -> list[Pair]:
    """Return the transform of an odd size without small factors: entries j and n - j share a cosine and a sine."""
    n = len(x)
    pairs = [(_plus(x[j], x[n - j]), _minus(x[j], x[n - j])) for j in range(1, n // 2 + 1)]
    out: list[Pair] = [x[0]] * n
    for both, _ in pairs:
        out[0] = _plus(out[0], both)
    for i in range(1, n // 2 + 1):
        (real, imag), (real_side, imag_side) = x[0], (None, None)
        for j, (both, apart) in enumerate(pairs, 1):
            angle = 2 * math.pi * (i * j % n) / n
            cosine, sine = k.constant(math.cos(angle)), k.constant(math.sin(angle))
            real, imag = k.fma(both[0], cosine, real), k.fma(both[1], cosine, imag)
            real_side = apart[1] * sine if real_side is None else k.fma(apart[1], sine, real_side)
            imag_side = apart[0] * sine if imag_side is None else k.fma(apart[0], sine, imag_side)
        assert real_side is not None
        assert imag_side is not None
        out[i] = real + real_side, imag - imag_side
        out[n - i] = real - real_side, imag + imag_side
    return out


def _plus(a: Pair, b: Pair) -> Pair:
    return a[0] + b[0], a[1] + b[1]


def _minus(a: Pair, b: Pair) -> Pair:
    return a[0] - b[0], a[1] - b[1]
