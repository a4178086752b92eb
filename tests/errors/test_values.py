"""Values that no call can compute with, and arguments that exclude each other: the class of the error, the message."""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
import pytest

from kernmill import IndexRangeError, SettingError, ShapeError, Tensor, dtypes, nn
from tests.errors.mistakes import Case, each_message

x4 = Tensor(np.arange(4, dtype=np.float32))
HUGE = Tensor(np.array([2**64 - 1], np.uint64))
OUTSIDE = "{}: a computed index is outside axis 0 of size 4. Clamp it, or mask what it selects."
NONE = (
    "multinomial: the weights of a row are not a distribution. Each must be 0 or more and finite, and at least {} "
    "above 0."
)
image, square = Tensor.ones(1, 3, 5, 5), Tensor.ones(3, 3, 3, 3)
query = Tensor.ones(1, 2, 4, 4)
SAME = (
    "padding='same' with stride={}: the result cannot be as large as the input. Give the padding in numbers, or "
    "stride=1."
)
EXTRA = (
    "output_padding={} with stride=1, dilation=1: on each axis it must be smaller than the stride or the dilation. "
    "Pad the result instead."
)
BOTH = (
    "scaled_dot_product_attention: attn_mask with is_causal=True: give one of them. For a bool mask, "
    "attn_mask.tril() is causal too."
)
CASES: dict[str, Case] = {
    "weights of 0": (lambda: Tensor([0.0, 0.0]).multinomial(2, replacement=True).numpy(), IndexRangeError,
                     NONE.format(1)),
    "a negative weight": (lambda: Tensor([1.0, -1.0]).multinomial(1).numpy(), IndexRangeError, NONE.format(1)),
    "a weight of nan": (lambda: Tensor([1.0, math.nan]).multinomial(1, True).numpy(), IndexRangeError, NONE.format(1)),
    "an infinite weight": (lambda: Tensor([1.0, math.inf]).multinomial(1, True).numpy(), IndexRangeError,
                           NONE.format(1)),
    "too few weights above 0": (lambda: Tensor([0.0, 1.0, 0.0, 3.0]).multinomial(3).numpy(), IndexRangeError,
                                NONE.format(3)),
    "too few classes": (lambda: Tensor([1.0, 2.0]).multinomial(3), ShapeError,
                        "multinomial: num_samples=3 of weights of shape (2,): the last axis must be 3 or more classes, "
                        "and num_samples 1 or more."),
    "a probability of 2": (lambda: Tensor([2.0]).bernoulli().numpy(), IndexRangeError,
                           "bernoulli: a probability is outside 0 to 1. Clamp the tensor."),
    "a negative deviation": (lambda: Tensor.normal(3, mean=0, std=-1), SettingError,
                             "normal: mean=0, std=-1: std must be 0 or more, and both finite."),
    "bounds exchanged": (lambda: Tensor.uniform(3, low=2, high=1), SettingError,
                         "uniform: low=2, high=1: low must be at most high, and both finite."),
    "a padding by name": (lambda: nn.ConvTranspose2d(3, 4, 3, padding=cast("Any", "same")), ShapeError,
                          "padding='same': give an integer, or one for each axis."),
    "a misspelt padding": (lambda: nn.Conv2d(3, 4, 3, padding="smae"), ShapeError,
                           "Conv2d: padding='smae' must be numbers, 'same' or 'valid'."),
    "same with a stride": (lambda: nn.Conv2d(3, 4, 3, padding="same", stride=2), ShapeError,
                           "Conv2d: " + SAME.format(2)),
    "same with a stride, called": (lambda: image.conv2d(square, padding="same", stride=2), ShapeError,
                                   "conv: " + SAME.format((2, 2))),
    "output_padding": (lambda: nn.ConvTranspose2d(3, 4, 3, output_padding=1), ShapeError,
                       "ConvTranspose2d: " + EXTRA.format(1)),
    "output_padding, called": (lambda: image.conv_transpose2d(square, output_padding=2), ShapeError,
                               "conv_transpose: " + EXTRA.format(2)),
    "mask and is_causal": (lambda: query.scaled_dot_product_attention(query, query, Tensor.ones(4, 4).bool(),
                           is_causal=True), SettingError, BOTH),
    "value of a mode": (lambda: x4.pad((1, 1), mode="reflect", value=3), SettingError,
                        "pad: value=3 with mode='reflect': value is for mode='constant' only. Leave it out."),
    "places between": (lambda: Tensor.ones(1, 1, 4, 4).interpolate(size=10**9, mode="bilinear"), ShapeError,
                       "interpolate: size 1000000000 of axis 2 must be at most 134217728. Interpolate a slice of "
                       "the tensor, or use mode='nearest'."),
    "65 axes": (lambda: Tensor.ones(*[1] * 65).numpy(), ShapeError,
                "numpy: 65 axes: NumPy has no such array (maximum supported dimension for an ndarray is currently "
                f"{64 if np.lib.NumpyVersion(np.__version__) >= '2.0.0' else 32}, found 65). Reshape the tensor "
                "before it is read."),
}  # fmt: skip

test_message = each_message(CASES)


@pytest.mark.parametrize("dtype", [dtype for dtype in dtypes.data if dtype.is_int])
def test_an_index_outside_its_axis_is_refused_in_every_dtype_and_function(dtype: object) -> None:
    """The largest number of the dtype, and the smallest, before any cast to a signed type."""
    one = Tensor([9.0])
    rows, table = Tensor.ones(1, 4), nn.Embedding(4, 2)

    def write(index: Tensor) -> Tensor:
        y = x4.clone()
        y[index] = 1
        return y

    for end in (int(dtype.max), int(dtype.min)):  # type: ignore[attr-defined]
        index = Tensor([end], dtype=dtype)  # type: ignore[arg-type]
        index = index.contiguous().realize()
        calls: list[Any] = [
            lambda i: x4[i], lambda i: x4.index_add(0, i, one), lambda i: x4.gather(0, i), write,
            lambda i: x4.scatter(0, i, one), lambda i: x4.scatter_add(0, i, one), lambda i: x4.take_along_dim(i),
            lambda i: x4.index_select(0, i), table, lambda i: i.one_hot(3), lambda i: i.bincount(minlength=4),
            lambda i: rows.cross_entropy(i), lambda i: rows.nll_loss(i),
        ]  # fmt: skip
        for call in calls:
            if end:  # the smallest number of an unsigned type is an index
                with pytest.raises(IndexRangeError):
                    call(index).numpy()
    inside = Tensor([3], dtype=dtype)  # type: ignore[arg-type]
    assert x4[inside].tolist() == [3.0]


@pytest.mark.parametrize("name", ["gather", "index_add", "index_select", "scatter", "scatter_reduce", "t[..]"])
def test_an_index_outside_its_axis_names_the_function(name: str) -> None:
    """Every function said `t[..]`, which nobody had written."""
    bad, one = Tensor([4]).contiguous().realize(), Tensor([9.0])
    calls: dict[str, Any] = {
        "gather": lambda: x4.gather(0, bad), "index_add": lambda: x4.index_add(0, bad, one),
        "index_select": lambda: x4.index_select(0, bad), "scatter": lambda: x4.scatter(0, bad, one),
        "scatter_reduce": lambda: x4.scatter_reduce(0, bad, one, "amax"), "t[..]": lambda: x4[bad],
    }  # fmt: skip
    with pytest.raises(IndexRangeError) as caught:
        calls[name]().numpy()
    assert str(caught.value) == OUTSIDE.format(name)


def test_an_index_that_no_dtype_holds() -> None:
    for index in (2**64 - 1, [2**64 - 1], np.array([2**64 - 1], np.uint64), [2**70, 0], np.uint64(2**64 - 1)):
        with pytest.raises(IndexRangeError, match="is outside axis 0 of size 4"):
            x4[index]


def test_sizes_that_a_user_gives_are_not_looped_over() -> None:
    assert Tensor.ones(1, 1, 4, 4).adaptive_avg_pool2d(10**9).shape == (1, 1, 10**9, 10**9)
    assert Tensor.ones(1, 1, 4, 4).interpolate(size=10**9 + 1).shape == (1, 1, 10**9 + 1, 10**9 + 1)
    assert Tensor.ones(4).pad((10**9, 0), mode="replicate").shape == (10**9 + 4,)


def test_what_numpy_cannot_hold_is_a_sentence_on_every_way_out() -> None:
    many = Tensor.ones(*[1] * 500)
    assert (many.item(), float(many), f"{many:.1f}") == (1.0, 1.0, "1.0")
    assert repr(many.realize()).startswith("<Tensor (1, 1, ")
    for read in (Tensor.numpy, Tensor.tolist, np.asarray, Tensor.__dlpack__):
        for tensor in (many, Tensor.zeros(0, 2**62, 2**62)):
            with pytest.raises(ShapeError, match="NumPy has no such array"):
                read(tensor)
