"""Loops and choices that stay loops and choices in a captured function: `scan`, `while_loop`, `cond`.

Outside of `jit` they are plain Python. In a captured function the body is traced and recorded once, and each replay
launches it for every round (runtime/loops.py). The gradient of a captured `scan` is a second loop, backwards.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kernmill.ir import DTypeError, ShapeError, show_shape
from kernmill.runtime import is_to_be_recorded

from ..lazy import tracing_state
from ..methods.elementwise import where
from ..methods.movement import stack
from ..tensor import Tensor
from .recorded_loops import recorded_scan, recorded_while
from .trees import pair_of, parts_of, replaced, same_form

__all__ = ["cond", "scan", "while_loop"]


def scan(function: Callable[..., Any], init: Any, xs: Any = None, length: int | None = None, *,
         reverse: bool = False) -> Any:  # fmt: skip
    """Carry a value through the entries of a sequence: `carry, y = function(carry, x)` for each x.

    Returns the last carry, and all y stacked along a new first axis. `xs`: tensors in dicts, lists and tuples, of which
    the first axis is the sequence; without them x is None, and `length` is the number of rounds. With `reverse` the
    last entry comes first. In a captured function it does not unroll, and has gradients of every order.

    Raises:
        ShapeError: sequences of different lengths, or a carry that changes its form, shape or dtype.
    """
    rows = _tensors(xs, "scan", "xs")
    lengths = {t.node_shape[0] if t.ndim else None for t in rows}
    lengths |= {length} if length is not None else set()
    if len(lengths) != 1 or not isinstance(count := lengths.pop(), int):
        shown = ", ".join(show_shape(t.uop.shape) for t in rows)
        raise ShapeError(
            f"scan: xs of shapes {shown or 'nothing'} with length={length}. Give tensors whose first axis has one "
            "known size, or a length."
        )
    _tensors(init, "scan", "init")
    if count and is_to_be_recorded() and not tracing_state():
        return recorded_scan(function, init, xs, count, is_reverse=reverse)
    carry, found = init, []
    for i in reversed(range(count)) if reverse else range(count):
        new, y = pair_of(function(carry, None if xs is None else replaced(xs, iter([t[i] for t in rows]))))
        same_form("scan: the carry", carry, new)
        carry = replaced(new, iter([t.contiguous() for t in parts_of(new)]))  # each round has the same kernels
        found.append(y)
    if not found:
        return carry, None
    columns = zip(*[_tensors(y, "scan", "y") for y in (found[::-1] if reverse else found)], strict=True)
    return carry, replaced(found[0], iter([stack(list(column)) for column in columns])) if found[
        0
    ] is not None else None


def while_loop(condition: Callable[[Any], Tensor], function: Callable[[Any], Any], init: Any) -> Any:
    """Repeat `value = function(value)` while `condition(value)` is true; return the value.

    `init`: tensors in dicts, lists and tuples. The condition is a bool tensor of one element. In a captured function
    the number of rounds may differ from call to call; there it has no gradient.

    Raises:
        ShapeError: the value changes its form, shape or dtype.
    """
    _tensors(init, "while_loop", "init")
    if is_to_be_recorded() and not tracing_state():
        return recorded_while(condition, function, init)
    value = init
    while bool(condition(value)):
        new = function(value)
        same_form("while_loop: the value", value, new)
        value = replaced(new, iter([t.contiguous() for t in parts_of(new)]))
    return value


def cond(predicate: Tensor | bool, if_true: Callable[..., Any], if_false: Callable[..., Any], *operands: Any) -> Any:
    """Return `if_true(*operands)` where the predicate is true, else `if_false(*operands)`.

    Outside of `jit` only one of them is called. In a captured function, and under `vmap`, both are computed and one is
    selected, so an error in either is raised.

    Raises:
        ShapeError: the results differ in form, shape or dtype, in a captured function.
    """
    if isinstance(predicate, bool):
        return (if_true if predicate else if_false)(*operands)
    if not isinstance(predicate, Tensor) or predicate.numel() != 1:
        shown = show_shape(predicate.uop.shape) if isinstance(predicate, Tensor) else type(predicate).__name__
        raise ShapeError(f"cond: the predicate is {shown}. Give a bool, or a tensor of one element.")
    if not (is_to_be_recorded() or tracing_state()):
        return (if_true if bool(predicate) else if_false)(*operands)
    yes, no = if_true(*operands), if_false(*operands)
    same_form("cond: the results", yes, no)
    flag = predicate.reshape(()).cast("bool")
    pairs = zip(parts_of(yes), parts_of(no), strict=True)
    return replaced(yes, iter([where(flag, a, b) for a, b in pairs]))


def _tensors(value: Any, call: str, what: str) -> list[Tensor]:
    found = [] if value is None else list(parts_of(value))
    for part in found:
        if not isinstance(part, Tensor):
            raise DTypeError(f"{call}: {what} has a {type(part).__name__}. Give tensors, in dicts, lists and tuples.")
    return found
