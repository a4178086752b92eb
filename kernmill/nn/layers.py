"""The layers. Names of arguments and tensors, shapes and initial values are PyTorch's: its files of weights fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from numbers import Integral, Real
from typing import Any

from kernmill.ir import DType, SettingError, ShapeError, dtypes, promote, show_shape

from ..arguments import is_whole
from ..lazy import accumulator
from ..methods.convolution import Each, check_output_padding, check_windows, each
from ..tensor import Tensor
from .module import Module

__all__ = [
    "BatchNorm",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Bilinear",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "Dropout",
    "Dropout1d",
    "Dropout2d",
    "Dropout3d",
    "Embedding",
    "GroupNorm",
    "InstanceNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LayerNorm",
    "LayerNorm2d",
    "Linear",
    "MultiHeadAttention",
    "PReLU",
    "RMSNorm",
    "Sequential",
]


def _even(shape: Sequence[int], fan_in: int, dtype: DType) -> Tensor:
    """Return a parameter drawn uniformly from +-1 / sqrt(fan_in), as PyTorch initializes weights and biases."""
    bound = 1 / math.sqrt(max(1, fan_in))
    return Tensor.uniform(tuple(shape), low=-bound, high=bound, dtype=dtype, requires_grad=True)


def _filled(shape: Sequence[int], value: float, dtype: DType, *, is_parameter: bool = True) -> Tensor:
    """Return a tensor filled with the value, in its own buffer: equal constants would be one node."""
    import numpy as np

    return Tensor(np.full(tuple(shape), value, np.float32), dtype, requires_grad=is_parameter)


def _sizes(layer: str, **sizes: int) -> None:
    """Check that sizes are positive integers."""
    for name, size in sizes.items():
        if not is_whole(size, 1):
            raise ShapeError(f"{layer}: {name}={size!r}: must be an integer >= 1.")


class Linear(Module):
    """x @ weight.T + bias; weight of shape (out_features, in_features)."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *, dtype: DType = dtypes.default_float
    ) -> None:
        _sizes("Linear", in_features=in_features, out_features=out_features)
        self.weight = _even((out_features, in_features), in_features, dtype)
        self.bias = _even((out_features,), in_features, dtype) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Shapes: (..., in_features) -> (..., out_features)."""
        if not x.ndim or x.node_shape[-1] != self.weight.shape[1]:
            raise ShapeError(
                f"Linear: x of shape {show_shape(x.node_shape)}: its last axis must have size "
                f"{self.weight.shape[1]}. Reshape x, or build the layer with a different in_features."
            )
        return x.linear(self.weight, self.bias)


class _Conv(Module):
    """A convolution over `rank` spatial axes; weight of shape (out, in / groups, *kernel)."""

    rank = 2

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Each, stride: Each = 1,
                 padding: Each | str = 0, dilation: Each = 1, groups: int = 1, *, bias: bool = True,
                 dtype: DType = dtypes.default_float) -> None:  # fmt: skip
        name = type(self).__name__
        _sizes(name, in_channels=in_channels, out_channels=out_channels, groups=groups)
        if in_channels % groups or out_channels % groups:
            raise ShapeError(
                f"{name}: {in_channels} to {out_channels} channels: both must be multiples of groups={groups}."
            )
        kernel = _kernel(name, kernel_size, self.rank)
        check_windows(name, self.rank, stride, padding, dilation)
        fan_in = in_channels // groups * math.prod(kernel)
        self.weight = _even((out_channels, in_channels // groups, *kernel), fan_in, dtype)
        self.bias = _even((out_channels,), fan_in, dtype) if bias else None
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups

    def forward(self, x: Tensor) -> Tensor:
        """Shapes: (batch, in_channels, *spatial) -> (batch, out_channels, *spatial)."""
        return x.conv2d(self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class Conv1d(_Conv):
    """A convolution over the last axis."""

    rank = 1


class Conv2d(_Conv):
    """A convolution over the last two axes."""


class Conv3d(_Conv):
    """A convolution over the last three axes."""

    rank = 3


class ConvTranspose2d(Module):
    """The adjoint of Conv2d; weight of shape (in, out / groups, *kernel)."""

    rank = 2

    def __init__(self, in_channels: int, out_channels: int, kernel_size: Each, stride: Each = 1, padding: Each = 0,
                 output_padding: Each = 0, groups: int = 1, *, bias: bool = True, dilation: Each = 1,
                 dtype: DType = dtypes.default_float) -> None:  # fmt: skip
        name = type(self).__name__
        _sizes(name, in_channels=in_channels, out_channels=out_channels, groups=groups)
        if in_channels % groups or out_channels % groups:
            raise ShapeError(
                f"{name}: {in_channels} to {out_channels} channels: both must be multiples of groups={groups}."
            )
        kernel = _kernel(name, kernel_size, self.rank)
        check_windows(name, self.rank, stride, each(padding, self.rank, "padding"), dilation)
        check_output_padding(name, self.rank, stride, dilation, output_padding)
        fan_in = out_channels // groups * math.prod(kernel)
        self.weight = _even((in_channels, out_channels // groups, *kernel), fan_in, dtype)
        self.bias = _even((out_channels,), fan_in, dtype) if bias else None
        self.stride, self.padding, self.output_padding = stride, padding, output_padding
        self.groups, self.dilation = groups, dilation

    def forward(self, x: Tensor) -> Tensor:
        """Shapes: (batch, in_channels, *spatial) -> (batch, out_channels, *spatial)."""
        return x.conv_transpose2d(
            self.weight, self.bias, self.stride, self.padding, self.output_padding, self.groups, self.dilation
        )


class ConvTranspose1d(ConvTranspose2d):
    """The adjoint of Conv1d."""

    rank = 1


class ConvTranspose3d(ConvTranspose2d):
    """The adjoint of Conv3d."""

    rank = 3


def _kernel(layer: str, size: Each, rank: int) -> tuple[int, ...]:
    kernel = tuple(size) if isinstance(size, Iterable) else (size,) * rank
    if len(kernel) != rank or not all(is_whole(length, 1) for length in kernel):
        raise ShapeError(f"{layer}: kernel_size={size!r}. Give one size, or {rank}, each 1 or more.")
    return kernel


class BatchNorm(Module):
    """Each channel (axis 1) to mean 0 and variance 1 over the batch; after eval() over the batches seen in training.

    In training the running statistics move by `momentum` towards the batch's; the next optimizer step computes them.
    """

    def __init__(self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True,
                 track_running_stats: bool = True, *, dtype: DType = dtypes.default_float) -> None:  # fmt: skip
        _sizes("BatchNorm", num_features=num_features)
        if not isinstance(momentum, (int, float, Real)) or not 0 <= momentum <= 1:
            raise SettingError(f"BatchNorm: momentum={momentum!r}. Give a number from 0 to 1.")
        self.eps, self.momentum, self.num_features = eps, momentum, num_features
        shape = (num_features,)
        self.weight = _filled(shape, 1.0, dtype) if affine else None
        self.bias = _filled(shape, 0.0, dtype) if affine else None
        self.running_mean = _filled(shape, 0.0, dtype, is_parameter=False) if track_running_stats else None
        self.running_var = _filled(shape, 1.0, dtype, is_parameter=False) if track_running_stats else None

    def forward(self, x: Tensor) -> Tensor:
        """Shapes: (batch, num_features, ...) -> the same."""
        if x.ndim < 2 or x.node_shape[1] != self.num_features:
            raise ShapeError(
                f"BatchNorm: x of shape {show_shape(x.node_shape)}: axis 1 must have {self.num_features} channels."
            )
        x, dtype = _widened(x, self.weight, self.bias)
        axes = tuple(axis for axis in range(x.ndim) if axis != 1)
        shape = (1, self.num_features, *(1 for _ in axes[1:]))
        if self.training or self.running_mean is None or self.running_var is None:
            mean = x.mean(axes)
            centred = x - mean.reshape(shape)
            variance = centred.square().mean(axes)
            if self.training:
                self._follow(mean.detach(), variance.detach(), x.numel() // self.num_features)
        else:
            centred, variance = x - self.running_mean.reshape(shape), self.running_var.cast(x.dtype)
        scale = (variance + self.eps).rsqrt()
        scale = scale if self.weight is None else scale * self.weight
        result = centred * scale.reshape(shape)
        return (result if self.bias is None else result + self.bias.reshape(shape)).cast(dtype)

    def _follow(self, mean: Tensor, variance: Tensor, count: int) -> None:
        if self.running_mean is None or self.running_var is None:
            return
        if count < 2:
            raise ShapeError(
                "BatchNorm: one value per channel has no variance. Train with larger batches, or call eval()."
            )
        left = [state for state in (self.running_mean, self.running_var) if not state.is_realized]
        if left:  # two forward passes in a row: do not build a chain
            left[0].realize(*left[1:])
        keep = 1 - self.momentum
        for state, new in ((self.running_mean, mean), (self.running_var, variance * (count / (count - 1)))):
            self._update(state, (state.cast(new.dtype) * keep + new * self.momentum).cast(state.dtype))


BatchNorm1d = BatchNorm2d = BatchNorm3d = BatchNorm


class LayerNorm(Module):
    """The last axes to mean 0 and variance 1, then weight and bias."""

    def __init__(self, normalized_shape: Each, eps: float = 1e-5, elementwise_affine: bool = True, bias: bool = True,
                 *, dtype: DType = dtypes.default_float) -> None:  # fmt: skip
        self.shape = _last_axes("LayerNorm", normalized_shape)
        self.eps = eps
        self.weight = _filled(self.shape, 1.0, dtype) if elementwise_affine else None
        self.bias = _filled(self.shape, 0.0, dtype) if elementwise_affine and bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Shapes: (..., *normalized_shape) -> the same."""
        _fitting("LayerNorm", x, self.shape)
        return x.layer_norm(self.shape, self.weight, self.bias, self.eps)


class LayerNorm2d(LayerNorm):
    """Axis 1 of (batch, channels, height, width) to mean 0 and variance 1, then weight and bias."""

    def forward(self, x: Tensor) -> Tensor:
        """Shapes: (batch, channels, ...) -> the same."""
        return super().forward(x.movedim(1, -1)).movedim(-1, 1)


class RMSNorm(Module):
    """The last axes divided by the root of their mean square, then weight."""

    def __init__(self, normalized_shape: Each, eps: float | None = None, elementwise_affine: bool = True, *,
                 dtype: DType = dtypes.default_float) -> None:  # fmt: skip
        self.shape = _last_axes("RMSNorm", normalized_shape)
        self.eps = eps
        self.weight = _filled(self.shape, 1.0, dtype) if elementwise_affine else None

    def forward(self, x: Tensor) -> Tensor:
        """Shapes: (..., *normalized_shape) -> the same."""
        axes = _fitting("RMSNorm", x, self.shape)
        own = x.dtype.epsilon or dtypes.default_float.epsilon  # ints become floats
        eps = own if self.eps is None else self.eps
        x, dtype = _widened(x, self.weight)
        result = x * (x.square().mean(axes, keepdim=True) + eps).rsqrt()
        return (result if self.weight is None else result * self.weight).cast(dtype)


def _last_axes(layer: str, sizes: Each) -> tuple[int, ...]:
    shape = tuple(sizes) if isinstance(sizes, Iterable) else (sizes,)
    if not shape or not all(is_whole(length, 1) for length in shape):
        raise ShapeError(f"{layer}: normalized_shape={sizes!r}. Give the sizes of the last axes, each 1 or more.")
    return shape


def _widened(x: Tensor, *states: Tensor | None) -> tuple[Tensor, DType]:
    """Return x in the dtype in which a norm computes, half types in float32; and the dtype of its result."""
    x = x if x.dtype.is_float else x.float()
    dtype = x.dtype
    for state in states:
        dtype = dtype if state is None else promote(dtype, state.dtype)
    return x.cast(accumulator(x.dtype)), dtype


def _fitting(layer: str, x: Tensor, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Check that x ends in `shape`; return these axes as negative numbers."""
    if tuple(x.node_shape[-len(shape) :]) != shape:
        raise ShapeError(
            f"{layer}: x of shape {show_shape(x.node_shape)} does not end in {shape}. Reshape x, or the layer."
        )
    return tuple(range(-len(shape), 0))


class GroupNorm(Module):
    """Groups of channels (axis 1), with their spatial axes, to mean 0 and variance 1; then weight and bias."""

    def __init__(self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, *,
                 dtype: DType = dtypes.default_float) -> None:  # fmt: skip
        _sizes("GroupNorm", num_groups=num_groups, num_channels=num_channels)
        if num_channels % num_groups:
            raise ShapeError(f"GroupNorm: {num_channels} channels do not divide into {num_groups} groups.")
        self.num_groups, self.num_channels, self.eps = num_groups, num_channels, eps
        self.weight = _filled((num_channels,), 1.0, dtype) if affine else None
        self.bias = _filled((num_channels,), 0.0, dtype) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        """Shapes: (batch, num_channels, ...) -> the same."""
        if x.ndim < 2 or x.node_shape[1] != self.num_channels:
            raise ShapeError(
                f"GroupNorm: x of shape {show_shape(x.node_shape)}: axis 1 must have {self.num_channels} channels."
            )
        x, dtype = _widened(x, self.weight, self.bias)
        size = math.prod(x.shape[1:]) // self.num_groups  # -1 cannot be inferred without elements
        grouped = x.reshape((x.shape[0], self.num_groups, size))
        centred = grouped - grouped.mean(-1, keepdim=True)
        result = (centred * (centred.square().mean(-1, keepdim=True) + self.eps).rsqrt()).reshape(x.shape)
        shape = (1, self.num_channels, *(1 for _ in x.shape[2:]))
        result = result if self.weight is None else result * self.weight.reshape(shape)
        return (result if self.bias is None else result + self.bias.reshape(shape)).cast(dtype)


class InstanceNorm(GroupNorm):
    """Each channel (axis 1) of each example to mean 0 and variance 1 over its spatial axes; no running statistics."""

    def __init__(
        self, num_features: int, eps: float = 1e-5, *, affine: bool = False, dtype: DType = dtypes.default_float
    ) -> None:
        _sizes("InstanceNorm", num_features=num_features)
        super().__init__(num_features, num_features, eps, affine, dtype=dtype)


InstanceNorm1d = InstanceNorm2d = InstanceNorm3d = InstanceNorm


class Embedding(Module):
    """A table of vectors, one for each of num_embeddings integers; starts normal.

    The vector of `padding_idx` starts as zeros and gets no gradient.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None, *,
                 dtype: DType = dtypes.default_float) -> None:  # fmt: skip
        _sizes("Embedding", num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        self.weight = Tensor.randn((num_embeddings, embedding_dim), dtype=dtype)
        self.padding_idx = padding_idx
        if padding_idx is not None:
            if not isinstance(padding_idx, Integral) or not -num_embeddings <= padding_idx < num_embeddings:
                raise ShapeError(
                    f"Embedding: padding_idx={padding_idx!r} of {num_embeddings} vectors. Give an integer from "
                    f"{-num_embeddings} to {num_embeddings - 1}, or None."
                )
            self.padding_idx = int(padding_idx) % num_embeddings
            self.weight[self.padding_idx] = 0
        self.weight.requires_grad_()

    def forward(self, index: Tensor) -> Tensor:
        """Shapes: (...) of an int dtype -> (..., embedding_dim)."""
        found: Tensor = self.weight[index]
        if self.padding_idx is None:
            return found
        is_padding = (index == self.padding_idx) | (index == self.padding_idx - self.weight.shape[0])
        return found.detach().where(is_padding.unsqueeze(-1), found)


class Dropout(Module):
    """In training each element 0 with probability p, the others divided by 1 - p."""

    def __init__(self, p: float = 0.5) -> None:
        if not 0 <= p <= 1:
            raise SettingError(f"Dropout: p={p!r}: must be a number from 0 to 1.")
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """Shapes: any."""
        return x.dropout(self.p, self.training)

    def _shown(self) -> str:
        return f"p={self.p}"


class Dropout1d(Dropout):
    """In training each channel (axis 1) of each example 0 with probability p, the others divided by 1 - p."""

    def forward(self, x: Tensor) -> Tensor:
        """Shapes: (batch, channels, ...) -> the same."""
        if x.ndim < 2:
            raise ShapeError(f"{type(self).__name__}: x of shape {show_shape(x.node_shape)} has no channels, axis 1.")
        kept = Tensor.ones((*x.shape[:2], *(1 for _ in x.shape[2:])), dtype=x.dtype, device=x.device)
        return x * kept.dropout(self.p, self.training)


Dropout2d = Dropout3d = Dropout1d


class Bilinear(Module):
    """x @ weight[k] @ y + bias[k] for each output k; weight of shape (out_features, in1_features, in2_features)."""

    def __init__(self, in1_features: int, in2_features: int, out_features: int, bias: bool = True, *,
                 dtype: DType = dtypes.default_float) -> None:  # fmt: skip
        _sizes("Bilinear", in1_features=in1_features, in2_features=in2_features, out_features=out_features)
        self.weight = _even((out_features, in1_features, in2_features), in1_features, dtype)
        self.bias = _even((out_features,), in1_features, dtype) if bias else None

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Shapes: (..., in1_features), (..., in2_features) -> (..., out_features)."""
        _, first, second = self.weight.shape
        if x.node_shape[-1:] != (first,) or y.node_shape[-1:] != (second,) or x.node_shape[:-1] != y.node_shape[:-1]:
            raise ShapeError(
                f"Bilinear: x of shape {show_shape(x.node_shape)} and y of shape {show_shape(y.node_shape)}: give "
                f"(..., {first}) and (..., {second}), with the same axes before."
            )
        pairs = x.unsqueeze(-1) * y.unsqueeze(-2)
        return pairs.flatten(-2).linear(self.weight.flatten(1), self.bias)


class PReLU(Module):
    """x where positive, else weight * x; one weight, or one for each channel (axis 1)."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25, *, dtype: DType = dtypes.default_float) -> None:
        _sizes("PReLU", num_parameters=num_parameters)
        if not isinstance(init, (int, float)):
            raise SettingError(f"PReLU: init={type(init).__name__}. Give a number.")
        self.weight = _filled((num_parameters,), init, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """Shapes: any; (batch, num_parameters, ...) with several weights."""
        count = self.weight.shape[0]
        if count > 1 and (x.ndim < 2 or x.node_shape[1] != count):
            raise ShapeError(f"PReLU: x of shape {show_shape(x.node_shape)}: axis 1 must have {count} channels.")
        weight = self.weight.reshape((count, *(1 for _ in x.shape[2:]))) if x.ndim > 1 else self.weight
        return x.relu() - weight * (-x).relu()


class MultiHeadAttention(Module):
    """Attention with several heads over (batch, length, embed_dim), with PyTorch's names of weights."""

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0, bias: bool = True, *,
                 dtype: DType = dtypes.default_float) -> None:  # fmt: skip
        _sizes("MultiHeadAttention", embed_dim=embed_dim, num_heads=num_heads)
        if embed_dim % num_heads:
            raise ShapeError(f"MultiHeadAttention: embed_dim {embed_dim} does not divide into {num_heads} heads.")
        self.embed_dim, self.num_heads, self.dropout = embed_dim, num_heads, dropout
        self.in_proj_weight = Tensor.glorot_uniform((3 * embed_dim, embed_dim), dtype=dtype, requires_grad=True)
        self.in_proj_bias = _filled((3 * embed_dim,), 0.0, dtype) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias, dtype=dtype)
        if bias:
            self.out_proj.bias = _filled((embed_dim,), 0.0, dtype)

    def forward(self, query: Tensor, key: Tensor | None = None, value: Tensor | None = None, *,
                attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:  # fmt: skip
        """Attention of the query to the key (itself, when not given); value is the key, when not given.

        Shapes: (batch, length, embed_dim) -> the same; the mask (length, key length) or with heads and batch in front.
        """
        if query.ndim != 3 or query.node_shape[-1] != self.embed_dim:
            raise ShapeError(
                f"MultiHeadAttention: query of shape {show_shape(query.node_shape)}: give (batch, length, "
                f"{self.embed_dim}). Unsqueeze it, or build the layer with a different embed_dim."
            )
        key = query if key is None else key
        value = key if value is None else value
        weights = self.in_proj_weight.chunk(3)
        biases = [None] * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        q, k, v = (self._heads(x.linear(w, b)) for x, w, b in zip((query, key, value), weights, biases, strict=True))
        dropout = self.dropout if self.training else 0.0
        seen = q.scaled_dot_product_attention(k, v, attn_mask, dropout, is_causal)
        joined = seen.transpose(1, 2).reshape((query.shape[0], query.shape[1], self.embed_dim))
        result: Tensor = self.out_proj(joined)
        return result

    def _heads(self, x: Tensor) -> Tensor:
        return x.reshape((x.shape[0], x.shape[1], self.num_heads, self.embed_dim // self.num_heads)).transpose(1, 2)


class Sequential(Module):
    """Layers and functions, one after the other."""

    def __init__(self, *layers: Callable[[Any], Any]) -> None:
        bad = next((layer for layer in layers if not callable(layer)), None)
        if bad is not None:
            raise SettingError(
                f"Sequential: a {type(bad).__name__} cannot be called. Give modules and functions of a tensor."
            )
        self._layers = list(layers)
        for i, layer in enumerate(layers):
            if isinstance(layer, Module):
                setattr(self, str(i), layer)

    def forward(self, x: Any) -> Any:
        """Apply each layer to the result of the one before."""
        for layer in self._layers:
            x = layer(x)
        return x

    def __getitem__(self, index: int) -> Callable[[Any], Any]:
        return self._layers[index]

    def __len__(self) -> int:
        return len(self._layers)

    def __iter__(self) -> Iterator[Callable[[Any], Any]]:
        return iter(self._layers)
