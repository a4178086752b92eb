"""A profile in a notebook: the ranked table, the totals, and what was made again."""

from __future__ import annotations

from html import escape

from kernmill.ir import show_ns
from kernmill.runtime import Note

from .rows import KernelRow, Totals, short_layers, short_line
from .table import notes_text, totals_text

__all__ = ["profile_html"]

_ROWS = 20
_RIGHT = "text-align:right;white-space:nowrap"
_LEFT = "text-align:left"
_HEADS = ("share", "total", "calls", "median", "GFLOP/s", "GB/s", "of ceiling", "line", "layer", "kernel")


def profile_html(rows: list[KernelRow], totals: Totals, notes: list[Note]) -> str:
    """Return the ranked table, the totals, and what was made again."""
    whole = max(1, sum(row.total_ns for row in rows))
    body = "".join(_table_row(row, whole) for row in rows[:_ROWS])
    rest = f"<p>and {len(rows) - _ROWS} more rows</p>" if len(rows) > _ROWS else ""
    heads = "".join(f'<th style="{_LEFT if n > 6 else _RIGHT}">{head}</th>' for n, head in enumerate(_HEADS))
    below = "".join(f"<pre>{escape(text)}</pre>" for text in (totals_text(totals), notes_text(notes)) if text)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>{rest}{below}"


def _table_row(row: KernelRow, whole_ns: int) -> str:
    share = row.total_ns / whole_ns
    bar = f"background:linear-gradient(to left,#9cc3ea66 {100 * share:.0f}%,transparent 0)"
    figures = (
        f"{share:.1%}", show_ns(row.total_ns), f"{row.calls:,}", show_ns(row.median_ns),
        f"{row.gflops:.1f}" if row.flops else "-", f"{row.gbytes:.1f}", f"{row.ceiling_share:.0%} {row.bound}",
    )  # fmt: skip
    cells = [f'<td style="{_RIGHT}{";" + bar if not n else ""}">{text}</td>' for n, text in enumerate(figures)]
    for text in (short_line(row.line) or "?", short_layers(row.layers), row.name):
        cells.append(f'<td style="{_LEFT}">{escape(text)}</td>')
    return f"<tr>{''.join(cells)}</tr>"
