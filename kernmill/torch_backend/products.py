"""Matrix products and convolutions, and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..tensor import Tensor
from .table import aten


@aten("mm.default", "bmm.default", "mv.default", "dot.default", "matmul.default")
def mm(a: Tensor, b: Tensor) -> Tensor:
    """A product of matrices."""
    return a @ b


@aten("addmm.default", "baddbmm.default")
def addmm(c: Tensor, a: Tensor, b: Tensor, beta: float = 1, alpha: float = 1) -> Tensor:
    """beta * c + alpha * (a @ b)."""
    product = a @ b if alpha == 1 else (a @ b) * alpha
    return product if beta == 0 else product + (c if beta == 1 else c * beta)


@aten("convolution.default")
def convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int,
) -> Tensor:  # fmt: skip
    """A convolution of 1 to 3 spatial axes, or a transposed one."""
    rank = weight.ndim - 2
    steps, pads, gaps, more = (_each(v, rank) for v in (stride, padding, dilation, output_padding))
    if transposed:
        function = {1: x.conv_transpose1d, 2: x.conv_transpose2d, 3: x.conv_transpose3d}[rank]
        return function(weight, bias, steps, pads, more, groups, gaps)
    return {1: x.conv1d, 2: x.conv2d, 3: x.conv3d}[rank](weight, bias, steps, pads, gaps, groups)


def _each(values: Sequence[int], rank: int) -> tuple[int, ...]:
    return tuple(values) * rank if len(values) == 1 else tuple(values)


@aten("convolution_backward.default")
def convolution_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias_sizes: Any, stride: Sequence[int], padding: Sequence[int],
    dilation: Sequence[int], transposed: bool, output_padding: Sequence[int], groups: int, mask: Sequence[bool],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Gradients of input, weight and bias, as far as the mask says."""

    def forward(x: Tensor, weight: Tensor) -> Tensor:
        return convolution(x, weight, None, stride, padding, dilation, transposed, output_padding, groups)

    dx, dw = gradients(forward, grad, (x, weight), mask[:2])
    db = grad.sum(axis=tuple(i for i in range(grad.ndim) if i != 1)) if mask[2] else None
    return dx, dw, db


def gradients(
    function: Callable[..., Tensor], grad: Tensor, inputs: Sequence[Tensor], mask: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients of a function at some inputs, given that of its result."""
    leaves = [x.detach().requires_grad_() if wanted else x for x, wanted in zip(inputs, mask, strict=True)]
    targets = [x for x, wanted in zip(leaves, mask, strict=True) if wanted]
    if not targets:
        return [None] * len(inputs)
    found = iter(function(*leaves).gradient(*targets, gradient=grad))
    return [next(found).detach() if wanted else None for wanted in mask]
