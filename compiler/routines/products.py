"""Products inside of routines: blocks of a result in registers, for trailing matrices and block reflectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .builder import Number, Routine

__all__ = ["multiply"]

Entry = Callable[[Number, Number], Number]
Write = Callable[[Number, Number, Number], None]
_TILE_ROWS = (8, 4)  # of 2 vectors; the first tile with enough registers is used


def multiply(
    k: Routine,
    sizes: tuple[Number | int, Number | int, Number | int],
    a: Entry,
    b: Entry,
    write: Write,
    first_column: Callable[[Number], Number] | None = None,
) -> None:
    """Call write(i, j, sum of a(i, t) * b(t, j) over t) for every i and j of `sizes` = (rows, columns, terms).

    b must read adjacent columns. `first_column` of the first row of a tile: columns before it are not wanted.
    """
    rows, columns, terms = (k.as_index(size) for size in sizes)
    tall = next((n for n in _TILE_ROWS if 2 * n <= k.target.accumulators), _TILE_ROWS[-1])
    whole = rows >> (tall.bit_length() - 1)
    for tile in k.between(0, whole):
        first = tile * tall
        _row_of_tiles(k, [first + n for n in range(tall)], columns, terms, (a, b, write, first_column))
    for row in k.between(whole * tall, rows):
        _row_of_tiles(k, [row], columns, terms, (a, b, write, first_column))


def _row_of_tiles(k: Routine, rows: Sequence[Number], columns: Number, terms: Number, entries: tuple[
        Entry, Entry, Write, Callable[[Number], Number] | None]) -> None:  # fmt: skip
    a, b, write, first_column = entries
    done: Number | int = 0 if first_column is None else first_column(rows[0])
    width = k.span_lanes
    for vectors, lanes in ((2, width), (1, width), (1, 1)) if width > 1 else ((1, 1),):
        step = vectors * lanes
        count = (columns - done) >> (step.bit_length() - 1)
        if count.is_never:
            continue
        for tile in k.between(0, count):
            at = [Number(k, (tile * step + done + n * lanes).uop, lanes) for n in range(vectors)]

            def steps(t: Number, now: list[Number], at: list[Number] = at) -> list[Number]:
                right = [b(t, j) for j in at]
                left = [a(i, t) for i in rows]
                pairs = [(x, y) for x in left for y in right]
                return [k.fma(x, y, c) for (x, y), c in zip(pairs, now, strict=True)]

            zero = k.zero(lanes)
            sums = iter(k.accumulated(terms, [zero] * (len(rows) * vectors), steps))
            for i in rows:
                for j in at:
                    write(i, j, next(sums))
        done = count * step + done
