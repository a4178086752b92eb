"""A tensor in a notebook: its shape, dtype and device, and a table of values if it has been computed."""

from __future__ import annotations

from typing import Any

from kernmill.ir import LazyModule, dtypes, show_shape

__all__ = ["tensor_html"]

_MOST = 8  # rows and columns
_html: Any = LazyModule("html")


def tensor_html(tensor: Any) -> str:
    """Return a line and a table of up to 8 x 8 values; of more than two axes the first matrix. Nothing is computed."""
    state = "" if tensor.is_realized else ", not realized"
    grad = ", requires_grad" if tensor.requires_grad else ""
    shape = show_shape(tensor.uop.shape)
    head = f"<b>Tensor</b> {_html.escape(shape)} {tensor.dtype.name} on {_html.escape(tensor.device)}{state}{grad}"
    if not tensor.is_realized or tensor.dtype is dtypes.bfloat16 or tensor.ndim > 32 or 0 in tensor.shape:
        return head
    values: Any = tensor.numpy()
    if values.ndim > 2:
        head += f"; the first of {values[..., 0, 0].size:,} matrices"
        values = values[(0,) * (values.ndim - 2)]
    values = values.reshape(1, -1) if values.ndim < 2 else values
    rows = [_row_of(line, values.shape[1] > _MOST) for line in values[:_MOST, :_MOST].tolist()]
    if len(values) > _MOST:
        rows.append("<tr><td>&#8942;</td></tr>")
    return f"{head}<table>{''.join(rows)}</table>"


def _row_of(numbers: list[Any], is_cut: bool) -> str:
    cells = [f"<td>{number:.4g}</td>" if isinstance(number, float) else f"<td>{number}</td>" for number in numbers]
    return f"<tr>{''.join(cells)}{'<td>&#8230;</td>' if is_cut else ''}</tr>"
