"""Calls of NumPy functions with tensors: their arguments as arrays, and results that no gradient would reach."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kernmill.ir import GradientError

from .lazy import Lazy, grad_state

__all__ = ["as_arrays", "leads_nowhere"]


def as_arrays(value: Any) -> Any:
    """Replace tensors by arrays in the arguments of a NumPy function."""
    if isinstance(value, Lazy):
        return value.numpy()  # type: ignore[attr-defined]
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return (tuple if isinstance(value, tuple) else list)(map(as_arrays, value))
    return {name: as_arrays(one) for name, one in value.items()} if type(value) is dict else value


def leads_nowhere(function: Any, given: Any, result: Any) -> Any:
    """A result of NumPy's.

    Raises:
        GradientError: it has floats, and a gradient would be expected to flow through them.
    """
    has_floats = _has(result, lambda v: getattr(getattr(v, "dtype", None), "kind", "-") in "fcV")  # V: bfloat16
    is_asked = has_floats and grad_state() and not function.__name__.endswith("_like")  # which take a shape only
    if is_asked and _has(given, lambda v: isinstance(v, Lazy) and v.requires_grad):
        raise GradientError(
            f"np.{function.__name__}: no gradient would flow from NumPy's result to this tensor, which has "
            "requires_grad. "
            "Use the method of Tensor, or give NumPy t.detach()."
        )
    return result


def _has(values: Any, is_it: Callable[[Any], bool]) -> bool:
    """True if a value, or one in a container, satisfies the predicate."""
    if isinstance(values, dict):
        values = list(values.values())
    return any(_has(v, is_it) for v in values) if isinstance(values, (list, tuple)) else is_it(values)
