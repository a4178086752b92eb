"""Validation of a stored plan: every field exists, has its type and is in its range.

A digest shows that the bytes are those that were written, not that they make sense. An invalid plan is a miss, and is
rebuilt. Tests: tests/runtime/plans/test_stored_plan.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from kernmill.ir import as_dtype

__all__ = ["check_plan"]

_EXTENT = re.compile(r"[\w+*/%() -]*")  # arithmetic with names of variables
_KEY_DIGITS = 32  # of a kernel's digest


def check_plan(plan: Any, devices: Sequence[str], others: Sequence[str], roots: int) -> None:
    """Raise an error for a plan that cannot belong to a graph with `roots` roots, whose slot i is on `devices[i]`.
    Kernels may run on `others` as well."""
    known = {*devices, *others}
    items, buffers, results, checks, offsets, arenas, *sizes = plan
    sizes_of = [_buffer(number, row, devices, known) for number, row in enumerate(buffers)]
    count = len(sizes_of)
    for row in items:
        if len(row) == 2:
            _all(_is_index(number, count) for number in row)
        else:
            _kernel(row, count, known)
    _all(_is_index(number, count) for number in results)
    _all(len(results) == roots, len(sizes) == 2, *(_is_size(size) for size in sizes))
    for number, message in checks:
        _all(_is_index(number, count), type(message) is str)
    _all(device in known and _is_size(size) for device, size in arenas.items())
    for number, offset in offsets:
        _all(_is_index(number, count), _is_size(offset))
        _all(offset + sizes_of[number] <= arenas[buffers[number][2]])


def _buffer(number: int, row: Any, devices: Sequence[str], known: set[str]) -> int:
    """Check a buffer; its bytes."""
    dtype, numel, device, slot, is_output, part, extent, is_kept = row
    size = as_dtype(dtype).size_bytes
    _all(type(dtype) is str, _is_size(numel), type(is_output) is type(is_kept) is bool, device in known)
    _all(slot is None or (_is_index(slot, len(devices)) and devices[slot] == device))
    _all(type(extent) is str and _EXTENT.fullmatch(extent) is not None)
    if part is not None:
        whole, first = part
        _all(_is_index(whole, number), _is_size(first))
    return int(numel) * size


def _kernel(row: Any, count: int, known: set[str]) -> None:
    buffers, outputs, device, key, name, variables = row
    _all(_is_index(number, count) for number in buffers)
    _all(number in buffers for number in outputs)
    _all(device in known, type(name) is str, type(key) is str, len(key) == _KEY_DIGITS)
    for variable, least, greatest in variables:
        _all(type(variable) is str, type(least) is int, type(greatest) is int, least <= greatest)


def _all(*facts: Any) -> None:
    for fact in facts:
        if not (fact if isinstance(fact, bool) else all(fact)):
            raise ValueError("a stored plan has invalid content")


def _is_index(value: Any, count: int) -> bool:
    return type(value) is int and 0 <= value < count


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 62
