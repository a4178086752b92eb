"""Convolutions of one to any number of spatial axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kernmill.ir import ShapeError, dtypes

from ...tensor import Tensor
from ..table import operator
from ..values import Host, Known, Value, tensor_of
from .vision import sampled


def pads_of(
    auto: str, pads: Sequence[int] | None, sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int],
    dilations: Sequence[int],
) -> list[tuple[int, int]]:  # fmt: skip
    """The padding before and after each spatial axis."""
    rank = len(kernel)
    if auto in ("NOTSET", "VALID", ""):
        flat = list(pads or [0] * 2 * rank) if auto != "VALID" else [0] * 2 * rank
        return list(zip(flat[:rank], flat[rank:], strict=True))
    found = list[tuple[int, int]]()
    for size, k, s, d in zip(sizes, kernel, strides, dilations, strict=True):
        whole = max(0, (-(-size // s) - 1) * s + (k - 1) * d + 1 - size)
        low = whole // 2 if auto == "SAME_UPPER" else whole - whole // 2
        found.append((low, whole - low))
    return found


def padded(x: Tensor, pairs: Sequence[tuple[int, int]], value: float = 0) -> Tensor:
    """Pad the last axes."""
    if not any(map(any, pairs)):
        return x
    return x.pad([(0, 0)] * (x.ndim - len(pairs)) + list(pairs), value=value)


def _channels_last(weight: Value) -> Tensor:
    """Return a weight as a tensor. A known one whose windows slide is stored with its output channels innermost: they
    are the lanes of its kernels, which otherwise gather them."""
    if not isinstance(weight, Known) or math.prod(weight.shape[2:]) == 1:
        return tensor_of(weight)
    return weight.ordered((*range(1, len(weight.shape)), 0))


@operator("Conv")
def conv(
    x: Tensor, weight: Value, b: Tensor | None = None, *, auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None, group: int = 1, kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None, strides: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    rank = x.ndim - 2
    w = _channels_last(weight) if group == 1 else tensor_of(weight)
    if rank < 1 or w.ndim != x.ndim:
        raise ShapeError(f"Conv: shapes {x.shape} and {w.shape} do not fit. Change the model.")
    kernel, steps, gaps = w.shape[2:], list(strides or [1] * rank), list(dilations or [1] * rank)
    pairs = pads_of(auto_pad, pads, x.shape[2:], kernel, steps, gaps)
    function = {1: x.conv1d, 2: x.conv2d, 3: x.conv3d}.get(rank)
    if function is None:
        raise ShapeError(f"Conv: {rank} spatial axes: at most 3 are supported. Change the model.")
    if all(a == c for a, c in pairs):
        return function(w, b, stride=steps, padding=[a for a, _ in pairs], dilation=gaps, groups=group)
    y = padded(x, pairs)
    return {1: y.conv1d, 2: y.conv2d, 3: y.conv3d}[rank](w, b, stride=steps, dilation=gaps, groups=group)


@operator("ConvTranspose")
def conv_transpose(
    x: Tensor, w: Tensor, b: Tensor | None = None, *, auto_pad: str = "NOTSET", dilations: Sequence[int] | None = None,
    group: int = 1, kernel_shape: Sequence[int] | None = None, output_padding: Sequence[int] | None = None,
    output_shape: Sequence[int] | None = None, pads: Sequence[int] | None = None, strides: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    rank = x.ndim - 2
    steps, gaps = list(strides or [1] * rank), list(dilations or [1] * rank)
    extra = list(output_padding or [0] * rank)
    full = [
        s * (n - 1) + e + (k - 1) * d + 1
        for n, k, s, d, e in zip(x.shape[2:], w.shape[2:], steps, gaps, extra, strict=True)
    ]
    wanted = list(output_shape)[-rank:] if output_shape else None
    if wanted is None and auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [n * s for n, s in zip(x.shape[2:], steps, strict=True)]
    if wanted is not None:
        cut = [f - t for f, t in zip(full, wanted, strict=True)]
        pairs = [(c // 2, c - c // 2) if auto_pad == "SAME_UPPER" else (c - c // 2, c // 2) for c in cut]
    else:
        pairs = pads_of(auto_pad, pads, x.shape[2:], w.shape[2:], steps, gaps)
    function = {1: x.conv_transpose1d, 2: x.conv_transpose2d, 3: x.conv_transpose3d}[rank]
    y = function(w, None, stride=steps, groups=group, dilation=gaps)
    y = padded(y, [(-a, -c + e) for (a, c), e in zip(pairs, extra, strict=True)])
    return y if b is None else y + b.reshape(-1, *[1] * rank)


@operator("ConvInteger")
def conv_integer(
    x: Tensor, w: Tensor, x_zero: Tensor | None = None, w_zero: Tensor | None = None, *, auto_pad: str = "NOTSET",
    dilations: Sequence[int] | None = None, group: int = 1, kernel_shape: Sequence[int] | None = None,
    pads: Sequence[int] | None = None, strides: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    a = x.cast(dtypes.int32) - (0 if x_zero is None else x_zero.cast(dtypes.int32))
    c = w.cast(dtypes.int32)
    if w_zero is not None:
        zero = w_zero.cast(dtypes.int32)
        c = c - (zero.reshape(-1, *[1] * (w.ndim - 1)) if zero.numel() > 1 else zero.reshape(()))
    return conv(a, c, None, auto_pad=auto_pad, dilations=dilations, group=group, pads=pads, strides=strides)


@operator("CausalConvWithState")
def causal_conv_with_state(
    x: Tensor, w: Tensor, b: Tensor | None = None, past: Tensor | None = None, *, activation: str = "none",
    ndim: int = 1,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    keep = w.shape[-1] - 1
    state = past if past is not None else (x[..., :1] * 0).expand(*x.shape[:-1], keep)
    whole = state.cat(x, axis=-1) if keep else x
    y = conv(whole, w, b, group=x.shape[1])
    return (y.silu() if activation in ("silu", "swish") else y), whole[..., whole.shape[-1] - keep :]


@operator("Col2Im")
def col_to_im(
    x: Tensor, image: Host, block: Host, *, dilations: Sequence[int] | None = None, pads: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    """The adjoint of taking blocks: a transposed convolution whose weight puts each entry at its index."""
    sizes, kernel = [int(s) for s in image], [int(s) for s in block]
    rank, count = len(sizes), math.prod(kernel)
    steps, gaps = list(strides or [1] * rank), list(dilations or [1] * rank)
    pairs = pads_of("NOTSET", pads, sizes, kernel, steps, gaps)
    n, channels = x.shape[0], x.shape[1] // count
    blocks = [
        (size + a + c - d * (k - 1) - 1) // s + 1
        for size, k, s, d, (a, c) in zip(sizes, kernel, steps, gaps, pairs, strict=True)
    ]
    y = x.reshape(n * channels, *kernel, *blocks)
    for axis in range(rank):  # an axis at a time: entry k of block i is added at k * d + i * s
        size = sizes[axis] + sum(pairs[axis])
        positions = Tensor.arange(kernel[axis]).reshape(-1, 1) * gaps[axis] + Tensor.arange(blocks[axis]) * steps[axis]
        hot = positions.unsqueeze(-1).eq(Tensor.arange(size)).cast(x.dtype).reshape(-1, size)
        left = rank - axis  # axes of the kernel that are still there; those that are done are last
        y = y.movedim(left + 1, 2)
        y = y.reshape(y.shape[0], -1, *y.shape[3:]).movedim(1, -1) @ hot
    y = y.reshape(n, channels, *y.shape[1:])
    return y[(slice(None), slice(None), *[slice(a, a + s) for (a, _), s in zip(pairs, sizes, strict=True)])]


@operator("DeformConv")
def deform_conv(
    x: Tensor, w: Tensor, offset: Tensor, b: Tensor | None = None, mask: Tensor | None = None, *,
    dilations: Sequence[int] | None = None, group: int = 1, kernel_shape: Sequence[int] | None = None,
    offset_group: int = 1, pads: Sequence[int] | None = None, strides: Sequence[int] | None = None,
) -> Tensor:  # fmt: skip
    n, c, high, wide = x.shape
    kh, kw = w.shape[2:]
    (sh, sw), (dh, dw) = strides or (1, 1), dilations or (1, 1)
    (top, _), (left, _) = pads_of("NOTSET", pads, (high, wide), (kh, kw), (sh, sw), (dh, dw))
    oh, ow = offset.shape[2:]
    g = offset_group
    moves = offset.reshape(n, g, kh, kw, 2, oh, ow)
    rows = (Tensor.arange(oh) * sh - top).reshape(oh, 1) + (Tensor.arange(kh) * dh).reshape(kh, 1, 1, 1)
    columns = Tensor.arange(ow) * sw - left + (Tensor.arange(kw) * dw).reshape(kw, 1, 1)
    ys, xs = moves[:, :, :, :, 0] + rows, moves[:, :, :, :, 1] + columns
    images = x.reshape(n * g, c // g, high, wide)
    flat = [t.reshape(n * g, kh * kw * oh * ow) for t in (ys, xs)]
    found = sampled(images, flat, "linear", "zeros", False).reshape(n, g, c // g, kh, kw, oh, ow)
    if mask is not None:
        found = found * mask.reshape(n, g, 1, kh, kw, oh, ow)
    found = found.reshape(n, group, c // group * kh * kw, oh * ow)
    y = (w.reshape(group, w.shape[0] // group, -1) @ found).reshape(n, w.shape[0], oh, ow)
    return y if b is None else y + b.reshape(-1, 1, 1)
