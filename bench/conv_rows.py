"""Rows: convolutions of 16 images of 56 x 56: 3 x 3, with a stride of 2, 1 x 1, depthwise; and pooling."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from .expression import Expression, Form, moved, normal, prepare_expression
from .row import Goal, Row

__all__ = ["CONV_ROWS"]

Array = np.ndarray[Any, Any]
Size = tuple[int, ...]


@dataclass(frozen=True)
class Conv:
    """What a convolution is, besides its tensors."""

    outputs: int
    kernel: int
    stride: int = 1
    is_depthwise: bool = False

    @property
    def padding(self) -> int:
        return self.kernel // 2

    def inputs(self, rng: np.random.Generator, size: Size) -> tuple[Array, ...]:
        """Images of (batch, channels, height, width) and the weight."""
        outputs = size[1] if self.is_depthwise else self.outputs
        shape = (outputs, 1 if self.is_depthwise else size[1], self.kernel, self.kernel)
        return rng.standard_normal(size, np.float32), rng.standard_normal(shape, np.float32)

    def reference(self, x: Array, weight: Array) -> Array:
        """One product for each place of the kernel."""
        pad, step = self.padding, self.stride
        padded = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
        high, wide = ((n + 2 * pad - self.kernel) // step + 1 for n in x.shape[2:])
        total: Any = 0.0
        for i, j in itertools.product(range(self.kernel), repeat=2):
            part = padded[:, :, i : i + high * step : step, j : j + wide * step : step]
            if self.is_depthwise:
                total = total + part * weight[:, 0, i, j][:, None, None]
            else:
                total = total + np.tensordot(weight[:, :, i, j], part, (1, 1))
        return total if self.is_depthwise else np.moveaxis(total, 0, 1)

    def flops(self, size: Size) -> float:
        batch, channels, high, wide = size
        places = (high // self.stride) * (wide // self.stride)
        products = channels if self.is_depthwise else channels * self.outputs
        return 2.0 * batch * places * products * self.kernel**2

    def groups(self, x: Any) -> int:
        return int(x.shape[1]) if self.is_depthwise else 1


def torch_forms(conv: Conv) -> tuple[Any, ...]:
    """Channels first and last in memory."""

    def run(torch: Any, x: Any, weight: Any) -> Any:
        return torch.nn.functional.conv2d(x, weight, None, conv.stride, conv.padding, 1, conv.groups(x))

    def last(torch: Any, x: Any, weight: Any) -> tuple[Any, ...]:
        return tuple(t.contiguous(memory_format=torch.channels_last) for t in (x, weight))

    return run, Form(run, last)


def kernmill_forms(conv: Conv) -> tuple[Any, ...]:
    """Channels first and last; the result of the second lies in memory as torch's does and has that shape."""

    def run(_: Any, x: Any, weight: Any) -> Any:
        return x.conv2d(weight, stride=conv.stride, padding=conv.padding, groups=conv.groups(x))

    def last(_: Any, x: Any, weight: Any) -> Any:
        return run(_, x.permute(0, 3, 1, 2), weight).permute(0, 2, 3, 1)

    def turned(_: Any, x: Any, weight: Any) -> tuple[Any, ...]:
        return x.permute(0, 2, 3, 1).contiguous().realize(), weight

    return run, Form(last, turned, lambda found: np.moveaxis(found, 3, 1))


def jax_forms(conv: Conv) -> tuple[Any, ...]:
    """Channels first and last; XLA turns what comes out of the second back, as the row requires."""

    def run(is_last: bool, jax: Any, x: Any, weight: Any) -> Any:
        names = ("NHWC", "HWIO", "NHWC") if is_last else ("NCHW", "OIHW", "NCHW")
        groups = x.shape[3 if is_last else 1] if conv.is_depthwise else 1
        pads = ((conv.padding, conv.padding),) * 2
        found = jax.lax.conv_general_dilated(x, weight, (conv.stride,) * 2, pads, dimension_numbers=names,
                                             feature_group_count=groups)  # fmt: skip
        return found.transpose(0, 3, 1, 2) if is_last else found

    def last(_: Any, x: Any, weight: Any) -> tuple[Any, ...]:
        return x.transpose(0, 2, 3, 1), weight.transpose(2, 3, 1, 0)

    return partial(run, False), Form(partial(run, True), last)


def row(name: str, about: str, size: Size, conv: Conv, *goals: Goal) -> Row:
    pads = [conv.padding] * 4
    run: dict[str, Any] = {
        "kernmill": kernmill_forms(conv),
        "torch": torch_forms(conv),
        "jax": jax_forms(conv),
        "onnxruntime": lambda g, x, w: g.Conv(x, w, pads=pads, strides=[conv.stride] * 2,
                                              group=size[1] if conv.is_depthwise else 1),
        "tinygrad": lambda _, x, w: x.conv2d(w, None, conv.groups(x), conv.stride, 1, conv.padding),
    }  # fmt: skip
    tiny = (2, size[1] if conv.is_depthwise else 5, 6, 8)
    work = Expression(size, tiny, conv.inputs, conv.reference, run, conv.flops, 5e-5, "fma", constants=1)
    return Row(name, f"{about}, {' x '.join(map(str, size))} float32", partial(prepare_expression, work), "GFLOP/s",
               goals=goals)  # fmt: skip


def pool(x: Array) -> Array:
    batch, channels, high, wide = x.shape
    return x.reshape(batch, channels, high // 2, 2, wide // 2, 2).max((3, 5))  # type: ignore[no-any-return]


CONV_ROWS: list[Row] = [
    row("conv_3x3", "convolution 3 x 3 to 64 channels", (16, 64, 56, 56), Conv(64, 3), Goal("torch", 1.0)),
    row("conv_1x1", "convolution 1 x 1 to 64 channels", (16, 256, 56, 56), Conv(64, 1), Goal("torch", 2.0)),
    row("conv_depthwise", "convolution 3 x 3 of each channel", (16, 144, 56, 56), Conv(0, 3, is_depthwise=True),
        Goal("torch", 5.0)),
    row("conv_stride_2", "convolution 3 x 3 to 128 channels, every second place", (16, 64, 56, 56), Conv(128, 3, 2)),
    Row("max_pool", "largest of 2 x 2, 16 x 64 x 112 x 112 float32", partial(prepare_expression, Expression(
        (16, 64, 112, 112), (2, 3, 4, 6), partial(normal, 1), pool, {
            "kernmill": lambda _, x: x.max_pool2d(2),
            "torch": (lambda torch, x: torch.nn.functional.max_pool2d(x, 2), Form(
                lambda torch, x: torch.nn.functional.max_pool2d(x, 2),
                lambda torch, x: (x.contiguous(memory_format=torch.channels_last),))),
            "jax": lambda jax, x: jax.lax.reduce_window(x, -math.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID"),
            "onnxruntime": lambda g, x: g.MaxPool(x, kernel_shape=[2, 2], strides=[2, 2]),
            "tinygrad": lambda _, x: x.max_pool2d(2),
        }, moved(1), 0.0, "read")), "GB/s"),
]  # fmt: skip
