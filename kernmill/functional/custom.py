"""Gradients of your own, and gradients that compute their function again: `custom_gradient` and `checkpoint`."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from kernmill.ir import GradientError, Ops, ShapeError, UOp, apart, show_shape

from ..autograd import gradient as gradient_of
from ..lazy import KNOWN, SEALED, tracing
from ..tensor import Tensor
from .rewriting import Rewriter, placeholder
from .trees import parts_of, replaced, tensors_in

__all__ = ["checkpoint", "custom_gradient", "sealed"]


def custom_gradient(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with a gradient of your own; also a decorator.

    `function` returns its value and a function `pull`. That takes the gradient of the value, in the form of the value,
    and returns the gradient of the argument. Of several arguments it returns a tuple, with None for those without one.

    Raises:
        GradientError: the function reads a tensor with requires_grad that is not an argument, or returns no pair.
        ShapeError: `pull` returns a gradient of another shape.
    """

    @functools.wraps(function)
    def with_gradient(*arguments: Any, **named: Any) -> Any:
        given = [t for t in parts_of(arguments) if isinstance(t, Tensor)]
        inside = [Tensor._make(apart(t.uop, is_constant=False), t._device) for t in given]
        parts = iter(inside)
        passed = replaced(arguments, iter([next(parts) if isinstance(a, Tensor) else a for a in parts_of(arguments)]))
        made = function(*passed, **named)
        if not isinstance(made, tuple) or len(made) != 2 or not callable(made[1]):
            raise GradientError(
                "custom_gradient: the function must return a pair: its value, and a function of the value's gradient."
            )
        value, pull = made
        outputs = tensors_in(value, "custom_gradient")
        if any(y._requires_grad for y in outputs):
            raise GradientError(
                "custom_gradient: the value depends on a tensor with requires_grad that is not an argument. Pass it "
                "as an argument, or use its detach()."
            )
        seeds = [placeholder(y.dtype, y.uop.shape, y.device) for y in outputs]
        with tracing():
            found = pull(
                replaced(value, iter([Tensor._make(s, y._device) for s, y in zip(seeds, outputs, strict=True)]))
            )
        slopes = _slopes(found, arguments, given)
        results = [_with_slopes(y, k, seeds, slopes, inside, given) for k, y in enumerate(outputs)]
        return replaced(value, iter(results))

    return with_gradient


def _slopes(found: Any, arguments: Sequence[Any], given: Sequence[Tensor]) -> list[UOp | None]:
    """The node of the gradient of each tensor among the arguments.

    Raises:
        ShapeError: their number or shapes differ.
    """
    found = (found,) if len(arguments) == 1 and not isinstance(found, tuple) else found
    slopes: list[UOp | None] = []
    if isinstance(found, tuple) and len(found) == len(arguments):
        for argument, slope in zip(arguments, found, strict=True):
            count = sum(isinstance(part, Tensor) for part in parts_of(argument))
            own = (
                [None] * count if slope is None else [s for s in parts_of(slope) if s is None or isinstance(s, Tensor)]
            )
            slopes += [None if s is None else s.uop for s in own]
    if len(slopes) != len(given):
        raise ShapeError(
            f"custom_gradient: the gradients are not those of {len(arguments)} arguments with {len(given)} tensors. "
            "Return one for each argument, in its form, or None."
        )
    for slope, t in zip(slopes, given, strict=True):
        if slope is not None and slope.shape != t.uop.shape:
            raise ShapeError(
                f"custom_gradient: a gradient of shape {show_shape(slope.shape)} for an argument of shape "
                f"{show_shape(t.uop.shape)}. Return one of the argument's shape."
            )
    return slopes


def _with_slopes(y: Tensor, k: int, seeds: Sequence[UOp], slopes: Sequence[UOp | None], inside: Sequence[Tensor],
                 given: Sequence[Tensor]) -> Tensor:  # fmt: skip
    """One result, with the gradients that `pull` gave for all of them: they are linear in each seed."""
    inner = [t.uop for t in inside]

    def rule(_: UOp, below: tuple[UOp, ...], grad: UOp) -> list[UOp | None]:
        table = {seed: grad if i == k else _zeros(seed) for i, seed in enumerate(seeds)}
        again = Rewriter({**table, **dict(zip(inner, below, strict=True))})
        return [None if s is None else again(s.cast(b.dtype)) for s, b in zip(slopes, below, strict=True)]

    return sealed(y, given, rule)


def sealed(y: Tensor, sources: Sequence[Tensor], rule: Callable[..., Any]) -> Tensor:
    """A result whose gradient is that of the rule alone, which gives one for each source or None."""
    node = apart(y.uop, is_constant=False)
    KNOWN[node] = tuple(t.uop for t in sources), rule
    SEALED.add(node)
    return y._result(node, *sources)


def _zeros(like: UOp) -> UOp:
    return Tensor._make(like)._filled(0).uop


def checkpoint(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with less memory: its gradient computes the function again, instead of reading what it kept.

    Of the function's values only its arguments, its results and what it reads from outside stay in memory until
    backward(). The gradient of each result runs the function once more. Random numbers are the same both times.
    """

    @functools.wraps(function)
    def recomputed(*arguments: Any, **named: Any) -> Any:
        given = [t for t in parts_of((arguments, named)) if isinstance(t, Tensor)]
        inside = [Tensor._make(apart(t.uop, is_constant=False), t._device, t._requires_grad) for t in given]
        parts = iter(inside)
        new = iter([next(parts) if isinstance(a, Tensor) else a for a in parts_of((arguments, named))])
        passed, names = replaced((arguments, named), new)
        value = function(*passed, **names)
        inner = [t.uop for t in inside]
        return replaced(value, iter([_again(y, inner, given) for y in parts_of(value)]))

    return recomputed


def _again(y: Any, inner: Sequence[UOp], given: Sequence[Tensor]) -> Any:
    """A result whose gradient reads nothing that the function computed from its arguments."""
    if not isinstance(y, Tensor) or not y._requires_grad or y.uop in inner:
        return y
    root = y.uop
    outer = _read_from_outside(root, inner)
    sources = [*given, *(Tensor._make(node) for node in outer)]

    def rule(_: UOp, below: tuple[UOp, ...], grad: UOp) -> list[UOp | None]:
        seed = placeholder(root.dtype, root.shape, "nowhere")
        targets = (*inner, *outer)
        slopes = gradient_of(root, seed, targets)
        wait = [UOp(Ops.WAIT, x.dtype, (x, grad)) for x in below[: len(inner)]]
        again = Rewriter({seed: grad, **dict(zip(inner, wait, strict=True))})
        return [again(slopes[t]) if t in slopes else None for t in targets]

    return sealed(y, sources, rule)


def _read_from_outside(root: UOp, inner: Sequence[UOp]) -> list[UOp]:
    """Nodes of floats that depend on no argument, and are read by nodes that do: weights, most of them."""
    depending = set(inner)
    outer: dict[UOp, None] = {}
    for node in root.toposort(stop=depending.__contains__):
        if node not in depending and not depending.isdisjoint(node.src):
            depending.add(node)
            outer.update(dict.fromkeys(s for s in node.src))
    return [node for node in outer if node not in depending and node.dtype.is_float and node.op is not Ops.CONST]
