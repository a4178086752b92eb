"""Arguments of the wrong type or size, found by trying: the class of the error, and the whole message."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import kernmill
from kernmill import DTypeError, IndexRangeError, SettingError, ShapeError, Tensor, nn
from tests.errors.mistakes import Case, each_message

ANY: Any = Tensor  # the class without its types: what is tried here is wrong
PLAIN: Any = kernmill
NN: Any = nn


def x() -> Any:
    return Tensor.ones(3, 4)


def v() -> Any:
    return Tensor([1.0, 2.0, 3.0])


def i() -> Any:
    return Tensor([0, 1, 2])


def image() -> Any:
    return Tensor.zeros(1, 2, 6, 6)


KERNEL: Any = np.ones((1, 2, 3, 3), np.float32)
CASES: dict[str, Case] = {
    # types
    "float_shift": (lambda: x().roll(1.5, 0), DTypeError,
                    "Tensor.roll: shifts is 1.5, of type float. Give an integer or several integers."),
    "text_padding": (lambda: x().pad("ab"), DTypeError,
                     "Tensor.pad: padding is 'ab', of type str. "
                     "Give several integers or a pair of integers for each axis."),
    "triple": (lambda: x().shrink([(0, 1, 2), None]), DTypeError,
               "Tensor.shrink: bounds is [(0, 1, 2), None], of type list. Give a pair of integers for each axis."),
    "list_index": (lambda: x().gather(0, [0]), DTypeError,
                   "Tensor.gather: index is [0], of type list. Give a Tensor; wrap data in Tensor(..)."),
    "array_target": (lambda: x().cross_entropy(np.array([0, 1, 2])), DTypeError,
                     "Tensor.cross_entropy: target is data of shape (3,), of type ndarray. "
                     "Give a Tensor; wrap data in Tensor(..)."),
    "no_target": (lambda: x().kl_div(None), DTypeError,
                  "Tensor.kl_div: target is None, of type NoneType. Give a Tensor."),
    "number_as_bias": (lambda: image().conv2d(Tensor(KERNEL), 3), DTypeError,
                       "Tensor.conv2d: bias is 3, of type int. Give a Tensor or None; wrap data in Tensor(..)."),
    "float_padding": (lambda: image().conv2d(Tensor(KERNEL), padding=1.5), DTypeError,
                      "Tensor.conv2d: padding is 1.5, of type float. "
                      "Give an integer or several integers or a string."),
    "larger_of_two": (lambda: x().max(x()), ShapeError,
                      "max: a tensor of shape (3, 4) as axis. Axes are integers; the larger of two tensors is "
                      "x.maximum(y), the smaller x.minimum(y)."),
    "classes_of_floats": (lambda: x().cross_entropy(i().float()), DTypeError,
                          "cross_entropy: a target of dtype float32. Class indices must be ints."),
    "several": (lambda: x().realize(x(), [x()]), DTypeError,
                "Tensor.realize: others is [<Tensor (3, 4... not realized>], of type list. "
                "Give a Tensor; wrap data in Tensor(..)."),
    "python_condition": (lambda: PLAIN.where(True, x(), 1), DTypeError,
                         "where: condition is True, of type bool. Give a Tensor; wrap data in Tensor(..)."),
    "formula": (lambda: PLAIN.einsum(x(), "ij"), DTypeError,
                "einsum: formula is data of shape (3, 4), of type Tensor. Give a string."),
    "seed": (lambda: PLAIN.manual_seed("a"), DTypeError,
             "manual_seed: seed is 'a', of type str. Give an integer."),
    "layer": (lambda: NN.Linear(4, 3)(3), DTypeError,
              "Linear.forward: x is 3, of type int. Give a Tensor; wrap data in Tensor(..)."),
    "constructor": (lambda: NN.Dropout("a"), DTypeError, "Dropout: p is 'a', of type str. Give a number."),
    "state": (lambda: NN.Linear(4, 3).load_state_dict(3), DTypeError,
              "Module.load_state_dict: state is 3, of type int. Give a dict."),
    "path": (lambda: NN.state.save(3, {}), DTypeError, "save: path is 3, of type int. Give a string or a path."),
    "half_a_topk": (lambda: v().topk(1.5), DTypeError, "Tensor.topk: k is 1.5, of type float. Give an integer."),
    "half_a_draw": (lambda: v().multinomial(1.5), DTypeError,
                    "Tensor.multinomial: num_samples is 1.5, of type float. Give an integer."),
    "slice": (lambda: x()[1.5:], DTypeError, "t[..]: 1.5 as an end of a slice. Ends must be integers or None."),
    "step": (lambda: x()[::"a"], DTypeError, "t[..]: 'a' as the step of a slice. Steps must be integers or None."),
    # numbers that a dtype does not hold: they were any value
    "nan_in_ints": (lambda: i().masked_fill(i() > 0, math.nan), DTypeError,
                    "masked_fill: nan does not fit int64 (-9223372036854775808 to 9223372036854775807). "
                    "Cast the tensor to a float dtype first."),
    "infinity_as_border": (lambda: i().pad([1, 1], value=-math.inf), DTypeError,
                           "pad: -inf does not fit int64 (-9223372036854775808 to 9223372036854775807). "
                           "Cast the tensor to a float dtype first."),
    "nan_written": (lambda: i().__setitem__(0, math.nan), DTypeError,
                    "nan does not fit int64 (-9223372036854775808 to 9223372036854775807). "
                    "Cast the tensor to a float dtype first."),
    "numpys_nan": (lambda: i().masked_fill(i() > 0, np.float32("nan")), DTypeError,
                   "masked_fill: nan does not fit int64 (-9223372036854775808 to 9223372036854775807). "
                   "Cast the tensor to a float dtype first."),
    "full_of_nan": (lambda: ANY.full((2,), math.nan, dtype="int8"), DTypeError,
                    "full: nan does not fit int8 (-128 to 127). Cast the tensor to a float dtype first."),
    "huge": (lambda: x() + 10**400, DTypeError,
             "100000000000000000...0000000000000000000 does not fit float32 (-inf to inf). "
             "Cast the tensor to a wider dtype first."),
    "ints_of_two_kinds": (lambda: Tensor([2**63, -1]), DTypeError,
                          "Tensor of a list: no int dtype can represent all of these ints. Use a float dtype."),
    "from_dlpack_of_a_list": (lambda: Tensor.from_dlpack([1.0]), DTypeError,
                              "from_dlpack: a list does not support DLPack. Use Tensor(..) for a copy."),
    "normal_bools": (lambda: ANY.randn(2, dtype="bool"), DTypeError,
                     "randn: normal numbers in bool: use a float dtype, or randint."),
    # sizes and settings
    "shifts": (lambda: x().roll([1, 2], 0), ShapeError,
               "roll: 2 shifts along 1 axes. Give one shift for each axis."),
    "bounds": (lambda: x().shrink([None, None, (0, 1)]), ShapeError,
               "shrink: 3 bounds for shape (3, 4): give one per axis."),
    "flatten": (lambda: x().flatten(1, 0), ShapeError,
                "flatten: start axis 1 is after end axis 0 of shape (3, 4). Exchange them."),
    "outer": (lambda: v().outer(x()), ShapeError,
              "outer: shapes (3,) and (3, 4): both must be vectors. Flatten them."),
    "repeat": (lambda: x().repeat(-1, 2), ShapeError, "repeat: (-1, 2) times. Give 0 or more for each axis."),
    "meshgrid": (lambda: PLAIN.meshgrid(x()), ShapeError,
                 "meshgrid: a tensor of shape (3, 4). Give vectors: flatten it."),
    "meshgrid_of_nothing": (PLAIN.meshgrid, ShapeError, "meshgrid: no tensors. Give at least one."),
    "indexing": (lambda: PLAIN.meshgrid(v(), indexing="ji"), SettingError,
                 "meshgrid: indexing='ji': must be 'ij' or 'xy'."),
    "one_to_cat": (lambda: PLAIN.cat(x()), DTypeError,
                   "cat: one tensor of shape (3, 4). Give a list of tensors."),
    "endless": (lambda: ANY.arange(math.inf), ShapeError,
                "arange: from 0 to inf by 1 is not a finite number of steps. Give finite numbers."),
    "ragged_index": (lambda: x()[[[0], [1, 2]]], ShapeError,
                     "t[..]: the inner lists of an index differ in length. Give lists of one length."),
    "scatter": (lambda: x().scatter(0, Tensor([[0, 1]]), Tensor.ones(1, 1)), ShapeError,
                "scatter: values of shape (1, 1) for an index of shape (1, 2). "
                "Give a value for each entry of the index, or one number."),
    "bias": (lambda: image().conv2d(Tensor(KERNEL), Tensor.ones(3)), ShapeError,
             "conv: (1, 2, 6, 6) with weight (1, 2, 3, 3), groups 1: a bias of shape (3,). Give one of (1,), or None."),
    "no_scale": (lambda: image().interpolate(scale_factor=0), SettingError,
                 "interpolate: scale_factor=0 for 2 spatial axes. Give a number above 0, or one for each axis."),
    "small_scale": (lambda: image().interpolate(scale_factor=0.1), ShapeError,
                    "interpolate: sizes (6, 6) times (0.1, 0.1) give an empty result. Give larger ones."),
    "float_alpha": (lambda: i().index_add(0, i()[:1], i()[:1], alpha=1.5), DTypeError,
                    "index_add: int64 values, times 1.5, cannot be stored in a int64 tensor. Cast one of them."),
    "no_bins": (lambda: x().histc(0), SettingError,
                "histc: bins=0, min=0.0, max=0.0. Give 1 or more, and finite min <= max."),
    "random_state": (lambda: ANY.set_random_state(i()), ShapeError,
                     "set_random_state: (3,) int64. Give the result of Tensor.random_state(): two uint32."),
    "part_of_a_loss": (lambda: x().mse_loss(x().T), ShapeError,
                       "mse_loss: sub: shapes (3, 4) and (4, 3) do not broadcast: at axis -2 the sizes are 3 and 4. "
                       "Reshape one of them so that sizes are equal or 1."),
    "axis_of_a_part": (lambda: x().std(5), IndexRangeError,
                       "std: var: axis 5 of a tensor of shape (3, 4). Axes run from -2 to 1."),
    "axis_of_a_mean": (lambda: x().mean(5), IndexRangeError,
                       "mean: sum: axis 5 of a tensor of shape (3, 4). Axes run from -2 to 1."),
    "part_of_a_pool": (lambda: image().max_pool2d(9), ShapeError,
                       "max_pool2d: window: size 9, stride 9, dilation 1 on axis 2 of (1, 2, 6, 6): the window "
                       "spans 9 elements. Pad the input or use a smaller window."),
    "nothing_to_resize": (lambda: x().interpolate(3), ShapeError,
                          "interpolate: shape (3, 4) has no spatial entries. Give (batch, channels, *spatial), "
                          "none of them empty."),
    "adaptive": (lambda: v().adaptive_avg_pool2d(1), ShapeError,
                 "adaptive_avg_pool2d: shape (3,) has fewer than two axes. Unsqueeze it."),
    "weights_of_classes": (lambda: x().nll_loss(i(), v()), ShapeError,
                           "nll_loss: predictions (3, 4), weight (3,): must be one weight per class. Reshape it."),
    "smoothing": (lambda: x().cross_entropy(i(), label_smoothing=2), SettingError,
                  "cross_entropy: label_smoothing=2. Give a number from 0 to 1."),
    "delta": (lambda: x().huber_loss(x(), delta=-1), SettingError,
              "huber_loss: delta=-1. Give a number above 0."),
    "attention": (lambda: v().scaled_dot_product_attention(v(), v()), ShapeError,
                  "scaled_dot_product_attention: query, key and value of shapes (3,), (3,), (3,): the last two "
                  "axes must be positions and features. Unsqueeze the vectors."),
    "heads": (lambda: NN.MultiHeadAttention(4, 2)(x()), ShapeError,
              "MultiHeadAttention: query of shape (3, 4): give (batch, length, 4). Unsqueeze it, or build the "
              "layer with a different embed_dim."),
    "momentum": (lambda: NN.BatchNorm(2, momentum=None), SettingError,
                 "BatchNorm: momentum=None. Give a number from 0 to 1."),
    "parameters": (lambda: NN.optim.SGD(3), SettingError,
                   "SGD: parameters=3. Give model.parameters(), or a list of tensors."),
    "betas": (lambda: NN.optim.Adam([Tensor([1.0], requires_grad=True)], betas=3), SettingError,
              "Adam: betas=3. Give two numbers from 0 to below 1, such as (0.9, 0.999)."),
}  # fmt: skip


def test_numbers_of_numpy_are_numbers() -> None:
    """np.prod(shape) as in_features was refused as no whole number, and so were np.float32 as momentum and betas."""
    assert NN.Linear(np.prod((2, 2)), np.int64(3)).weight.shape == (3, 4)
    assert NN.Conv2d(2, 3, (np.int64(3), 3)).weight.shape == NN.Conv2d(2, 3, np.int32(3)).weight.shape == (3, 2, 3, 3)
    assert NN.LayerNorm(np.int64(3)).weight.shape == NN.RMSNorm([np.int64(3)]).weight.shape == (3,)
    assert NN.LayerNorm(np.array([2, 3])).weight.shape == (2, 3)
    assert NN.BatchNorm(np.int64(2), momentum=np.float32(0.5)).momentum == 0.5
    parameter = Tensor([1.0], requires_grad=True)
    assert len(NN.optim.Adam([parameter], np.float32(0.5), np.array([0.5, 0.75])).betas) == 2


test_the_message_is_this = each_message(CASES)
