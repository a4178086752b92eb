"""Normalizations, pooling, resizing, and PyTorch's fused layers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from kernmill.ir import KernmillError, dtypes

from ..tensor import Tensor
from .elementwise import gelu
from .products import gradients
from .table import aten


@aten("native_layer_norm.default")
def layer_norm(
    x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """A norm over the last axes; gives the mean and 1 / standard deviation too."""
    return _normed(x, tuple(range(x.ndim - len(shape), x.ndim)), weight, bias, eps)


def _normed(
    x: Tensor, axes: tuple[int, ...], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    wide = x if x.dtype in (dtypes.float32, dtypes.float64) else x.float()
    mean = wide.mean(axis=axes, keepdim=True)
    centered = wide - mean
    scale = ((centered * centered).mean(axis=axes, keepdim=True) + eps).rsqrt()
    y = centered * scale
    y = y if weight is None else y * weight
    return y if bias is None else y + bias, mean, scale


@aten("native_group_norm.default")
def group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, c: int, hw: int, group: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """A norm over groups of channels."""
    y, mean, scale = _normed(x.reshape(n, group, -1), (2,), None, None, eps)
    y = y.reshape(x.shape)
    shape = (1, c, *[1] * (x.ndim - 2))
    y = y if weight is None else y * weight.reshape(shape)
    return y if bias is None else y + bias.reshape(shape), mean.reshape(n, group), scale.reshape(n, group)


def _channels(x: Tensor, v: Tensor | None) -> Tensor | None:
    return None if v is None else v.reshape(1, -1, *[1] * (x.ndim - 2))


@aten("_native_batch_norm_legit_no_training.default")
def batch_norm_eval(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, variance: Tensor, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """A norm by running statistics."""
    scale = (variance + eps).rsqrt()
    scale = scale if weight is None else scale * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    empty = Tensor.zeros(0, dtype=mean.dtype)
    shape = (1, -1, *[1] * (x.ndim - 2))
    return x * scale.reshape(shape) + shift.reshape(shape), empty, empty


@aten("_native_batch_norm_legit_functional.default", "_native_batch_norm_legit.no_stats")
def batch_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, *rest: Any) -> tuple[Tensor, ...]:
    """A norm by the statistics of the batch; gives the new running ones too."""
    (mean, variance, training, momentum, eps) = rest if len(rest) == 5 else (None, None, *rest)
    if not training:
        y, *_ = batch_norm_eval(x, weight, bias, mean, variance, momentum, eps)
        return y, Tensor.zeros(0), Tensor.zeros(0), mean, variance
    axes = (0, *range(2, x.ndim))
    y, seen, scale = _normed(x, axes, _channels(x, weight), _channels(x, bias), eps)
    seen, scale = seen.reshape(-1), scale.reshape(-1)
    if mean is None:
        return y, seen, scale
    count = math.prod(x.shape[a] for a in axes)
    spread = (1 / (scale * scale) - eps) * (count / max(1, count - 1))
    mean = mean * (1 - momentum) + seen * momentum
    return y, seen, scale, mean, variance * (1 - momentum) + spread * momentum


# --- pooling ---------------------------------------------------------------------------------------------------------
def _two(values: Sequence[int]) -> tuple[int, int]:
    return (values[0], values[0]) if len(values) == 1 else (values[0], values[1])


@aten("max_pool2d_with_indices.default")
def max_pool2d(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,), ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Maxima of windows, and their indices in the image."""
    y, indices = x.max_pool2d(
        _two(kernel), _two(stride or kernel), _two(padding), _two(dilation), ceil_mode, return_indices=True
    )
    return y, indices


@aten("max_pool2d_with_indices_backward.default")
def max_pool2d_backward(grad: Tensor, x: Tensor, *rest: Any) -> Tensor:
    """Gradients at the indices of the maxima."""
    indices: Tensor = rest[-1]
    rows = (-1, math.prod(x.shape[-2:]))
    flat = Tensor.zeros(*x.shape, dtype=grad.dtype).reshape(rows)
    count = math.prod(grad.shape[-2:])
    return flat.scatter_add(1, indices.reshape(-1, count), grad.reshape(-1, count)).reshape(x.shape)


@aten("avg_pool2d.default")
def avg_pool2d(
    x: Tensor, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,),
    ceil_mode: bool = False, count_include_pad: bool = True, divisor: int | None = None,
) -> Tensor:  # fmt: skip
    """Means of windows."""
    if divisor is not None:
        raise KernmillError("avg_pool2d: divisor_override is not supported. Divide the result instead.")
    return x.avg_pool2d(_two(kernel), _two(stride or kernel), _two(padding), ceil_mode, count_include_pad)


@aten("avg_pool2d_backward.default")
def avg_pool2d_backward(grad: Tensor, x: Tensor, *options: Any) -> Tensor:
    """The gradient of `avg_pool2d`."""
    return _only(gradients(lambda x: avg_pool2d(x, *options), grad, (x,), (True,)))


@aten("_adaptive_avg_pool2d.default")
def adaptive_avg_pool2d(x: Tensor, size: Sequence[int]) -> Tensor:
    """Means of as many windows as the result has elements."""
    return x.adaptive_avg_pool2d(_two(size))


@aten("_adaptive_avg_pool2d_backward.default")
def adaptive_avg_pool2d_backward(grad: Tensor, x: Tensor) -> Tensor:
    """The gradient of `_adaptive_avg_pool2d`."""
    return _only(gradients(lambda x: adaptive_avg_pool2d(x, grad.shape[-2:]), grad, (x,), (True,)))


def _only(found: list[Tensor | None]) -> Tensor:
    (gradient,) = found
    assert gradient is not None
    return gradient


# --- fused layers ----------------------------------------------------------------------------------------------------
@aten("_transformer_encoder_layer_fwd.default")
def encoder_layer(
    x: Tensor, width: int, heads: int, qkv_weight: Tensor, qkv_bias: Tensor, out_weight: Tensor, out_bias: Tensor,
    use_gelu: bool, norm_first: bool, eps: float, *rest: Any,
) -> Tensor:  # fmt: skip
    """A layer of a transformer encoder without a mask."""
    w1, b1, w2, b2, up, up_bias, down, down_bias, *mask = rest
    if any(m is not None for m in mask):
        raise KernmillError("_transformer_encoder_layer_fwd: a mask is not supported.")

    def attend(x: Tensor) -> Tensor:
        n, t, _ = x.shape
        qkv = (x @ qkv_weight.transpose(0, 1) + qkv_bias).reshape(n, t, 3, heads, width // heads)
        q, k, v = (qkv[:, :, i].transpose(1, 2) for i in range(3))
        y = (q @ k.transpose(2, 3) / math.sqrt(width // heads)).softmax(-1) @ v
        return y.transpose(1, 2).reshape(n, t, width) @ out_weight.transpose(0, 1) + out_bias

    def feed(x: Tensor) -> Tensor:
        y = x @ up.transpose(0, 1) + up_bias
        activated: Tensor = gelu(y) if use_gelu else y.relu()
        result: Tensor = activated @ down.transpose(0, 1) + down_bias
        return result

    def norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return layer_norm(x, (width,), w, b, eps)[0]

    if norm_first:
        x = x + attend(norm(x, w1, b1))
        return x + feed(norm(x, w2, b2))
    x = norm(x + attend(x), w1, b1)
    return norm(x + feed(x), w2, b2)
