"""Activations: functions of one tensor with a few numbers as attributes."""

from __future__ import annotations

from ...methods.elementwise import where
from ...tensor import Tensor
from ..table import operator, operators

operators(
    {
        "Relu": lambda x: x.relu() if x.dtype.is_float else x.maximum(0), "Sigmoid": lambda x: x.sigmoid(),
        "Softsign": lambda x: x.softsign(), "Mish": lambda x: x.mish(), "HardSwish": lambda x: x.hardswish(),
        "Softplus": lambda x: x.maximum(0) + (-x.abs()).exp().log1p(),
    }
)  # fmt: skip


@operator("LeakyRelu")
def leaky_relu(x: Tensor, *, alpha: float = 0.01) -> Tensor:
    return x.leaky_relu(alpha)


@operator("Elu")
def elu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return x.elu(alpha)


@operator("Celu")
def celu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return x.celu(alpha)


@operator("Selu")
def selu(x: Tensor, *, alpha: float = 1.6732632423543772, gamma: float = 1.0507009873554805) -> Tensor:
    return x.elu(alpha) * gamma


@operator("ThresholdedRelu")
def thresholded_relu(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return where(x.gt(alpha), x, x._own(0))


@operator("HardSigmoid")
def hard_sigmoid(x: Tensor, *, alpha: float = 0.2, beta: float = 0.5) -> Tensor:
    return (x * alpha + beta).clamp(0, 1)


@operator("Shrink")
def shrink(x: Tensor, *, bias: float = 0.0, lambd: float = 0.5) -> Tensor:
    if not x.dtype.is_float:
        return shrink(x.double(), bias=bias, lambd=lambd).cast(x.dtype)
    return where(x.lt(-lambd), x + bias, where(x.gt(lambd), x - bias, x._own(0)))


@operator("Gelu")
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    return x.gelu(approximate)


@operator("Swish")
def swish(x: Tensor, *, alpha: float = 1.0) -> Tensor:
    return x * (x * alpha).sigmoid()


@operator("SwiGLU", "SwiGlu")
def swiglu(x: Tensor, gate: Tensor | None = None, *, axis: int = -1, alpha: float = 1.0) -> Tensor:
    a, b = x.chunk(2, axis) if gate is None else (x, gate)
    return a * (a * alpha).sigmoid() * b


def _rows(x: Tensor, axis: int | None, opset: int) -> tuple[Tensor, int]:
    """The tensor whose given axis is reduced: before version 13 all axes from `axis` on are one."""
    if opset >= 13:
        return x, -1 if axis is None else axis
    axis = 1 if axis is None else axis
    axis += x.ndim if axis < 0 else 0
    return x.reshape(*x.shape[:axis], -1), -1


@operator("Softmax")
def softmax(x: Tensor, *, axis: int | None = None, opset: int) -> Tensor:
    rows, at = _rows(x, axis, opset)
    return rows.softmax(at).reshape(x.shape)


@operator("LogSoftmax")
def log_softmax(x: Tensor, *, axis: int | None = None, opset: int) -> Tensor:
    rows, at = _rows(x, axis, opset)
    return rows.log_softmax(at).reshape(x.shape)


@operator("Hardmax")
def hardmax(x: Tensor, *, axis: int | None = None, opset: int) -> Tensor:
    rows, at = _rows(x, axis, opset)
    indices = rows.argmax(at, keepdim=True)
    at += rows.ndim if at < 0 else 0
    return (
        indices.eq(Tensor.arange(rows.shape[at]).reshape(-1, *[1] * (rows.ndim - at - 1)))
        .cast(x.dtype)
        .reshape(x.shape)
    )
