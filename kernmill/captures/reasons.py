"""Why a call of a captured function is captured again: the first difference between two keys, in words.

A key is a structure, then a token for each tensor, then modes and settings (`_take` in jitted.py).
"""

from __future__ import annotations

from typing import Any

from kernmill.ir import show_shape

__all__ = ["key_difference"]

_MOST = 60  # characters of a value
_WORDS = ("shape", "dtype", "device", "requires_grad", "absence of a gradient")


def key_difference(before: tuple[Any, ...], now: tuple[Any, ...]) -> str:
    """Return one sentence about two keys that differ."""
    if before[0] != now[0]:
        return "a plain argument changed from {} to {}".format(*map(_short, _first_difference(before[0], now[0])))
    if before[-1] != now[-1]:
        return "a setting, or the mode of training or of gradients, changed"
    if len(before) != len(now):
        return "the number of tensors, or which of them share memory, changed"
    for number, (old, new) in enumerate(zip(before[1:-1], now[1:-1], strict=True)):
        if old == new:
            continue
        if len(old) != len(_WORDS) or len(new) != len(_WORDS):
            break
        word, was, is_now = next(row for row in zip(_WORDS, old, new, strict=True) if row[1] != row[2])
        return f"the {word} of tensor {number} changed from {_token_text(was)} to {_token_text(is_now)}"
    return "other tensors share memory"


def _token_text(value: Any) -> str:
    return show_shape(value) if isinstance(value, tuple) else str(getattr(value, "name", value))


def _first_difference(before: Any, now: Any) -> tuple[Any, Any]:
    """Return the innermost parts that differ first, of nested tuples."""
    if not (isinstance(before, tuple) and isinstance(now, tuple)) or len(before) != len(now):
        return before, now
    return next(_first_difference(old, new) for old, new in zip(before, now, strict=True) if old != new)


def _short(part: Any) -> str:
    text = str(getattr(part, "__qualname__", part))
    return text if len(text) <= _MOST else text[: _MOST - 3] + "..."
