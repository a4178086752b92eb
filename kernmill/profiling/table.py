"""A profile as a table of text, in the width of the terminal."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Sequence

from kernmill.ir import show_ns
from kernmill.runtime import Note

from .rows import KernelRow, Totals, short_layers, short_line

__all__ = ["made_text", "notes_text", "table_text", "totals_text", "wrapped"]

_LEAST_WIDTH, _PLAIN_WIDTH = 40, 140
_LEAST_CELL, _ENOUGH_CELL = 8, 24  # of a name
_ROWS = 20


def table_text(rows: Sequence[KernelRow], most: int = _ROWS, width: int | None = None) -> str:
    """The ranked table: one line for each kernel and source line. Columns that do not fit are left out. Shares are of
    the time of all kernels: in short programs nearly all of the wall time is compiling and Python."""
    width = _width_of(width)
    whole_ns = max(1, sum(row.total_ns for row in rows))
    lines = _fitted(_columns(rows[:most], whole_ns), width)
    if len(rows) > most:
        rest = sum(row.total_ns for row in rows[most:])
        more = f"and {len(rows) - most} more rows, {rest / whole_ns:.1%} of the kernels' time together"
        lines.append(wrapped(more, width))
    return "\n".join(lines)


def wrapped(text: str, width: int | None = None) -> str:
    """The text in lines of at most `width`, or as wide as the terminal."""
    width = _width_of(width)
    found: list[str] = []
    for line in text.splitlines():
        below = " " * (2 + len(line) - len(line.lstrip()))
        found += textwrap.wrap(line, width, subsequent_indent=below, break_on_hyphens=False) or [""]
    return "\n".join(found)


def _width_of(width: int | None) -> int:
    return max(_LEAST_WIDTH, width or shutil.get_terminal_size((_PLAIN_WIDTH, 50)).columns)


_Column = tuple[str, bool, int, list[str]]  # head, right-aligned, rank: the greatest are left out first; texts


def _columns(rows: Sequence[KernelRow], whole_ns: int) -> list[_Column]:
    def right(head: str, rank: int, texts: list[str]) -> _Column:
        return head, True, rank, texts

    return [
        right("share", 0, [f"{row.total_ns / whole_ns:.1%}" for row in rows]),
        right("total", 1, [show_ns(row.total_ns) for row in rows]),
        right("calls", 2, [f"{row.calls:,}" for row in rows]),
        right("median", 4, [show_ns(row.median_ns) for row in rows]),
        right("first", 7, [show_ns(row.first_ns) for row in rows]),
        right("GFLOP/s", 6, [f"{row.gflops:.1f}" if row.flops else "-" for row in rows]),
        right("GB/s", 8, [f"{row.gbytes:.1f}" for row in rows]),
        ("of ceiling", False, 3, [f"{_share(row.ceiling_share)} {row.bound}" for row in rows]),
        right("writes", 9, [show_bytes(row.bytes_written) for row in rows]),
        ("line", False, 0, [_line_cell(row) for row in rows]),
        ("layer", False, 5, [short_layers(row.layers) for row in rows]),
        ("kernel", False, 0, [_short_name(row.name) for row in rows]),
    ]


def _share(share: float) -> str:
    """A share of a ceiling. One above 100 % was measured with float32, or while the machine was busy."""
    return f"{share:4.0%}" if share <= 1 else ">100%"


def _short_name(name: str) -> str:
    """The first of several kernels that run interleaved, and how many follow."""
    first, *more = name.split(" + ")
    return f"{first} +{len(more)}" if more else first


def _line_cell(row: KernelRow) -> str:
    """The line, with the file's name only; further lines that are fused into it are counted."""
    line = short_line(row.line) or "?"
    own = row.line.partition(", ")[0]
    more = len({place for place in row.others if place.partition(", ")[0] != own})
    return f"{line} +{more}" if more else line


def _fitted(columns: list[_Column], width: int) -> list[str]:
    """The lines of a table. Names of kernels are shortened before columns are left out."""
    columns = [column for column in columns if any(column[3]) or not column[2]]
    while True:
        sizes = [max(map(len, (head, *texts))) for head, _, _, texts in columns]
        others = sum(sizes[:-1]) + 2 * (len(sizes) - 1)
        worst = max(rank for _, _, rank, _ in columns)
        if others + min(sizes[-1], _ENOUGH_CELL) <= width or not worst:
            break
        columns = [column for column in columns if column[2] != worst]
    sizes[-1] = min(sizes[-1], max(_LEAST_CELL, width - others))
    sizes[-2] -= min(max(0, others + sizes[-1] - width), max(0, sizes[-2] - _LEAST_CELL))  # of the line
    lines = []
    for texts in zip(*([head, *texts] for head, _, _, texts in columns), strict=True):
        cells = [
            t.rjust(size) if column[1] else _shortened(t, size).ljust(size)
            for t, size, column in zip(texts, sizes, columns, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _shortened(text: str, size: int) -> str:
    return text if len(text) <= size else f"{text[: size - 1]}\u2026"


def totals_text(totals: Totals) -> str:
    """Two lines: where the wall time went, and what was compiled."""
    parts = [
        ("kernels", totals.kernels_ns), ("compiling", totals.compile_ns), ("copies", totals.copies_ns),
        ("waiting", totals.waiting_ns), ("driver", totals.driver_ns), ("Python", totals.python_ns),
    ]  # fmt: skip
    wall = max(1, totals.wall_ns)
    shares = ", ".join(
        f"{name} {show_ns(took)} ({took / wall:.0%})" for name, took in parts if took or name == "kernels"
    )
    made = f"{made_text(totals)}."
    if totals.compile_ns > wall / 2 and totals.compiled:
        made += " Later runs take them from there: profile again to see the program without compiling."
    return f"{show_ns(totals.wall_ns)} in all: {shares}.\n{made}"


def made_text(totals: Totals) -> str:
    """How many kernels were compiled, and how many were not."""
    were = "kernel was" if totals.compiled == 1 else "kernels were"
    return f"{totals.compiled} {were} compiled, {totals.loaded} came from the cache"


def notes_text(notes: Sequence[Note], most: int = 10) -> str:
    """Return what was captured or planned again, and why; the first times are not listed."""
    again: dict[tuple[str, str, str], list[int]] = {}
    for note in notes:
        if note.reason not in ("a new graph", "a captured graph", "the first capture"):
            again.setdefault((note.kind, note.name, note.reason), []).append(note.taken_ns)
    if not again:
        return ""
    lines = ["made again:"]
    for (kind, name, reason), times in sorted(again.items(), key=lambda item: -sum(item[1]))[:most]:
        often = f" {len(times)} times" if len(times) > 1 else ""
        what = f"capture of {name}" if kind == "capture" else f"plan of {short_line(name)}"
        lines.append(f"  {what}{often}, {show_ns(sum(times))}: {reason}")
    if len(again) > most:
        lines.append(f"  and {len(again) - most} more")
    return "\n".join(lines)


def show_bytes(count: int) -> str:
    """A size in three digits."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{float(f'{count / size:.3g}'):g} {unit}"
    return f"{count} B"
