"""Derivatives of functions: `grad`, `value_and_grad`, `vjp`, `jvp`, `jacobian`, `hessian`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from kernmill.ir import GradientError, Ops, ShapeError, UOp, show_shape

from ..lazy import history
from ..methods.movement import stack
from ..tensor import Tensor
from .trees import parts_of, replaced, tensors_in

__all__ = ["grad", "hessian", "jacobian", "jvp", "value_and_grad", "vjp"]

Argnums = int | Sequence[int]


def grad(function: Callable[..., Any], argnums: Argnums = 0, *, has_aux: bool = False) -> Callable[..., Any]:
    """Return a function that gives the gradient of a function of one number for some of its arguments.

    `argnums`: the number of an argument, or several, which give a tuple. With `has_aux` the function returns a pair,
    and only its first part has a gradient: the new function returns (gradient, second part).
    """
    both = value_and_grad(function, argnums, has_aux=has_aux)

    def gradient_of(*arguments: Any, **named: Any) -> Any:
        value, found = both(*arguments, **named)
        return (found, value[1]) if has_aux else found

    return gradient_of


def value_and_grad(function: Callable[..., Any], argnums: Argnums = 0, *, has_aux: bool = False) -> Callable[..., Any]:
    """Return a function that gives the value and the gradient; see `grad`.

    Raises:
        GradientError: the function does not return one number.
    """
    chosen = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    def value_and_gradient(*arguments: Any, **named: Any) -> Any:
        given, targets = _with_targets(arguments, chosen, "grad")
        value = function(*given, **named)
        loss = value[0] if has_aux else value
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            shown = f"shape {show_shape(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
            raise GradientError(
                f"grad: the function returns {shown} instead of one number. Reduce it, or use jacobian."
            )
        found = iter(_without_own(_gradients(loss, targets, None), targets, arguments))
        results = tuple(replaced(arguments[i], found) for i in chosen)
        return value, results[0] if isinstance(argnums, int) else results

    return value_and_gradient


def vjp(function: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """Return the value, and a function from gradients of the value to those of the arguments."""
    given, targets = _with_targets(primals, range(len(primals)), "vjp")
    value = function(*given)
    outputs = tensors_in(value, "vjp")

    def pull(gradients: Any) -> tuple[Any, ...]:
        seeds = tensors_in(gradients, "vjp")
        _same_shapes("vjp", "gradients", seeds, outputs)
        parts = [_gradients(y, targets, seed) for y, seed in zip(outputs, seeds, strict=True)]
        found = iter(_without_own([_added(column) for column in zip(*parts, strict=True)], targets, primals))
        return tuple(replaced(p, found) for p in primals)

    return value, pull


def jvp(function: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """Return the value, and its derivative in the direction of the tangents."""
    given, targets = _with_targets(primals, range(len(primals)), "jvp")
    directions = [t for tangent in tangents for t in tensors_in(tangent, "jvp")]
    _same_shapes("jvp", "tangents", directions, targets)
    value = function(*given)
    found = iter([_derivative(y, targets, directions) for y in tensors_in(value, "jvp")])
    return value, replaced(value, found)


def _derivative(y: Tensor, targets: Sequence[Tensor], directions: Sequence[Tensor]) -> Tensor:
    """The derivative of a gradient by its seed: the gradient is linear in it."""
    seed = Tensor.zeros_like(y).requires_grad_()
    parts = [
        g.gradient(seed, gradient=v)[0]
        for g, v in zip(_gradients(y, targets, seed), directions, strict=True)
        if _depends(g, seed)
    ]
    return _added(parts) if parts else Tensor.zeros_like(y)


def jacobian(function: Callable[..., Any], argnums: Argnums = 0) -> Callable[..., Any]:
    """Return a function that gives all derivatives of a tensor by the elements of some arguments.

    Shapes: of the result, then of the argument. One gradient is computed for each element of the result.
    """
    chosen = (argnums,) if isinstance(argnums, int) else tuple(argnums)

    def jacobian_of(*arguments: Any, **named: Any) -> Any:
        given, targets = _with_targets(arguments, chosen, "jacobian")
        value = function(*given, **named)

        def rows(y: Tensor) -> Any:
            flat = y.reshape(-1)
            every = [_gradients(flat[i], targets, None) for i in range(math.prod(y.shape))]
            columns = [
                stack([row[k] for row in every]).reshape((*y.shape, *t.shape))
                if every else Tensor.zeros(*y.shape, *t.shape, dtype=t.dtype)
                for k, t in enumerate(targets)
            ]  # fmt: skip
            parts = iter(columns)
            results = tuple(replaced(arguments[i], parts) for i in chosen)
            return results[0] if isinstance(argnums, int) else results

        return replaced(value, iter([rows(y) for y in tensors_in(value, "jacobian")]))

    return jacobian_of


def hessian(function: Callable[..., Any], argnums: int = 0) -> Callable[..., Any]:
    """Return a function that gives the second derivatives of a function of one number."""
    return jacobian(grad(function, argnums), argnums)


# --- arguments -------------------------------------------------------------------------------------------------------
def _with_targets(arguments: Sequence[Any], chosen: Sequence[int], call: str) -> tuple[list[Any], list[Tensor]]:
    """The arguments with variables for all tensors of the chosen ones, and these variables."""
    if bad := [i for i in chosen if not 0 <= i < len(arguments)]:
        raise ShapeError(f"{call}: argument {bad[0]} of {len(arguments)} does not exist. Count from 0.")
    given, targets = list(arguments), list[Tensor]()
    for i in chosen:
        own = [t if t.requires_grad else t.detach().requires_grad_() for t in tensors_in(arguments[i], call)]
        targets += own
        given[i] = replaced(arguments[i], iter(own))
    return given, targets


def _without_own(results: Sequence[Tensor], targets: Sequence[Tensor], arguments: Any) -> list[Tensor]:
    """Results without history where it leads to variables of `_with_targets` alone, which nobody else has."""
    given = list(parts_of(arguments))
    own = {t.uop for t in targets if not any(t is part for part in given)}
    return [t.detach() if all(n in own for n in history(t.uop) if _is_variable(n)) else t for t in results]


def _is_variable(node: UOp) -> bool:
    return node.op is Ops.DETACH and node.arg is not None


def _same_shapes(call: str, what: str, given: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    if [t.shape for t in given] != [t.shape for t in wanted]:
        shown, fit = (", ".join(show_shape(t.shape) for t in ts) for ts in (given, wanted))
        raise ShapeError(f"{call}: {what} of shapes {shown} instead of {fit}.")


def _depends(y: Tensor, target: Tensor) -> bool:
    return not {target.uop}.isdisjoint(history(y.uop))


def _gradients(y: Tensor, targets: Sequence[Tensor], seed: Tensor | None) -> list[Tensor]:
    """The gradients of a result; zeros for variables that it does not depend on."""
    used = [t for t in targets if _depends(y, t)]
    found = iter(y.gradient(*used, gradient=seed) if used else [])
    uses = [any(t is u for u in used) for t in targets]
    return [next(found) if use else Tensor.zeros_like(t) for t, use in zip(targets, uses, strict=True)]


def _added(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
