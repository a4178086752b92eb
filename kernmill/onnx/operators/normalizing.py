"""Normalizations, dropout and losses."""

from __future__ import annotations

from collections.abc import Sequence

from kernmill.ir import dtypes

from ...methods.elementwise import where
from ...tensor import Tensor
from ..table import operator
from ..values import Host, dtype_of


def _per_channel(x: Tensor, v: Tensor) -> Tensor:
    return v.reshape(-1, *[1] * (x.ndim - 2))


@operator("BatchNormalization")
def batch_norm(
    x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, var: Tensor, *, epsilon: float = 1e-5, momentum: float = 0.9,
    training_mode: int = 0, spatial: int = 1, is_test: int = 0, call: object,
) -> Tensor | tuple[Tensor, ...]:  # fmt: skip
    outputs = getattr(call, "outputs", 1)
    old = mean, var
    if training_mode:
        axes = (0, *range(2, x.ndim))
        var, mean = x.float().var(axes, correction=0), x.float().mean(axes)
    factor = scale.float() / (var.float() + epsilon).sqrt()
    offset = bias.float() - mean.float() * factor
    y = (x * _per_channel(x, factor).cast(x.dtype) + _per_channel(x, offset).cast(x.dtype)).cast(x.dtype)
    if not training_mode or outputs < 2:
        return y
    running = [
        (o.float() * momentum + new.float() * (1 - momentum)).cast(o.dtype)
        for o, new in zip(old, (mean, var), strict=True)
    ]
    return (y, *running)


@operator("InstanceNormalization")
def instance_norm(x: Tensor, scale: Tensor, bias: Tensor, *, epsilon: float = 1e-5) -> Tensor:
    axes = tuple(range(2, x.ndim))
    y = (x - x.mean(axes, True)) / (x.var(axes, True, correction=0) + epsilon).sqrt()
    return y * _per_channel(x, scale) + _per_channel(x, bias)


@operator("GroupNormalization")
def group_norm(
    x: Tensor, scale: Tensor, bias: Tensor, *, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1, opset: int
) -> Tensor:
    rows = x.reshape(x.shape[0], num_groups, -1).cast(dtype_of(stash_type) or x.dtype)
    y = (rows - rows.mean(-1, True)) / (rows.var(-1, True, correction=0) + epsilon).sqrt()
    y = y.cast(x.dtype)
    if opset < 21 and scale.numel() == num_groups:  # one for each group
        return (y * scale.reshape(-1, 1) + bias.reshape(-1, 1)).reshape(x.shape)
    return y.reshape(x.shape) * _per_channel(x, scale) + _per_channel(x, bias)


@operator("LayerNormalization")
def layer_norm(
    x: Tensor, scale: Tensor, bias: Tensor | None = None, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> tuple[Tensor, ...]:
    axes = tuple(range(axis % x.ndim, x.ndim))
    wide = x.cast(dtype_of(stash_type) or x.dtype)
    mean = wide.mean(axes, True)
    scale_by = 1 / (wide.var(axes, True, correction=0) + epsilon).sqrt()
    y = ((wide - mean) * scale_by).cast(x.dtype) * scale
    return (y if bias is None else y + bias), mean, scale_by


@operator("RMSNormalization")
def rms_norm(x: Tensor, scale: Tensor, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Tensor:
    axes = tuple(range(axis % x.ndim, x.ndim))
    wide = x.cast(dtype_of(stash_type) or x.dtype)
    return ((wide / ((wide * wide).mean(axes, True) + epsilon).sqrt()).cast(x.dtype) * scale).cast(scale.dtype)


@operator("LpNormalization")
def lp_norm(x: Tensor, *, axis: int = -1, p: int = 2) -> Tensor:
    size = x.norm(p, axis, True)
    return where(size.eq(0), x._own(0), x / size)


@operator("MeanVarianceNormalization")
def mean_variance_norm(x: Tensor, *, axes: Sequence[int] = (0, 2, 3)) -> Tensor:
    all_axes = tuple(axes)
    return (x - x.mean(all_axes, True)) / (x.var(all_axes, True, correction=0).sqrt() + 1e-9)


@operator("LRN")
def local_response_norm(x: Tensor, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0) -> Tensor:
    low = (size - 1) // 2
    pairs = [(0, 0)] * x.ndim
    pairs[1] = (low, size - 1 - low)
    squares = (x * x).pad(pairs).unfold(1, size, 1).sum(-1)
    return x / (bias + squares * (alpha / size)) ** beta


@operator("Dropout", is_random=True)
def dropout(
    x: Tensor, ratio_in: Host = None, training: Host = None, *, ratio: float = 0.5, seed: int | None = None,
    is_test: int = 0,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    p = ratio if ratio_in is None else float(ratio_in.item())
    ones = x.detach()._filled(1).ne(0)
    if training is None or not training.item() or p == 0:
        return x, ones
    kept = Tensor.rand(*x.shape).ge(p)
    return where(kept, x / (1 - p), x._own(0)), kept


@operator("NegativeLogLikelihoodLoss")
def nll_loss(
    x: Tensor, target: Tensor, weight: Tensor | None = None, *, ignore_index: int | None = None,
    reduction: str = "mean",
) -> Tensor:  # fmt: skip
    return _loss(x, target, weight, ignore_index, reduction)


def _loss(x: Tensor, target: Tensor, weight: Tensor | None, ignored: int | None, reduction: str) -> Tensor:
    classes = target.cast(dtypes.int64)
    is_kept = classes.eq(classes) if ignored is None else classes.ne(ignored)
    safe = where(is_kept, classes, classes._own(0))
    hot = safe.unsqueeze(1).eq(Tensor.arange(x.shape[1]).reshape(-1, *[1] * (classes.ndim - 1)))
    values = where(hot, x, x._own(0)).sum(1)
    scale = is_kept.cast(x.dtype)
    if weight is not None:
        scale = scale * weight[safe]
    loss = -values * scale
    if reduction == "none":
        return loss
    return loss.sum() / scale.sum() if reduction == "mean" else loss.sum()


@operator("SoftmaxCrossEntropyLoss")
def cross_entropy(
    x: Tensor, target: Tensor, weight: Tensor | None = None, *, ignore_index: int | None = None,
    reduction: str = "mean",
) -> tuple[Tensor, Tensor]:  # fmt: skip
    logs = x.log_softmax(1)
    return _loss(logs, target, weight, ignore_index, reduction), logs
