"""Why a call of a captured function is captured again: the first difference between two keys, in words.

A key is a structure, then a token for each tensor and its gradient, then modes and settings (`_flatten_call`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from inspect import Parameter
from typing import Any

from kernmill.ir import show_shape

from ..lazy import Lazy
from .reader import CAPTURED_SETTINGS

__all__ = ["key_difference"]

_MOST = 60  # characters of a value
_WORDS = ("shape", "dtype", "device", "requires_grad")
_HAS_NO_GRADIENT = len(_WORDS)  # the index in a token
_MODES = (
    "the recording of gradients", "the training mode", "the dtype of autocast",
    *(f"the setting {name}" for name in CAPTURED_SETTINGS),
)  # fmt: skip
_BY_POSITION = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


def key_difference(before: tuple[Any, ...], now: tuple[Any, ...], parameters: Sequence[Parameter]) -> str:
    """Return one sentence about two keys that differ, in calls of a function with these parameters."""
    if before[0] != now[0]:
        return "a plain argument changed from {} to {}".format(*map(_short, _first_difference(before[0], now[0])))
    for word, was, is_now in zip(_MODES, before[-1], now[-1], strict=True):
        if was != is_now:
            return f"{word} changed from {was!r} to {is_now!r}"
    names = list(_tensor_names(now[0], parameters))
    arguments = list(zip(names, before[1:], now[1:], strict=False))
    for name, old, new in arguments:
        if old[_HAS_NO_GRADIENT] and not new[_HAS_NO_GRADIENT]:
            return f"{name} has a gradient now (it had none)"
        if new[_HAS_NO_GRADIENT] and not old[_HAS_NO_GRADIENT]:
            return f"{name} has no gradient now (it had one)"
    names += [f"the gradient of {name}" for name, _, new in arguments if new[3] and not new[_HAS_NO_GRADIENT]]
    for name, old, new in zip(names, before[1:-1], now[1:-1], strict=False):
        for word, was, is_now in zip(_WORDS, old, new, strict=False):
            if was != is_now:
                return f"the {word} of {name} changed from {_token_text(was)} to {_token_text(is_now)}"
    return "other tensors share memory"


def _tensor_names(structure: Any, parameters: Sequence[Parameter]) -> Iterator[str]:
    """Yield where the tensors of a call are, in the order of its tokens: `x`, `batch[0]`, `state.weights['a']`."""
    (_, args), (_, kwargs) = structure[1:]
    by_position = [p.name for p in parameters if p.kind in _BY_POSITION]
    rest = next((p.name for p in parameters if p.kind is Parameter.VAR_POSITIONAL), "argument")
    for number, (_, part) in enumerate(args[1:]):
        missing = number - len(by_position)
        yield from _names_below(part, by_position[number] if missing < 0 else f"{rest}[{missing}]")
    for _, (_, (_, (_, name)), (_, part)) in kwargs[1:]:
        yield from _names_below(part, name)


def _names_below(part: Any, name: str) -> Iterator[str]:
    """Yield the names of the tensors in one part of a structure (`tree_flatten` in pytree.py)."""
    if part is Lazy:
        yield name
    elif isinstance(part, tuple):
        is_record = isinstance(part[0], type) and not issubclass(part[0], (list, tuple, dict))
        for mark, below in (pair for pair in part[1:] if isinstance(pair, tuple)):
            key = mark if isinstance(mark, str) else mark[1]
            yield from _names_below(below, f"{name}.{key}" if is_record else f"{name}[{key!r}]")


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
