"""Control flow: branches and loops, unrolled over values that are known, or computed when they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kernmill.ir import ShapeError

from ..table import NodeCall, operator
from ..values import Host, Known, Value, tensor_of

_MOST_STEPS = 1 << 20


@operator("If")
def if_(condition: Host, *, then_branch: Any, else_branch: Any, call: NodeCall) -> tuple[Value, ...]:
    if condition.size != 1:
        raise ShapeError(f"If: a condition of shape {condition.shape} instead of one value. Change the model.")
    return tuple(call.body(then_branch if condition.item() else else_branch, []))


@operator("Loop")
def loop(count: Host, condition: Host, *state: Value, body: Any, call: NodeCall) -> tuple[Value, ...]:
    values, collected = list(state), list[list[Value]]()
    goes_on: bool = True if condition is None else bool(condition.item())
    most = _MOST_STEPS if count is None else int(count.item())
    step = 0
    while step < most and goes_on:
        results = call.body(body, [Known(np.array(step, np.int64)), Known(np.array(True)), *values])
        goes_on = bool(np.asarray(call.read(results[0])).item())
        values, scans = results[1 : 1 + len(values)], results[1 + len(values) :]
        collected = collected or [[] for _ in scans]
        for column, value in zip(collected, scans, strict=True):
            column.append(value)
        step += 1
        if count is None and step == _MOST_STEPS:
            raise ShapeError(f"Loop: it has not ended after {_MOST_STEPS} steps. Give a count.")
    empty = len(body.outputs) - 1 - len(values)
    columns = [_stacked(c, 0, False) for c in collected] or [Known(np.zeros((0,), np.float32))] * empty
    return (*values, *columns)


def _stacked(column: Sequence[Value], axis: int, is_reversed: bool) -> Value:
    parts = column[::-1] if is_reversed else column
    if any(isinstance(p, Known) and p.is_text for p in parts):
        return Known(np.stack([p.array for p in parts if isinstance(p, Known)], axis))
    first, *others = map(tensor_of, parts)
    return first.stack(*others, axis=axis)


@operator("Scan")
def scan(
    *inputs: Value, body: Any, num_scan_inputs: int, scan_input_axes: Sequence[int] | None = None,
    scan_input_directions: Sequence[int] | None = None, scan_output_axes: Sequence[int] | None = None,
    scan_output_directions: Sequence[int] | None = None, directions: Sequence[int] | None = None, opset: int,
    call: NodeCall,
) -> tuple[Value, ...]:  # fmt: skip
    if opset < 9:
        return _batched_scan(inputs, body, num_scan_inputs, directions, call)
    count = len(inputs) - num_scan_inputs
    values, sources = list(inputs[:count]), [tensor_of(v) for v in inputs[count:]]
    axes = list(scan_input_axes or [0] * num_scan_inputs)
    sides = list(scan_input_directions or [0] * num_scan_inputs)
    length = sources[0].shape[axes[0]]
    outs = len(body.outputs) - count
    collected: list[list[Value]] = [[] for _ in range(outs)]
    for step in range(length):
        now = [
            s[(*[slice(None)] * (axis % s.ndim), length - 1 - step if side else step)]
            for s, axis, side in zip(sources, axes, sides, strict=True)
        ]
        results = call.body(body, [*values, *now])
        values = results[:count]
        for column, value in zip(collected, results[count:], strict=True):
            column.append(value)
    out_axes, out_sides = list(scan_output_axes or [0] * outs), list(scan_output_directions or [0] * outs)
    return (*values, *[_stacked(c, a, bool(s)) for c, a, s in zip(collected, out_axes, out_sides, strict=True)])


def _batched_scan(
    inputs: Sequence[Value], body: Any, scans: int, directions: Sequence[int] | None, call: NodeCall
) -> tuple[Value, ...]:
    """Version 8: the first axis is the batch, and the first input the length of each sequence."""
    lengths, *rest = inputs
    sources = [tensor_of(v) for v in rest]
    if lengths is not None:
        raise ShapeError("Scan: lengths of sequences (version 8) are not supported. Export the model for version 9.")
    columns: list[list[Value]] = []
    for example in range(sources[0].shape[0]):
        results = scan(*[s[example] for s in sources], body=body, num_scan_inputs=scans,
                       scan_input_directions=directions, opset=9, call=call)  # fmt: skip
        columns = columns or [[] for _ in results]
        for column, value in zip(columns, results, strict=True):
            column.append(value)
    return tuple(_stacked(c, 0, False) for c in columns)
